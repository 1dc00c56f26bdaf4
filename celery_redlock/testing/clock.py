"""A clock for tests, which stands still until a test moves it."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_US = 1_000_000


class FakeClock:
    """A clock that only ``sleep`` and ``advance`` move. For one thread.

    It counts whole microseconds, so that 0.1 + 0.2 is 0.3. It is a
    `basics.clock.Clock`, for `Redlock` and for `testing.MemoryNode`.

    Args:
        wall: Seconds since 1970 at the start.

    Attributes:
        slept: Each pause that a caller asked for, in seconds.
    """

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self._now_us = 1000 * _US
        self._wall_minus_now_us = round(wall * _US) - self._now_us
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._counter = itertools.count()
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """Return the seconds since a fixed instant."""
        return self._now_us / _US

    def wall(self) -> float:
        """Return the seconds since 1970."""
        return (self._now_us + self._wall_minus_now_us) / _US

    def sleep(self, seconds: float) -> None:
        """Advance, as if the caller had slept, and record the pause."""
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance by this many seconds, and call the events that are due by then."""
        # A caller that waits for an instant must reach it, however near it is.
        least = 1 if seconds > 0 else 0
        end_us = self._now_us + max(least, round(seconds * _US))
        while self._events and self._events[0][0] <= end_us:
            due_us, _, event = heapq.heappop(self._events)
            self._now_us = max(self._now_us, due_us)
            event()
        self._now_us = max(self._now_us, end_us)

    def at(self, seconds: float, event: Callable[[], object]) -> None:
        """Call a function when the clock has advanced by this many seconds."""
        due_us = self._now_us + round(seconds * _US)
        heapq.heappush(self._events, (due_us, next(self._counter), event))

    def next_event(self) -> float:
        """Return the instant of the next event; infinity if there is none."""
        return self._events[0][0] / _US if self._events else float("inf")

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP does."""
        self._wall_minus_now_us += round(seconds * _US)
