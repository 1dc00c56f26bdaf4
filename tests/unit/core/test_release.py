"""Release: our lock goes from all nodes, and another client's stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import LeaseState, new_base
from celery_redlock.errors import LockHeld
from tests.unit.core.support import FREE, TTL, asked, holders, ttls

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_release_deletes_the_lock_everywhere(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """One round trip; the lease is released; the key can be taken again."""
    lease = redlock.acquire("k")
    nodes.asked.clear()

    assert redlock.release(lease) == 5

    assert asked(nodes) == ["release"]
    assert lease.state is LeaseState.RELEASED
    assert not lease.is_valid()
    assert holders(nodes) == FREE
    assert redlock.acquire("k").is_valid()


def test_release_twice_is_harmless(redlock: Redlock, rival: Redlock) -> None:
    """The second release finds nothing, and a successor's lock stays."""
    lease = redlock.acquire("k")
    redlock.release(lease)
    successor = rival.acquire("k")

    assert redlock.release(lease) == 0
    assert rival.inspect("k").votes == 5
    assert successor.is_valid()


def test_release_after_the_end_never_touches_a_successor(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Nodes compare the token before they delete: the lock is another client's."""
    lease = redlock.acquire("k")
    clock.advance(TTL + 0.01)
    successor = rival.acquire("k")

    assert redlock.release(lease) == 0
    assert holders(nodes) == [successor.token] * 5


def test_release_of_a_lost_lease_keeps_it_lost(redlock: Redlock) -> None:
    """A release does not hide that the lease was lost."""
    lease = redlock.acquire("k")
    lease.state = LeaseState.LOST

    redlock.release(lease)

    assert lease.state is LeaseState.LOST


def test_release_does_not_wait_for_slow_nodes(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A majority is enough to go on; the other nodes get the release all the same."""
    lease = redlock.acquire("k")
    nodes.freeze(0, 1)
    before = clock.monotonic()

    assert redlock.release(lease) == 3

    assert clock.monotonic() == before
    nodes.thaw()
    assert holders(nodes) == FREE


def test_release_reaches_nodes_that_granted_too_late(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Grants that acquire did not wait for are released, too."""
    nodes.freeze(0, 1)
    lease = redlock.acquire("k")
    assert lease.votes == 3
    redlock.release(lease)

    nodes.thaw()

    assert holders(nodes) == FREE


def test_release_is_resent_to_a_node_that_was_down(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A node that returns with its memory gets the release of its earlier grant."""
    lease = redlock.acquire("k")
    nodes.nodes[0].kill()
    assert redlock.release(lease) == 4
    assert nodes.has_pending

    nodes.nodes[0].restart(keep_memory=True)
    assert holders(nodes)[0] == lease.token
    nodes.drain(clock.monotonic())

    assert holders(nodes) == FREE


def test_release_with_keep_lets_the_lock_expire(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """``hold_at_least``: the lock is taken until then, and the lease is not valid."""
    lease = redlock.acquire("k")

    assert redlock.release(lease, keep=2.5) == 5

    assert ttls(nodes) == [2500] * 5
    assert not lease.is_valid()
    with pytest.raises(LockHeld):
        rival.acquire("k")
    clock.advance(2.501)
    assert rival.acquire("k").is_valid()


@pytest.mark.parametrize("keep", [0.0, -1.0, 0.0001])
def test_release_with_nothing_to_keep_deletes(
    nodes: FakeNodes, redlock: Redlock, keep: float
) -> None:
    """A keep of less than a millisecond deletes at once."""
    lease = redlock.acquire("k")

    redlock.release(lease, keep=keep)

    assert holders(nodes) == FREE


def test_release_base_releases_any_attempt_of_an_execution(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock
) -> None:
    """A process that outlives the holder knows the base and not the attempt."""
    base, another = new_base(), new_base()
    rival.acquire("k", base=base)

    assert redlock.release_base("k", another) == 0
    assert redlock.release_base("k", base[:-1]) == 0
    assert redlock.release_base("k", base) == 5
    assert holders(nodes) == FREE
