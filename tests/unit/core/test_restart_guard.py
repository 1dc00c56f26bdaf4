"""The restart guard: quarantine, recovery of fences, floors, and the configuration."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.quorum import VoteKind
from celery_redlock.core.redlock import Redlock
from celery_redlock.core.restart_guard import greatest
from celery_redlock.errors import LockHeld, QuorumUnreachable
from celery_redlock.testing import FakeNodes
from tests.unit.core.support import (
    OVER,
    QUARANTINE,
    args_of,
    asked,
    counters,
    holders,
    kinds,
    restart,
    voting,
)

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


# -- quarantine ------------------------------------------------------------------------


@pytest.mark.parametrize("keep_memory", [False, True])
def test_restarted_node_does_not_vote_for_a_max_ttl(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock, *, keep_memory: bool
) -> None:
    """With or without memory: the data that it saved last may be old."""
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
    """Plain Redlock would grant: three empty nodes are a majority of five."""
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
    """No wrong clock of the past can shorten the quarantine."""
    restart(nodes, 0)
    clock.advance(3600.0)

    assert not voting(redlock)[0]
    clock.advance(QUARANTINE - 1.0)
    assert not voting(redlock)[0]


def test_restart_in_quarantine_begins_it_anew(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Each loss of memory has a quarantine of its own."""
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
    """It grants no new lock; earlier locks are kept, restored and released there."""
    lease = redlock.acquire("k")
    restart(nodes, 0, 1, 2)
    redlock.check()

    assert redlock.extend(lease)

    assert holders(nodes) == [lease.token] * 5
    assert redlock.release(lease) == 5


def test_new_deployment_waits_for_one_quarantine(clock: FakeClock) -> None:
    """Nodes that were not initialized vote after one quarantine."""
    nodes = FakeNodes(3, clock=clock)
    redlock = Redlock(nodes.urls, transport=nodes, clock=clock)
    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")
    assert caught.value.retry_after == pytest.approx(QUARANTINE)

    clock.advance(OVER)

    assert redlock.acquire("k").is_valid()


def test_guard_that_is_off_lets_all_nodes_vote(clock: FakeClock) -> None:
    """The choice can cost exclusion: here two clients hold the lock."""
    nodes = FakeNodes(3, clock=clock)
    redlock = nodes.redlock(restart_guard=False)
    lease = redlock.acquire("k")
    restart(nodes, 0, 1)

    other = redlock.acquire("k")

    assert lease.is_valid()
    assert other.votes == 2
    assert other.fence > lease.fence


def test_new_nodes_without_the_guard_vote_at_once(clock: FakeClock) -> None:
    """They need no ``init``. A node that is away may belong to another deployment."""
    nodes = FakeNodes(3, clock=clock)
    redlock = Redlock(
        nodes.urls, transport=nodes, clock=clock, restart_guard=False, max_ttl=60.0
    )
    nodes.freeze(2)
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")
    nodes.thaw(2)

    assert redlock.acquire("k", wait=1.0).is_valid()


@pytest.mark.parametrize("max_ttl", [60.0, 600.0])
def test_client_without_the_guard_gets_past_no_quarantine(
    nodes: FakeNodes, redlock: Redlock, max_ttl: float
) -> None:
    """Whether nodes guard is a property of the deployment, and not of a client."""
    other = nodes.another_client().redlock(restart_guard=False, max_ttl=max_ttl)
    lease = redlock.acquire("k")
    restart(nodes, 0, 1, 2)

    with pytest.raises(QuorumUnreachable, match="the restart guard on"):
        other.acquire("k", wait=3.0)

    assert lease.is_valid()
    assert redlock.extend(lease)


def test_quarantine_and_hint_follow_from_max_ttl(nodes: FakeNodes) -> None:
    """The quarantine outlasts every forgotten lock; hints may be off by a quarter."""
    redlock = nodes.redlock(max_ttl=100.0)

    _, _, args = redlock.acquire_request("k", ttl=10, token="t", holder_info="").call

    assert (args[5], args[7]) == (25_000_000, 103_000)


# -- recovery --------------------------------------------------------------------------


def test_node_votes_again_with_the_fences_of_other_nodes(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """After the quarantine its counters are those of r = N − q + 1 others."""
    lease = redlock.acquire("k")
    redlock.release(lease)
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)

    report = redlock.check()  # also recovers unsynced nodes

    assert kinds(report.ballot)[0] is VoteKind.UNSYNCED
    assert counters(nodes)[0] == lease.fence
    assert voting(redlock) == [True] * 5


def test_acquire_recovers_nodes_that_it_needs(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Two nodes are down and one restarted: its vote is recovered at once."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.nodes[1].kill()
    before = clock.monotonic()
    nodes.asked.clear()

    lease = redlock.acquire("k")

    assert lease.votes >= 3
    assert clock.monotonic() == before
    assert "sync" in asked(nodes)


def test_acquire_recovers_nodes_that_it_does_not_need(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A lock that is won without them recovers them all the same."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)

    redlock.acquire("k")

    assert voting(redlock) == [True] * 5


def test_recovery_includes_votes_that_came_late(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """An early verdict does not wait for the unsynced node; the next recovers it."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.latency(0.01, 0)
    redlock.acquire("a")
    assert "sync" not in asked(nodes)
    clock.advance(0.3)

    redlock.acquire("b")

    assert "sync" in asked(nodes)
    assert voting(redlock)[0]


def test_recovery_takes_the_greatest_of_each_counter(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The greatest of each field, from all nodes that answer."""
    fence = b"redlock:meta"
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    fields = [b"4000", b"4001", b"4002", b"4003"]
    for index, field in enumerate(fields, start=1):
        redis = nodes.nodes[index].memory.redis
        redis.hset(fence, {field: b"70", b"4004": str(index).encode()})

    redlock.check()

    assert [counters(nodes, field)[0] for field in fields] == [70] * 4
    assert counters(nodes, b"4004")[0] == 4


def test_recovery_needs_more_than_a_minority_of_others(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """It needs three of the four others (r = N − q + 1); with two, it waits."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.freeze(1, 2)

    redlock.check()
    clock.advance(0.3)
    redlock.check()

    assert "sync" not in asked(nodes)
    nodes.thaw(1)
    clock.advance(0.3)
    redlock.check()
    clock.advance(0.3)
    assert "sync" in asked(nodes)
    assert voting(redlock)[0]


def test_recovery_is_tried_at_most_once_in_a_while(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Once in 0.2 s, because reading all counters is not free."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.nodes[1].kill()
    nodes.nodes[2].kill()
    for _ in range(5):
        redlock.check()

    assert asked(nodes).count("counters") == 1
    clock.advance(0.2)
    redlock.check()
    assert asked(nodes).count("counters") == 2


def test_recovery_names_the_incarnation_for_which_it_was_read(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A node that restarted since refuses counters for an earlier incarnation."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    incarnation = nodes.nodes[0].memory.redis.hget(b"redlock:meta", b"incarnation")

    redlock.check()

    (sync,) = args_of(nodes, "sync")
    assert incarnation
    assert sync[1:4] == [incarnation.decode(), 0, 15_000_000]


def test_recovery_of_a_node_that_restarts_meanwhile_fails(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Its counters are gone again, and a new quarantine begins."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.latency(0.01)
    clock.at(0.025, lambda: restart(nodes, 0))  # counters are read, sync is not sent

    redlock.check()

    assert not voting(redlock)[0]
    clock.advance(OVER)
    redlock.check()
    assert voting(redlock)[0]


def test_recovery_without_unsynced_nodes_sends_nothing(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """While all nodes vote, the guard costs nothing."""
    redlock.acquire("k")
    redlock.acquire("l")

    assert asked(nodes) == ["acquire"] * 2


def test_fences_are_in_order_across_a_recovery(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Nodes restart one at a time: each fence is greater than all before."""
    fences = []
    for index in (0, 3, 1, 4, 2, 0):
        lease = redlock.acquire("k")
        fences.append(lease.fence)
        redlock.release(lease)
        clock.step_wall(-1000.0)
        restart(nodes, index)
        redlock.check()
        clock.advance(OVER)
        redlock.check()

    assert fences == sorted(set(fences))
    assert voting(redlock) == [True] * 5


def test_greatest_keeps_the_greatest_of_each_field() -> None:
    """Fields are bytes, as nodes send them; counters are compared as numbers."""
    pairs = [b"1", b"9", b"2", b"5", b"1", b"10", b"floor", b"7", b"2", b"4"]

    assert greatest(pairs) == [b"1", 10, b"2", 5, b"floor", 7]
    assert greatest([]) == []


TOLERANCE = 15_000_000  # µs, a quarter of max_ttl


# -- floors ----------------------------------------------------------------------------


def test_restarted_majority_sets_floors(
    nodes: FakeNodes,
    redlock: Redlock,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When r other nodes cannot be had, TIME is the floor, and the log warns."""
    lease = redlock.acquire("k")
    redlock.release(lease)
    restart(nodes, 0, 1, 2)
    redlock.check()
    clock.advance(OVER)

    with caplog.at_level(logging.WARNING, "celery_redlock.core.restart_guard"):
        after = redlock.acquire("k")

    assert after.fence > lease.fence
    assert counters(nodes, b"floor")[0] == round(clock.wall() * 1e6) + TOLERANCE
    assert "The order of fences across this moment rests on clocks" in caplog.text
    assert "Node node-1:6379/0 votes again" in caplog.text


def test_single_node_sets_its_floor(clock: FakeClock) -> None:
    """N = 1: there are no other nodes."""
    nodes = FakeNodes(1, clock=clock)
    redlock = nodes.redlock()
    lease = redlock.acquire("k")
    nodes.nodes[0].restart()
    redlock.check()
    clock.advance(OVER)

    assert redlock.acquire("k").fence > lease.fence


def test_floor_is_set_when_other_nodes_were_silent_for_a_max_ttl(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Nodes that are gone for good do not keep a restarted one out for ever."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.nodes[1].kill()
    nodes.nodes[2].kill()

    for _ in range(3):
        redlock.check()
        assert not voting(redlock)[0]
        clock.advance(20.3)
    redlock.check()

    assert [args[2] for args in args_of(nodes, "sync")] == [1]
    assert voting(redlock) == [True, False, False, True, True]


def test_two_short_silences_do_not_set_a_floor(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The nodes may have been there between two looks that are far apart."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.partition(1, 2)
    redlock.check()  # one look, and then none for longer than a max_ttl
    clock.advance(61.0)

    redlock.check()
    clock.advance(1.0)
    redlock.check()

    assert "sync" not in asked(nodes)


def test_node_of_another_deployment_prevents_a_floor(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A majority without memory does not begin anew beside a node that has some."""
    restart(nodes, 0, 1, 2)
    redlock.check()
    meta = {b"config": b"another"}
    nodes.nodes[3].memory.redis.hset(b"redlock:meta", meta)
    clock.advance(OVER)

    for _ in range(10):
        redlock.check()
        clock.advance(20.0)

    assert "sync" not in asked(nodes)


def test_silence_of_long_ago_does_not_set_a_floor(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Another process recovered the node; an hour later, silence begins anew."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.partition(1, 2)
    redlock.check()  # sees the silence
    nodes.heal()
    rival.check()  # recovers the node
    assert voting(redlock)[0]
    clock.advance(3600.0)
    redlock.acquire("a")
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)

    nodes.partition(1, 2)
    redlock.check()

    assert "sync" not in asked(nodes)


# -- configuration ---------------------------------------------------------------------


def test_client_that_differs_is_refused_with_the_difference(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Two configurations do not exclude each other, so the second gets no lock."""
    other = nodes.another_client().redlock(max_ttl=90.0)

    with pytest.raises(QuorumUnreachable) as caught:
        other.acquire("k")

    text = str(caught.value)
    assert "Only 0 of 5 nodes gave a vote on 'k'" in text
    assert "node-1:6379/0 is set up differently" in text
    assert (
        "The nodes are set up with max_ttl 60 s; this client has max_ttl 90 s. Set "
        "redlock_max_ttl = 60, or move the nodes to yours with `celery -A proj "
        "redlock reconfigure`." in text
    )
    assert caught.value.retry_after is None
    assert redlock.acquire("k").votes == 5


def test_client_that_differs_recovers_nothing(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Nodes of another deployment are left alone."""
    other_view = nodes.another_client()
    other = other_view.redlock(max_ttl=90.0)

    with pytest.raises(QuorumUnreachable):
        other.acquire("k", wait=1.0)

    assert set(asked(other_view)) == {"acquire", "release"}


def test_prefixes_are_deployments_of_their_own(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Deployments with different prefixes share the servers and nothing else."""
    redlock.acquire("k")
    other = nodes.another_client().redlock(prefix="other")
    other.guard.initialize()

    assert other.acquire("k").votes == 5
    with pytest.raises(LockHeld):
        other.acquire("k")
    assert nodes.nodes[0].memory.redis.get(b"other:lock:k")
