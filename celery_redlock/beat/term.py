"""The term of a beat: until when it may send, and what it needs to send.

A beat that is stopped (SIGTERM, SIGINT) ends with ``SystemExit`` wherever it is.
Between sending a slot and recording it, that would leave a slot that the next leader
sends again. So the first signal is deferred until the slot is recorded. A second signal
is obeyed at once.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.records.beat_slots import MOST_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from celery_redlock.basics.clock import Clock
    from celery_redlock.election import Term
    from celery_redlock.records.beat_slots import SlotRecord

_MARGIN = 0.1  # of the ttl: the time to send a slot and to record it
_US = 1_000_000


class BeatTerm(NamedTuple):
    """A term of this beat, with the record of sent slots and the catch-up window.

    Attributes:
        catchup: Seconds for which a missed slot is still sent.
        since: When the scheduler had nothing to send last, or when the term began, in
            microseconds since 1970.
        offset: How far the wall clock was ahead of the monotonic one when the term
            began, in seconds.
    """

    term: Term
    record: SlotRecord
    catchup: float
    since: int
    offset: float
    clock: Clock

    def lasts(self) -> bool:
        """Tell whether enough of the term is left to send a slot and to record it."""
        return self.term.remaining() > self.term.lease.ttl * _MARGIN

    def may_send(self) -> bool:
        """Tell whether nothing keeps this term from sending slots."""
        return not self.obstacle()

    def obstacle(self) -> str:
        """Return what keeps this term from sending slots now; empty if nothing does."""
        if not self.lasts():
            return "the term ends"
        if self.record.is_behind:
            return "too few votes for the record of the last slot"
        if self.clock_was_set:
            return "the clock of this machine was set"
        return ""

    @property
    def clock_step(self) -> float:
        """The seconds by which the wall clock was set forward since the term began."""
        return offset_of(self.clock) - self.offset

    @property
    def clock_was_set(self) -> bool:
        """Whether the wall clock was set so far that another term has to begin.

        Every slot between the two times would be sent if it was set forward, and none
        until the old time is reached again if it was set back.
        """
        return abs(self.clock_step) > MOST_AHEAD

    @property
    def now(self) -> int:
        """The present, in microseconds since 1970."""
        return round(self.clock.wall() * _US)

    @property
    def earliest(self) -> int:
        """The instant before which a slot that was missed is not sent any more.

        At the start of a term, the window reaches back to what no beat has sent. Later
        the leader has been there: an older slot is one of an entry that was not in the
        schedule, or had another one. While many entries are due at once, the last ones
        become late, and the window waits for them.
        """
        # Not after now: an operator or NTP may have turned the wall clock back.
        return min(self.since, self.now) - round(self.catchup * _US)

    @property
    def too_late(self) -> int:
        """The instant before which a slot that the broker refused is given up."""
        return self.now - round(self.catchup * _US)


def offset_of(clock: Clock) -> float:
    """Return how far the wall clock is ahead of the monotonic one, in seconds."""
    return clock.wall() - clock.monotonic()


class TermEnding(Exception):  # noqa: N818  (it is no error)
    """Too little of the term is left to publish a message and to record it."""


class DeadlineProducer:
    """A producer that publishes only while the term lasts.

    Celery does much before it publishes, and may wait for a result backend that does
    not answer. So the deadline is checked here, at the last moment at which a message
    can be held back. From the publishing on, ``until_recorded`` defers signals.
    """

    def __init__(
        self, producer: Any, term: BeatTerm, until_recorded: ExitStack
    ) -> None:
        self._producer = producer
        self._term = term
        self._until_recorded = until_recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        """Publish a message; raise ``TermEnding`` if the term ends before that."""
        if not self._term.lasts():
            raise TermEnding
        self._until_recorded.enter_context(_signals_deferred())
        return self._producer.publish(*args, **kwargs)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Deliver the first signal to end after the block, and a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the main thread receives the signals
        return
    handlers: dict[int, Any] = {}
    received: list[int] = []

    def defer(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1 and callable(handlers[number]):
            handlers[number](number, frame)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, defer)
        yield
    finally:
        for deferred, handler in handlers.items():
            signal.signal(deferred, handler)
        if received:
            signal.raise_signal(received[0])
