"""Steps of a node's wall clock while a lock is held: locks that survive, or do not.

Redis ends keys by its wall clock. A step forward ends a lock too soon on that node,
a step back keeps it too long; the holder's own validity rests on a monotonic clock
and does not move.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.keys import stripe_of
from celery_redlock.core.quorum import VoteKind
from celery_redlock.errors import LockHeld, LockUnavailable, QuorumUnreachable
from celery_redlock.locking import lock
from tests.nodes.support import (
    SHORT,
    client,
    counters,
    kinds,
    until,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNode
    from tests.nodes.clocks import Clocks

pytestmark = pytest.mark.every_server

HOUR = 3600


def remaining(node: DevNode, key: str) -> int:
    """Return the milliseconds that the node will keep the lock."""
    return int(node.command("PTTL", f"redlock:lock:{key}"))


# -- Forward -----------------------------------------------------------------------


def test_lock_survives_one_clock_that_jumps_ahead(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """One node drops the lock too soon; a majority still refuses other clients."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with client(nodes) as redlock, client(nodes) as rival:
        until(lambda: redlock.check().problems == [])
        lease = redlock.acquire(key)
        until(lambda: None not in values(nodes, key))

        clocks.step(0, HOUR)

        until(lambda: values(nodes, key)[0] is None)
        with pytest.raises(LockHeld):
            rival.acquire(key)
        lease.ensure(network=True)
        until(lambda: redlock.extend(lease) and None not in values(nodes, key))
        assert redlock.release(lease) >= 2
    until_nothing_is_left(nodes)


def test_lock_does_not_survive_two_clocks_that_jump_ahead(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """A majority drops the lock too soon: a second holder gets a greater fence."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with client(nodes) as redlock, client(nodes) as rival:
        until(lambda: redlock.check().problems == [])
        lease = redlock.acquire(key)
        until(lambda: None not in values(nodes, key))
        clocks.step(0, HOUR)
        clocks.step(1, HOUR)

        second = rival.acquire(key, wait=5)

        assert lease.is_valid()
        assert second.is_valid()
        assert second.fence > lease.fence
        redlock.release(lease)
        rival.release(second)


def test_bare_majority_does_not_survive_one_clock_that_jumps_ahead(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """A lock on two of three nodes is one step away from a second holder."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with client(nodes) as redlock, client(nodes) as rival:
        until(lambda: redlock.check().problems == [])
        lease = redlock.acquire(key)
        until(lambda: None not in values(nodes, key))
        nodes.nodes[2].command("DEL", f"redlock:lock:{key}")  # as if it was down
        clocks.step(0, HOUR)

        second = rival.acquire(key, wait=5)

        assert lease.is_valid()
        assert second.fence > lease.fence
        redlock.release(lease)
        rival.release(second)


def test_renewed_block_survives_clocks_that_jump_one_after_the_other(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """Renewal restores the lock on each node, so the next step finds it on all."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with (
        client(nodes) as redlock,
        client(nodes) as rival,
        lock(redlock, key, ttl=1.5) as lease,
    ):
        for index in range(3):
            until(lambda: None not in values(nodes, key))
            clocks.step(index, HOUR)
            with pytest.raises(LockUnavailable):
                rival.acquire(key)
        assert lease.is_valid()
        lease.ensure(network=True)


def test_quarantine_does_not_survive_a_clock_that_jumps_ahead(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """The quarantine of a node is a key like others, so a step ends it too soon."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with client(nodes) as redlock:
        redlock.release(redlock.acquire(key))
        nodes.nodes[0].command("FLUSHALL")
        until(lambda: kinds(redlock.check().ballot)[0] is VoteKind.QUARANTINED)

        clocks.step(0, HOUR)

        until(lambda: redlock.check().problems == [])


def test_step_at_start_does_not_shorten_the_quarantine(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """A restarted node whose clock was corrected reports a wrong uptime.

    Its quarantine begins when a client notices the loss, so a wrong clock cannot
    end it.
    """
    clocks = start_clocks(3, max_ttl=0.5)
    nodes = clocks.nodes
    with client(nodes, **SHORT) as redlock:
        redlock.release(redlock.acquire(key))
        clocks.step(0, -HOUR)
        nodes.nodes[0].restart()
        clocks.step(0, 0)  # now it seems to have been up for an hour
        restarted_at = time.monotonic()

        until(lambda: kinds(redlock.check().ballot)[0] is VoteKind.GRANTED)

        assert time.monotonic() - restarted_at >= 0.5


# -- Backward ----------------------------------------------------------------------


def test_lock_survives_clocks_that_jump_back(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """All nodes keep the lock for longer; the holder's validity is not prolonged."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with client(nodes) as redlock, client(nodes) as rival:
        until(lambda: redlock.check().problems == [])
        lease = redlock.acquire(key, ttl=1)
        end = lease.until
        until(lambda: None not in values(nodes, key))
        for index in range(3):
            clocks.step(index, -HOUR)

        assert remaining(nodes.nodes[0], key) > 1000 * (HOUR - 10)
        assert lease.until == end
        until(lambda: not lease.is_valid())
        with pytest.raises(LockHeld) as held:
            rival.acquire(key)
        assert held.value.retry_after is not None
        assert held.value.retry_after > HOUR - 10

        assert redlock.release(lease) >= 2  # its holder can still release it
        rival.release(rival.acquire(key, wait=5))
    until_nothing_is_left(nodes)


def test_one_clock_that_jumps_back_blocks_no_lock(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """If one node keeps a dead holder's lock for an hour, the others outvote it."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with client(nodes) as redlock, client(nodes) as rival:
        until(lambda: redlock.check().problems == [])
        lease = redlock.acquire(key, ttl=1)
        until(lambda: None not in values(nodes, key))
        clocks.step(0, -HOUR)

        successor = rival.acquire(key, wait=10)

        assert not lease.is_valid()
        assert successor.fence > lease.fence
        assert remaining(nodes.nodes[0], key) > 1000 * (HOUR - 10)
        rival.release(successor)


def test_renewal_sets_a_lock_right_that_was_kept_too_long(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """The next renewal gives the lock its ttl again, by the stepped clock."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with client(nodes) as redlock:
        until(lambda: redlock.check().problems == [])
        lease = redlock.acquire(key, ttl=20)
        until(lambda: None not in values(nodes, key))
        clocks.step(1, -HOUR)

        until(
            lambda: redlock.extend(lease) and remaining(nodes.nodes[1], key) <= 20_000
        )
        redlock.release(lease)


def test_quarantine_is_longer_on_a_clock_that_jumps_back(
    start_clocks: Callable[..., Clocks], key: str
) -> None:
    """The node says for how long, and the others go on without it."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with client(nodes) as redlock:
        nodes.nodes[0].command("FLUSHALL")
        until(lambda: kinds(redlock.check().ballot)[0] is VoteKind.QUARANTINED)
        clocks.step(0, -HOUR)
        redlock.release(redlock.acquire(key))
        nodes.nodes[1].kill()
        redlock.check()  # by now it knows that the connection is gone

        def waits_for_the_hour() -> bool:
            with pytest.raises(QuorumUnreachable) as refused:
                redlock.acquire(key)
            return (refused.value.retry_after or 0) > HOUR

        until(waits_for_the_hour)


# -- Fences ------------------------------------------------------------------------


@pytest.mark.parametrize("step", [HOUR, -HOUR, 365 * 24 * HOUR])
def test_fences_do_not_follow_a_clock_that_steps(
    start_clocks: Callable[..., Clocks], key: str, step: int
) -> None:
    """Fences grow before, during and after a step, by little, on one node or on all."""
    clocks = start_clocks(3)
    nodes = clocks.nodes
    with client(nodes) as redlock:
        fences = []

        def grant() -> None:
            lease = redlock.acquire(key, wait=5)
            fences.append(lease.fence)
            redlock.release(lease)

        grant()
        for index in range(3):
            clocks.step(index, step)
            grant()
        for index in range(3):
            clocks.step(index, 0)
            grant()
        grant()

        assert fences == sorted(set(fences))
        assert fences[-1] - fences[0] < 600 * 1_000_000  # ten minutes of µs
        for node in nodes.nodes:
            assert counters(node).get(str(stripe_of(key)), 0) <= fences[-1]
