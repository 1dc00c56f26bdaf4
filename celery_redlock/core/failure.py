"""The error for an attempt without success, and the pause before the next one.

Each message states a fact with its numbers, what holds now, and the remedy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from celery_redlock.core.backoff import doubled, jittered
from celery_redlock.core.configuration import refusal
from celery_redlock.core.lease import Holder
from celery_redlock.core.quorum import Ballot, Verdict, VoteKind
from celery_redlock.errors import (
    LockContended,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["delay_after", "ends_in", "failure_of", "ttl_left", "unreachable"]

_MS = 1000
_SHORTEST_DELAY, _LONGEST_DELAY = 0.002, 0.25  # seconds


def failure_of(
    key: str, ballot: Ballot, *, node_timeout: float, config: str
) -> LockUnavailable:
    """Return the error for an attempt that ended with these votes.

    The arguments are those of `unreachable`.
    """
    verdict = ballot.final_verdict()
    if verdict is Verdict.HELD:
        return _held(key, ballot)
    if verdict is Verdict.UNREACHABLE:
        return unreachable(key, ballot, node_timeout=node_timeout, config=config)
    nodes = len(ballot.labels)
    if verdict is Verdict.WON:
        fact = (
            f"The lock {key!r} was granted by {ballot.granted} of {nodes} nodes, but "
            "its fence or its validity could not be confirmed in time"
        )
    else:
        reasons = ballot.reasons()
        fact = (
            f"The votes for {key!r} were split: {ballot.granted} of {nodes} nodes "
            f"granted it (need {ballot.quorum}), {ballot.taken} named others"
            f"{f'; {reasons}' if reasons else ''}"
        )
    return LockContended(f"{fact}. Nothing is held; try again.", key=key, ballot=ballot)


def unreachable(
    key: str,
    ballot: Ballot,
    *,
    node_timeout: float,
    config: str,
    state: str = "Nothing is held",
) -> QuorumUnreachable:
    """Return the error for too few votes. It says why each node gave none.

    Args:
        key: The name of the lock.
        ballot: The votes.
        node_timeout: Seconds that a node had to answer.
        config: The configuration of this client.
        state: What holds now, as a clause.
    """
    wait_ms = ballot.quarantine_ms()
    if wait_ms is not None:
        remedy = (
            f"They vote again by themselves in {wait_ms / _MS:.1f} s. In a brand-new "
            "deployment, `celery -A proj redlock init` ends the wait"
        )
    elif _configurations(ballot):
        told = [refusal(theirs, config) for theirs in _configurations(ballot)]
        differences = "; some nodes ".join(difference for difference, _ in told)
        remedy = f"The nodes {differences}. {told[0][1]}"
    else:
        remedy = "Run `celery -A proj redlock doctor`"
    return QuorumUnreachable(
        f"Only {ballot.answered} of {len(ballot.labels)} nodes gave a vote on {key!r} "
        f"within {node_timeout:g} s (need {ballot.quorum}): {ballot.reasons()}. "
        f"{state}. {remedy}.",
        key=key,
        ballot=ballot,
        retry_after=None if wait_ms is None else wait_ms / _MS,
    )


def ttl_left(ballot: Ballot, token: str) -> float:
    """Return the seconds until a majority no longer names this token.

    A majority must name it now. 0 for a lock that does not end.
    """
    left = ends_in(ballot, token)
    return 0.0 if left == math.inf else left


def ends_in(ballot: Ballot, token: str) -> float:
    """Return the same as ``ttl_left``, but infinity for a lock that does not end."""
    left = sorted(
        math.inf if vote.number < 0 else vote.number
        for vote in ballot.votes
        if vote is not None and vote.kind is VoteKind.TAKEN and vote.token == token
    )
    return left[len(left) - ballot.quorum] / _MS


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
    token, votes = ballot.top_taker
    holder, left = Holder.parse(ballot.holder_value()), ttl_left(ballot, token)
    return LockHeld(
        f"The lock {key!r} is held by {holder}, as {votes} of {len(ballot.labels)} "
        f"nodes say, for {left:.1f} s more unless renewed. You do not hold the lock.",
        key=key,
        ballot=ballot,
        holder=holder,
        retry_after=left,
    )


def _configurations(ballot: Ballot) -> Sequence[str]:
    refused = (v for v in ballot.votes if v and v.kind is VoteKind.REFUSED and v.value)
    return sorted({vote.value for vote in refused})
