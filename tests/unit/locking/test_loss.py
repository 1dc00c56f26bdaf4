"""What becomes of a block whose lock is lost while it runs."""

# ruff: noqa: PT012, SIM117  (what is tested are blocks that raise, one in another)

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import LeaseState
from celery_redlock.errors import LockLost
from celery_redlock.locking import lock
from tests.unit.core.support import Stepped, holders, put
from tests.unit.locking.support import TTL

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_lost_lock_is_an_error_at_the_end_of_the_block(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A body that ends as if nothing had happened did not have the lock."""
    lost: list[Lease] = []

    with pytest.raises(LockLost) as caught:
        with lock(redlock, "k", watchdog=watchdog, on_lost=lost.append) as lease:
            nodes.partition()
            watchdog.run_for(clock, TTL)
            assert lost == [lease]

    assert lease.state is LeaseState.LOST
    assert (caught.value.key, caught.value.fence) == ("k", lease.fence)


def test_lost_lock_is_noticed_without_being_announced(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A process that slept, and its watchdog with it."""
    with pytest.raises(LockLost):
        with lock(redlock, "k", watchdog=watchdog):
            clock.advance(TTL)


def test_lost_lock_does_not_hide_what_the_block_raised(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """The body's own exception is nearer to the cause."""
    with pytest.raises(ValueError, match="mine"):
        with lock(redlock, "k", watchdog=watchdog):
            clock.advance(TTL)
            raise ValueError("mine")


def test_lost_lock_is_released_where_it_is_still_ours(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """And nowhere else: the successor's stays."""
    with pytest.raises(LockLost):
        with lock(redlock, "k", watchdog=watchdog) as lease:
            put(nodes, 0, "other.1")
            put(nodes, 1, "other.1")
            lease.state = LeaseState.LOST

    assert holders(nodes) == ["other.1", "other.1", ""]


def test_block_is_told_that_it_may_stop_trusting(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """``ensure`` before a side effect is free, and raises when it is too late."""
    with pytest.raises(LockLost):
        with lock(redlock, "k", watchdog=watchdog) as lease:
            lease.ensure()
            clock.advance(TTL)
            lease.ensure()
            pytest.fail("a side effect without the lock")
