"""At most one log line a minute about one thing; the others are counted."""

from __future__ import annotations

import math

from celery_redlock.basics.clock import SYSTEM_CLOCK, Clock

_EVERY = 60.0  # seconds, at least, between two lines


class LogLimit:
    """Decides which lines are written.

    Attributes:
        held_back: The number of lines since the last one that was written.
    """

    __slots__ = ("_clock", "_quiet_until", "held_back")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._quiet_until = -math.inf
        self.held_back = 0

    def take(self) -> int | None:
        """Return how many lines were held back before this one; None: hold it back."""
        now = self._clock.monotonic()
        if now < self._quiet_until:
            self.held_back += 1
            return None
        self._quiet_until = now + _EVERY
        before, self.held_back = self.held_back, 0
        return before
