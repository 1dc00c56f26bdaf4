"""A node that may have forgotten locks gives none until the last of them has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.redlock import Redlock
from celery_redlock.errors import QuorumUnreachable
from celery_redlock.testing import FakeNodes
from tests.unit.core.support import OVER, QUARANTINE, holders, restart, voting

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


@pytest.mark.parametrize("keep_memory", [False, True])
def test_restarted_node_does_not_vote_for_a_max_ttl(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock, *, keep_memory: bool
) -> None:
    """With or without memory: what it wrote down last may be old."""
    restart(nodes, 0, keep_memory=keep_memory)

    assert voting(redlock) == [False, True, True, True, True]
    clock.advance(QUARANTINE - 0.001)
    assert not voting(redlock)[0]


def test_flushed_node_does_not_vote_for_a_max_ttl(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """FLUSHALL is a loss of memory without a restart."""
    nodes.nodes[0].memory.flush()

    assert voting(redlock) == [False, True, True, True, True]


def test_restarted_majority_lets_no_second_holder_in(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock
) -> None:
    """Plain Redlock grants here: three empty nodes are a majority of five."""
    lease = redlock.acquire("k")
    restart(nodes, 0, 1, 2)

    with pytest.raises(QuorumUnreachable):
        rival.acquire("k")

    assert lease.is_valid()


def test_restarted_node_beside_a_quorum_is_not_missed(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A minority in quarantine costs nothing."""
    restart(nodes, 0, 1)

    assert redlock.acquire("k").votes == 3


def test_quarantine_begins_when_it_is_noticed(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """No clock that lies about the past can shorten it."""
    restart(nodes, 0)
    clock.advance(3600.0)

    assert not voting(redlock)[0]
    clock.advance(QUARANTINE - 1.0)
    assert not voting(redlock)[0]


def test_restart_in_quarantine_begins_it_anew(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Each loss of memory has a wait of its own."""
    restart(nodes, 0)
    voting(redlock)
    clock.advance(QUARANTINE - 1.0)
    restart(nodes, 0)
    voting(redlock)
    clock.advance(2.0)

    assert not voting(redlock)[0]


def test_quarantined_node_still_renews_and_releases(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """It gives no new lock; what was granted is kept, restored and let go there."""
    lease = redlock.acquire("k")
    restart(nodes, 0, 1, 2)
    redlock.check()

    assert redlock.extend(lease)

    assert holders(nodes) == [lease.token] * 5
    assert redlock.release(lease) == 5


def test_new_deployment_waits_for_one_quarantine(clock: FakeClock) -> None:
    """Nodes that nobody initialized vote by themselves after that."""
    nodes = FakeNodes(3, clock=clock)
    redlock = Redlock(nodes.urls, transport=nodes, clock=clock)
    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")
    assert caught.value.retry_after == pytest.approx(QUARANTINE)

    clock.advance(OVER)

    assert redlock.acquire("k").is_valid()


def test_guard_that_is_off_lets_everyone_vote(clock: FakeClock) -> None:
    """A choice that can cost exclusion: here two hold the lock."""
    nodes = FakeNodes(3, clock=clock)
    redlock = nodes.redlock(restart_guard=False)
    lease = redlock.acquire("k")
    restart(nodes, 0, 1)

    other = redlock.acquire("k")

    assert lease.is_valid()
    assert other.votes == 2
    assert nodes.nodes[2].memory.redis.hgetall(b"redlock:meta") == {}


def test_quarantine_and_hint_follow_from_max_ttl(nodes: FakeNodes) -> None:
    """Longer than all that may have been forgotten; a quarter for hints."""
    redlock = nodes.redlock(max_ttl=100.0)

    (acquire,) = [redlock.commands.acquire("k", ttl=10, token="t", facts="").call[2]]
    assert acquire[5] == 25_000_000
    assert acquire[7] == 103_000
