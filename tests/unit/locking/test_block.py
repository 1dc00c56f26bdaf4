"""``with lock(...)``: held while the body runs, which never runs without the lock."""

# ruff: noqa: PT012, SIM117  (what is tested are blocks that raise, one in another)

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.lease import Holder, LeaseState, new_base
from celery_redlock.errors import LockHeld, LockLost, QuorumUnreachable
from celery_redlock.locking import current_lease, lock
from tests.unit.core.support import Stepped, asked, holders, ttls
from tests.unit.locking.support import NOBODY, TTL

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_lock_is_held_while_the_block_runs(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """Taken before, released after: nothing else is asked."""
    with lock(redlock, "k", watchdog=watchdog) as lease:
        assert lease.is_valid()
        assert holders(nodes) == [lease.token] * 3

    assert lease.state is LeaseState.RELEASED
    assert holders(nodes) == NOBODY
    assert asked(nodes) == ["acquire", "release"]


def test_lock_is_renewed_while_the_block_runs(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """For as long as it takes; afterwards nothing renews it."""
    with lock(redlock, "k", watchdog=watchdog) as lease:
        watchdog.run_for(clock, 100.0)
        assert lease.is_valid()
    before = len(nodes.asked)

    watchdog.run_for(clock, 100.0)

    assert len(nodes.asked) == before


def test_lock_is_released_when_the_block_raises(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """The exception goes on as it was."""
    with pytest.raises(ValueError, match="mine") as caught:
        with lock(redlock, "k", watchdog=watchdog):
            raise ValueError("mine")

    assert holders(nodes) == NOBODY
    assert caught.value.__context__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_lock_is_released_whatever_ends_the_block(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, error: type[BaseException]
) -> None:
    """Also by what is no Exception."""
    with pytest.raises(error):
        with lock(redlock, "k", watchdog=watchdog):
            raise error

    assert holders(nodes) == NOBODY


def test_block_never_runs_without_the_lock(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, watchdog: Stepped
) -> None:
    """Held by somebody else, or no quorum: an error before its first line."""
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
    """A duplicate costs one round trip and touches nothing of the holder's."""
    lease = rival.acquire("k")

    with pytest.raises(LockHeld):
        with lock(redlock, "k", watchdog=watchdog):
            pass

    assert asked(nodes) == ["acquire"]
    assert holders(nodes) == [lease.token] * 3


def test_lock_passes_on_how_it_is_to_be_taken(
    nodes: FakeNodes,
    redlock: Redlock,
    rival: Redlock,
    watchdog: Stepped,
    clock: FakeClock,
) -> None:
    """Ttl, wait, base and facts are those of ``acquire``."""
    theirs = rival.acquire("k")
    clock.at(2.0, lambda: rival.release(theirs))
    base, facts = new_base(), Holder("", task="t", task_id="id")
    how: dict[str, Any] = {"ttl": 4.0, "wait": 3.0, "base": base, "facts": facts}

    with lock(redlock, "k", watchdog=watchdog, **how) as lease:
        holder = redlock.inspect("k").holder

    assert (lease.ttl, lease.token.partition(".")[0]) == (4.0, base)
    assert holder is not None
    assert (holder.task, holder.task_id) == ("t", "id")


def test_lock_without_renewal_must_end_within_the_ttl(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Nothing is sent for it, and its end is announced."""
    lost: list[Lease] = []

    with pytest.raises(LockLost):
        with lock(
            redlock, "k", watchdog=watchdog, renew=False, on_lost=lost.append
        ) as lease:
            watchdog.run_for(clock, TTL)
            assert asked(nodes) == ["acquire"]

    assert lost == [lease]


# -- callbacks ---------------------------------------------------------------------


def test_callbacks_tell_the_life_of_a_lock(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock, nodes: FakeNodes
) -> None:
    """Acquired before the block, renewed during it, released when nodes know."""
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
        ("released", lease, NOBODY),
    ]


def test_callback_that_raises_before_the_block_releases(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """The block does not run, and nothing stays locked."""

    def on_acquired(lease: Lease) -> None:
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        with lock(redlock, "k", watchdog=watchdog, on_acquired=on_acquired):
            pytest.fail("the body ran")

    assert holders(nodes) == NOBODY
    assert current_lease() is None


# -- hold_at_least -----------------------------------------------------------------


def test_hold_at_least_keeps_the_lock_after_a_short_block(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """From the start of the attempt: what the block took is a part of it."""
    with lock(redlock, "k", watchdog=watchdog, hold_at_least=6.0) as lease:
        clock.advance(2.0)

    assert lease.state is LeaseState.RELEASED
    assert ttls(nodes) == [4000] * 3


def test_hold_at_least_is_no_matter_after_a_long_block(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """It was held for long enough."""
    with lock(redlock, "k", watchdog=watchdog, hold_at_least=6.0):
        watchdog.run_for(clock, 7.0)

    assert holders(nodes) == NOBODY


def test_hold_at_least_holds_after_an_error_too(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """The block did start; schedulers whose clocks differ must not start it again."""
    with contextlib.suppress(ValueError):
        with lock(redlock, "k", watchdog=watchdog, hold_at_least=6.0):
            raise ValueError

    assert ttls(nodes) == [6000] * 3
