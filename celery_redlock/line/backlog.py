"""The backlog of a key: the calls that come back in their turn, or run in order.

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

With ``in_order`` calls run in the order in which they were published. Then a call joins
before its message is sent, and gets a number that is greater than all before it::

    publisher ──► number: "17" ──► send the message, which carries the number
                                        │
    worker ◄────────────────────────────┘
       │
       └─► join: "none is before you" ──► try for the lock ──► leave ──► run
                 "1 is before you" ──► return to the queue, as a refused call
                 too few nodes answer ──► an outage: it does not run in order

A number that a majority knows is known by one node at least of each later majority. So
here the highest count of calls that are before counts, and not the median. The next
publisher gets a greater number, also if its clock is late. No call gets a smaller one
later: a call that is first stays first until it leaves. A call that no majority knows
has no order: its publisher could not reach the nodes, or they have lost their memory.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.line import RESEND_FOR
from celery_redlock.locks.failure import unreachable
from celery_redlock.scripts import (
    FIRST_IN_BACKLOG,
    JOIN_BACKLOG,
    LEAVE_BACKLOG,
    NOTE_RUN,
    NUMBER_IN_BACKLOG,
    READ_BACKLOG,
)
from celery_redlock.wire.quorum import VoteKind
from celery_redlock.wire.requests import majority_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.scripts import Script
    from celery_redlock.wire.quorum import Ballot


MARGIN = 10.0  # seconds that a call may be late to look again, and keeps its place

_LEFT_FOR_US = 60_000_000  # in which a node knows that a call has left
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
        first: In order: the id of the call that is before all others, if it is another.
    """

    before: int
    waiting: int
    run_time: float = 0.0
    first: str = ""


def join_backlog(  # noqa: PLR0913  (each names one thing)
    redlock: Redlock,
    key: str,
    task_id: str,
    *,
    since: int,
    margin: float = MARGIN,
    in_order: bool = False,
) -> Place | None:
    """Join the backlog of a key that is held, and keep the place for a margin.

    ``since`` is when the call was published, in µs since 1970: the same each time.

    Returns:
        The place, by the median of the nodes that answered; None if none did. In order
        it is the last place that a node names.

    Raises:
        QuorumUnreachable: In order, fewer nodes than a majority answered.
    """
    args = [task_id, since, round(margin * _US), ""]
    ballot, answers = _ask(redlock, JOIN_BACKLOG, _names(redlock, key), args)
    if in_order and not _are_of_majority(redlock, answers):
        raise unreachable(
            key,
            ballot,
            config=redlock.guard.config,
        )
    if not answers:
        return None
    *numbers, firsts = answers
    before, waiting, run_us = map(_median, numbers)
    first = ""
    if in_order and (before := max(numbers[0])):
        others = Counter(one for one in map(_text, firsts) if one != task_id)
        first = max(others, key=lambda one: others[one], default="")
    return Place(before, max(waiting, before + 1), run_us / _US, first)


def keep_place(  # noqa: PLR0913  (each names one thing)
    redlock: Redlock,
    key: str,
    task_id: str,
    *,
    since: int,
    seconds: float,
    only_if_there: bool = False,
) -> None:
    """Keep the place of a call for so many seconds: its countdown, and a margin.

    Does not wait for replies. It is told before the call is published: a process that
    starts it then, and leaves the backlog, does so later. Another process may tell it
    late: ``only_if_there``, the call does not join again after it has left.
    """
    args = [task_id, since, round(seconds * _US), "1" if only_if_there else ""]
    redlock.nodes.tell(JOIN_BACKLOG, _names(redlock, key), args)


def number_in_backlog(
    redlock: Redlock, key: str, task_id: str, *, least: int, margin: float
) -> int | None:
    """Number a call that is about to be published, and join the backlog of its key.

    ``least`` is now, in µs since 1970. It keeps its place for the margin, in seconds.

    Returns:
        Its number, which a majority of the nodes knows: greater than that of each call
        that has got one before. None if too few nodes answered: then it has no order.
    """
    keys = redlock.keys
    names = [*keys.backlogs(key), *keys.returns(key), keys.number(key)]
    number, is_given = least, ""
    while True:
        args = [task_id, number, round(margin * _US), is_given]
        _, answers = _ask(redlock, NUMBER_IN_BACKLOG, names, args)
        if not _are_of_majority(redlock, answers):
            return None
        numbers = set(answers[0])
        if len(numbers) == 1:
            return int(numbers.pop())
        # Clocks of publishers differ, and some nodes know more calls than others.
        number, is_given = max(numbers), "1"


def is_first(redlock: Redlock, key: str, task_id: str) -> bool:
    """Tell whether each node that answered names this call first, or none.

    So it is where no node answered: the lock decides.
    """
    names = [*redlock.keys.backlogs(key), *redlock.keys.returns(key)]
    _, answers = _ask(redlock, FIRST_IN_BACKLOG, names, [task_id])
    return not answers or {*map(_text, answers[1])} <= {task_id, ""}


def place_of_newcomer(redlock: Redlock, key: str) -> Place | None:
    """Return the place of a call that would join now. Changes nothing."""
    names = [*redlock.keys.backlogs(key), *redlock.keys.paces(key)]
    _, answers = _ask(redlock, READ_BACKLOG, names)
    if not answers:
        return None
    waiting, run_us = map(_median, answers)
    return Place(waiting, waiting + 1, run_us / _US)


def leave_backlog(
    redlock: Redlock, key: str, task_id: str, *, in_order: bool = False
) -> None:
    """Leave the backlogs of these keys. Twice is harmless.

    Does not wait for replies: later requests come after it on each node. In order a
    call that has left holds up no other, so nodes are told again where they were away,
    and remember it for a minute, in which a publisher's message may be late.
    """
    keys = redlock.keys
    redlock.nodes.tell(
        LEAVE_BACKLOG,
        [*keys.backlogs(key), *keys.returns(key)],
        [task_id, _LEFT_FOR_US if in_order else 0],
        resend_for=RESEND_FOR * in_order,
    )


def note_run(redlock: Redlock, key: str, seconds: float) -> None:
    """Note how long a run of these keys took. Does not wait for replies."""
    args = [max(1, round(seconds * _US)), _LATELY, _KEPT_MS]
    redlock.nodes.tell(NOTE_RUN, redlock.keys.paces(key), args)


def _names(redlock: Redlock, key: str) -> list[str]:
    keys = redlock.keys
    return [*keys.backlogs(key), *keys.returns(key), *keys.paces(key)]


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _ask(
    redlock: Redlock, script: Script, names: list[str], args: Sequence[Any] = ()
) -> tuple[Ballot, list[tuple[Any, ...]]]:
    """Ask the nodes. The answers have a tuple for each item, with each node's value."""
    request = redlock.nodes.ask(script, names, args, done_when=majority_answered)
    granted = request.ballot.indexes(VoteKind.GRANTED)
    answers = zip(*(request.replies[index][1:] for index in granted), strict=True)
    return request.ballot, [*answers]


def _are_of_majority(redlock: Redlock, answers: list[tuple[Any, ...]]) -> bool:
    return bool(answers) and len(answers[0]) >= redlock.quorum


def _median(numbers: tuple[int, ...]) -> int:
    return sorted(numbers)[len(numbers) // 2]
