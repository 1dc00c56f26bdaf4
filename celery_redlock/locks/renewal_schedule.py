"""When each lease under watch is due, and how holders hand leases to the thread.

::

    a lease is taken ──► put ──► due soon? ──yes──► wake ──► the thread wakes
                          │                                        │
    it is released ──► discard     or its sleep is over ──► drain ──► plan

Most tasks are over before their lease is due. To wake the thread for each of them
costs more than to take their lock. So a holder wakes it only for a lease that is due
soon. The thread sleeps for a few seconds at most, and finds the others in time.

The instant at which the thread wakes cannot be known, though the thread knows how long
it means to sleep: a process that is stopped just before the sleep sleeps as long when
it goes on.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.basics.clock import Clock
    from celery_redlock.locks.lease import Lease


_LEAST_ROOM = 64  # entries
_LONGEST_SLEEP = 4.0  # seconds
_SOON = 5.0  # seconds; the longest sleep, and more than it takes to fall asleep


@dataclass(slots=True, eq=False)
class Watch:
    """A lease under watch, and when something must be done about it."""

    lease: Lease
    renew_at: float
    renew_every: float = math.inf
    on_lost: Callable[[Lease], None] | None = None
    on_renewed: Callable[[Lease, float], None] | None = None
    on_cancelled: Callable[[Lease], None] | None = None
    renewed_at: float = field(init=False)
    renewing: bool = False
    planned_at: float = 0.0

    def __post_init__(self) -> None:
        self.renewed_at = self.lease.started_at

    @property
    def due_at(self) -> float:
        """The instant of the next look at the lease."""
        until = self.lease.until
        return until if self.renewing else min(self.renew_at, until)


class RenewalSchedule:
    """Watches in the order in which they are due. For one thread.

    A watch can be planned anew. Its old entry stays in the heap and is passed over
    when its time comes, because the watch is then planned for another instant. When
    half of the entries are old, all old ones are removed.
    """

    __slots__ = ("_count", "_entries", "_room")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Watch]] = []
        self._room = _LEAST_ROOM
        self._count = itertools.count()  # watches themselves cannot be compared

    def plan(self, watch: Watch) -> None:
        """Enter a watch for the instant at which it is due."""
        watch.planned_at = watch.due_at
        heapq.heappush(self._entries, (watch.planned_at, next(self._count), watch))
        if len(self._entries) > self._room:
            self._remove_old()

    def _remove_old(self) -> None:
        self._entries = [e for e in self._entries if e[0] == e[2].planned_at]
        heapq.heapify(self._entries)
        self._room = max(_LEAST_ROOM, 2 * len(self._entries))

    def due(self, now: float) -> Iterator[Watch]:
        """Take out the watches whose time has come, one by one."""
        while self._entries and self._entries[0][0] <= now:
            planned_at, _, watch = heapq.heappop(self._entries)
            if planned_at == watch.planned_at:
                watch.planned_at = 0.0  # two entries may be for the same instant
                yield watch

    @property
    def next_at(self) -> float:
        """The instant of the first entry; infinity when the schedule is empty."""
        return self._entries[0][0] if self._entries else math.inf


class WakeupQueue:
    """Watches that the thread has not planned yet, by the tokens of their leases.

    Many threads put, one thread drains and sleeps. It sleeps on a lock that `wake`
    releases, and that guards nothing. So an exception that a time limit throws into a
    holder leaves no other thread waiting. (A queue would do, but for Python 3.10: there
    ``SimpleQueue.get(timeout=0.0)`` may wait for ever.)

    Args:
        clock: Reads time.
    """

    __slots__ = ("_asleep", "_clock", "_watches")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watches: dict[str, Watch] = {}
        self.begin()

    def begin(self) -> None:
        """Start anew for a new thread, which drains before it sleeps.

        Wake-ups for the thread before are lost. The lock is a new one, since gevent
        may have been patched since then.
        """
        asleep = threading.Lock()
        asleep.acquire()
        self._asleep = asleep

    @property
    def was_woken(self) -> bool:
        """Whether ``wake`` was called since the thread last drained."""
        return not self._asleep.locked()

    def put(self, watch: Watch) -> None:
        """Have the thread plan the watch, for the first time or anew, in time."""
        self._watches[watch.lease.token] = watch
        if watch.due_at < self._clock.monotonic() + _SOON:
            self.wake()

    def discard(self, token: str) -> None:
        """Take out the watch of a lease that ended, if it is not planned yet."""
        self._watches.pop(token, None)

    def wake(self) -> None:
        """Wake the thread."""
        with suppress(RuntimeError):  # it is awake
            self._asleep.release()

    def drain(self) -> Iterator[Watch]:
        """Take out all watches."""
        self._asleep.acquire(blocking=False)
        for token in list(self._watches):
            watch = self._watches.pop(token, None)
            if watch is not None:  # it may be discarded just now
                yield watch

    def sleep(self, until: float) -> bool:
        """Sleep until this instant, for a few seconds at most, or until ``wake``.

        Returns:
            Whether ``wake`` ended the sleep.
        """
        seconds = min(until - self._clock.monotonic(), _LONGEST_SLEEP)
        return self._asleep.acquire(timeout=max(0.0, seconds))
