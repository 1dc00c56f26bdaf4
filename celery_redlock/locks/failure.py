"""The error for an attempt without success, and the pause before the next one.

Each message states a fact with its numbers, what holds now, and the remedy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.text import on_nodes
from celery_redlock.basics.timing import seconds_text
from celery_redlock.errors import (
    LockContended,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.locks.lease import Holder
from celery_redlock.members.view import differences, may_be_new, other_views
from celery_redlock.scripts.keys import keys_of, shown
from celery_redlock.wire.quorum import Ballot, Verdict, VoteKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.locks.limits import Limits
    from celery_redlock.locks.permits import Choice, Occupancy
    from celery_redlock.wire.quorum import Vote


_MS = 1000
_SHORTEST_DELAY, _LONGEST_DELAY = 0.002, 0.25  # seconds


def failure_of(
    key: str,
    ballot: Ballot,
    *,
    config: str,
    ttl: float | None = None,
    choice: Choice | None = None,
) -> LockUnavailable:
    """Return the error for an attempt that ended with these votes.

    The arguments are those of `unreachable`, the ttl of the lock if it was a lock that
    was asked for, and the permits that were tried for.
    """
    verdict = ballot.final_verdict()
    if choice is not None and choice.full is not None:
        return _full(key, ballot, choice.full, choice.limits)
    if verdict is Verdict.HELD and choice is None:
        return _held(key, ballot)
    if verdict is Verdict.UNREACHABLE:
        state = "Nothing is held"
        if ttl is not None and ballot.may_have_won:
            state = (
                "Nothing is held here, but the connection broke before the answer: the "
                "lock may be taken there until it is reached again, at most for "
                f"{ttl:g} s"
            )
        return unreachable(key, ballot, config=config, state=state)
    nodes = len(ballot.labels)
    if verdict is Verdict.WON:
        fact = (
            f"The lock {shown(key)} was granted {on_nodes(ballot.granted, nodes)}, "
            "but its fence or its validity could not be confirmed in time"
        )
    elif choice is not None:
        some = "" if nodes == 1 else f", as some of {nodes} nodes say"
        fact = (
            f"Permits of {shown(key)} are free{some}, but other clients took those "
            "that this one tried for"
        )
    else:
        reasons = ballot.reasons()
        fact = (
            f"The votes for {shown(key)} were split: {ballot.granted} of {nodes} nodes "
            f"granted it (need {ballot.quorum}), {ballot.taken} named other holders"
            f"{f'; {reasons}' if reasons else ''}"
        )
    return LockContended(f"{fact}. Nothing is held; try again.", key=key, ballot=ballot)


def unreachable(
    key: str,
    ballot: Ballot,
    *,
    config: str,
    state: str = "Nothing is held",
) -> QuorumUnreachable:
    """Return the error for too few votes. It says why each node gave none.

    Args:
        key: The name of the lock.
        ballot: The votes.
        config: The view of this client.
        state: What holds now, as a clause.
    """
    wait_ms = ballot.quarantine_ms()
    if wait_ms is not None:
        them = "They vote again by themselves"
        if len(ballot.labels) == 1:
            them = "It votes again by itself"
        remedy = f"{them} in {seconds_text(wait_ms / _MS)}"
        if ballot.indexes(VoteKind.SILENT):  # one that is gone is waited for, too
            remedy += " at the earliest"
        if may_be_new(config):  # else old locks may be held
            remedy += f". In a brand-new deployment, `{COMMAND} init` ends the wait"
    elif theirs := other_views(ballot):
        remedy = differences(theirs, config)
    elif ballot.was_interrupted:
        remedy = "Try again, and take no locks in signal handlers or finalisers"
    else:
        remedy = f"Run `{COMMAND} doctor`"
    nodes = len(ballot.labels)
    fact = f"Only {ballot.answered} of {nodes} nodes gave a vote on {shown(key)}"
    needed = f" (need {ballot.quorum})"
    if nodes == 1:
        fact, needed = f"The node gave no vote on {shown(key)}", ""
    # The others have said no, or could not be connected to, which takes another time.
    is_late = None in ballot.votes and not ballot.is_done()
    within = f" within {ballot.patience:g} s" if is_late else ""
    return QuorumUnreachable(
        f"{fact}{within}{needed}: {ballot.reasons()}. {state}. {remedy}.",
        key=key,
        ballot=ballot,
        retry_after=None if wait_ms is None else wait_ms / _MS,
    )


def ends_in(ballot: Ballot, votes: Sequence[Vote] | None = None) -> float:
    """Return the seconds until a majority no longer names the top taker.

    A majority must name it now. Infinity for a lock that does not end. The votes are
    those that name it, by default for any key.
    """
    votes = ballot.top_votes() if votes is None else votes
    left = sorted(math.inf if vote.number < 0 else vote.number for vote in votes)
    return left[len(left) - ballot.quorum] / _MS


def for_how_long(left: float, limit: str = "unless renewed") -> str:
    """Return for how long a lock is still held, as a clause; ``limit`` ends it."""
    if left == math.inf:
        return "for ever: it has no ttl"
    return f"for {seconds_text(left)} more {limit}"


def delay_after(
    failure: LockUnavailable, tries: int, *, ttl: float, took: float
) -> float:
    """Return a random pause in seconds before the next try.

    It doubles with each try, from about two round trips, so that contenders separate.
    Where another client holds the lock, it grows up to a tenth of the ttl.
    """
    held = failure.ballot is not None and failure.ballot.taken > 0
    longest = min(ttl / 10, _LONGEST_DELAY) if held else _LONGEST_DELAY / 4
    ceiling = doubled(max(_SHORTEST_DELAY, 2 * took), tries, longest)
    return jittered(ceiling, least=0.25)


def _held(key: str, ballot: Ballot) -> LockHeld:
    _, votes = ballot.top_taker
    holder, left = Holder.parse(ballot.holder_value()), ends_in(ballot)
    keys = keys_of(key)
    held_key = keys[ballot.top_place]
    remedy = f" Only `{COMMAND} release` ends it." if left == math.inf else ""
    ours = f" You hold none of {shown(key)}." if keys[1:] else ""
    nodes = len(ballot.labels)
    source = f", as {votes} of {nodes} nodes say," if nodes > 1 else ""
    return LockHeld(
        f"The lock {held_key!r} is held by {holder}{source} {for_how_long(left)}."
        f"{remedy}{ours}",
        key=key,
        held_key=held_key,
        ballot=ballot,
        holder=holder,
        retry_after=None if left == math.inf else left,
    )


def _full(key: str, ballot: Ballot, occupancy: Occupancy, limits: Limits) -> LockHeld:
    """Return the error for a limit of which all permits have a holder.

    It names the holder of the permit of this limit that was tried for.
    """
    limit = occupancy.limit
    named = ballot.top_votes(limits.index(limit))
    is_told = len(named) >= ballot.quorum
    holder = Holder.parse(named[0].value) if is_told else None
    due = occupancy.due() if limit.period else []
    retry_after: float | None
    if limit.period:
        retry_after = due[0]
        fact = (
            f"{shown(limit.key)} has had {limit.most} starts within "
            f"{limit.period:g} s, as many as it may have. The next one is possible in "
            f"{seconds_text(retry_after)}"
        )
    else:
        left = ends_in(ballot, named) if is_told else math.inf
        retry_after = None if left == math.inf else left
        fact = (
            f"A copy of the call {limit.key} runs: {holder or 'another client'}"
            if limit.is_call
            else f"The lock {shown(limit.key)} is held by {holder or 'another client'}"
            if limit.most == 1
            else f"All {limit.most} permits of {shown(limit.key)} are in use"
            f"{f', one of them by {holder}' if holder else ''}"
        )
    nodes = len(ballot.labels)
    source = f" So a majority of {nodes} nodes says." if nodes > 1 else ""
    return LockHeld(
        f"{fact}.{source} You hold nothing.",
        key=key,
        held_key=None if limit.is_call else limit.key,
        ballot=ballot,
        holder=holder,
        retry_after=retry_after,
        limit=limit,
        due=tuple(due),
    )
