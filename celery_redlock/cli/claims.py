"""``release --claims``: let calls be published again that nobody waits for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from celery_redlock.cli.session import DONE, ERROR, WARNING, Failure, Session
from celery_redlock.cli.table import (
    Column,
    Row,
    duration,
    painted,
    table,
    terminal_width,
)
from celery_redlock.cli.words import holder_document, plural, unseen_lines
from celery_redlock.core.reservations import free_reservations, reservations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.reservations import Reservation, Reservations

__all__ = ["release_reservations"]

_COLUMNS = (
    Column("KEY", cut="end"),
    Column("TASK", cut="start"),
    Column("ID", cut="end"),
    Column("LEFT", right=True),
    Column("NODES", right=True),
)
_CALLED = {"claim": "claim", "cooldown": "cool-down"}
_EFFECT = {
    "claim": (
        "A job that still waits in its queue runs all the same; a second one of the",
        "same call may be queued beside it.",
    ),
    "cooldown": ("The same calls may be published, and run, at once.",),
}


def release_reservations(
    session: Session, kind: str, pattern: str, *, dry_run: bool, yes: bool
) -> int:
    """Show claims or cool-downs, ask, and free them. Return the exit code.

    Args:
        session: Speaks, and asks.
        kind: One of ``core.reservations.KINDS``.
        pattern: Which calls.
        dry_run: Show them only.
        yes: Do not ask.
    """
    seen = reservations(session.redlock, kind, pattern)
    nodes, called = len(session.redlock.labels), _CALLED[kind]
    if len(seen.unseen) == nodes:
        raise Failure("\n".join(unseen_lines(seen.unseen)), ERROR)
    unseen = [painted(line, "warning") for line in unseen_lines(seen.unseen)]
    document = _document(seen, dry_run=dry_run)
    if not seen.found:
        session.tell([f"There is no {called} for {pattern}.", *unseen], document)
        return WARNING
    session.say(*_table(seen.found, nodes=nodes), "", *_EFFECT[kind], *unseen, "")
    lines, freed = ["Nothing was done."], 0
    if not dry_run:
        count = plural(len(seen.found), called)
        session.confirm(f"Release {count}?", yes=yes)
        freed, silent = free_reservations(session.redlock, seen)
        document |= {"released": freed, "unseen": {**seen.unseen, **silent}}
        lines = [f"Released {plural(freed, called)}."]
        if silent:
            lines += [painted(line, "warning") for line in unseen_lines(silent)]
            lines.append("What they have of it ends by itself.")
    session.tell(lines, document)
    return DONE if dry_run or freed else WARNING


def _table(found: Sequence[Reservation], *, nodes: int) -> list[str]:
    rows: list[Row] = [
        [
            one.key,
            one.holder.task or "–",
            one.holder.task_id or "–",
            duration(one.left),
            f"{one.nodes}/{nodes}",
        ]
        for one in found
    ]
    return table(_COLUMNS, rows, width=terminal_width())


def _document(seen: Reservations, *, dry_run: bool) -> dict[str, Any]:
    return {
        "kind": seen.kind,
        "dry_run": dry_run,
        "found": [
            {
                "key": one.key,
                **holder_document(one.holder),
                "left": None if math.isinf(one.left) else one.left,
                "nodes": one.nodes,
            }
            for one in seen.found
        ],
        "released": 0,
        "unseen": seen.unseen,
    }
