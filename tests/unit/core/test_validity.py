"""For how long a lease is valid, and that none is returned which is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.timing import drift_of
from celery_redlock.errors import LockContended
from tests.unit.core.support import NOBODY, TTL, asked, forget, hold, holders

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_validity_is_the_ttl_less_the_drift(redlock: Redlock, clock: FakeClock) -> None:
    """1 % of the ttl and 2 ms are left to clocks that run at different rates."""
    lease = redlock.acquire("k")

    assert lease.remaining() == pytest.approx(TTL - 0.1 - 0.002)
    clock.advance(TTL - 0.1 - 0.002)
    assert not lease.is_valid()


def test_validity_counts_from_before_the_first_send(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """What the round trip took is not added to it."""
    nodes.latency(0.03)
    before = clock.monotonic()

    lease = redlock.acquire("k")

    assert clock.monotonic() == pytest.approx(before + 0.03)
    assert lease.started_at == before
    assert lease.until == pytest.approx(before + TTL - drift_of(TTL))


def test_validity_of_a_later_try_counts_from_that_try(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Waiting for a lock costs none of its validity."""
    hold(nodes, 0, 1, 2)
    clock.at(3.0, lambda: forget(nodes, 0, 1, 2))

    lease = redlock.acquire("k", wait=5.0)

    assert clock.monotonic() - lease.started_at == 0
    assert lease.remaining() == pytest.approx(TTL - drift_of(TTL))


def test_acquire_after_a_long_pause_tries_again(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A process that was stopped between question and answer has won nothing."""
    nodes.latency(0.01)
    clock.at(0.005, lambda: clock.advance(TTL))

    lease = redlock.acquire("k")

    assert lease.is_valid()
    assert lease.started_at > 1000.0 + TTL
    assert asked(nodes) == ["acquire", "release", "acquire"]


def test_acquire_never_returns_what_has_ended(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """However often: an error, and nothing is held."""
    nodes.latency(0.01)

    def stall() -> None:
        clock.advance(TTL)
        clock.at(0.002, stall)

    clock.at(0.002, stall)

    with pytest.raises(LockContended) as caught:
        redlock.acquire("k")

    assert "granted by 5 of 5 nodes, but its fence or its validity" in str(caught.value)
    assert holders(nodes) == NOBODY


@pytest.mark.parametrize("early", [0.0, 0.001])
def test_validity_is_looked_at_after_the_last_round_trip(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock, early: float
) -> None:
    """At its very end a lease is not granted any more; a millisecond before, it is."""
    validity = TTL - drift_of(TTL)
    nodes.latency(0.01)
    clock.at(0.005, lambda: clock.advance(validity - 0.005 - early))

    lease = redlock.acquire("k")

    again = ["release", "acquire"] if early == 0.0 else []
    assert asked(nodes) == ["acquire", *again]
    assert lease.is_valid()
