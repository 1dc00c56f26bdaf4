"""Whether a node does Celery's work as well, under whatever name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from celery_redlock.core.address import mask_url, parse_node
from celery_redlock.diagnostics.finding import Finding, Severity
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.address import NodeAddress
    from celery_redlock.diagnostics.case import Case

__all__ = ["celerys"]

_USES = {
    "broker": ("broker_url", "broker_read_url", "broker_write_url"),
    "result backend": ("result_backend",),
}


def celerys(case: Case) -> Iterator[Finding]:
    """Find nodes that are the broker or keep the results."""
    for use, settings in _USES.items() if case.app else ():
        values = (getattr(case.app.conf, setting, None) for setting in settings)
        addresses = {a.url: a for value in values for a in _addresses_in(value)}
        timeout = case.redlock.timing.connect_timeout
        known = {_run_id(address, timeout) for address in addresses.values()}
        for chart in case.seen:
            if chart.glance.run_id in known:
                urls = ", ".join(mask_url(url) for url in addresses)
                yield Finding(
                    "shared",
                    Severity.WARNING,
                    f"Node {chart.label} is Celery's {use} as well ({urls}).",
                    "Give locks Redis servers of their own: what is busy delays them, "
                    "what is full throws them away.",
                    chart.label,
                )


def _addresses_in(value: Any) -> Iterator[NodeAddress]:
    """Read what Celery takes for a URL, or for several of them, and Redis is at."""
    urls = value if isinstance(value, (list, tuple)) else str(value or "").split(";")
    for url in urls:
        # Celery writes the database as `//`, and a socket as `redis+socket:`.
        plain = re.sub(r"^(?:redis\+)?socket://", "unix://", str(url))
        plain = re.sub(r"/{2,}$", "/0", plain)
        try:
            yield parse_node(plain)
        except ConfigurationError:
            continue  # another kind of server


def _run_id(address: NodeAddress, timeout: float) -> str:
    """Return the random name of a server's process, ``"?"`` if it cannot be had."""
    from redis.exceptions import RedisError  # noqa: PLC0415  (import is 60 ms)

    connection = address.connection(timeout)
    try:
        connection.connect()
        connection.send_command("INFO", "server")
        said = bytes(connection.read_response()).decode(errors="replace")
    except (RedisError, OSError, UnicodeError):
        return "?"
    finally:
        connection.disconnect()
    found = re.search(r"run_id:(\w+)", said)
    return found[1] if found else "?"
