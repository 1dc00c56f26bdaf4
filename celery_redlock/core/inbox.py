"""What holders leave for the watchdog's thread, which is woken only for what is urgent.

::

    a lease is taken ──► put ──► due soon? ──yes──► ring ──► the thread wakes
                          │                                        │
    it is released ──► take_back      it has slept its time ──► drain

Most tasks are over before anything is due. To wake a thread for each of them costs
more than to take their lock. The thread never sleeps for long at a stretch, so that
whatever is due later than that is found in time without a word.

There is no telling when the thread will wake, though it knows how long it means to
sleep: a process that is stopped just before that sleeps as long when it goes on.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.agenda import Watch
    from celery_redlock.core.clock import Clock

__all__ = ["Inbox"]

_LONGEST_SLEEP = 4.0  # seconds
_SOON = 5.0  # seconds; above that, by more than it takes to fall asleep


class Inbox:
    """Watches that are to be planned, by the tokens of their leases.

    Many put, one thread drains and sleeps. There is no lock that an exception,
    thrown into a holder by a time limit, could leave behind.

    Args:
        clock: Reads time.
    """

    __slots__ = ("_bell", "_clock", "_watches")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watches: dict[str, Watch] = {}
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def has_rung(self) -> bool:
        """Whether somebody has rung since the thread last drained."""
        return not self._bell.empty()

    def put(self, watch: Watch) -> None:
        """Have the thread plan it, for the first time or anew, before it is due."""
        self._watches[watch.lease.token] = watch
        if watch.due_at < self._clock.monotonic() + _SOON:
            self.ring()

    def take_back(self, token: str) -> None:
        """The lease has ended: the thread need not hear of it, if it has not yet."""
        self._watches.pop(token, None)

    def ring(self) -> None:
        """Wake the thread."""
        self._bell.put(None)

    def drain(self) -> Iterator[Watch]:
        """Take out all there is."""
        while self.has_rung:
            self._bell.get()
        for token in list(self._watches):
            watch = self._watches.pop(token, None)
            if watch is not None:  # not taken back just now
                yield watch

    def sleep(self, until: float) -> bool:
        """Sleep until this instant, for a few seconds, or until the bell rings.

        Returns:
            Whether it has rung.
        """
        seconds = min(until - self._clock.monotonic(), _LONGEST_SLEEP)
        try:
            self._bell.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return False
        return True
