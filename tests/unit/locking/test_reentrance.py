"""Re-entrance: an execution takes its own lock again; threads and children do not."""

# ruff: noqa: PT012, SIM117  (the tests are about blocks that raise, in each other)

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locking import current_lease, held_lease, lock
from celery_redlock.locks.lease import Holder, Lease, LeaseState
from tests.unit.lock.support import TTL, Site, Stepped, asked, holders

# -- the same execution ------------------------------------------------------------


def test_held_key_is_taken_again_for_free(site: Site) -> None:
    """It is the same lease, without network; only the outermost block releases."""
    with site.lock() as outer:
        with site.lock() as inner:
            assert inner is outer
        assert outer.is_valid()
        assert holders(site.nodes) == [outer.token] * 3
        assert asked(site.nodes) == ["acquire"]

    assert not any(holders(site.nodes))


def test_lock_is_renewed_after_a_nested_block(site: Site) -> None:
    """The end of a nested block does not end the renewal of the lock around it.

    Source: Redisson, "watchdog fails to renew on reentry locks".
    """
    with site.lock() as outer:
        with site.lock():
            site.renew_for(TTL)

        site.renew_for(2 * TTL)

        assert outer.is_valid()


def test_lease_that_ended_is_not_taken_again_for_free(site: Site) -> None:
    """Another client holds the lock by now."""
    with pytest.raises(LockLost):
        with site.lock():
            site.clock.advance(TTL + 0.001)
            theirs = site.rival.acquire("k")
            with pytest.raises(LockHeld) as caught:
                with site.lock():
                    pytest.fail("the body ran beside the new holder")
            assert caught.value.holder is not None
            assert caught.value.holder.token == theirs.token


def test_lease_that_was_released_is_not_taken_again_for_free(site: Site) -> None:
    """After an explicit release within the block, the next one is a new lock."""
    with pytest.raises(LockLost, match="was already released"):
        with site.lock() as outer:
            site.redlock.release(outer)
            with site.lock() as inner:
                assert inner.token != outer.token
                assert holders(site.nodes) == [inner.token] * 3


def test_other_services_do_not_share_leases(site: Site) -> None:
    """The same key of another deployment is another lock."""
    with site.lock():
        assert held_lease(site.rival, "k") is None
        with pytest.raises(LockHeld):
            with lock(site.rival, "k", watchdog=Stepped(site.rival)):
                pass


# -- threads -----------------------------------------------------------------------


def in_thread(call: Callable[[], Any]) -> Any:
    """Run a call in another thread with a copy of this context; return its result."""
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


def test_threads_do_not_inherit_leases(site: Site) -> None:
    """A thread with a copy of the context is an execution of its own."""

    def enter() -> None:
        with site.lock():
            pytest.fail("the body ran beside its parent")

    with site.lock() as lease:
        assert in_thread(current_lease) is None
        assert in_thread(lambda: held_lease(site.redlock, "k")) is None
        assert isinstance(in_thread(enter), LockHeld)
        assert current_lease() is lease


def test_threads_share_a_service(site: Site) -> None:
    """Each thread holds its own lock."""

    def enter() -> str:
        with site.lock("l") as inner:
            assert current_lease() is inner
            return inner.key

    with site.lock() as lease:
        assert in_thread(enter) == "l"
        assert current_lease() is lease


# -- asyncio -----------------------------------------------------------------------


async def attempt(site: Site, key: str = "k") -> str:
    """Take the lock and give way to other tasks; return the outcome."""
    try:
        with site.lock(key):
            await asyncio.sleep(0)
            return "ran"
    except LockHeld:
        return "refused"


def test_asyncio_task_that_outlives_the_block_takes_the_lock_itself(site: Site) -> None:
    """It is a contender like any other, before the end of the block and after it."""

    async def hold() -> list[str]:
        outcomes = []
        left = asyncio.Event()

        async def outlive() -> None:
            outcomes.append(await attempt(site))
            await left.wait()
            outcomes.append(await attempt(site))

        with site.lock():
            task = asyncio.create_task(outlive())
            await asyncio.sleep(0)
        left.set()
        await task
        return outcomes

    assert asyncio.run(hold()) == ["refused", "ran"]
    assert not any(holders(site.nodes))


def test_awaited_coroutine_takes_the_lock_of_its_task_again(site: Site) -> None:
    """A coroutine that is awaited without a task of its own is the same execution."""

    async def inner() -> Lease:
        with site.lock() as lease:
            await asyncio.sleep(0)
            assert current_lease() is lease
            return lease

    async def hold() -> None:
        with site.lock() as outer:
            assert await inner() is outer

    asyncio.run(hold())
    assert asked(site.nodes) == ["acquire", "release"]


def test_tasks_in_a_block_of_their_thread_exclude_each_other(site: Site) -> None:
    """A block that runs an event loop holds the lock; the loop's tasks do not.

    They run under its lease, so that is their current one.
    """

    async def both() -> list[str]:
        assert current_lease("k") is lease
        tries = [attempt(site) for _ in range(2)]
        return await asyncio.gather(*tries)

    with site.lock() as lease:
        assert asyncio.run(both()) == ["refused", "refused"]


def test_tasks_of_a_thread_hold_locks_of_their_own(site: Site) -> None:
    """Their blocks may overlap and end in any order."""

    async def hold(key: str, other: str, leave: asyncio.Event) -> str:
        with site.lock(key) as lease:
            await leave.wait()
            outcome = await attempt(site, other)
            assert current_lease() is lease
        assert current_lease() is None
        return outcome

    async def story() -> None:
        leave_a, leave_b = asyncio.Event(), asyncio.Event()
        a = asyncio.create_task(hold("a", "b", leave_a))
        b = asyncio.create_task(hold("b", "a", leave_b))
        await asyncio.sleep(0)
        leave_a.set()
        assert await a == "refused"
        leave_b.set()
        assert await b == "ran"

    asyncio.run(story())
    assert not any(holders(site.nodes, "a") + holders(site.nodes, "b"))


# -- forks -------------------------------------------------------------------------


@pytest.fixture
def fork(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give a function that lets this process pose as its child."""
    pid = os.getpid()
    return lambda: monkeypatch.setattr(os, "getpid", lambda: pid + 1)


def test_forked_child_does_not_inherit_leases(
    site: Site, fork: Callable[[], None]
) -> None:
    """Its thread has the same id, but the lock is its parent's."""
    with site.lock() as lease:
        fork()

        assert current_lease() is None
        with pytest.raises(LockHeld):
            with site.lock():
                pytest.fail("the body ran beside its parent")

    assert holders(site.nodes) == [lease.token] * 3


def test_forked_child_that_leaves_the_block_releases_nothing(
    site: Site, fork: Callable[[], None]
) -> None:
    """Neither its end nor an error releases, and it reports no loss."""
    told: list[Lease] = []
    with pytest.raises(SystemExit):
        with site.lock(on_released=told.append) as lease:
            fork()
            raise SystemExit
    site.clock.advance(1.0)

    assert holders(site.nodes) == [lease.token] * 3
    assert told == []
    assert asked(site.nodes) == ["acquire"]
    assert lease.state is LeaseState.HELD


def test_forked_child_does_not_trust_the_lease(
    site: Site, fork: Callable[[], None]
) -> None:
    """The lease is its parent's, which may have released it long ago."""
    lease = site.redlock.acquire("k")
    fork()
    site.rival.release_base("k", Holder(lease.token).base)  # as the parent does
    theirs = site.rival.acquire("k")

    assert not lease.is_valid()
    assert lease.remaining() == 0.0
    for network in (False, True):
        with pytest.raises(LockLost, match=r"^Process \d+ acquired the lock 'k'\."):
            lease.ensure(network=network)
    assert holders(site.nodes) == [theirs.token] * 3


def test_forked_child_cannot_change_the_lock_of_its_parent(
    site: Site, fork: Callable[[], None]
) -> None:
    """It neither releases nor renews: it asks no node, and leaves the lease alone."""
    lease = site.redlock.acquire("k")
    until = lease.until
    fork()

    assert site.redlock.release(lease) == 0
    assert site.redlock.release(lease, keep=5.0) == 0
    assert not site.redlock.extend(lease)

    assert asked(site.nodes) == ["acquire"]
    assert holders(site.nodes) == [lease.token] * 3
    assert (lease.state, lease.until) == (LeaseState.HELD, until)


def test_forked_child_has_leases_of_its_own(
    site: Site, fork: Callable[[], None]
) -> None:
    """A lock that the child takes is the child's."""
    fork()
    with site.lock() as lease:
        lease.ensure(network=True)
        assert current_lease() is lease
    assert not any(holders(site.nodes))


# -- current_lease -----------------------------------------------------------------


def test_current_lease_is_the_innermost(site: Site) -> None:
    """With a key, it is the lease of that key; None outside of a block."""
    assert current_lease() is None
    with site.lock("a") as a:
        with site.lock("b") as b:
            assert current_lease() is b
            assert current_lease("a") is a
            assert current_lease("c") is None
            assert held_lease(site.redlock, "a") is a
        assert current_lease() is a
        assert current_lease("b") is None
    assert current_lease() is None


def test_current_lease_may_be_lost(site: Site) -> None:
    """``ensure`` then says so. None would be the answer of code without a lock."""
    with site.lock("a", ttl=60.0), contextlib.suppress(LockLost):
        with site.lock("b") as b:
            site.clock.advance(TTL)

            assert current_lease() is current_lease("b") is b
            with pytest.raises(LockLost):
                b.ensure()
            assert held_lease(site.redlock, "b") is None
