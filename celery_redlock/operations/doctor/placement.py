"""The number of nodes, their machines, TLS, and other uses besides locks."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.secret import SecretUrl
from celery_redlock.errors import ConfigurationError
from celery_redlock.operations.doctor.rule import (
    NOTE,
    WARNING,
    Case,
    Finding,
    Severity,
    rule,
)
from celery_redlock.wire.client import each_node
from celery_redlock.wire.url import NodeAddress, parse_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery import Celery

    from celery_redlock.operations.inspect import NodeReport

_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_FEW = 3
_HERE = "this machine"
_SHOWN = 3  # names
_REMEDY = (
    "Give locks Redis servers of their own. A busy broker or cache delays them, and a "
    "full one refuses them."
)
# Scheme of a URL without TLS -> what to do.
_TLS = {
    "redis": "Use rediss://",
    "etcd": "Use etcds://",
    "zookeeper": "Use a private network (TLS to ZooKeeper is not supported)",
}
_USES = {
    "broker": ("broker_url", "broker_read_url", "broker_write_url"),
    "result backend": ("result_backend",),
}


@rule()
def number(case: Case) -> Iterator[Finding]:
    """Find numbers of nodes that bring little for what they cost."""
    if any(address.is_store for address in case.redlock.addresses):
        return
    nodes = len(case.reports)
    lost = nodes - case.redlock.quorum
    if nodes < _FEW:
        yield Finding(
            "few-nodes",
            NOTE if nodes == 1 else WARNING,
            f"There {'is 1 node: while it' if nodes == 1 else 'are 2 nodes: while one'}"
            " is down, no lock is granted.",
            "This is enough to begin. Use three or five when locks must survive the "
            "loss of a node.",
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
        f"The {len(case.reports)} nodes are all on {place}, and fail together with it.",
        "In production, put each on a machine of its own.",
    )


@rule()
def tls(case: Case) -> Iterator[Finding]:
    """Find nodes that are reached without encryption from other machines."""
    plain = {
        report.label
        for report in case.reports
        if report.status.info.get("encrypted") == "no"
    }
    for address, ip in _remote(case):
        if address.url.scheme == "redis" or address.name in plain:
            yield Finding(
                "no-tls",
                WARNING if ip.is_global else NOTE,
                f"Node {address.name} is reached without TLS at {ip}, "
                f"{'a public address' if ip.is_global else 'on another machine'}.",
                f"{_TLS.get(address.url.scheme, 'Use sslmode=verify-full')}, "
                "unless the network between is yours alone. Otherwise others on the "
                "way can read the password and change locks.",
                address.name,
            )


@rule()
def password(case: Case) -> Iterator[Finding]:
    """Find nodes that other machines reach without a password."""
    for address, ip in _remote(case):
        parts = urlsplit(address.url.reveal())
        secrets = parse_qs(parts.query).keys() & {"password", "ssl_certfile", "cert"}
        if not (parts.password or secrets or parts.scheme.startswith("postgres")):
            yield Finding(
                "no-password",
                WARNING,
                f"Node {address.name} is reached without a password at {ip}, on "
                "another machine.",
                "Give it a password, or a user with the rules that "
                f"`{COMMAND} doctor --acl` prints. Otherwise every program in its "
                "network can delete locks.",
                address.name,
            )


def _remote(case: Case) -> Iterator[tuple[NodeAddress, _IPAddress]]:
    """Yield the nodes that are not on this machine, each with its worst address."""
    for address in case.redlock.addresses:
        elsewhere = [ip for ip in _ips_of(address) if not ip.is_loopback]
        if elsewhere:
            yield address, max(elsewhere, key=lambda ip: ip.is_global)


def _ips_of(address: NodeAddress) -> list[_IPAddress]:
    found = []
    for host in address.hosts:
        # It may be unknown, or no name at all.
        with contextlib.suppress(OSError, UnicodeError):
            found += socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


def _place_of(address: NodeAddress) -> str:
    found = _ips_of(address)
    if not address.hosts or any(ip.is_loopback for ip in found):
        return _HERE
    return str(min(found, key=str)) if found else address.hosts[0] or address.name


@rule("Node")
def foreign_keys(report: NodeReport, case: Case) -> Iterator[Finding]:
    """Find nodes with keys of other programs."""
    others = [f"the key {key!r}" for key in report.foreign_keys[:_SHOWN]]
    others += [
        f"database {name[2:]}"
        for name in report.status.info
        if re.fullmatch(r"db\d+", name) and name != f"db{report.database}"
    ]
    if others:
        fact = f"has other uses besides locks: it has {', '.join(others)}"
        yield Finding("shared", _sharing(case), fact, _REMEDY)


@rule()
def celery_servers(case: Case) -> Iterator[Finding]:
    """Find nodes that are also the broker or the result backend, under any name."""
    for use, settings in _USES.items() if case.app else ():
        urls = [url for name in settings for url in _urls_of(case.app, name)]
        addresses = {address.url: address for address in _redis_at(urls)}
        servers = each_node(
            list(addresses.values()),
            lambda client: client.facts.run_id,
            timeout=case.redlock.timing.connect_timeout,
        )
        run_ids = set(servers.results.values()) - {""}
        fact = f"is Celery's {use} as well ({', '.join(map(str, addresses))})"
        for report in case.reports:
            if report.status.run_id in run_ids:
                problem = Finding("shared", _sharing(case), fact, _REMEDY)
                yield problem.of("Node", report.label)


def _sharing(case: Case) -> Severity:
    """Return how bad other uses are. With one Redis for all, they are meant."""
    return NOTE if len(case.reports) == 1 else WARNING


def _urls_of(app: Celery, setting: str) -> list[SecretUrl]:
    """Return what is in a setting of Celery's: a URL, or several."""
    value = getattr(app.conf, setting, None) or ""
    urls = value if isinstance(value, (list, tuple)) else str(value).split(";")
    return [SecretUrl(str(url)) for url in urls]


def _redis_at(urls: Iterable[SecretUrl]) -> Iterator[NodeAddress]:
    """Yield the Redis servers at URLs as Celery writes them."""
    for url in urls:
        # Celery writes the database as `//`, and a socket as `redis+socket:`.
        plain = re.sub(r"^(?:redis\+)?socket://", "unix://", url.reveal())
        try:
            yield parse_node(re.sub(r"/{2,}$", "/0", plain))
        except ConfigurationError:
            continue  # another kind of server
