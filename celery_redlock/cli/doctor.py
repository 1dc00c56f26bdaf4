"""``doctor``: what makes locks unsafe, slow or unavailable, and what to do about it."""

from __future__ import annotations

import itertools
import textwrap
from statistics import median
from typing import TYPE_CHECKING

import click

from celery_redlock.cli.session import DONE, ERROR, WARNING, Command, Session
from celery_redlock.cli.table import (
    Column,
    Row,
    painted,
    table,
    terminal_width,
)
from celery_redlock.cli.words import plural, standing_cell
from celery_redlock.core.examination import examine
from celery_redlock.core.permissions import acl_rules
from celery_redlock.diagnostics import Case, Severity, findings_of, worst_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.examination import Chart
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.diagnostics import Finding

__all__ = ["doctor"]

_MS = 1000
_WIDTH = 88
_MOODS = {
    Severity.NOTE: "faint",
    Severity.WARNING: "warning",
    Severity.ERROR: "bad",
}
_CODES = {Severity.NOTE: DONE, Severity.WARNING: WARNING, Severity.ERROR: ERROR}


@click.command(cls=Command, short_help="Find what makes locks unsafe or slow.")
@click.option("--acl", is_flag=True, help="Print the rules of a user for the nodes.")
@click.pass_context
def doctor(ctx: click.Context, *, acl: bool) -> None:
    """Examine the nodes and what uses them.

    Exits with 0 when there is nothing worse than a note, 1 for a warning, 3 for an
    error. Watches the nodes' clocks for a second.
    """
    session: Session = ctx.obj
    if acl:
        session.tell(*_acl(session.redlock))
        return
    session.app.loader.import_default_modules()
    charts = examine(session.redlock)
    found = findings_of(Case(session.redlock, charts, session.app))
    worst = worst_of(found)
    session.tell(
        [*_nodes(charts), "", *_findings(found), _verdict(found)],
        {
            "nodes": [
                {"node": chart.label, "state": str(standing_cell(chart.glance))}
                for chart in charts
            ],
            "findings": [finding.as_dict() for finding in found],
            "worst": worst.word if worst else None,
        },
    )
    ctx.exit(_CODES[worst] if worst else DONE)


def _nodes(charts: Sequence[Chart]) -> list[str]:
    columns = (
        Column("NODE"),
        Column("STATE", cut="end"),
        Column("ANSWERS IN", right=True),
        Column("REDIS"),
    )
    rows: list[Row] = []
    for chart in charts:
        latencies = chart.rhythm.latencies
        answers = f"{median(latencies) * _MS:.2f} ms" if latencies else "–"
        version = chart.glance.info.get("redis_version", "–")
        rows.append([chart.label, standing_cell(chart.glance), answers, version])
    return table(columns, rows, width=terminal_width())


def _findings(found: Sequence[Finding]) -> list[str]:
    """Return what was found; what has the same remedy is put together."""
    lines: list[str] = []
    width = min(_WIDTH, terminal_width() or _WIDTH)
    alike = itertools.groupby(found, lambda f: (f.severity, f.code, f.remedy))
    for (severity, code, remedy), findings in alike:
        lines.append(f"{painted(f'{severity.word:<9}', _MOODS[severity])}{code}")
        for text in (finding.fact for finding in findings):
            lines += _wrapped(text, "  ", width)
        lines += [painted(line, "faint") for line in _wrapped(remedy, "  ", width)]
        lines.append("")
    return lines


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _verdict(found: Sequence[Finding]) -> str:
    counts = [
        plural(number, severity.word)
        for severity in reversed(Severity)
        if (number := sum(finding.severity is severity for finding in found))
    ]
    return f"{', '.join(counts)}." if counts else "Nothing to complain about."


def _acl(service: Redlock) -> tuple[list[str], dict[str, str]]:
    """Return the rules of a user who may do what this package does."""
    select = any(not node.name.endswith("/0") for node in service.addresses)
    rules = acl_rules(service.guard.prefix, select=select)
    lines = [
        "A user of the nodes who may do what is needed and no more, in redis-cli:",
        "",
        f"    ACL SETUSER redlock on >PASSWORD {rules}",
        "",
        "or in the file of users, or redis.conf:",
        "",
        f"    user redlock on >PASSWORD {rules}",
        "",
        "Then redis://redlock:PASSWORD@host:6379/0 in redlock_nodes.",
    ]
    return lines, {"rules": rules}
