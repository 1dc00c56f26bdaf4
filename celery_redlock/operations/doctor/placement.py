"""The number of nodes, their machines, and TLS."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from celery_redlock.operations.doctor.finding import NOTE, WARNING, Finding
from celery_redlock.operations.doctor.rule import rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.transport.url import NodeAddress
    from celery_redlock.operations.doctor.case import Case

__all__ = ["hosts", "number", "tls"]

_FEW = 3
_HERE = "this machine"


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
