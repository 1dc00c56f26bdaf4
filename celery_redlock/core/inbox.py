"""What holders leave for the watchdog's thread, which sleeps as long as it can.

::

    a lease is taken ──► put ──► due before the thread wakes? ──yes──► ring
                          │                                             │
    it is released ──► take_back           a thread wakes ──► drain ◄───┘

Most tasks are over before anything is due. To wake a thread for each of them costs
more than to take their lock, so nobody does unless the thread would come too late.
"""

from __future__ import annotations

import math
import queue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.agenda import Watch
    from celery_redlock.core.clock import Clock

__all__ = ["Inbox"]


class Inbox:
    """Watches that are to be planned, by the tokens of their leases.

    Many put, one thread drains and sleeps. There is no lock that an exception,
    thrown into a holder by a time limit, could leave behind.

    Args:
        clock: Reads time.
    """

    __slots__ = ("_bell", "_clock", "_wakes_at", "_watches")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watches: dict[str, Watch] = {}
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wakes_at = -math.inf  # without the bell; awake, it looks by itself

    @property
    def has_rung(self) -> bool:
        """Whether somebody has rung since the thread last drained."""
        return not self._bell.empty()

    def put(self, watch: Watch) -> None:
        """Have the thread plan it, for the first time or anew, before it is due."""
        self._watches[watch.lease.token] = watch
        if watch.due_at < self._wakes_at:  # read after that; see `sleep`
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
        """Sleep until this instant, or until the bell rings.

        Returns:
            Whether somebody wants something, so that it has not come to that.
        """
        # First told, then looked: what is put now is seen here, or whoever puts it
        # sees when we wake, and rings if that is too late.
        self._wakes_at = until
        try:
            if not self._watches:
                self._bell.get(timeout=max(0.0, until - self._clock.monotonic()))
        except queue.Empty:
            return False
        finally:
            self._wakes_at = -math.inf
        return True
