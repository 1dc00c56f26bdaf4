"""Letting go of a lock: all nodes are free, and a successor's lock is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import LeaseState, new_base
from celery_redlock.errors import LockHeld, LockLost
from tests.nodes.support import until, until_nothing_is_left, values

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

pytestmark = pytest.mark.every_server


def test_released_lock_is_free_everywhere(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """Release tells how many nodes agreed, and somebody else can have it at once."""
    lease = redlock.acquire(key)

    assert redlock.release(lease) >= redlock.quorum

    assert lease.state is LeaseState.RELEASED
    assert not lease.is_valid()
    other = rival.acquire(key)
    assert other.fence > lease.fence
    rival.release(other)
    until_nothing_is_left(shared_nodes, key)


def test_release_twice_is_harmless(
    redlock: Redlock, rival: Redlock, key: str, shared_nodes: DevNodes
) -> None:
    """The second release finds nothing of its own, and leaves a successor alone."""
    lease = redlock.acquire(key)
    redlock.release(lease)
    until_nothing_is_left(shared_nodes, key)
    successor = rival.acquire(key)

    assert redlock.release(lease) == 0

    assert rival.inspect(key).votes == 5
    assert rival.extend(successor)
    rival.release(successor)


def test_late_release_leaves_the_successor_alone(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A holder that comes back after its ttl deletes nobody's lock."""
    late = redlock.acquire(key, ttl=1)
    successor = rival.acquire(key, wait=10)
    until(lambda: None not in values(shared_nodes, key))

    assert redlock.release(late) == 0

    assert rival.inspect(key).votes == 5
    with pytest.raises(LockLost):
        late.ensure()
    rival.release(successor)


def test_release_can_keep_the_lock_for_a_while(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """With `keep` the nodes hold the lock so long, and then let it go."""
    lease = redlock.acquire(key, ttl=30)

    assert redlock.release(lease, keep=1.0) >= 3

    assert not lease.is_valid()
    with pytest.raises(LockHeld) as held:
        rival.acquire(key)
    assert held.value.retry_after is not None
    assert held.value.retry_after <= 1.0
    until_nothing_is_left(shared_nodes, key, seconds=5)


def test_release_base_frees_any_attempt_of_one_execution(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """Who knows the base frees the lock; another base, or a part of it, does not."""
    base = new_base()
    lease = redlock.acquire(key, base=base)
    until(lambda: None not in values(shared_nodes, key))

    assert rival.release_base(key, new_base()) == 0
    assert rival.release_base(key, base[:-1]) == 0
    assert None not in values(shared_nodes, key)

    assert rival.release_base(key, base) >= 3
    until(lambda: rival.inspect(key).votes == 0)
    until_nothing_is_left(shared_nodes, key)
    with pytest.raises(LockLost):
        lease.ensure(network=True)
