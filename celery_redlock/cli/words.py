"""How locks and their holders are put, for people and for programs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from celery_redlock.cli.table import Cell, Column, Row, duration
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.examination import Standing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redlock.core.examination import Glance
    from celery_redlock.core.lease import Holder
    from celery_redlock.core.survey import SeenLock

__all__ = [
    "LOCK_COLUMNS",
    "age_of",
    "holder_document",
    "lock_document",
    "lock_row",
    "plural",
    "standing_cell",
    "unseen_lines",
]

LOCK_COLUMNS = (
    Column("KEY", cut="end"),
    Column("TASK", cut="start"),
    Column("ID", cut="end"),
    Column("HOST", cut="end"),
    Column("PID", right=True, spare=True),
    Column("AGE", right=True),
    Column("LEFT", right=True),
    Column("FENCE", right=True, spare=True),
    Column("VOTES", right=True),
)


def age_of(holder: Holder) -> float | None:
    """Return the seconds since a holder began, by its clock and ours."""
    if not holder.started:
        return None
    return max(0.0, SYSTEM_CLOCK.wall_us() / 1e6 - holder.started)


def lock_row(lock: SeenLock, *, nodes: int, quorum: int) -> Row:
    """Return the cells of ``LOCK_COLUMNS``."""
    holder, age = lock.holder, age_of(lock.holder)
    left = duration(lock.ttl_left)
    return [
        lock.key,
        holder.task or "–",
        holder.task_id or "–",
        holder.host or "–",
        str(holder.pid or "–"),
        "–" if age is None else duration(age),
        Cell(left, "bad") if math.isinf(lock.ttl_left) else left,
        str(holder.fence or "–"),
        Cell(
            f"{lock.votes}/{nodes}",
            "bad"
            if lock.votes < quorum
            else "good"
            if lock.votes == nodes
            else "warning",
        ),
    ]


def holder_document(holder: Holder) -> dict[str, Any]:
    """Return what JSON says of a holder. The token proves ownership: it is not in."""
    return {
        "task": holder.task,
        "task_id": holder.task_id,
        "host": holder.host,
        "pid": holder.pid,
        "started": holder.started or None,
        "age": age_of(holder),
        "fence": holder.fence,
    }


def lock_document(lock: SeenLock, *, quorum: int) -> dict[str, Any]:
    """Return what JSON says of a lock. Durations are in seconds; None: for ever."""
    return {
        "key": lock.key,
        **holder_document(lock.holder),
        "ttl_left": None if math.isinf(lock.ttl_left) else lock.ttl_left,
        "votes": lock.votes,
        "held": lock.votes >= quorum,
    }


def standing_cell(seen: Glance) -> Cell:
    """Say how a node stands in the vote."""
    standing, words = seen.standing, seen.standing.value
    if standing is Standing.VOTES:
        return Cell(words, "good")
    if standing is Standing.QUARANTINED:
        return Cell(f"{words}, {duration(seen.wait)} left", "warning")
    if standing in (Standing.NEW, Standing.UNSYNCED):
        return Cell(words, "warning")
    if standing in (Standing.UNFIT, Standing.SILENT):
        words = seen.reason.partition(";")[0]
    return Cell(words, "bad")


def unseen_lines(unseen: Mapping[str, str]) -> list[str]:
    """Say which nodes could not be looked at, and why."""
    return [f"Not seen: {label} {reason}." for label, reason in unseen.items()]


def plural(number: int, thing: str) -> str:
    """Return ``1 lock``, ``2 locks``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
