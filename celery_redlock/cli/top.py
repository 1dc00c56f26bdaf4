"""``top``: nodes, locks and rates, live."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.cli.output.format import (
    LOCK_COLUMNS,
    Column,
    Row,
    limit_lines,
    limits_document,
    lock_row,
    node_document,
    state_cell,
    table,
)
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import Command, Session, every_option
from celery_redlock.operations.inspect import NodeState
from celery_redlock.operations.scan import Scan, scan
from celery_redlock.operations.words import age_of, plural, unknown_text, votes_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.locks.redlock import Redlock

_NODE_COLUMNS = (
    Column("NODE"),
    Column("STATE", cut="end"),
    Column("LOCKS", right=True),
    Column("COMMANDS/S", right=True),
    Column("MEMORY", right=True),
)
_Locks = set[tuple[str, str]]  # key and token
_MOST_LIMITS = 5  # lines
_FOOT = 3  # lines below the locks


@click.command(cls=Command, short_help="Watch nodes, locks and rates.")
@every_option
@click.pass_obj
def top(session: Session, *, every: float) -> None:
    """Watch the nodes and the locks, the oldest first, until Ctrl-C.

    Locks that are taken and released between two refreshes are not counted, and neither
    are permits for a start. The first screen has no rates. The fullest limits have a
    line each. Without enough nodes to tell which locks are held, it says so, and shows
    no number of locks and no rates.
    """
    frames = ((_lines(f), partial(_document, f)) for f in _frames(session.redlock))
    session.watch(lambda: next(frames), every)


class _Frame(NamedTuple):
    """The nodes and locks at one moment, and the change since the frame before."""

    seen: Scan
    taken: float | None  # locks per second; None without two frames that can tell
    released: float | None  # the same


def _frames(redlock: Redlock) -> Iterator[_Frame]:
    before: tuple[_Locks, _Locks, float] | None = None  # held; held or possible; at
    while True:
        seen, now = scan(redlock), SYSTEM_CLOCK.monotonic()
        held = {(lock.key, lock.holder.token) for lock in seen.held}
        possible = held | {(lock.key, lock.holder.token) for lock in seen.possible}
        taken = released = None
        if seen.nodes.most_can_tell and before is not None:
            held_before, possible_before, read_at = before
            # A lock that *may be* held, now or before, counts in neither rate.
            taken = len(held - possible_before) / (now - read_at)
            released = len(held_before - possible) / (now - read_at)
        yield _Frame(seen, taken, released)
        before = (held, possible, now) if seen.nodes.most_can_tell else None


def _lines(frame: _Frame) -> list[str]:
    """Return a screen: nodes, and as many locks as fit."""
    seen, nodes = frame.seen, len(frame.seen.nodes)
    voting = len(seen.nodes.voting)
    mood = "warning" if voting >= seen.nodes.quorum else "bad"
    vote = votes_text(voting, nodes)
    head = [painted(vote, "good" if voting == nodes else mood)]
    if not seen.nodes.most_can_tell:
        head.append(painted(unknown_text(seen), "bad"))
    else:
        head.append(f"{plural(len(seen.held), 'lock')} held")
        if seen.possible:
            head.append(f"{len(seen.possible)} may be held")
        if frame.taken is not None and frame.released is not None:
            head += [f"{frame.taken:.1f} taken/s", f"{frame.released:.1f} released/s"]
        if seen.starts:
            head.append(f"{plural(len(seen.starts), 'start')} kept")
    lines = ["   ".join(head), "", *_node_table(seen), ""]
    if seen.nodes.most_can_tell and seen.limits:
        lines += [*limit_lines(seen.limits, _MOST_LIMITS), ""]
    if seen.nodes.settings:
        lines += [painted(seen.nodes.settings, "warning"), ""]
    room = max(1, shutil.get_terminal_size().lines - len(lines) - _FOOT)
    shown = seen.held + seen.possible
    oldest = sorted(shown, key=lambda lock: -(age_of(lock.holder) or 0.0))
    rows = [lock_row(lock, nodes=nodes) for lock in oldest[:room]]
    if rows:
        lines += table(LOCK_COLUMNS, rows)
    if len(oldest) > len(rows):
        more = plural(len(oldest) - len(rows), "lock")
        lines.append(painted(f"and {more} more", "faint"))
    return lines


def _node_table(seen: Scan) -> list[str]:
    rows: list[Row] = []
    for node in seen.nodes:
        is_silent = node.state is NodeState.SILENT
        locks = "–" if is_silent else f"{seen.counts[node.label]:,}"
        rate = node.info.get("instantaneous_ops_per_sec", "–")
        memory = node.info.get("used_memory_human", "–")
        rows.append([node.label, state_cell(node), locks, rate, memory])
    return table(_NODE_COLUMNS, rows)


def _document(frame: _Frame) -> dict[str, Any]:
    """Return the JSON document. None: that cannot be told."""
    seen = frame.seen
    return {
        "nodes": [
            {
                **node_document(node),
                "votes": node.state is NodeState.VOTES,
                "locks": None
                if node.state is NodeState.SILENT
                else seen.counts[node.label],
            }
            for node in seen.nodes
        ],
        "quorum": seen.nodes.quorum,
        "known": seen.nodes.most_can_tell,
        "held": len(seen.held) if seen.nodes.most_can_tell else None,
        "possible": len(seen.possible),
        "kept": len(seen.starts) if seen.nodes.most_can_tell else None,
        "limits": limits_document(seen.limits) if seen.nodes.most_can_tell else None,
        "taken_per_second": frame.taken,
        "freed_per_second": frame.released,
        "settings": seen.nodes.settings or None,
    }
