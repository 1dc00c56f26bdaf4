"""Inspect, and ``ensure(network=True)``: what the nodes say about a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import LockLost, QuorumUnreachable
from tests.unit.core.support import forget, hold, ttls

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_inspect_of_a_free_key(redlock: Redlock) -> None:
    """No holder, no votes, no time."""
    inspection = redlock.inspect("k")

    assert (inspection.key, inspection.holder) == ("k", None)
    assert (inspection.votes, inspection.ttl_left) == (0, 0.0)
    assert inspection.ballot.answered == 5


def test_inspect_names_the_holder(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Holder, votes and time, without changing anything."""
    lease = rival.acquire("k")
    clock.advance(4.0)

    inspection = redlock.inspect("k")

    assert inspection.holder is not None
    assert inspection.holder.token == lease.token
    assert (inspection.votes, inspection.ttl_left) == (5, 6.0)
    assert ttls(nodes) == [6000] * 5


def test_inspect_takes_a_minority_for_no_holder(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Two of five nodes are no holder; their votes are counted."""
    hold(nodes, 0, 1)

    inspection = redlock.inspect("k")

    assert (inspection.holder, inspection.votes) == (None, 2)
    assert inspection.ttl_left == 0.0


def test_inspect_waits_for_all_nodes(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Inspect does not stop at a majority."""
    redlock.acquire("k")
    nodes.latency(0.04, 4)

    assert redlock.inspect("k").votes == 5


# -- ensure(network=True) --------------------------------------------------------------


def test_confirm_trusts_a_majority(nodes: FakeNodes, redlock: Redlock) -> None:
    """Three of five nodes name the lease: it is valid."""
    lease = redlock.acquire("k")
    forget(nodes, 0)
    nodes.nodes[1].kill()

    lease.ensure(network=True)


@pytest.mark.parametrize("successor", ["", "other.1"])
def test_confirm_notices_that_nodes_lost_the_lock(
    nodes: FakeNodes, redlock: Redlock, successor: str
) -> None:
    """After a forced release, or a wipe, the clock says valid and the nodes say no."""
    lease = redlock.acquire("k")
    forget(nodes, 0, 1, 2)
    if successor:
        hold(nodes, 0, 1, 2, by=successor)

    lease.ensure()
    with pytest.raises(LockLost) as caught:
        lease.ensure(network=True)

    assert (caught.value.key, caught.value.fence) == ("k", lease.fence)


def test_confirm_without_enough_answers_cannot_tell(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Silence is neither yes nor no: the error says how long the lease is valid."""
    lease = redlock.acquire("k")
    nodes.freeze(0, 1, 2)

    with pytest.raises(QuorumUnreachable, match=r"lease is valid for \d+\.\d s more\."):
        lease.ensure(network=True)


def test_confirm_counts_whether_silence_could_make_a_majority(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Two yes, two no, one silent: unknown. One yes, three no: lost."""
    lease = redlock.acquire("k")
    nodes.freeze(0)
    forget(nodes, 3, 4)

    with pytest.raises(QuorumUnreachable):
        lease.ensure(network=True)

    forget(nodes, 2)
    with pytest.raises(LockLost):
        lease.ensure(network=True)
