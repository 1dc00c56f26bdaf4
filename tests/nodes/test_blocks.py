"""Blocks under `lock`: they run only with the lock, and release it at their end."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locking import current_lease, lock
from celery_redlock.locks.lease import LeaseState
from tests.nodes.support import (
    delete_lock,
    scripts_run,
    until,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.redlock import Redlock

pytestmark = pytest.mark.every_server


def test_block_does_not_run_without_the_lock(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A refused lock raises before the block, which does not run."""
    lease = redlock.acquire(key)
    ran = []

    with pytest.raises(LockHeld), lock(rival, key):
        ran.append(1)

    assert ran == []
    until(lambda: redlock.inspect(key).votes == 5)
    redlock.release(lease)


@pytest.mark.parametrize("ends_with", [None, ValueError, SystemExit, KeyboardInterrupt])
def test_block_releases_however_it_ends(
    shared_nodes: DevNodes,
    redlock: Redlock,
    key: str,
    ends_with: type[BaseException] | None,
) -> None:
    """The end of the block releases the lock, and passes an exception on unchanged."""
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
    """A quick block leaves the lock on the nodes for the rest of `hold_at_least`."""
    rival.check()  # connects
    with lock(redlock, f"{key}:long", hold_at_least=60.0):
        pass
    with lock(redlock, f"{key}:short", hold_at_least=1.0) as lease:
        began = lease.started_at

    with pytest.raises(LockHeld):
        rival.acquire(f"{key}:long")
    until_nothing_is_left(shared_nodes, f"{key}:short")
    assert redlock.clock.monotonic() - began >= 1.0
    delete_lock(shared_nodes.nodes, f"{key}:long")


# -- Nested blocks -----------------------------------------------------------------


def test_nested_block_asks_no_node(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """A nested block of the same key has the lease of the outer block."""
    with lock(redlock, key) as outer:
        until(lambda: None not in values(shared_nodes, key))
        before = scripts_run(shared_nodes)
        with lock(redlock, key) as inner:
            assert inner is outer
        assert scripts_run(shared_nodes) == before
        assert outer.is_valid()
        assert None not in values(shared_nodes, key)


def test_nested_block_is_refused_to_other_threads(redlock: Redlock, key: str) -> None:
    """A thread with a copy of the holder's context is not the holder."""
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


def test_outer_block_is_renewed_after_the_end_of_a_nested_one(
    redlock: Redlock, key: str
) -> None:
    """The end of a nested block does not end the renewal of the lock around it.

    Source: Redisson, "watchdog fails to renew on reentry locks".
    """
    renewals: list[float] = []

    def note(_: Lease, late: float) -> None:
        renewals.append(late)

    with lock(redlock, key, ttl=60, renew_every=0.2, on_renewed=note) as outer:
        with lock(redlock, key):
            until(lambda: renewals)
        before = len(renewals)

        until(lambda: len(renewals) >= before + 4)

        outer.ensure(network=True)


# -- Lost locks --------------------------------------------------------------------


def test_block_that_outlives_its_lock_raises(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Without renewal, a block that is longer than the ttl ends with LockLost."""
    lost: list[Lease] = []

    def run() -> None:
        until(lambda: lost)
        assert current_lease() is None

    short = lock(redlock, key, ttl=1, renew=False, on_lost=lost.append)
    with pytest.raises(LockLost, match=key), short as lease:
        run()

    assert lost == [lease]
    until_nothing_is_left(shared_nodes, key)


def test_loss_does_not_replace_the_error_of_the_block(
    redlock: Redlock, key: str
) -> None:
    """A block that raises ends with its own exception, even if the lock was lost."""

    def run(lease: Lease) -> None:
        until(lambda: not lease.is_valid())
        raise ZeroDivisionError

    short = lock(redlock, key, ttl=1, renew=False)
    with pytest.raises(ZeroDivisionError), short as lease:
        run(lease)


def test_block_can_take_a_lost_lock_again(redlock: Redlock, key: str) -> None:
    """A nested block of a lost key asks the nodes again, and gets a greater fence."""

    def run(lease: Lease) -> None:
        until(lambda: not lease.is_valid())
        with lock(redlock, key, wait=5) as again:
            assert again is not lease
            assert again.fence > lease.fence

    short = lock(redlock, key, ttl=1, renew=False)
    with pytest.raises(LockLost), short as lease:
        run(lease)
