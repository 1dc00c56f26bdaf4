"""``top``: nodes, locks and rates, live."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.live import show_live
from celery_redlock.cli.session import Command, Session
from celery_redlock.cli.table import Column, Row, painted, table, terminal_width
from celery_redlock.cli.words import (
    LOCK_COLUMNS,
    age_of,
    lock_row,
    plural,
    standing_cell,
)
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.examination import Standing, glance
from celery_redlock.core.survey import survey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.examination import Glance
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.survey import Survey

__all__ = ["top"]

_NODE_COLUMNS = (
    Column("NODE"),
    Column("STATE", cut="end"),
    Column("LOCKS", right=True),
    Column("COMMANDS/S", right=True),
    Column("MEMORY", right=True),
)
_FOOT = 3  # lines below the locks


@click.command(cls=Command, short_help="Watch nodes, locks and rates.")
@click.option("--every", default=2.0, show_default=True, help="Seconds between looks.")
@click.pass_context
def top(ctx: click.Context, *, every: float) -> None:
    """Watch the nodes and the locks, the oldest first, until Ctrl-C.

    It counts a lock that was taken and released between two looks in no rate.
    """
    session: Session = ctx.obj
    watched = _Watched(session.redlock)

    def frame() -> Sequence[str]:
        watched.look()
        return session.render(watched)

    show_live(frame, every=every, plain=session.as_json)


class _Watched:
    """The deployment at the last look, and what has changed since the one before."""

    def __init__(self, redlock: Redlock) -> None:
        self._redlock = redlock
        self._nodes: list[Glance] = []
        self._seen: Survey | None = None
        self._tokens: set[str] = set()
        self._looked_at = 0.0
        self._taken = self._freed = 0.0  # a second

    def look(self) -> None:
        """Look at everything."""
        redlock = self._redlock
        first = self._seen is None
        self._nodes = glance(redlock)
        self._seen = survey(
            redlock.addresses,
            redlock.guard.prefix,
            timeout=redlock.timing.connect_timeout,
        )
        now = SYSTEM_CLOCK.monotonic()
        tokens = {lock.holder.token for lock in self._seen.held}
        if not first:
            elapsed = now - self._looked_at
            self._taken = len(tokens - self._tokens) / elapsed
            self._freed = len(self._tokens - tokens) / elapsed
        self._tokens, self._looked_at = tokens, now

    def lines(self) -> list[str]:
        """Return a screen full: as many locks as there is room for."""
        seen = self._seen
        if seen is None:
            return []
        width, nodes = terminal_width(), len(self._nodes)
        voting = sum(node.standing is Standing.VOTES for node in self._nodes)
        mood = (
            "good" if voting == nodes else "warning" if voting >= seen.quorum else "bad"
        )
        head = [
            painted(f"{voting} of {plural(nodes, 'node')} vote", mood),
            f"{plural(len(seen.held), 'lock')} held",
            f"{self._taken:.1f} taken/s",
            f"{self._freed:.1f} freed/s",
        ]
        lines = ["   ".join(head), "", *self._node_table(seen, width), ""]
        room = shutil.get_terminal_size().lines - len(lines) - _FOOT
        oldest = sorted(seen.held, key=lambda lock: -(age_of(lock.holder) or 0.0))
        rows = [
            lock_row(lock, nodes=nodes, quorum=seen.quorum)
            for lock in oldest[: max(1, room)]
        ]
        if rows:
            lines += table(LOCK_COLUMNS, rows, width=width)
        if len(oldest) > len(rows):
            more = plural(len(oldest) - len(rows), "lock")
            lines.append(painted(f"and {more} more", "faint"))
        return lines

    def _node_table(self, seen: Survey, width: int | None) -> list[str]:
        rows: list[Row] = []
        for node in self._nodes:
            silent = node.standing is Standing.SILENT
            rows.append(
                [
                    node.label,
                    standing_cell(node),
                    "–" if silent else f"{seen.counts[node.label]:,}",
                    node.info.get("instantaneous_ops_per_sec", "–"),
                    node.info.get("used_memory_human", "–"),
                ]
            )
        return table(_NODE_COLUMNS, rows, width=width)

    def document(self) -> dict[str, Any]:
        """Return the same for a program."""
        seen = self._seen
        if seen is None:
            return {}
        return {
            "nodes": [
                {
                    "node": node.label,
                    "state": str(standing_cell(node)),
                    "votes": node.standing is Standing.VOTES,
                    "locks": seen.counts[node.label],
                }
                for node in self._nodes
            ],
            "quorum": seen.quorum,
            "held": len(seen.held),
            "taken_per_second": self._taken,
            "freed_per_second": self._freed,
        }
