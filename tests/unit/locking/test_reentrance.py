"""Re-entrance: an execution takes its own lock again; threads and children do not."""

# ruff: noqa: PT012, SIM117  (the tests are about blocks that raise, in each other)

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.lease import LeaseState
from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locking import current_lease, held_lease, lock
from tests.unit.core.support import Stepped, asked, holders, put
from tests.unit.locking.support import FREE, TTL

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes

# -- the same execution ------------------------------------------------------------


def test_held_key_is_taken_again_for_free(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """It is the same lease, without network; only the outermost block releases."""
    with lock(redlock, "k", watchdog=watchdog) as outer:
        with lock(redlock, "k", watchdog=watchdog) as inner:
            assert inner is outer
        assert outer.is_valid()
        assert holders(nodes) == [outer.token] * 3
        assert asked(nodes) == ["acquire"]

    assert holders(nodes) == FREE


def test_lease_that_ended_is_not_taken_again_for_free(
    redlock: Redlock, rival: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Another client holds the lock by now."""
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
    """After an explicit release within the block, the next one is a new lock."""
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


def test_threads_do_not_inherit_leases(redlock: Redlock, watchdog: Stepped) -> None:
    """A thread with a copy of the context is an execution of its own."""

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
    """Each thread holds its own lock."""

    def enter() -> str:
        with lock(redlock, "l", watchdog=watchdog) as inner:
            assert current_lease() is inner
            return inner.key

    with lock(redlock, "k", watchdog=watchdog) as lease:
        assert in_thread(enter) == "l"
        assert current_lease() is lease


# -- forks -------------------------------------------------------------------------


@pytest.fixture
def fork(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give a function that lets this process pose as its child."""
    pid = os.getpid()
    return lambda: monkeypatch.setattr(os, "getpid", lambda: pid + 1)


def test_forked_child_does_not_inherit_leases(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, fork: Callable[[], None]
) -> None:
    """Its thread has the same id, but the lock is its parent's."""
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
    """Neither its end nor an error releases, and it reports no loss."""
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


# -- current_lease -----------------------------------------------------------------


def test_current_lease_is_the_innermost(redlock: Redlock, watchdog: Stepped) -> None:
    """With a key, it is the lease of that key; None outside of a block."""
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
    """If the inner lease has ended, an outer valid one is current."""
    with lock(redlock, "a", ttl=60.0, watchdog=watchdog) as a:
        with contextlib.suppress(LockLost):
            with lock(redlock, "b", watchdog=watchdog):
                clock.advance(TTL)
                assert current_lease() is a
                assert current_lease("b") is None


def test_current_lease_after_an_error_is_the_outer_one(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """Even if the inner block ends by an exception."""
    with lock(redlock, "a", watchdog=watchdog) as a:
        put(nodes, 0, "other.1", key="b")
        put(nodes, 1, "other.1", key="b")
        with pytest.raises(LockHeld):
            with lock(redlock, "b", watchdog=watchdog):
                pass
        assert current_lease() is a
