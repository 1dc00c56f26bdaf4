"""``with lock(...)``: held while the body runs; losses, and time limits."""

# ruff: noqa: PT012, SIM117  (the tests are about blocks that raise, in each other)

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import weakref
from typing import Any

import pytest

from celery_redlock import locking
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import (
    ConfigurationError,
    LockHeld,
    LockLost,
    QuorumUnreachable,
)
from celery_redlock.locking import (
    Hold,
    aheld_by,
    current_lease,
    held_lease,
    lock,
    watchdog_of,
)
from celery_redlock.locks.lease import Holder, Lease, LeaseState, new_base
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.testing import FakeNodes
from tests.harness.waiting import until
from tests.interruptions import counts_places, interruptions
from tests.nodes.support import run_threads
from tests.unit.lock.support import (
    TTL,
    Site,
    Stepped,
    args_of,
    asked,
    forget,
    holders,
    put,
    ttls,
)


def test_lock_is_held_while_the_block_runs(site: Site) -> None:
    """It is taken before and released after: two requests."""
    with site.lock() as lease:
        assert lease.is_valid()
        assert holders(site.nodes) == [lease.token] * 3

    assert lease.state is LeaseState.RELEASED
    assert not any(holders(site.nodes))
    assert asked(site.nodes) == ["acquire", "release"]


def test_lock_is_renewed_while_the_block_runs(site: Site) -> None:
    """The renewals end with the block."""
    with site.lock() as lease:
        site.renew_for(100.0)
        assert lease.is_valid()
    before = len(site.nodes.asked)

    site.renew_for(100.0)

    assert len(site.nodes.asked) == before


@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(), GeneratorExit()]
)
def test_lock_is_released_when_the_block_raises(
    site: Site, error: BaseException
) -> None:
    """The exception goes on unchanged, even one that is no Exception."""
    with pytest.raises(type(error)) as caught:
        with site.lock():
            raise error

    assert not any(holders(site.nodes))
    assert caught.value is error
    assert error.__context__ is None


def test_block_never_runs_without_the_lock(site: Site) -> None:
    """A held lock, or no quorum, is an error after one round trip."""
    theirs = site.rival.acquire("k")
    ran = []

    with pytest.raises(LockHeld):
        with site.lock():
            ran.append("held")
    assert asked(site.nodes) == ["acquire"]
    assert holders(site.nodes) == [theirs.token] * 3
    site.nodes.partition()
    with pytest.raises(QuorumUnreachable):
        with site.lock("l"):
            ran.append("unreachable")

    assert ran == []
    assert current_lease() is None


def test_lock_passes_its_options_to_acquire(site: Site) -> None:
    """They are ttl, wait, base and holder."""
    theirs = site.rival.acquire("k")
    site.clock.at(2.0, lambda: site.rival.release(theirs))
    base, given = new_base(), Holder("", task="t", task_id="id")
    how: dict[str, Any] = {"ttl": 4.0, "wait": 3.0, "base": base, "holder": given}

    with site.lock(**how) as lease:
        holder = site.redlock.inspect("k").holder

    assert (lease.ttl, lease.token.partition(".")[0]) == (4.0, base)
    assert holder is not None
    assert (holder.task, holder.task_id) == ("t", "id")


def test_lock_without_renewal_must_end_within_the_ttl(site: Site) -> None:
    """No renewal is sent, and the end of the validity is announced."""
    lost: list[Lease] = []

    with pytest.raises(LockLost):
        with site.lock(renew=False, on_lost=lost.append) as lease:
            site.renew_for(TTL)
            assert asked(site.nodes) == ["acquire"]

    assert lost == [lease]


# -- callbacks ---------------------------------------------------------------------


def test_callbacks_are_called_in_order(site: Site) -> None:
    """Acquired before the block, renewed during it, released after the release."""
    events: list[Any] = []
    told: dict[str, Any] = {
        "on_acquired": lambda lease: events.append(("acquired", lease)),
        "on_renewed": lambda lease, late: events.append(("renewed", lease, late < 0.1)),
        "on_released": lambda lease: events.append(
            ("released", lease, holders(site.nodes))
        ),
        "on_lost": lambda lease: events.append(("lost", lease)),
    }

    with site.lock(**told) as lease:
        events.append("body")
        site.renew_for(4.0)

    assert events == [
        ("acquired", lease),
        "body",
        ("renewed", lease, True),
        ("released", lease, ["", "", ""]),
    ]


def test_callback_that_raises_before_the_block_releases(site: Site) -> None:
    """The block does not run, and the lock is released."""

    def on_acquired(lease: Lease) -> None:
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        with site.lock(on_acquired=on_acquired):
            pytest.fail("the body ran")

    assert not any(holders(site.nodes))
    assert current_lease() is None


# -- durations ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("hold_at_least", math.nan),
        ("hold_at_least", None),
        ("wait", math.nan),
        ("wait", None),
        ("wait", "10"),
        ("wait", True),
        ("renew_every", math.nan),
        ("renew_every", -1.0),
        ("renew_every", 0.0),
    ],
)
def test_duration_must_be_a_number(site: Site, name: str, seconds: Any) -> None:
    """The error comes before the block, and not from its end, with the lock held.

    A wait would last for ever. The watchdog would put the leases of others in a wrong
    order, or would renew without a pause.
    """
    options: dict[str, Any] = {name: seconds}
    with (
        pytest.raises(ConfigurationError, match=f"{name} is {seconds!r}"),
        site.lock(**options),
    ):
        pytest.fail("the body ran")

    assert not any(holders(site.nodes))


@pytest.mark.parametrize(("ran", "ttl_left_ms"), [(2.0, 4000), (7.0, -2)])
def test_hold_at_least_keeps_the_lock_after_a_short_block(
    site: Site, ran: float, ttl_left_ms: int
) -> None:
    """It counts from the start of the attempt. After a long block there is no lock."""
    with site.lock(hold_at_least=6.0) as lease:
        site.renew_for(ran)

    assert lease.state is LeaseState.RELEASED
    assert ttls(site.nodes) == [ttl_left_ms] * 3


def test_hold_at_least_keeps_the_lock_after_an_error(site: Site) -> None:
    """Schedulers whose clocks differ must not start the block again."""
    with contextlib.suppress(ValueError):
        with site.lock(hold_at_least=6.0):
            raise ValueError

    assert ttls(site.nodes) == [6000] * 3


# -- loss ------------------------------------------------------------------------------


def test_lost_lock_is_an_error_at_the_end_of_the_block(site: Site) -> None:
    """A body that ends without an exception did not have the lock to its end."""
    lost: list[Lease] = []

    with pytest.raises(LockLost) as caught:
        with site.lock(on_lost=lost.append) as lease:
            site.nodes.partition()
            site.renew_for(TTL)
            assert lost == [lease]

    assert lease.state is LeaseState.LOST
    assert (caught.value.key, caught.value.fence) == ("k", lease.fence)


def test_lost_lock_is_noticed_without_an_announcement(site: Site) -> None:
    """The whole process may have been paused, with its watchdog."""
    with pytest.raises(LockLost):
        with site.lock():
            site.clock.advance(TTL)


def test_lost_lock_does_not_hide_the_exception_of_the_block(site: Site) -> None:
    """The exception of the body is nearer to the cause."""
    with pytest.raises(ValueError, match="mine"):
        with site.lock():
            site.clock.advance(TTL)
            raise ValueError("mine")


def test_lost_lock_is_released_only_on_nodes_that_still_hold_it(site: Site) -> None:
    """The lock of a successor stays."""
    with pytest.raises(LockLost):
        with site.lock() as lease:
            put(site.nodes, 0, "other.1")
            put(site.nodes, 1, "other.1")
            lease.state = LeaseState.LOST

    assert holders(site.nodes) == ["other.1", "other.1", ""]


# -- the watchdog of a service ---------------------------------------------------------


def test_lock_uses_the_watchdog_of_its_service(site: Site) -> None:
    """A service has one, which is made on first use."""
    with lock(site.redlock, "k") as lease:
        forgotten = watchdog_of(site.redlock).forget(lease)
    watchdog_of(site.redlock).stop()

    assert forgotten
    assert watchdog_of(site.redlock) is watchdog_of(site.redlock)
    assert watchdog_of(site.redlock) is not watchdog_of(site.rival)


def test_threads_that_come_at_once_have_one_watchdog(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is also the one that resends, so `stop` ends all threads of the service."""
    other: list[Watchdog] = []

    def made(redlock: Redlock) -> Watchdog:
        monkeypatch.setattr(locking, "Watchdog", Watchdog)
        watchdog = Watchdog(redlock)
        run_threads(lambda: other.append(watchdog_of(redlock)))
        return watchdog

    monkeypatch.setattr(locking, "Watchdog", made)

    assert watchdog_of(site.redlock) is other[0]
    assert site.redlock.nodes.resender == other[0].resend_releases


def test_unused_service_is_collected() -> None:
    """Its watchdog does not keep it alive."""
    redlock = FakeNodes(1).redlock()
    watchdog_of(redlock)
    remembered = weakref.ref(redlock)

    del redlock
    gc.collect()

    assert remembered() is None


def test_released_lock_is_not_restored(site: Site) -> None:
    """After the block no renewal restores the lock, even one under way."""
    with site.lock():
        site.watchdog.step()
        forget(site.nodes, 0, 1)
        site.nodes.latency(0.02)
        site.clock.advance(TTL / 3)

    site.renew_for(60.0)

    assert not any(holders(site.nodes))
    assert "restore" not in asked(site.nodes)


# -- time limits -------------------------------------------------------------------


class TimeLimit(Exception):  # noqa: N818  (as Celery's SoftTimeLimitExceeded)
    """The exception that a time limit throws into the thread."""


def interrupt() -> None:
    """Raise as a time limit does."""
    raise TimeLimit


def test_interrupted_acquire_leaves_no_lock(site: Site) -> None:
    """All its attempts are released, wherever it was interrupted."""
    site.nodes.latency(0.01)
    site.clock.at(0.005, interrupt)
    base = new_base()

    with pytest.raises(TimeLimit):
        with site.lock(base=base):
            pytest.fail("the body ran")

    site.nodes.heal()
    assert not any(holders(site.nodes))
    assert args_of(site.nodes, "release")[-1] == [f"{base}.", 0]


def test_release_of_an_interrupted_acquire_is_resent() -> None:
    """Nodes that were away get it, though no later call uses the service."""
    nodes = FakeNodes(3, clock=SYSTEM_CLOCK)
    redlock = nodes.redlock(ttl=60)

    async def be_interrupted() -> None:
        acquiring = Hold(redlock, "k").aacquire()
        acquiring.send(None)
        assert all(holders(nodes))
        for node in nodes.nodes:
            node.kill()
        acquiring.close()

    asyncio.run(be_interrupted())
    for node in nodes.nodes:
        node.restart(keep_memory=True)

    until(lambda: not any(holders(nodes)), 30)
    watchdog_of(redlock).stop()


def test_interrupted_release_is_finished_first(site: Site) -> None:
    """A time limit inside a release is raised after it, and after ``on_released``."""
    released: list[Lease] = []

    with pytest.raises(TimeLimit):
        with site.lock(on_released=released.append) as lease:
            site.nodes.latency(0.01)
            site.clock.at(0.005, interrupt)

    assert not any(holders(site.nodes))
    assert asked(site.nodes) == ["acquire", "release", "release"]
    assert released == [lease]


@counts_places
def test_end_that_is_interrupted_anywhere_releases(site: Site) -> None:
    """Even between the end of the block and the first request."""
    places = 0
    for interruption in interruptions(locking.__file__):
        places = interruption.at
        released: list[Lease] = []
        with contextlib.ExitStack() as stack:
            with site.lock(on_released=released.append) as lease:
                stack.enter_context(interruption)

        assert not any(holders(site.nodes)), f"interrupted at place {places}"
        assert not site.watchdog.forget(lease)
        assert held_lease(site.redlock, "k") is None

    assert released == [lease]
    assert places > 2


@counts_places
def test_release_of_an_interrupted_acquire_can_end_no_later_lease(site: Site) -> None:
    """A node that was away gets it late: perhaps after the next grant."""
    prefixes = 0
    for interruption in interruptions(locking.__file__):
        hold = Hold(site.redlock, "k", watchdog=site.watchdog)
        with interruption:
            hold.acquire()
        hold.release()

        lease = hold.acquire()

        told = [str(words[0]) for words in args_of(site.nodes, "release")]
        assert not [one for one in told if lease.token.startswith(one)]
        hold.release()
        prefixes += sum(one.endswith(".") for one in told)
    assert prefixes


class HoldWithTimeLimit(Hold):
    """A lock of a coroutine; a time limit comes when its release is to begin."""

    was_interrupted = False

    async def arelease(self) -> None:
        """Release the lock, at the second call."""
        if not self.was_interrupted:
            self.was_interrupted = True
            interrupt()
        await super().arelease()


class WatchdogWithTimeLimit(Stepped):
    """A watchdog; a time limit comes when a lock is taken out of renewal."""

    was_interrupted = False

    def forget(self, lease: Lease) -> bool:
        """Forget the lease, at the second call."""
        if not self.was_interrupted:
            self.was_interrupted = True
            interrupt()
        return super().forget(lease)


@pytest.mark.parametrize(
    ("kind", "renewal"),
    [(HoldWithTimeLimit, Stepped), (Hold, WatchdogWithTimeLimit)],
    ids=["before it", "in it"],
)
def test_release_of_a_coroutine_that_is_interrupted_is_done_again(
    site: Site, kind: type[Hold], renewal: type[Stepped]
) -> None:
    """Else the lock would be renewed for ever in a worker that keeps its event loop."""
    watchdog = renewal(site.redlock)

    async def work() -> None:
        async with aheld_by(kind(site.redlock, "k", watchdog=watchdog)):
            pass

    with pytest.raises(TimeLimit):
        asyncio.run(work())

    assert not any(holders(site.nodes))
    assert not watchdog.renew_key("k")


def test_release_that_is_interrupted_three_times_gives_up(site: Site) -> None:
    """The lock then ends with its ttl."""
    with pytest.raises(TimeLimit):
        with site.lock():
            site.nodes.latency(0.01)
            for instant in (0.005, 0.010, 0.015, 0.020):
                site.clock.at(instant, interrupt)

    assert asked(site.nodes) == ["acquire"] + ["release"] * 3
