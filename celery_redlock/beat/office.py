"""What comes with a term: the right to send, until shortly before it ends.

A beat that is stopped (SIGTERM, SIGINT) is struck by ``SystemExit`` wherever it is.
Between sending a slot and noting it that would leave a slot that the next leader
sends again, so there it comes a moment later; a second signal comes through.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from types import FrameType

    from celery_redlock.core.clock import Clock
    from celery_redlock.election import Term
    from celery_redlock.slots import SlotRecord

__all__ = ["Gate", "Office", "TermEnds"]

_MARGIN = 0.1  # of the ttl: what is left must do for sending a slot and noting it
_US = 1_000_000


class Office(NamedTuple):
    """What comes with a term.

    Attributes:
        term: The term.
        record: Which slots were sent.
        catchup: Seconds for which a slot that was missed is still sent.
        since: When the term began, in microseconds since 1970.
        clock: Reads time.
    """

    term: Term
    record: SlotRecord
    catchup: float
    since: int
    clock: Clock

    def lasts(self) -> bool:
        """Tell whether there is time to do something before the term ends."""
        return self.term.remaining() > self.term.lease.ttl * _MARGIN

    def may_send(self) -> bool:
        """Tell whether a slot can be sent, and noted, before the term ends."""
        return self.lasts() and not self.record.is_behind

    @property
    def earliest(self) -> int:
        """Slots before this instant were missed and are not sent any more."""
        # Not after now: the wall clock may have been set back.
        return min(self.since, self.clock.wall_us()) - round(self.catchup * _US)

    @property
    def too_late(self) -> int:
        """Slots before this instant that could not be sent are given up."""
        return self.clock.wall_us() - round(self.catchup * _US)


class TermEnds(Exception):  # noqa: N818  (it is no error)
    """There is no time left to publish something, and to note that it was."""


class Gate:
    """A producer that publishes nothing when the term ends.

    Celery does much before it publishes. It may wait for a result backend that is
    away, and then this is the last moment at which a message can be held back.

    Args:
        producer: What publishes.
        office: Ends with the term.
        until_noted: From publishing on, signals are put off until it is closed.
    """

    def __init__(self, producer: Any, office: Office, until_noted: ExitStack) -> None:
        self._producer = producer
        self._office = office
        self._until_noted = until_noted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        """Publish a message.

        Raises:
            TermEnds: It was not published.
        """
        if not self._office.lasts():
            raise TermEnds
        self._until_noted.enter_context(_signals_put_off())
        return self._producer.publish(*args, **kwargs)


@contextmanager
def _signals_put_off() -> Iterator[None]:
    """Let the first signal to end come when the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to another thread
        return
    before: dict[int, Any] = {}
    came: list[int] = []

    def put_off(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1 and callable(before[number]):
            before[number](number, frame)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, put_off)
        yield
    finally:
        for ours, handler in before.items():
            signal.signal(ours, handler)
        if came:
            signal.raise_signal(came[0])
