"""``with lock(...)``: the body never runs without the lock."""

# ruff: noqa: PT012, SIM117  (what is tested are blocks that raise, one in another)

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock import locking
from celery_redlock.core.lease import Holder, LeaseState, new_base
from celery_redlock.errors import LockHeld, LockLost, QuorumUnreachable
from celery_redlock.locking import current_lease, held_lease, lock, watchdog_of
from celery_redlock.testing import FakeClock, FakeNodes
from tests.strikes import Strike, Struck
from tests.unit.core.support import Stepped, args_of, asked, forget, holders, put, ttls

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock

TTL = 10.0
NOBODY = [""] * 3


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still."""
    return FakeClock()


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give three nodes."""
    return FakeNodes(3, clock=clock)


@pytest.fixture
def redlock(nodes: FakeNodes) -> Redlock:
    """Give a service on the nodes."""
    return nodes.redlock(ttl=TTL)


@pytest.fixture
def rival(nodes: FakeNodes, redlock: Redlock) -> Redlock:
    """Give the service of another process."""
    return nodes.another_client().redlock(ttl=TTL)


@pytest.fixture
def watchdog(redlock: Redlock) -> Stepped:
    """Give a watchdog without a thread."""
    return Stepped(redlock)


def in_thread(call: Callable[[], Any]) -> Any:
    """Run a call in another thread with a copy of this context; return what it did."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # noqa: BLE001  (it is what is asked for)
            outcome.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(run))
    thread.start()
    thread.join()
    return outcome[0]


# -- the block -------------------------------------------------------------------


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


# -- interruptions ---------------------------------------------------------------


class TimeLimit(Exception):  # noqa: N818  (as Celery's SoftTimeLimitExceeded)
    """What a time limit throws into the thread, anywhere."""


def strike() -> None:
    """Raise as a time limit does."""
    raise TimeLimit


def test_interrupted_acquire_leaves_no_lock(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Wherever it was between asking and knowing: all its attempts are released."""
    nodes.latency(0.01)
    clock.at(0.005, strike)
    base = new_base()

    with pytest.raises(TimeLimit):
        with lock(redlock, "k", watchdog=watchdog, base=base):
            pytest.fail("the body ran")

    nodes.heal()
    assert holders(nodes) == NOBODY
    assert args_of(nodes, "release")[-1] == [f"{base}.", 0]


def test_interrupted_release_is_finished_first(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A time limit that lands in it is raised once the nodes have been told."""
    with pytest.raises(TimeLimit):
        with lock(redlock, "k", watchdog=watchdog):
            nodes.latency(0.01)
            clock.at(0.005, strike)

    assert holders(nodes) == NOBODY
    assert asked(nodes) == ["acquire", "release", "release"]


def test_interrupted_release_is_announced_all_the_same(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Who counts locks must not count this one for ever."""
    released: list[Lease] = []

    with pytest.raises(TimeLimit):
        with lock(
            redlock, "k", watchdog=watchdog, on_released=released.append
        ) as lease:
            nodes.latency(0.01)
            clock.at(0.005, strike)

    assert released == [lease]


def test_end_that_is_struck_anywhere_releases(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """Also between the end of the block and the first word to the nodes."""
    places, was_struck = 0, True
    while was_struck:
        places += 1
        released: list[Lease] = []
        strike = Strike(places, locking.__file__)
        with contextlib.suppress(Struck), contextlib.ExitStack() as stack:
            with lock(
                redlock, "k", watchdog=watchdog, on_released=released.append
            ) as lease:
                stack.enter_context(strike)
        was_struck = strike.has_struck

        assert holders(nodes) == NOBODY, f"struck at place {places}"
        assert not watchdog.forget(lease)
        assert held_lease(redlock, "k") is None

    assert released == [lease]
    assert places > 2


def test_release_that_is_struck_again_and_again_gives_up(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Three times; the lock ends with its ttl at the latest."""
    with pytest.raises(TimeLimit):
        with lock(redlock, "k", watchdog=watchdog):
            nodes.latency(0.01)
            for strike_at in (0.005, 0.010, 0.015, 0.020):
                clock.at(strike_at, strike)

    assert asked(nodes) == ["acquire"] + ["release"] * 3


# -- loss ------------------------------------------------------------------------


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


# -- callbacks -------------------------------------------------------------------


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


# -- hold_at_least ---------------------------------------------------------------


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


# -- re-entrance -----------------------------------------------------------------


def test_key_that_is_held_is_taken_again_for_free(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """The same lease, no network; only the outermost block releases."""
    with lock(redlock, "k", watchdog=watchdog) as outer:
        with lock(redlock, "k", watchdog=watchdog) as inner:
            assert inner is outer
        assert outer.is_valid()
        assert holders(nodes) == [outer.token] * 3
        assert asked(nodes) == ["acquire"]

    assert holders(nodes) == NOBODY


def test_lease_that_ended_is_not_taken_again_for_free(
    redlock: Redlock, rival: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """An entry counts while its lease is valid: somebody else has the lock now."""
    with pytest.raises(LockLost):
        with lock(redlock, "k", watchdog=watchdog):
            clock.advance(TTL + 0.001)
            theirs = rival.acquire("k")
            with pytest.raises(LockHeld) as caught:
                with lock(redlock, "k", watchdog=watchdog):
                    pytest.fail("the body ran beside the new holder")
            assert caught.value.holder is not None
            assert caught.value.holder.token == theirs.token


def test_lease_that_was_released_is_not_taken_again_for_free(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """Released by hand within the block: the next one is a new lock."""
    with pytest.raises(LockLost, match="was already released"):
        with lock(redlock, "k", watchdog=watchdog) as outer:
            redlock.release(outer)
            with lock(redlock, "k", watchdog=watchdog) as inner:
                assert inner.token != outer.token
                assert holders(nodes) == [inner.token] * 3


def test_other_services_do_not_share_leases(
    redlock: Redlock, rival: Redlock, watchdog: Stepped
) -> None:
    """The same key of another deployment is another lock."""
    with lock(redlock, "k", watchdog=watchdog):
        assert held_lease(rival, "k") is None
        with pytest.raises(LockHeld):
            with lock(rival, "k", watchdog=Stepped(rival)):
                pass


def test_threads_do_not_inherit_leases(redlock: Redlock, watchdog: Stepped) -> None:
    """A thread with a copy of the context is another execution all the same."""

    def enter() -> None:
        with lock(redlock, "k", watchdog=watchdog):
            pytest.fail("the body ran beside its parent")

    with lock(redlock, "k", watchdog=watchdog) as lease:
        assert in_thread(current_lease) is None
        assert in_thread(lambda: held_lease(redlock, "k")) is None
        assert isinstance(in_thread(enter), LockHeld)
        assert current_lease() is lease


def test_threads_share_a_service(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """Each holds its own."""

    def enter() -> str:
        with lock(redlock, "l", watchdog=watchdog) as inner:
            assert current_lease() is inner
            return inner.key

    with lock(redlock, "k", watchdog=watchdog) as lease:
        assert in_thread(enter) == "l"
        assert current_lease() is lease


@pytest.fixture
def fork(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give a function after which this process is the child of itself."""
    pid = os.getpid()
    return lambda: monkeypatch.setattr(os, "getpid", lambda: pid + 1)


def test_forked_child_does_not_inherit_leases(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, fork: Callable[[], None]
) -> None:
    """Its thread has the same number; the lock is its parent's."""
    with lock(redlock, "k", watchdog=watchdog) as lease:
        fork()

        assert current_lease() is None
        with pytest.raises(LockHeld):
            with lock(redlock, "k", watchdog=watchdog):
                pytest.fail("the body ran beside its parent")

    assert holders(nodes) == [lease.token] * 3


def test_forked_child_that_leaves_the_block_releases_nothing(
    nodes: FakeNodes,
    redlock: Redlock,
    watchdog: Stepped,
    clock: FakeClock,
    fork: Callable[[], None],
) -> None:
    """Neither by its end nor by an error; and it does not say that it lost a lock."""
    told: list[Lease] = []
    with pytest.raises(SystemExit):
        with lock(redlock, "k", watchdog=watchdog, on_released=told.append) as lease:
            fork()
            raise SystemExit
    clock.advance(1.0)

    assert holders(nodes) == [lease.token] * 3
    assert told == []
    assert asked(nodes) == ["acquire"]
    assert lease.state is LeaseState.HELD


# -- current_lease ---------------------------------------------------------------


def test_current_lease_is_the_innermost(redlock: Redlock, watchdog: Stepped) -> None:
    """Or that of the key that is asked for; None outside."""
    assert current_lease() is None
    with lock(redlock, "a", watchdog=watchdog) as a:
        with lock(redlock, "b", watchdog=watchdog) as b:
            assert current_lease() is b
            assert current_lease("a") is a
            assert current_lease("c") is None
            assert held_lease(redlock, "a") is a
        assert current_lease() is a
        assert current_lease("b") is None
    assert current_lease() is None


def test_current_lease_is_valid_or_none(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """What ended is not shown; an outer one that is still valid is."""
    with lock(redlock, "a", ttl=60.0, watchdog=watchdog) as a:
        with contextlib.suppress(LockLost):
            with lock(redlock, "b", watchdog=watchdog):
                clock.advance(TTL)
                assert current_lease() is a
                assert current_lease("b") is None


def test_current_lease_is_that_of_before_after_an_error(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """Whatever happened to the inner one."""
    with lock(redlock, "a", watchdog=watchdog) as a:
        put(nodes, 0, "other.1", key="b")
        put(nodes, 1, "other.1", key="b")
        with pytest.raises(LockHeld):
            with lock(redlock, "b", watchdog=watchdog):
                pass
        assert current_lease() is a


# -- the watchdog ----------------------------------------------------------------


def test_watchdog_is_one_for_each_service(redlock: Redlock, rival: Redlock) -> None:
    """Made on first use, and found again."""
    assert watchdog_of(redlock) is watchdog_of(redlock)
    assert watchdog_of(redlock) is not watchdog_of(rival)


def test_watchdog_is_the_services_own_by_default(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Nobody has to bring one."""
    with lock(redlock, "k") as lease:
        forgotten = watchdog_of(redlock).forget(lease)
    watchdog_of(redlock).stop()

    assert forgotten


def test_service_that_nobody_uses_is_collected() -> None:
    """What remembers watchdogs does not keep services alive."""
    redlock = FakeNodes(1).redlock()
    watchdog_of(redlock)
    remembered = weakref.ref(redlock)

    del redlock
    gc.collect()

    assert remembered() is None


def test_forgotten_lock_is_restored_nowhere(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """After the block no renewal brings it back, whatever was on its way."""
    with lock(redlock, "k", watchdog=watchdog):
        watchdog.step()
        forget(nodes, 0, 1)
        nodes.latency(0.02)
        clock.advance(TTL / 3)

    watchdog.run_for(clock, 60.0)

    assert holders(nodes) == NOBODY
    assert "restore" not in asked(nodes)
