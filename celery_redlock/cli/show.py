"""``show``: the holder of a lock, and the answer of each node."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.basics.text import on_nodes
from celery_redlock.basics.timing import duration
from celery_redlock.cli.output.format import (
    Column,
    MoodText,
    finite,
    holder_document,
    keys_text,
    limit_lines,
    limits_document,
    permits_table,
    table,
)
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import DONE, ERROR, WARNING, Command, Session
from celery_redlock.operations.inspect import (
    ANSWERS,
    LockStatus,
    NodeState,
    NodeStatus,
    holder_text,
    lock_holder,
    lock_status,
    unanswered,
)
from celery_redlock.operations.scan import permits_of
from celery_redlock.operations.words import (
    UNREADABLE,
    expiry,
    few_can_tell,
    permit_text,
    since,
    unknown_releases,
)
from celery_redlock.records.forced_releases import forced_releases
from celery_redlock.wire.quorum import Vote, VoteKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_redlock.locks.lease import Holder
    from celery_redlock.operations.scan import LimitInUse
    from celery_redlock.records.forced_releases import Releases

_MS = 1000
_MOST_RELEASES = 10  # in the table


@click.command(cls=Command, short_help="Show the holder of a lock.")
@click.argument("key")
@click.pass_obj
def show(session: Session, *, key: str) -> int:
    """Show the holder of the lock KEY, and the answer of each node.

    Of a key with a limit, that is the first permit: all permits of the key follow, with
    their holders, and the permits for a start (rate) with when each is free again. They
    are kept, whether the run has ended or not. KEY can be one permit: 'imports##3'.

    Lists who released this lock in the last 30 days, with `release`, on the page of
    `web` or in the Django admin, and why, as far as the nodes remember it.

    Exits with 1 if neither the lock nor a permit of it is held, and with 3 if too few
    nodes answered to tell.
    """
    found = lock_status(session.redlock, key)
    limits = permits_of(session.redlock, key, found.nodes)
    answers = _answers(found)
    lines = [
        *_summary(found, has_limit=bool(limits)),
        "",
        *table((Column("NODE"), Column("ANSWER")), [*answers.items()]),
        *_permits(limits, found),
    ]
    released = forced_releases(session.redlock, key)
    lines += _released(released, key)
    if unknown := unknown_releases(released, len(found.nodes)):
        lines += ["", painted(unknown, "warning")]
    if found.nodes.settings:
        lines += ["", painted(found.nodes.settings, "warning")]
    session.tell(lines, lambda: _document(found, answers, released, limits))
    at_once = [one for one in limits if not one.limit.period]
    if any(one.in_use for one in at_once):
        return DONE
    if not found.is_held and any(one.may_be_more for one in at_once):
        return ERROR
    return {True: DONE, False: WARNING, None: ERROR}[found.is_held]


def _summary(found: LockStatus, *, has_limit: bool) -> list[str]:
    seen = found.seen
    ballot, holder = seen.ballot, _holder(found)
    if holder is None:
        if found.is_held is None:
            few = few_can_tell(len(found.nodes))
            fact = f"It cannot be told whether {seen.key} is held: {few}."
            return [painted(fact, "bad")]
        minority = " A minority of the nodes names a holder." if ballot.taken else ""
        what = f"The first permit of {seen.key}" if has_limit else seen.key
        return [f"{what} is not held.{minority}"]
    left = seen.ttl_left
    facts = {
        "task": (holder.task or "none: locked outside of a task")
        if holder.is_ours
        else UNREADABLE,
        "id": holder.task_id,
        "holder": f"{holder.host or 'an unknown host'}, pid {holder.pid or 'unknown'}",
        "since": since(holder),
        "expires": expiry(left),
        "fence": str(holder.fence or ""),
        "nodes": on_nodes(seen.votes, len(ballot.labels)),
        "keys": " and ".join(holder.keys),
        "limit": permit_text(holder.permit(seen.key)),
    }
    if holder.is_kept:
        if left < math.inf:
            facts["expires"] = f"in {duration(left)}: its period has passed then"
        fact = "is kept: it is a permit for a start. The run may have ended."
        return [f"{seen.key} {fact}", "", *_fact_lines(facts)]
    return [f"{seen.key} is held.", "", *_fact_lines(facts)]


def _fact_lines(facts: dict[str, str]) -> list[str]:
    return [
        f"  {painted(f'{n:<9}', 'faint')}{text}" for n, text in facts.items() if text
    ]


def _permits(limits: Sequence[LimitInUse], found: LockStatus) -> list[str]:
    """List the permits of the key, and say how many are in use."""
    if not limits:
        return []
    shown = permits_table(limits, nodes=len(found.nodes))
    return ["", *shown, "", *limit_lines(limits)]


def _released(releases: Releases, key: str) -> list[str]:
    """List the releases by operators, the latest first."""
    if not releases.found:
        return []
    columns = [
        Column("RELEASED"),
        Column("BY", cut="end"),
        Column("REASON", cut="end"),
        Column("HOLDER", cut="end", spare=True),
        Column("NODES", right=True),
    ]
    rows = [
        [one.when, one.place, one.reason or "–", one.holder, str(one.nodes)]
        for one in releases.found[:_MOST_RELEASES]
    ]
    if any(one.key != key for one in releases.found):
        columns.insert(1, Column("KEY", cut="end"))
        for row, one in zip(rows, releases.found, strict=False):
            row.insert(1, keys_text(one.key))
    more = len(releases.found) - len(rows)
    return ["", *table(columns, rows), *([f"and {more} before"] if more else [])]


def _holder(found: LockStatus) -> Holder | None:
    """Return the holder with the fence of its lease: the greatest on any node."""
    return lock_holder(next(iter(found.values))) if found.is_held else None


def _answers(found: LockStatus) -> dict[str, MoodText]:
    """Return the answer of each node, by the name of the node."""
    ballot = found.seen.ballot
    token, _ = ballot.top_taker
    votes = zip(found.nodes, ballot.votes, strict=True)
    return {node.label: _answer(vote, token, node) for node, vote in votes}


def _answer(vote: Vote | None, token: str, node: NodeStatus) -> MoodText:
    """Return the answer of a node, and what to know about it."""
    if vote is None or vote.kind not in ANSWERS:
        return MoodText(unanswered(vote), "bad")
    doubt = "" if node.can_tell or node.state is NodeState.SILENT else node.doubt
    remark = f"; the node {doubt}" if doubt else ""
    if vote.kind is VoteKind.TAKEN:
        left = f"{duration(vote.number / _MS)} left" if vote.number >= 0 else "no ttl"
        if vote.token == token:
            return MoodText(f"held, {left}{remark}", "warning" if remark else "good")
        holder = holder_text(vote.value)
        return MoodText(f"held by {holder}, {left}{remark}", "warning")
    return MoodText(f"free{remark}", "warning" if remark else "faint")


def _document(
    found: LockStatus,
    answers: Mapping[str, MoodText],
    released: Releases,
    limits: Sequence[LimitInUse],
) -> dict[str, Any]:
    """Return the JSON document. ``held`` is None where it cannot be told."""
    seen = found.seen
    ballot, holder = seen.ballot, _holder(found)
    return {
        "key": seen.key,
        "held": found.is_held,
        "holder": holder and holder_document(holder),
        "ttl_left": finite(seen.ttl_left),
        "votes": seen.votes,
        "quorum": ballot.quorum,
        "nodes": {label: str(answer) for label, answer in answers.items()},
        "limits": limits_document(limits, permits=True),
        "released": [
            {**asdict(one), "reason": one.reason or None} for one in released.found
        ],
        "released_known": released.is_whole,
        "settings": found.nodes.settings or None,
    }
