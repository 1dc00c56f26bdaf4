"""The number of nodes, their machines, TLS, and other uses besides locks."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from celery_redlock.core.transport.client import each_node
from celery_redlock.core.transport.url import NodeAddress, mask_url, parse_node
from celery_redlock.errors import ConfigurationError
from celery_redlock.operations.doctor.rule import (
    NOTE,
    WARNING,
    Case,
    Finding,
    Problem,
    node_rule,
    rule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.operations.inspect import NodeReport

__all__ = ["celery_servers", "foreign_keys", "hosts", "number", "tls"]

_FEW = 3
_HERE = "this machine"
_SHOWN = 3  # names
_REMEDY = (
    "Give locks Redis servers of their own. A busy broker or cache delays them, and a "
    "full one evicts them."
)
_USES = {
    "broker": ("broker_url", "broker_read_url", "broker_write_url"),
    "result backend": ("result_backend",),
}


@rule()
def number(case: Case) -> Iterator[Finding]:
    """Find numbers of nodes that bring little for what they cost."""
    nodes = len(case.reports)
    lost = nodes - case.redlock.quorum
    if nodes < _FEW:
        yield Finding(
            "few-nodes",
            WARNING,
            f"There {'is 1 node' if nodes == 1 else f'are {nodes} nodes'}: if one is "
            "lost, nothing can be locked.",
            "Use three or five.",
        )
    elif nodes % 2 == 0:
        yield Finding(
            "even-nodes",
            NOTE,
            f"{nodes} nodes survive the loss of {lost}, as {nodes - 1} would.",
            f"Use {nodes - 1}, or {nodes + 1}, which survive the loss of {lost + 1}.",
        )


@rule()
def hosts(case: Case) -> Iterator[Finding]:
    """Find nodes that will all be lost together."""
    places = {_place_of(address) for address in case.redlock.addresses}
    if len(case.reports) < 2 or len(places) > 1:  # noqa: PLR2004  (one is "few nodes")
        return
    (place,) = places
    yield Finding(
        "one-host",
        NOTE if place == _HERE else WARNING,
        f"All {len(case.reports)} nodes are on {place}, and fail together with it.",
        "In production, put each on a machine of its own.",
    )


@rule()
def tls(case: Case) -> Iterator[Finding]:
    """Find nodes that are reached without encryption across a public network."""
    for address in case.redlock.addresses:
        parts = urlsplit(address.url)
        if parts.scheme != "redis":
            continue
        public = [ip for ip in _resolve(parts.hostname or "") if ip.is_global]
        if public:
            yield Finding(
                "no-tls",
                WARNING,
                f"Node {address.name} is reached without TLS at {public[0]}, a public "
                "address.",
                "Use rediss://, or a private network. Otherwise others on the way can "
                "read the password and change locks.",
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


@node_rule()
def foreign_keys(report: NodeReport, _: Case) -> Iterator[Problem]:
    """Find nodes with keys of other programs."""
    others = [f"the key {key!r}" for key in report.foreign_keys[:_SHOWN]]
    others += [
        f"database {name[2:]}"
        for name in report.status.info
        if re.fullmatch(r"db\d+", name) and name != f"db{report.database}"
    ]
    if others:
        fact = f"has other uses besides locks: it has {', '.join(others)}"
        yield Problem("shared", WARNING, fact, _REMEDY)


@rule()
def celery_servers(case: Case) -> Iterator[Finding]:
    """Find nodes that are also the broker or the result backend, under any name."""
    for use, settings in _USES.items() if case.app else ():
        values = (getattr(case.app.conf, setting, None) for setting in settings)
        addresses = {a.url: a for value in values for a in _addresses_in(value)}
        servers = each_node(
            list(addresses.values()),
            lambda client: client.facts.run_id,
            timeout=case.redlock.timing.connect_timeout,
        )
        run_ids = set(servers.results.values()) - {""}
        fact = f"is Celery's {use} as well ({', '.join(map(mask_url, addresses))})"
        for report in case.reports:
            if report.status.run_id in run_ids:
                problem = Problem("shared", WARNING, fact, _REMEDY)
                yield problem.of("Node", report.label)


def _addresses_in(value: Any) -> Iterator[NodeAddress]:
    """Yield the Redis servers in a setting of Celery's: a URL, or several."""
    urls = value if isinstance(value, (list, tuple)) else str(value or "").split(";")
    for url in urls:
        # Celery writes the database as `//`, and a socket as `redis+socket:`.
        plain = re.sub(r"^(?:redis\+)?socket://", "unix://", str(url))
        plain = re.sub(r"/{2,}$", "/0", plain)
        try:
            yield parse_node(plain)
        except ConfigurationError:
            continue  # another kind of server
