"""A block under `lock`: it runs with the lock or not at all, and lets go at its end."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.lease import LeaseState
from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locking import current_lease, lock
from tests.nodes.support import scripts_run, until, until_nothing_is_left, values

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

pytestmark = pytest.mark.every_server


def test_block_does_not_run_without_the_lock(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A lock that is not had is an error before the block, not a lesser lease in it."""
    lease = redlock.acquire(key)
    ran = []

    with pytest.raises(LockHeld), lock(rival, key):
        ran.append(1)

    assert ran == []
    assert redlock.inspect(key).votes == 5
    redlock.release(lease)


@pytest.mark.parametrize("ends_with", [None, ValueError, SystemExit, KeyboardInterrupt])
def test_block_releases_however_it_ends(
    shared_nodes: DevNodes,
    redlock: Redlock,
    key: str,
    ends_with: type[BaseException] | None,
) -> None:
    """The lock is let go at the end, and an exception passes through unchanged."""
    error = ends_with() if ends_with else None

    def run() -> None:
        assert current_lease() is lease
        assert current_lease(key) is lease
        assert current_lease("another") is None
        if error:
            raise error

    passed = pytest.raises(ends_with) if ends_with else contextlib.nullcontext()
    with passed as raised, lock(redlock, key) as lease:
        run()

    assert raised is None or raised.value is error
    assert current_lease() is None
    assert lease.state is LeaseState.RELEASED
    until_nothing_is_left(shared_nodes, key)


def test_lock_is_held_at_least_so_long(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A block that was quick leaves the lock for the rest of the time, no longer."""
    with lock(redlock, key, hold_at_least=1.5) as lease:
        began = lease.started_at

    with pytest.raises(LockHeld):
        rival.acquire(key)
    until_nothing_is_left(shared_nodes, key)
    assert redlock.clock.monotonic() - began >= 1.5


# -- One in another ----------------------------------------------------------------


def test_nested_block_is_free(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Taking a key that this execution holds asks no node; only the outer lets go."""
    with lock(redlock, key) as outer:
        until(lambda: None not in values(shared_nodes, key))
        before = scripts_run(shared_nodes)
        with lock(redlock, key) as inner:
            assert inner is outer
        assert scripts_run(shared_nodes) == before
        assert outer.is_valid()
        assert None not in values(shared_nodes, key)


def test_nested_block_is_refused_to_other_threads(redlock: Redlock, key: str) -> None:
    """A thread that got a copy of the holder's context is not the holder."""
    outcome: list[object] = []

    def take() -> None:
        outcome.append(current_lease())
        try:
            with lock(redlock, key):
                outcome.append("ran")
        except LockHeld:
            outcome.append("refused")

    with lock(redlock, key):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(take,))
        thread.start()
        thread.join()

    assert outcome == [None, "refused"]


# -- When the lock is lost ---------------------------------------------------------


def test_block_that_outlives_its_lock_is_told(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Without renewal, a block longer than the ttl ends in LockLost."""
    lost: list[str] = []

    def run() -> None:
        until(lambda: lost)
        assert current_lease() is None

    def note(lease: Lease) -> None:
        lost.append(lease.key)

    short: dict[str, Any] = {"ttl": 1, "renew": False, "on_lost": note}
    with pytest.raises(LockLost, match=key), lock(redlock, key, **short):
        run()

    assert lost == [key]
    until_nothing_is_left(shared_nodes, key)


def test_error_of_the_block_is_not_hidden_by_the_loss(
    redlock: Redlock, key: str
) -> None:
    """A block that raises ends with its own exception, though the lock was lost."""

    def run(lease: Lease) -> None:
        until(lambda: not lease.is_valid())
        raise ZeroDivisionError

    short = lock(redlock, key, ttl=1, renew=False)
    with pytest.raises(ZeroDivisionError), short as lease:
        run(lease)


def test_lost_block_can_take_the_lock_again(redlock: Redlock, key: str) -> None:
    """Inside a block that lost it, taking the key again asks the nodes again."""

    def run(lease: Lease) -> None:
        until(lambda: not lease.is_valid())
        with lock(redlock, key, wait=5) as again:
            assert again is not lease
            assert again.fence > lease.fence

    short = lock(redlock, key, ttl=1, renew=False)
    with pytest.raises(LockLost), short as lease:
        run(lease)
