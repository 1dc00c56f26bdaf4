"""``ls`` and ``show``: who holds what."""

from __future__ import annotations

import gc
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.live import show_live
from celery_redlock.cli.session import DONE, ERROR, WARNING, Command, Session
from celery_redlock.cli.table import (
    Cell,
    Column,
    Row,
    duration,
    painted,
    table,
    terminal_width,
)
from celery_redlock.cli.words import (
    LOCK_COLUMNS,
    age_of,
    holder_document,
    lock_document,
    lock_row,
    plural,
    unseen_lines,
)
from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import Holder
from celery_redlock.core.survey import survey

if TYPE_CHECKING:
    from celery_redlock.core.ballot import Ballot, Vote
    from celery_redlock.core.lease import Inspection
    from celery_redlock.core.survey import Survey

__all__ = ["ls", "show"]

_MS = 1000


@click.command(cls=Command, short_help="List the locks that are held.")
@click.argument("pattern", default="*")
@click.option("--all", "everything", is_flag=True, help="Also what no majority holds.")
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option("--every", default=2.0, show_default=True, help="Seconds between looks.")
@click.pass_context
def ls(
    ctx: click.Context, *, pattern: str, everything: bool, watch: bool, every: float
) -> None:
    """List the locks that are held.

    PATTERN picks keys: 'invoice:*'. All nodes are walked at the same time and in
    small steps, so that nobody waits for it. A minority of them may be down.
    """
    session: Session = ctx.obj
    service = session.redlock

    def look() -> _Listing:
        timeout = service.timing.connect_timeout
        seen = survey(service.addresses, service.guard.prefix, pattern, timeout=timeout)
        return _Listing(seen, everything=everything)

    if watch:
        show_live(lambda: session.render(look()), every=every, plain=session.as_json)
        return
    gc.disable()  # a fifth of the time with very many locks, for no garbage at all
    try:
        listing = look()
        session.show(listing)
    finally:
        gc.enable()
    ctx.exit(DONE if listing.seen.has_quorum else ERROR)


class _Listing:
    """The locks that were seen: those that are held, or all."""

    def __init__(self, seen: Survey, *, everything: bool) -> None:
        self.seen = seen
        self._held, self._others = seen.held, seen.others
        self._shown = seen.locks if everything else self._held

    def lines(self) -> list[str]:
        """Return a table, and what is not in it."""
        seen, nodes = self.seen, len(self.seen.labels)
        lines: list[str] = []
        if self._shown:
            quorum = seen.quorum
            rows = [lock_row(lock, nodes=nodes, quorum=quorum) for lock in self._shown]
            lines = [*table(LOCK_COLUMNS, rows, width=terminal_width()), ""]
        looked_at = f"{nodes - len(seen.unseen)} of {plural(nodes, 'node')}"
        lines.append(f"{plural(len(self._held), 'lock')} held, as seen on {looked_at}.")
        if self._others and self._shown is self._held:
            others = plural(len(self._others), "more key")
            lines.append(f"{others} on fewer nodes than a majority: --all shows them.")
        lines += [painted(line, "warning") for line in unseen_lines(seen.unseen)]
        if not seen.has_quorum:
            lines.append(
                painted("Too few nodes were seen to tell what is held.", "bad")
            )
        return lines

    def document(self) -> dict[str, Any]:
        """Return the same for a program."""
        seen = self.seen
        return {
            "nodes": list(seen.labels),
            "quorum": seen.quorum,
            "unseen": seen.unseen,
            "locks": [lock_document(lock, quorum=seen.quorum) for lock in self._shown],
        }


@click.command(cls=Command, short_help="Show who holds a lock.")
@click.argument("key")
@click.pass_context
def show(ctx: click.Context, *, key: str) -> None:
    """Show who holds KEY, and what each node says.

    Exits with 1 when nobody holds it.
    """
    session: Session = ctx.obj
    seen = session.redlock.inspect(key)
    session.tell([*_headline(seen), "", *_votes(seen.ballot)], _document(seen))
    if seen.ballot.answered < seen.ballot.quorum:
        ctx.exit(ERROR)
    ctx.exit(DONE if seen.holder else WARNING)


def _headline(seen: Inspection) -> list[str]:
    ballot, holder = seen.ballot, _holder(seen)
    nodes = len(ballot.labels)
    if holder is None:
        if ballot.answered < ballot.quorum:
            return [f"Only {ballot.answered} of {plural(nodes, 'node')} answered."]
        some = " A minority of the nodes still names somebody." if ballot.taken else ""
        return [f"Nobody holds {seen.key}.{some}"]
    age = age_of(holder)
    since = ""
    if age is not None:
        began = datetime.fromtimestamp(holder.started, tz=timezone.utc)
        since = f"{began:%Y-%m-%d %H:%M:%S} UTC, {duration(age)} ago"
    facts = {
        "task": holder.task or "none: locked outside of a task",
        "id": holder.task_id,
        "holder": f"{holder.host}, pid {holder.pid}",
        "since": since,
        "ends": f"in {duration(seen.ttl_left)}, unless renewed",
        "fence": str(holder.fence),
        "votes": f"{seen.votes} of {plural(nodes, 'node')}",
    }
    lines = [
        f"  {painted(f'{n:<8}', 'faint')}{text}" for n, text in facts.items() if text
    ]
    return [f"{seen.key} is held.", "", *lines]


def _holder(seen: Inspection) -> Holder | None:
    """Return the holder with the fence of its lease: the greatest on any node."""
    if seen.holder is None:
        return None
    named = (Holder.parse(vote.value) for vote in seen.ballot.votes if vote)
    return max(
        (holder for holder in named if holder.token == seen.holder.token),
        key=lambda holder: holder.fence,
    )


def _votes(ballot: Ballot) -> list[str]:
    rows: list[Row] = [
        [label, _said(vote, ballot.top_taker[0])]
        for label, vote in zip(ballot.labels, ballot.votes, strict=True)
    ]
    return table((Column("NODE"), Column("SAYS")), rows)


def _said(vote: Vote | None, token: str) -> Cell:
    if vote is None:
        return Cell("did not answer in time", "bad")
    if vote.kind is VoteKind.TAKEN:
        left = duration(vote.number / _MS if vote.number >= 0 else float("inf"))
        who = "held" if vote.token == token else f"held by {Holder.parse(vote.value)}"
        return Cell(f"{who}, {left} left", "good" if who == "held" else "warning")
    if vote.kind is VoteKind.FREE:
        return Cell("free", "faint")
    return Cell(vote.reason or vote.kind.value, "bad")


def _document(seen: Inspection) -> dict[str, Any]:
    ballot, holder = seen.ballot, _holder(seen)
    return {
        "key": seen.key,
        "held": holder is not None,
        "holder": holder and holder_document(holder),
        "ttl_left": seen.ttl_left,
        "votes": seen.votes,
        "quorum": ballot.quorum,
        "nodes": {
            label: str(_said(vote, ballot.top_taker[0]))
            for label, vote in zip(ballot.labels, ballot.votes, strict=True)
        },
    }
