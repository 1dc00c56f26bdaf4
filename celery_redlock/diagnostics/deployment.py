"""What can be wrong with the nodes taken together."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections import defaultdict
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from celery_redlock.core.examination import Standing
from celery_redlock.diagnostics.finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.address import NodeAddress
    from celery_redlock.core.examination import Glance
    from celery_redlock.diagnostics.case import Case

__all__ = ["guard", "hosts", "number", "quorum", "standing", "tls", "twins"]

_FEW = 3
_HERE = "this machine"
_CONFIG = re.compile(r"protocol (\S+), max_ttl (\S+) s, nodes (.*)")


def quorum(case: Case) -> Iterator[Finding]:
    """Find that nothing can be locked, or that one more loss is one too many."""
    nodes, needed, voting = len(case.charts), case.redlock.quorum, len(case.voting)
    denied = any(chart.denied for chart in case.charts)
    if voting < needed:
        yield Finding(
            "no-quorum",
            Severity.ERROR,
            f"Only {voting} of {nodes} nodes vote, and {needed} are needed: nothing "
            "can be locked.",
            "See below what keeps the others from it.",
        )
    elif voting == needed < nodes and not denied:
        yield Finding(
            "quorum-edge",
            Severity.WARNING,
            f"{voting} of {nodes} nodes vote, just enough: when one more is lost, "
            "nothing can be locked.",
            "See below what keeps the others from it.",
        )


def standing(case: Case) -> Iterator[Finding]:
    """Find nodes that answer and do not vote, and say what they wait for."""
    for chart in case.seen:
        if not chart.denied:
            yield from _standing_of(chart.glance, case)


def _standing_of(glance: Glance, case: Case) -> Iterator[Finding]:
    label, quarantine = glance.label, case.redlock.timing.quarantine
    by_itself = (
        "It votes again by itself. (For a brand-new deployment, `celery -A proj "
        "redlock init` ends the wait.)"
    )
    if glance.standing is Standing.QUARANTINED:
        yield Finding(
            "quarantine",
            Severity.WARNING,
            f"Node {label} is new or has restarted, and does not vote for "
            f"{glance.wait:.0f} s more.",
            by_itself,
            label,
        )
    elif glance.standing is Standing.NEW:
        yield Finding(
            "quarantine",
            Severity.WARNING,
            f"Node {label} is new or has restarted, and will not vote for "
            f"{quarantine:.0f} s from when it is first asked to.",
            by_itself,
            label,
        )
    elif glance.standing is Standing.UNSYNCED:
        yield Finding(
            "unsynced",
            Severity.WARNING,
            f"Node {label} has restarted, and does not vote before it was told the "
            "fences that others granted.",
            "That happens with one of the next locks, if enough others vote.",
            label,
        )
    elif glance.standing is Standing.CLOSED:
        yield Finding(
            "closed",
            Severity.ERROR,
            f"Node {label} is {glance.reason}.",
            "A reconfiguration has not been finished: run `celery -A proj redlock "
            "reconfigure` again, with the same arguments.",
            label,
        )
    elif glance.standing is Standing.ESTRANGED:
        yield Finding(
            "configuration",
            Severity.ERROR,
            f"Node {label} was set up by clients with other settings: "
            f"{_difference(glance.reason, case.redlock.guard.config)}.",
            "Use the same settings everywhere, or move the nodes to yours with "
            "`celery -A proj redlock reconfigure`.",
            label,
        )


def _difference(theirs: str, ours: str) -> str:
    """Say in words how the configuration of a node differs from ours."""
    there, here = _CONFIG.fullmatch(theirs), _CONFIG.fullmatch(ours)
    if not there or not here:
        return f"theirs are {theirs!r}, yours {ours!r}"
    parts = []
    if there[1] != here[1]:
        parts.append(f"their protocol is {there[1]}, yours {here[1]}")
    if there[2] != here[2]:
        parts.append(f"their redlock_max_ttl is {there[2]} s, yours {here[2]} s")
    nodes_there, nodes_here = set(there[3].split(", ")), set(here[3].split(", "))
    if more := nodes_there - nodes_here:
        parts.append(f"they have {', '.join(sorted(more))}, which you have not")
    if less := nodes_here - nodes_there:
        parts.append(f"you have {', '.join(sorted(less))}, which they have not")
    return "; ".join(parts)


def guard(case: Case) -> Iterator[Finding]:
    """Find that nodes are trusted to remember."""
    if not case.redlock.guard.enabled:
        yield Finding(
            "guard-off",
            Severity.WARNING,
            "The restart guard is off: a node that restarts empty votes at once, "
            "which can let a second holder in, and fences can repeat.",
            "Set redlock_restart_guard = True.",
        )


def number(case: Case) -> Iterator[Finding]:
    """Find numbers of nodes that give little for what they cost."""
    nodes = len(case.charts)
    lost = nodes - case.redlock.quorum
    if nodes < _FEW:
        yield Finding(
            "few-nodes",
            Severity.WARNING,
            f"There {'is 1 node' if nodes == 1 else f'are {nodes} nodes'}: when one is "
            "lost, nothing can be locked.",
            "Use three or five.",
        )
    elif nodes % 2 == 0:
        yield Finding(
            "even-nodes",
            Severity.NOTE,
            f"{nodes} nodes survive the loss of {lost}, as {nodes - 1} would.",
            f"Use {nodes - 1}, or {nodes + 1}, which survive the loss of {lost + 1}.",
        )


def twins(case: Case) -> Iterator[Finding]:
    """Find servers that are listed more than once."""
    by_run_id = defaultdict(list)
    for chart in case.seen:
        by_run_id[chart.glance.run_id].append(chart.label)
    for run_id, labels in by_run_id.items():
        if run_id and len(labels) > 1:
            yield Finding(
                "same-server",
                Severity.ERROR,
                f"{' and '.join(labels)} are one and the same server: it gets one vote "
                f"of {len(labels)}.",
                "List each server once. A majority must be of independent servers.",
                labels[0],
            )


def hosts(case: Case) -> Iterator[Finding]:
    """Find nodes that will all be lost together."""
    places = {_place_of(address) for address in case.redlock.addresses}
    if len(case.charts) < 2 or len(places) > 1:  # noqa: PLR2004  (one is "few nodes")
        return
    (place,) = places
    yield Finding(
        "one-host",
        Severity.NOTE if place == _HERE else Severity.WARNING,
        f"All {len(case.charts)} nodes are on {place}, and fail together with it.",
        "In production, put each on a machine of its own.",
    )


def tls(case: Case) -> Iterator[Finding]:
    """Find nodes that are talked to openly across a public network."""
    for address in case.redlock.addresses:
        parts = urlsplit(address.url)
        if parts.scheme != "redis":
            continue
        public = [ip for ip in _resolve(parts.hostname or "") if ip.is_global]
        if public:
            yield Finding(
                "no-tls",
                Severity.WARNING,
                f"Node {address.name} is reached without TLS at {public[0]}, a public "
                "address.",
                "Use rediss://, or a private network: whoever is on the way can read "
                "the password and change locks.",
                address.name,
            )


def _resolve(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


def _place_of(address: NodeAddress) -> str:
    parts = urlsplit(address.url)
    if parts.scheme == "unix":
        return _HERE
    found = _resolve(parts.hostname or "")
    if any(ip.is_loopback for ip in found):
        return _HERE
    return str(min(found, key=str)) if found else parts.hostname or address.name
