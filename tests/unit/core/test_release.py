"""Release: what is ours goes from all nodes, and what is another's stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import LeaseState, new_base
from celery_redlock.errors import LockHeld
from tests.unit.core.support import NOBODY, TTL, asked, holders, ttls

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_release_frees_the_lock_everywhere(nodes: FakeNodes, redlock: Redlock) -> None:
    """One round trip; the lease says so; the key can be taken again."""
    lease = redlock.acquire("k")
    nodes.asked.clear()

    assert redlock.release(lease) == 5

    assert asked(nodes) == ["release"]
    assert lease.state is LeaseState.RELEASED
    assert not lease.is_valid()
    assert holders(nodes) == NOBODY
    assert redlock.acquire("k").is_valid()


def test_release_twice_is_harmless(redlock: Redlock, rival: Redlock) -> None:
    """The second time nothing is ours, and a successor's lock stays."""
    lease = redlock.acquire("k")
    redlock.release(lease)
    successor = rival.acquire("k")

    assert redlock.release(lease) == 0
    assert rival.inspect("k").votes == 5
    assert successor.is_valid()


def test_release_after_the_end_never_touches_a_successor(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Compare and delete: the lock is another's by now."""
    lease = redlock.acquire("k")
    clock.advance(TTL + 0.01)
    successor = rival.acquire("k")

    assert redlock.release(lease) == 0
    assert holders(nodes) == [successor.token] * 5


def test_release_of_a_lost_lease_keeps_it_lost(redlock: Redlock) -> None:
    """A state only moves on; that it was lost must not be forgotten."""
    lease = redlock.acquire("k")
    lease.state = LeaseState.LOST

    redlock.release(lease)

    assert lease.state is LeaseState.LOST


def test_release_does_not_wait_for_the_slow(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A majority is enough to go on; the others are told all the same."""
    lease = redlock.acquire("k")
    nodes.freeze(0, 1)
    before = clock.monotonic()

    assert redlock.release(lease) == 3

    assert clock.monotonic() == before
    nodes.thaw()
    assert holders(nodes) == NOBODY


def test_release_reaches_nodes_that_granted_too_late(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Also the votes that nobody waited for are given back."""
    nodes.freeze(0, 1)
    lease = redlock.acquire("k")
    assert lease.votes == 3
    redlock.release(lease)

    nodes.thaw()

    assert holders(nodes) == NOBODY


def test_node_that_was_down_is_told_to_release_when_it_is_back(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """What it granted before it went is let go when it returns with its memory."""
    lease = redlock.acquire("k")
    nodes.nodes[0].kill()
    assert redlock.release(lease) == 4
    assert nodes.owes

    nodes.nodes[0].restart(keep_memory=True)
    assert holders(nodes)[0] == lease.token
    nodes.drain(clock.monotonic())

    assert holders(nodes) == NOBODY


def test_release_with_keep_lets_it_end_by_itself(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """``hold_at_least``: taken until then, and not trusted by its holder."""
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
    """Less than a millisecond is not worth keeping."""
    lease = redlock.acquire("k")

    redlock.release(lease, keep=keep)

    assert holders(nodes) == NOBODY


def test_release_base_frees_whatever_attempt_holds_it(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock
) -> None:
    """Who outlives the holder knows the base and not the attempt."""
    base, another = new_base(), new_base()
    rival.acquire("k", base=base)

    assert redlock.release_base("k", another) == 0
    assert redlock.release_base("k", base[:-1]) == 0
    assert redlock.release_base("k", base) == 5
    assert holders(nodes) == NOBODY
