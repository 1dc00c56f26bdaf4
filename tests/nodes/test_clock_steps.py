"""Steps of a node's wall clock while a lock is held: locks that survive, or do not.

Redis ends keys by its wall clock. A step forward ends a lock too soon on that node,
a step back keeps it too long; the holder's own validity rests on a monotonic clock
and does not move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from celery_redlock.devnodes import DevNode
from celery_redlock.errors import LockHeld, LockUnavailable
from celery_redlock.locking import lock
from celery_redlock.locks.redlock import Redlock
from celery_redlock.wire.quorum import VoteKind
from tests.nodes.clocks import Clocks
from tests.nodes.support import (
    SHORT,
    client,
    delete_lock,
    granted,
    held,
    kinds,
    until,
    until_all_vote,
    until_nothing_is_left,
    values,
)

pytestmark = pytest.mark.every_server

HOUR = 3600


@pytest.fixture
def clocks(start_clocks: Callable[..., Clocks]) -> Clocks:
    """Give three nodes with clocks of their own."""
    return start_clocks(3)


@pytest.fixture
def redlock(clocks: Clocks) -> Iterator[Redlock]:
    """Give a service for which all three nodes vote."""
    with client(clocks.nodes) as redlock:
        until_all_vote(redlock)
        yield redlock


@pytest.fixture
def rival(clocks: Clocks) -> Iterator[Redlock]:
    """Give another service on the three nodes."""
    with client(clocks.nodes) as rival:
        yield rival


def remaining(node: DevNode, key: str) -> int:
    """Return the milliseconds that the node will keep the lock."""
    return int(node.command("PTTL", f"redlock:lock:{key}"))


# -- Forward -----------------------------------------------------------------------


def test_lock_survives_one_clock_that_jumps_ahead(
    clocks: Clocks, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """One node drops the lock too soon; a majority still refuses other clients."""
    nodes = clocks.nodes
    lease = held(redlock, nodes, key)

    clocks.step(0, HOUR)

    until(lambda: values(nodes, key)[0] is None)
    with pytest.raises(LockHeld):
        rival.acquire(key)
    lease.ensure(network=True)
    until(lambda: redlock.extend(lease) and None not in values(nodes, key))
    assert redlock.release(lease) >= 2
    until_nothing_is_left(nodes)


@pytest.mark.parametrize("stepped", [1, 2])
def test_lock_does_not_survive_clocks_of_its_majority_that_jump_ahead(
    clocks: Clocks, redlock: Redlock, rival: Redlock, key: str, stepped: int
) -> None:
    """A majority drops the lock too soon: a second holder gets a greater fence.

    One step is enough for a lock that was on two of three nodes only.
    """
    lease = held(redlock, clocks.nodes, key)
    if stepped == 1:
        delete_lock(clocks.nodes.nodes[2:], key)  # as if it was down
    for index in range(stepped):
        clocks.step(index, HOUR)

    second = rival.acquire(key, wait=5)

    assert lease.is_valid()
    assert second.is_valid()
    assert second.fence > lease.fence
    redlock.release(lease)
    rival.release(second)


def test_renewed_block_survives_clocks_that_jump_one_after_the_other(
    clocks: Clocks, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """Renewal restores the lock on each node, so the next step finds it on all."""
    with lock(redlock, key, ttl=6) as lease:
        for index in range(3):
            until(lambda: None not in values(clocks.nodes, key))
            clocks.step(index, HOUR)
            with pytest.raises(LockUnavailable):
                rival.acquire(key)
        assert lease.is_valid()
        lease.ensure(network=True)


def test_quarantine_survives_a_clock_that_jumps_ahead(
    clocks: Clocks, redlock: Redlock
) -> None:
    """The other nodes must confirm the node, and they wait by clocks of their own.

    Each new client tries at once to bring the node back.
    """
    flush(redlock, clocks.nodes.nodes[0])

    clocks.step(0, HOUR)

    until(lambda: kinds(redlock.check().ballot)[0] is VoteKind.UNSYNCED)
    for _ in range(3):
        with client(clocks.nodes) as other:
            assert kinds(other.check().ballot)[0] is VoteKind.UNSYNCED


def flush(redlock: Redlock, first: DevNode) -> None:
    """Delete all keys of the first node, and wait until it is in quarantine."""
    first.command("FLUSHALL")
    until(lambda: kinds(redlock.check().ballot)[0] is VoteKind.QUARANTINED)


def test_step_at_start_does_not_shorten_the_quarantine(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """A restarted node whose clock was corrected reports a wrong uptime.

    Its quarantine begins when a client notices the loss, so a wrong clock cannot
    end it.
    """
    clocks = start_clocks(3, max_ttl=0.5)
    with client(clocks.nodes, **SHORT) as redlock:
        redlock.release(granted(redlock, key))
        clocks.step(0, -HOUR)
        clocks.nodes.nodes[0].restart()
        clocks.step(0, 0)  # now it seems to have been up for an hour
        restarted_at = time.monotonic()

        until(lambda: kinds(redlock.check().ballot)[0] is VoteKind.GRANTED)

        assert time.monotonic() - restarted_at >= 0.5


# -- Backward ----------------------------------------------------------------------


def test_lock_survives_clocks_that_jump_back(
    clocks: Clocks, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """They keep it for max_ttl at most; the holder's validity is not prolonged."""
    lease = held(redlock, clocks.nodes, key, ttl=5)
    end = lease.until
    for index in range(3):
        clocks.step(index, -HOUR)

    assert remaining(clocks.nodes.nodes[0], key) > 1000 * (HOUR - 10)
    assert lease.until == end
    until(lambda: not lease.is_valid())
    with pytest.raises(LockHeld) as refused:
        rival.acquire(key)
    assert refused.value.retry_after is not None
    assert refused.value.retry_after <= redlock.timing.max_ttl
    most = redlock.timing.max_ttl * 1000

    def is_asked() -> bool:
        """Tell it of the node: the other two may have refused the rival before."""
        with pytest.raises(LockHeld):
            rival.acquire(key)
        return remaining(clocks.nodes.nodes[0], key) <= most

    until(is_asked)

    assert redlock.release(lease) >= 2  # its holder can still release it
    rival.release(rival.acquire(key, wait=5))
    until_nothing_is_left(clocks.nodes)
