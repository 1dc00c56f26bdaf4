"""The bounds that a few readings of a node's clock give for its rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.operations.inspect import ClockSample, watch_clock
from celery_redlock.stores.server_clock import ServerClock
from celery_redlock.testing import FakeClock

US = 1_000_000
EPOCH = 1_700_000_000.3  # what the clock of the node shows in the beginning
DELAYS = st.lists(st.floats(0.0, 0.5), min_size=24, max_size=24)


class Node:
    """A node whose clock has another rate; requests and replies take some time.

    Args:
        rate: Seconds that its clock counts in one of ours.
        delays: Of each request, and of each reply.
        tells_seconds: Whether its replies tell the time as those of etcd.
    """

    def __init__(
        self, rate: float, delays: list[float], *, tells_seconds: bool = False
    ) -> None:
        self.clock = FakeClock()
        self._rate, self._began_at = rate, self.clock.monotonic()
        self._delays: Iterator[float] = iter(delays)
        self._known = ServerClock() if tells_seconds else None

    def ask(self, command: tuple[str]) -> list[Any]:
        """Return the reply to TIME."""
        assert command == ("TIME",)
        sent_at = self.clock.monotonic()
        self.clock.advance(next(self._delays))
        now = EPOCH + self._rate * (self.clock.monotonic() - self._began_at)
        self.clock.advance(next(self._delays))
        if self._known is None:
            return [[b"%d" % part for part in divmod(int(now * US), US)]]
        received_at, second = self.clock.monotonic(), math.floor(now)
        self._known.observe(sent_at, received_at, second, second + 1)
        least, most = self._known.read(received_at)
        return [[b"%d" % part for part in (*divmod(least, US), most - least)]]

    def watch(self) -> ClockSample:
        """Return what a second of watching shows."""
        return watch_clock(self, self.clock, 1.0)  # type: ignore[arg-type]


@given(st.floats(0.0, 3.0), DELAYS)
def test_rate_of_a_clock_that_is_read_exactly_lies_between_the_bounds(
    rate: float, delays: list[float]
) -> None:
    """However long its replies take, and whether it runs or stands."""
    sample = Node(rate, delays).watch()

    assert sample.least_rate - 1e-4 <= rate <= sample.most_rate + 1e-4


@given(st.floats(0.99, 1.01), DELAYS)
def test_rate_of_a_clock_that_tells_seconds_lies_between_the_bounds(
    rate: float, delays: list[float]
) -> None:
    """Also when later replies tell its time more exactly than the first ones."""
    sample = Node(rate, delays, tells_seconds=True).watch()

    assert sample.least_rate - 1e-4 <= rate <= sample.most_rate + 1e-4


@pytest.mark.parametrize("rate", [0.95, 1.05])
def test_short_replies_prove_a_drift(rate: float) -> None:
    """With a millisecond for each, the bounds of a second are close to the rate."""
    sample = Node(rate, [0.0005] * 24).watch()

    assert sample.least_rate == pytest.approx(rate, abs=0.005)
    assert sample.most_rate == pytest.approx(rate, abs=0.005)
