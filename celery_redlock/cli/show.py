"""``show``: the holder of a lock, and the answer of each node."""

from __future__ import annotations

from typing import Any

import click

from celery_redlock.cli.output.format import (
    Cell,
    Column,
    Row,
    duration,
    holder_document,
    painted,
    plural,
    since,
    table,
)
from celery_redlock.cli.output.session import DONE, ERROR, WARNING, Command, Session
from celery_redlock.core.lease import Holder, Inspection
from celery_redlock.core.quorum import Ballot, Vote, VoteKind

_MS = 1000


@click.command(cls=Command, short_help="Show the holder of a lock.")
@click.argument("key")
@click.pass_obj
def show(session: Session, *, key: str) -> int:
    """Show the holder of the lock KEY, and the answer of each node.

    Exits with 1 if the lock is not held.
    """
    seen = session.redlock.inspect(key)
    session.tell([*_summary(seen), "", *_answers(seen.ballot)], lambda: _document(seen))
    if seen.ballot.answered < seen.ballot.quorum:
        return ERROR
    return DONE if seen.holder else WARNING


def _summary(seen: Inspection) -> list[str]:
    ballot, holder = seen.ballot, _holder(seen)
    nodes = plural(len(ballot.labels), "node")
    if holder is None:
        if ballot.answered < ballot.quorum:
            return [f"Only {ballot.answered} of {nodes} answered."]
        minority = " A minority of the nodes names a holder." if ballot.taken else ""
        return [f"{seen.key} is not held.{minority}"]
    facts = {
        "task": holder.task or "none: locked outside of a task",
        "id": holder.task_id,
        "holder": f"{holder.host}, pid {holder.pid}",
        "since": since(holder),
        "expires": f"in {duration(seen.ttl_left)}, unless renewed",
        "fence": str(holder.fence),
        "votes": f"{seen.votes} of {nodes}",
    }
    lines = [
        f"  {painted(f'{n:<9}', 'faint')}{text}" for n, text in facts.items() if text
    ]
    return [f"{seen.key} is held.", "", *lines]


def _holder(seen: Inspection) -> Holder | None:
    """Return the holder with the fence of its lease: the greatest on any node."""
    if seen.holder is None:
        return None
    named = (Holder.parse(vote.value) for vote in seen.ballot.votes if vote)
    same = (holder for holder in named if holder.token == seen.holder.token)
    return max(same, key=lambda holder: holder.fence)


def _answers(ballot: Ballot) -> list[str]:
    rows: list[Row] = [
        [label, _answer(vote, ballot.top_taker[0])]
        for label, vote in zip(ballot.labels, ballot.votes, strict=True)
    ]
    return table((Column("NODE"), Column("ANSWER")), rows)


def _answer(vote: Vote | None, token: str) -> Cell:
    if vote is None:
        return Cell("did not answer in time", "bad")
    if vote.kind is VoteKind.TAKEN:
        left = f"{duration(vote.number / _MS)} left" if vote.number >= 0 else "no ttl"
        if vote.token == token:
            return Cell(f"held, {left}", "good")
        return Cell(f"held by {Holder.parse(vote.value)}, {left}", "warning")
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
            label: str(_answer(vote, ballot.top_taker[0]))
            for label, vote in zip(ballot.labels, ballot.votes, strict=True)
        },
    }
