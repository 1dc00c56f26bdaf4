"""The wall clock of a server, as a client knows it: between two bounds.

::

    sent_at         the server reads its clock          received_at
    ───┼────────────────────────┼──────────────────────────┼──────►  our monotonic clock
                      least ≤ its time ≤ most

    least − received_at   ≤   its time − our monotonic clock   ≤   most − sent_at

The right-hand side was so at `sent_at`, which is some time ago when the reply comes.

Each reply that tells a time of the server gives such bounds. Later ones narrow earlier
ones, which widen meanwhile by 1 % of the time that has passed: so much may two clocks
run apart (assumption A3 of docs/explanation/safety.md). If they contradict each other,
the clock of the server was set, and the later ones hold alone.

A key is kept until the end of its ttl by the *latest* time that it can be at the server
now, and has ended when the *earliest* time is past its end. So no client takes a lock
before its ttl is over, also if its own clock is wrong. A lock may end late, by as
much as the bounds of its two clients are wide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_DRIFT = 0.01  # of the time that has passed
_US = 1_000_000


class ServerTime(NamedTuple):
    """The bounds of the time of a server, in microseconds since 1970."""

    earliest_us: int
    latest_us: int


@dataclass(slots=True)
class ServerClock:
    """The bounds of a server's clock. All arguments are in seconds.

    Attributes:
        observed_at: When the last reply was received, by our monotonic clock; None: no
            reply has told a time.
    """

    observed_at: float | None = None
    _least: float = -math.inf  # of the server's clock, less ours
    _most: float = math.inf

    def observe(
        self, sent_at: float, received_at: float, least: float, most: float
    ) -> bool:
        """Take in that the server read a time between two instants of ours.

        Return whether that agrees with what was known.

        Args:
            sent_at: When its request was sent, by our monotonic clock.
            received_at: When its reply was received.
            least: The server's time, in seconds since 1970, was this or later.
            most: The server's time was this or earlier.
        """
        widened = self._widened_by(received_at)
        lowest = least - received_at
        highest = most - sent_at + _DRIFT * (received_at - sent_at)
        self._least = max(lowest, self._least - widened)
        self._most = min(highest, self._most + widened)
        self.observed_at = received_at
        agrees = self._least <= self._most
        if not agrees:
            self._least, self._most = lowest, highest
        return agrees

    def read(self, now: float) -> ServerTime:
        """Return the server's time at an instant of our monotonic clock."""
        widened = self._widened_by(now)
        return ServerTime(
            math.floor((now + self._least - widened) * _US),
            math.ceil((now + self._most + widened) * _US),
        )

    def _widened_by(self, now: float) -> float:
        since = now if self.observed_at is None else self.observed_at
        return _DRIFT * (now - since)
