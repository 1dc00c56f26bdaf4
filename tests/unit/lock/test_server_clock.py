"""The time of a server, as its replies tell it to a client."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_redlock.stores.server_clock import ServerClock

US = 1_000_000
DRIFT = 0.01


def test_first_reply_bounds_the_time() -> None:
    """The server read its clock between the request and the reply."""
    clock = ServerClock()
    assert clock.observe(sent_at=10.0, received_at=10.25, least=5000.0, most=5001.0)
    earliest, latest = clock.read(10.25)
    assert earliest == 5000 * US
    assert latest == pytest.approx((5001.25 + 0.25 * DRIFT) * US)


def test_server_may_run_ahead_while_a_reply_is_on_its_way() -> None:
    """It read its clock at once, and has gained a hundredth of the time since."""
    clock = ServerClock()
    clock.observe(sent_at=0.0, received_at=3.0, least=5000.0, most=5000.0)
    assert clock.read(3.0).latest_us >= (5000 + 3 * (1 + DRIFT)) * US


def test_later_replies_narrow_the_bounds() -> None:
    """A second that ends between two replies is known to the time between them."""
    clock = ServerClock()
    clock.observe(10.0, 10.0, 5000.0, 5001.0)
    clock.observe(10.75, 10.75, 5001.0, 5002.0)
    earliest, latest = clock.read(10.75)
    assert earliest == 5001 * US
    assert latest <= 5001.76 * US


def test_bounds_widen_by_a_hundredth_of_the_time_that_passes() -> None:
    """So much may two clocks run apart."""
    clock = ServerClock()
    clock.observe(10.0, 10.0, 5000.0, 5000.0)
    assert clock.read(110.0) == (5099 * US, 5101 * US)


def test_clock_that_was_set_is_believed() -> None:
    """A reply that contradicts the earlier ones replaces them, and is reported."""
    clock = ServerClock()
    clock.observe(10.0, 10.0, 5000.0, 5001.0)
    assert not clock.observe(11.0, 11.0, 4000.0, 4001.0)
    assert clock.read(11.0) == (4000 * US, 4001 * US)
    assert clock.observe(12.0, 12.0, 4001.0, 4002.0)


@given(
    ahead=st.floats(-1e6, 1e6),
    rate=st.floats(1 - DRIFT, 1 + DRIFT),
    requests=st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 3), st.floats(0, 1)), min_size=1
    ),
    later=st.floats(0, 1000),
)
@example(ahead=0.0, rate=1 + DRIFT, requests=[(0.0, 3.0, 0.0)], later=0.0)
def test_time_of_the_server_is_within_the_bounds(
    ahead: float, rate: float, requests: list[tuple[float, float, float]], later: float
) -> None:
    """The clock of the server tells whole seconds, and runs at most 1 % apart."""
    clock, now = ServerClock(), 0.0

    def server(at: float) -> float:
        return 2e6 + ahead + at * rate

    for pause, took, when in requests:
        sent_at = now + pause
        now = sent_at + took
        second = server(sent_at + took * when) // 1
        assert clock.observe(sent_at, now, second, second + 1)
    earliest, latest = clock.read(now + later)
    true_us = server(now + later) * US
    assert earliest - 10 <= true_us <= latest + 10  # µs: rounding of floats
