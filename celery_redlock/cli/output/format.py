"""Formats results: tables for a terminal of any width, durations, locks and nodes.

On a narrow terminal, spare columns are left out and long texts are cut. A pipe or a
file gets everything. A hundred thousand lines take about a second.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.text import cut_to, printable, width_of
from celery_redlock.basics.timing import duration
from celery_redlock.cli.output.ink import is_at_terminal, painted
from celery_redlock.operations.words import (
    UNREADABLE,
    age_of,
    keys_beside,
    permit_text,
    plural,
    state_words,
    time_left,
)
from celery_redlock.scripts.keys import keys_of

if TYPE_CHECKING:
    from celery_redlock.locks.lease import Holder
    from celery_redlock.locks.limits import Limit
    from celery_redlock.operations.inspect import NodeStatus
    from celery_redlock.operations.scan import LimitInUse, SeenHolder

_GAP = "  "
_ELLIPSIS = "…"
_READABLE, _LEAST = 16, 8  # characters that are left of a text that is cut


# -- tables ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoodText:
    """A text with a mood: ``good``, ``warning``, ``bad`` or ``faint``."""

    text: str
    mood: str

    def __str__(self) -> str:
        return self.text


Row = Sequence[str | MoodText]


@dataclass(frozen=True, slots=True)
class Column:
    """The header and the look of a column.

    Attributes:
        right: Whether its texts are aligned to the right, as numbers are.
        cut: Where its texts may be cut: ``"start"``, ``"end"`` or ``""``, nowhere.
        spare: Whether it is left out on a narrow terminal.
    """

    name: str
    right: bool = False
    cut: str = ""
    spare: bool = False


def table(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table, with the header first, as wide as the terminal."""
    names = [column.name for column in columns]
    cells = zip(names, *(map(str, row) for row in rows), strict=True)
    widths = [max(map(width_of, texts)) for texts in cells]
    shown = list(range(len(columns)))
    if width := _terminal_width():
        shown = _worth_showing(columns, widths, width)
        _squeeze(columns, widths, shown, width)
    header: Row = [MoodText(column.name, "faint") for column in columns]
    return [
        _GAP.join(_fitted(columns[i], widths[i], row[i]) for i in shown).rstrip()
        for row in (header, *rows)
    ]


def fit(width: int) -> int:
    """Return the smaller of this width and the width of the terminal."""
    return min(width, _terminal_width() or width)


def _terminal_width() -> int | None:
    """Return how many columns there are on stdout, or None if it is no terminal."""
    return shutil.get_terminal_size().columns if is_at_terminal() else None


def _worth_showing(
    columns: Sequence[Column], widths: Sequence[int], width: int
) -> list[int]:
    """Leave out spare columns, the last ones first, until the rest is readable."""
    shown = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        least = sum(
            min(widths[i], _READABLE) if columns[i].cut else widths[i] for i in shown
        )
        if least + len(_GAP) * (len(shown) - 1) <= width:
            break
        if columns[index].spare:
            shown.remove(index)
    return shown


def _squeeze(
    columns: Sequence[Column], widths: list[int], shown: Sequence[int], width: int
) -> None:
    """Narrow the widest columns that can be cut, one character at a time."""
    can_be_cut = [index for index in shown if columns[index].cut]
    excess = sum(widths[i] for i in shown) + len(_GAP) * (len(shown) - 1) - width
    for _ in range(max(0, excess)):
        widest = max(can_be_cut, key=lambda index: widths[index], default=None)
        if widest is None or widths[widest] <= _LEAST:
            return
        widths[widest] -= 1


def _fitted(column: Column, width: int, cell: str | MoodText) -> str:
    text = printable(str(cell))
    if width_of(text) > width:
        at_start = column.cut == "start"
        part = cut_to(text, width - 1, at_start=at_start)
        text = _ELLIPSIS + part if at_start else part + _ELLIPSIS
    filling = " " * (width - width_of(text))
    if isinstance(cell, MoodText):
        text = painted(text, cell.mood)
    return filling + text if column.right else text + filling


# -- words -----------------------------------------------------------------------


def unseen_lines(unseen: Mapping[str, str]) -> list[str]:
    """Return the reason of each node that could not be read."""
    return [
        painted(f"Node {label} {why.rstrip('.')}.", "warning")
        for label, why in unseen.items()
    ]


def doubt_lines(doubts: Mapping[str, str], settings: str = "") -> list[str]:
    """Return why nodes cannot tell the held locks, and how settings differ."""
    return unseen_lines(doubts) + ([painted(settings, "warning")] if settings else [])


def keys_text(key: str) -> str:
    """Return the keys of a call or a lock, for a table."""
    return " and ".join(keys_of(key))


# -- locks and nodes ---------------------------------------------------------------

LOCK_COLUMNS = (
    Column("KEY", cut="end"),
    Column("TASK", cut="start"),
    Column("ID", cut="end"),
    Column("HOST", cut="end"),
    Column("PID", right=True, spare=True),
    Column("AGE", right=True),
    Column("LEFT", right=True),
    Column("FENCE", right=True, spare=True),
    Column("NODES", right=True),
)


def lock_row(lock: SeenHolder, *, nodes: int) -> Row:
    """Return the cells of ``LOCK_COLUMNS``."""
    holder, age = lock.holder, age_of(lock.holder)
    left = time_left(lock.ttl_left)
    mood = "warning" if lock.is_held else "bad"
    others, permit = keys_beside(holder, lock.key), permit_text(lock.permit)
    together = f" with {' and '.join(others)}" if others else ""
    return [
        keys_text(lock.key) + together + (f" ({permit})" if permit else ""),
        (holder.task or "–") if holder.is_ours else MoodText(UNREADABLE, "warning"),
        holder.task_id or "–",
        holder.host or "–",
        str(holder.pid or "–"),
        "–" if age is None else duration(age),
        MoodText(left, "bad") if math.isinf(lock.ttl_left) else left,
        str(holder.fence or "–"),
        MoodText(f"{lock.votes}/{nodes}", "good" if lock.votes == nodes else mood),
    ]


def seen_document(lock: SeenHolder) -> dict[str, Any]:
    """Return a lock for JSON, and of a limit which permit it is."""
    limit, number = lock.permit or (None, None)
    return {
        "key": lock.key,
        **holder_document(lock.holder),
        "permit": number,
        "limit": limit and _limit_document(limit),
        "kept": lock.holder.is_kept,
        "ttl_left": finite(lock.ttl_left),
        "votes": lock.votes,
        "held": lock.is_held,
    }


def _limit_document(limit: Limit) -> dict[str, Any]:
    """Return a limit for JSON. Its period is 0 if it is one of holders at once."""
    return {"key": limit.key, "most": limit.most, "period": limit.period}


def limit_lines(limits: Sequence[LimitInUse], most: int = 20) -> list[str]:
    """Say how many permits of each limit are in use, on a limited number of lines."""
    lines = [
        painted(str(one), "warning") if one.is_full else str(one)
        for one in limits[:most]
    ]
    if len(limits) > most:
        lines.append(f"and {plural(len(limits) - most, 'more limit')}.")
    return lines


def limits_document(
    limits: Iterable[LimitInUse], *, permits: bool = False
) -> list[dict[str, Any]]:
    """Return limits for JSON, with how many permits are in use, or also which."""
    return [
        {**_limit_document(one.limit), "in_use": one.in_use}
        | ({"permits": [*map(seen_document, one.permits)]} if permits else {})
        for one in limits
    ]


def permits_table(limits: Iterable[LimitInUse], *, nodes: int) -> list[str]:
    """Return the lines of a table of the permits that have a holder."""
    rows = [lock_row(seen, nodes=nodes) for one in limits for seen in one.permits]
    return table(LOCK_COLUMNS, rows) if rows else []


def holder_document(holder: Holder) -> dict[str, Any]:
    """Return a holder for JSON, without its token: that proves ownership."""
    return {
        "task": holder.task,
        "task_id": holder.task_id,
        "host": holder.host,
        "pid": holder.pid,
        "started": holder.started or None,
        "age": age_of(holder),
        "fence": holder.fence,
        "keys": list(holder.keys),
    }


def finite(seconds: float) -> float | None:
    """Return seconds for JSON, which has no infinity: None means for ever."""
    return None if math.isinf(seconds) else seconds


def node_lines(nodes: Iterable[NodeStatus], head: str = "STATE") -> list[str]:
    """Return the lines of a table of nodes and their states."""
    rows: list[Row] = [[node.label, state_cell(node)] for node in nodes]
    return table((Column("NODE"), Column(head, cut="end")), rows)


def node_document(node: NodeStatus) -> dict[str, Any]:
    """Return a node and its state for JSON."""
    return {"node": node.label, "state": str(state_cell(node))}


def state_cell(node: NodeStatus) -> MoodText:
    """Return the state of a node: its vote, or the reason for none."""
    return MoodText(*state_words(node))
