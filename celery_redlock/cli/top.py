"""``top``: nodes, locks and rates, live."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from celery_redlock.cli.output.format import (
    LOCK_COLUMNS,
    Column,
    Row,
    age_of,
    lock_row,
    painted,
    plural,
    state_cell,
    table,
)
from celery_redlock.cli.output.session import Command, Session
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.operations.inspect import NodeState, NodeStatus, node_status
from celery_redlock.operations.scan import Scan, scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.redlock import Redlock

_NODE_COLUMNS = (
    Column("NODE"),
    Column("STATE", cut="end"),
    Column("LOCKS", right=True),
    Column("COMMANDS/S", right=True),
    Column("MEMORY", right=True),
)
_FOOT = 3  # lines below the locks


@click.command(cls=Command, short_help="Watch nodes, locks and rates.")
@click.option(
    "--every", default=2.0, show_default=True, help="Seconds between refreshes."
)
@click.pass_obj
def top(session: Session, *, every: float) -> None:
    """Watch the nodes and the locks, the oldest first, until Ctrl-C.

    Locks that live shorter than one refresh are not counted.
    """
    frames = ((_lines(f), partial(_document, f)) for f in _frames(session.redlock))
    session.watch(lambda: next(frames), every)


class _Frame(NamedTuple):
    nodes: list[NodeStatus]
    seen: Scan
    taken: float  # locks per second since the last frame
    released: float


def _frames(redlock: Redlock) -> Iterator[_Frame]:
    tokens: set[str] | None = None
    read_at = 0.0
    while True:
        nodes, seen = node_status(redlock), scan(redlock)
        now = SYSTEM_CLOCK.monotonic()
        held = {lock.holder.token for lock in seen.held}
        before, elapsed = held if tokens is None else tokens, now - read_at
        taken, released = len(held - before), len(before - held)
        yield _Frame(nodes, seen, taken / elapsed, released / elapsed)
        tokens, read_at = held, now


def _lines(frame: _Frame) -> list[str]:
    """Return a screen: nodes, and as many locks as fit."""
    seen, nodes = frame.seen, len(frame.nodes)
    voting = sum(node.state is NodeState.VOTES for node in frame.nodes)
    mood = "warning" if voting >= seen.quorum else "bad"
    vote = f"{voting} of {plural(nodes, 'node')} vote"
    head = [
        painted(vote, "good" if voting == nodes else mood),
        f"{plural(len(seen.held), 'lock')} held",
        f"{frame.taken:.1f} taken/s",
        f"{frame.released:.1f} released/s",
    ]
    lines = ["   ".join(head), "", *_node_table(frame), ""]
    room = max(1, shutil.get_terminal_size().lines - len(lines) - _FOOT)
    oldest = sorted(seen.held, key=lambda lock: -(age_of(lock.holder) or 0.0))
    rows = [lock_row(lock, nodes=nodes, quorum=seen.quorum) for lock in oldest[:room]]
    if rows:
        lines += table(LOCK_COLUMNS, rows)
    if len(oldest) > len(rows):
        more = plural(len(oldest) - len(rows), "lock")
        lines.append(painted(f"and {more} more", "faint"))
    return lines


def _node_table(frame: _Frame) -> list[str]:
    rows: list[Row] = []
    for node in frame.nodes:
        is_silent = node.state is NodeState.SILENT
        locks = "–" if is_silent else f"{frame.seen.counts[node.label]:,}"
        rate = node.info.get("instantaneous_ops_per_sec", "–")
        memory = node.info.get("used_memory_human", "–")
        rows.append([node.label, state_cell(node), locks, rate, memory])
    return table(_NODE_COLUMNS, rows)


def _document(frame: _Frame) -> dict[str, Any]:
    return {
        "nodes": [
            {
                "node": node.label,
                "state": str(state_cell(node)),
                "votes": node.state is NodeState.VOTES,
                "locks": frame.seen.counts[node.label],
            }
            for node in frame.nodes
        ],
        "quorum": frame.seen.quorum,
        "held": len(frame.seen.held),
        "taken_per_second": frame.taken,
        "freed_per_second": frame.released,
    }
