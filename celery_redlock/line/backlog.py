"""The backlog of a key: the refused calls that come back, in their order.

::

    refused ──► join: "240 stand before you, and runs take 50 ms" ──► keep, for the
       ▲                                                              countdown
       ├──────── still refused: it joins again, in its old place ◄─────────┤
       │                                                                   ▼
       │    still held: the worker that has it keeps the place ◄───── waits in memory
       │                                                                   │
    ended ──► note: the run took 52 ms ◄── run ◄── leave ◄─────────────  granted
                                                     ▲
                     skipped, failed, revoked, expired, killed, unknown

Every node keeps a sorted set of calls by the time at which they were published, and the
mean of how long runs of the key took lately. A call that is refused joins the set of
the key that is held, and learns its place. So it can come back when its turn is near.

This is best effort: the lock alone decides which call runs. The nodes do not agree on
their sets, and the median of those that answer counts. A place ends with its job. Where
nothing sees the end (a purged queue, a lost message), it ends soon after the instant at
which the call was to look again: see `MARGIN`. A call that comes later joins in its old
place. Where no node answers, a call comes back as if there were no backlog. A node that
lost its memory says that a call is further ahead than it is: then the call comes back
too early, and joins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.scripts import (
    JOIN_BACKLOG,
    LEAVE_BACKLOG,
    NOTE_RUN,
    READ_BACKLOG,
)
from celery_redlock.wire.quorum import VoteKind
from celery_redlock.wire.requests import majority_answered

if TYPE_CHECKING:
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.wire.requests import ScriptRequest

__all__ = [
    "MARGIN",
    "Place",
    "join_backlog",
    "keep_place",
    "leave_backlog",
    "note_run",
    "place_of_next",
]

MARGIN = 10.0  # seconds that a call may be late to look again, and keeps its place

_LATELY = 100  # runs that make the mean: one long run among short ones counts little
_KEPT_MS = 3_600_000  # the mean, after the last run
_US = 1_000_000


class Place(NamedTuple):
    """The place of a call in the backlog of a key.

    Attributes:
        before: How many calls are before it.
        waiting: How many calls are in the backlog, with this one.
        run_time: Seconds that runs of the key took lately, on average; 0.0 where no
            run has ended lately.
    """

    before: int
    waiting: int
    run_time: float = 0.0


def join_backlog(
    redlock: Redlock, key: str, task_id: str, *, since: int
) -> Place | None:
    """Join the backlog of a key. The call keeps its place for `MARGIN`.

    Args:
        redlock: The lock service.
        key: The key that is held.
        task_id: The id of the call.
        since: When the call was published, in µs since 1970; the same each time.

    Returns:
        The place, by the median of the nodes that answered; None if none did.
    """
    request = redlock.nodes.ask(
        JOIN_BACKLOG,
        _names(redlock, key),
        [task_id, since, round(MARGIN * _US)],
        done_when=majority_answered,
    )
    answers = _answers(request)
    if not answers:
        return None
    before, waiting, run_us = map(_median, answers)
    return Place(before, max(waiting, before + 1), run_us / _US)


def keep_place(
    redlock: Redlock, key: str, task_id: str, *, since: int, seconds: float
) -> None:
    """Keep the place of a call that looks again in so many seconds, and for `MARGIN`.

    Does not wait for replies. It is told before the call is published: a process that
    starts it then, and leaves the backlog, does so later.
    """
    within = round((seconds + MARGIN) * _US)
    redlock.nodes.tell(JOIN_BACKLOG, _names(redlock, key), [task_id, since, within])


def place_of_next(redlock: Redlock, key: str) -> Place | None:
    """Return the place of a call that would join now. Changes nothing."""
    keys = redlock.keys
    request = redlock.nodes.ask(
        READ_BACKLOG,
        [*keys.backlogs(key), *keys.paces(key)],
        done_when=majority_answered,
    )
    answers = _answers(request)
    if not answers:
        return None
    waiting, run_us = map(_median, answers)
    return Place(waiting, waiting + 1, run_us / _US)


def leave_backlog(redlock: Redlock, key: str, task_id: str) -> None:
    """Leave the backlogs of these keys. Twice is harmless.

    Does not wait for replies: later requests come after it on each node.
    """
    keys = redlock.keys
    redlock.nodes.tell(
        LEAVE_BACKLOG, [*keys.backlogs(key), *keys.returns(key)], [task_id]
    )


def note_run(redlock: Redlock, key: str, seconds: float) -> None:
    """Note how long a run of these keys took. Does not wait for replies."""
    args = [max(1, round(seconds * _US)), _LATELY, _KEPT_MS]
    redlock.nodes.tell(NOTE_RUN, redlock.keys.paces(key), args)


def _names(redlock: Redlock, key: str) -> list[str]:
    keys = redlock.keys
    return [*keys.backlogs(key), *keys.returns(key), *keys.paces(key)]


def _answers(request: ScriptRequest) -> list[tuple[int, ...]]:
    """Return the numbers of all replies: first all first ones, then all second ones."""
    granted = request.ballot.indexes(VoteKind.GRANTED)
    return [*zip(*(request.replies[index][1:] for index in granted), strict=True)]


def _median(numbers: tuple[int, ...]) -> int:
    return sorted(numbers)[len(numbers) // 2]
