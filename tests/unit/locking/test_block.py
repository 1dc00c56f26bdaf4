"""``with lock(...)``: held while the body runs, and what a loss of the lock does."""

# ruff: noqa: PT012, SIM117  (the tests are about blocks that raise, in each other)

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.lease import Holder, LeaseState, new_base
from celery_redlock.errors import LockHeld, LockLost, QuorumUnreachable
from celery_redlock.locking import current_lease, lock, watchdog_of
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.core.support import Stepped, asked, forget, holders, put, ttls
from tests.unit.locking.support import FREE, TTL

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock


def test_lock_is_held_while_the_block_runs(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """It is taken before and released after: two requests."""
    with lock(redlock, "k", watchdog=watchdog) as lease:
        assert lease.is_valid()
        assert holders(nodes) == [lease.token] * 3

    assert lease.state is LeaseState.RELEASED
    assert holders(nodes) == FREE
    assert asked(nodes) == ["acquire", "release"]


def test_lock_is_renewed_while_the_block_runs(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """The renewals end with the block."""
    with lock(redlock, "k", watchdog=watchdog) as lease:
        watchdog.run_for(clock, 100.0)
        assert lease.is_valid()
    before = len(nodes.asked)

    watchdog.run_for(clock, 100.0)

    assert len(nodes.asked) == before


def test_lock_is_released_when_the_block_raises(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """The exception goes on unchanged."""
    with pytest.raises(ValueError, match="mine") as caught:
        with lock(redlock, "k", watchdog=watchdog):
            raise ValueError("mine")

    assert holders(nodes) == FREE
    assert caught.value.__context__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_lock_is_released_by_every_kind_of_end(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, error: type[BaseException]
) -> None:
    """Even by a BaseException that is no Exception."""
    with pytest.raises(error):
        with lock(redlock, "k", watchdog=watchdog):
            raise error

    assert holders(nodes) == FREE


def test_block_never_runs_without_the_lock(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, watchdog: Stepped
) -> None:
    """A held lock, or no quorum, is an error before its first line."""
    rival.acquire("k")
    ran = []

    with pytest.raises(LockHeld):
        with lock(redlock, "k", watchdog=watchdog):
            ran.append("held")
    nodes.partition()
    with pytest.raises(QuorumUnreachable):
        with lock(redlock, "l", watchdog=watchdog):
            ran.append("unreachable")

    assert ran == []
    assert current_lease() is None


def test_refused_lock_is_not_released(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, watchdog: Stepped
) -> None:
    """A duplicate costs one round trip and does not touch the holder's lock."""
    lease = rival.acquire("k")

    with pytest.raises(LockHeld):
        with lock(redlock, "k", watchdog=watchdog):
            pass

    assert asked(nodes) == ["acquire"]
    assert holders(nodes) == [lease.token] * 3


def test_lock_passes_its_options_to_acquire(
    nodes: FakeNodes,
    redlock: Redlock,
    rival: Redlock,
    watchdog: Stepped,
    clock: FakeClock,
) -> None:
    """They are ttl, wait, base and holder."""
    theirs = rival.acquire("k")
    clock.at(2.0, lambda: rival.release(theirs))
    base, given = new_base(), Holder("", task="t", task_id="id")
    how: dict[str, Any] = {"ttl": 4.0, "wait": 3.0, "base": base, "holder": given}

    with lock(redlock, "k", watchdog=watchdog, **how) as lease:
        holder = redlock.inspect("k").holder

    assert (lease.ttl, lease.token.partition(".")[0]) == (4.0, base)
    assert holder is not None
    assert (holder.task, holder.task_id) == ("t", "id")


def test_lock_without_renewal_must_end_within_the_ttl(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """No renewal is sent, and the end of the validity is announced."""
    lost: list[Lease] = []

    with pytest.raises(LockLost):
        with lock(
            redlock, "k", watchdog=watchdog, renew=False, on_lost=lost.append
        ) as lease:
            watchdog.run_for(clock, TTL)
            assert asked(nodes) == ["acquire"]

    assert lost == [lease]


# -- callbacks ---------------------------------------------------------------------


def test_callbacks_are_called_in_order(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock, nodes: FakeNodes
) -> None:
    """Acquired before the block, renewed during it, released after the release."""
    events: list[Any] = []
    told: dict[str, Any] = {
        "on_acquired": lambda lease: events.append(("acquired", lease)),
        "on_renewed": lambda lease, late: events.append(("renewed", lease, late < 0.1)),
        "on_released": lambda lease: events.append(("released", lease, holders(nodes))),
        "on_lost": lambda lease: events.append(("lost", lease)),
    }

    with lock(redlock, "k", watchdog=watchdog, **told) as lease:
        events.append("body")
        watchdog.run_for(clock, 4.0)

    assert events == [
        ("acquired", lease),
        "body",
        ("renewed", lease, True),
        ("released", lease, FREE),
    ]


def test_callback_that_raises_before_the_block_releases(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """The block does not run, and the lock is released."""

    def on_acquired(lease: Lease) -> None:
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        with lock(redlock, "k", watchdog=watchdog, on_acquired=on_acquired):
            pytest.fail("the body ran")

    assert holders(nodes) == FREE
    assert current_lease() is None


# -- hold_at_least -----------------------------------------------------------------


def test_hold_at_least_keeps_the_lock_after_a_short_block(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """It counts from the start of the attempt."""
    with lock(redlock, "k", watchdog=watchdog, hold_at_least=6.0) as lease:
        clock.advance(2.0)

    assert lease.state is LeaseState.RELEASED
    assert ttls(nodes) == [4000] * 3


def test_hold_at_least_has_no_effect_after_a_long_block(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """The lock was held for long enough."""
    with lock(redlock, "k", watchdog=watchdog, hold_at_least=6.0):
        watchdog.run_for(clock, 7.0)

    assert holders(nodes) == FREE


def test_hold_at_least_keeps_the_lock_after_an_error(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """Schedulers whose clocks differ must not start the block again."""
    with contextlib.suppress(ValueError):
        with lock(redlock, "k", watchdog=watchdog, hold_at_least=6.0):
            raise ValueError

    assert ttls(nodes) == [6000] * 3


# -- loss ------------------------------------------------------------------------------


def test_lost_lock_is_an_error_at_the_end_of_the_block(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A body that ends without an exception did not have the lock to its end."""
    lost: list[Lease] = []

    with pytest.raises(LockLost) as caught:
        with lock(redlock, "k", watchdog=watchdog, on_lost=lost.append) as lease:
            nodes.partition()
            watchdog.run_for(clock, TTL)
            assert lost == [lease]

    assert lease.state is LeaseState.LOST
    assert (caught.value.key, caught.value.fence) == ("k", lease.fence)


def test_lost_lock_is_noticed_without_an_announcement(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """The whole process may have been paused, with its watchdog."""
    with pytest.raises(LockLost):
        with lock(redlock, "k", watchdog=watchdog):
            clock.advance(TTL)


def test_lost_lock_does_not_hide_the_exception_of_the_block(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """The exception of the body is nearer to the cause."""
    with pytest.raises(ValueError, match="mine"):
        with lock(redlock, "k", watchdog=watchdog):
            clock.advance(TTL)
            raise ValueError("mine")


def test_lost_lock_is_released_only_on_nodes_that_still_hold_it(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """The lock of a successor stays."""
    with pytest.raises(LockLost):
        with lock(redlock, "k", watchdog=watchdog) as lease:
            put(nodes, 0, "other.1")
            put(nodes, 1, "other.1")
            lease.state = LeaseState.LOST

    assert holders(nodes) == ["other.1", "other.1", ""]


def test_ensure_raises_after_a_loss(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """``ensure`` before a side effect is free."""
    with pytest.raises(LockLost):
        with lock(redlock, "k", watchdog=watchdog) as lease:
            lease.ensure()
            clock.advance(TTL)
            lease.ensure()
            pytest.fail("a side effect without the lock")


# -- the watchdog of a service ---------------------------------------------------------


def test_service_has_one_watchdog(redlock: Redlock, rival: Redlock) -> None:
    """It is made on first use."""
    assert watchdog_of(redlock) is watchdog_of(redlock)
    assert watchdog_of(redlock) is not watchdog_of(rival)


def test_lock_uses_the_watchdog_of_its_service(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The caller may pass another one."""
    with lock(redlock, "k") as lease:
        forgotten = watchdog_of(redlock).forget(lease)
    watchdog_of(redlock).stop()

    assert forgotten


def test_unused_service_is_collected() -> None:
    """Its watchdog does not keep it alive."""
    redlock = FakeNodes(1).redlock()
    watchdog_of(redlock)
    remembered = weakref.ref(redlock)

    del redlock
    gc.collect()

    assert remembered() is None


def test_released_lock_is_not_restored(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """After the block no renewal restores the lock, even one under way."""
    with lock(redlock, "k", watchdog=watchdog):
        watchdog.step()
        forget(nodes, 0, 1)
        nodes.latency(0.02)
        clock.advance(TTL / 3)

    watchdog.run_for(clock, 60.0)

    assert holders(nodes) == FREE
    assert "restore" not in asked(nodes)
