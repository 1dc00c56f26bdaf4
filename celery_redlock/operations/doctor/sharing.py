"""Nodes that have other uses besides locks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from celery_redlock.core.transport.client import each_node
from celery_redlock.core.transport.url import mask_url, parse_node
from celery_redlock.errors import ConfigurationError
from celery_redlock.operations.doctor.finding import WARNING
from celery_redlock.operations.doctor.rule import Problem, node_rule, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.transport.url import NodeAddress
    from celery_redlock.operations.doctor.case import Case
    from celery_redlock.operations.doctor.finding import Finding
    from celery_redlock.operations.inspect import NodeReport

__all__ = ["celery_servers", "foreign_keys"]

_SHOWN = 3  # names
_REMEDY = (
    "Give locks Redis servers of their own. A busy broker or cache delays them, and a "
    "full one evicts them."
)
_USES = {
    "broker": ("broker_url", "broker_read_url", "broker_write_url"),
    "result backend": ("result_backend",),
}


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
