"""After its quarantine a node takes over the fences of others, and votes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.guard import greatest
from tests.unit.core.support import (
    OVER,
    STRIPE_OF_K,
    args_of,
    asked,
    counters,
    kinds,
    restart,
    voting,
)

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_node_votes_again_with_the_fences_of_others(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """After the quarantine its counters are those of r = N − q + 1 others."""
    lease = redlock.acquire("k")
    redlock.release(lease)
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)

    report = redlock.check()  # asks, and recovers who is not synced

    assert kinds(report.ballot)[0] is VoteKind.UNSYNCED
    assert counters(nodes)[0] == lease.fence
    assert voting(redlock) == [True] * 5


def test_acquire_recovers_nodes_that_it_needs(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Two nodes are gone and one was restarted: the third vote is recovered at once."""
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
    """A lock that was won without them is a good moment to get them back."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)

    redlock.acquire("k")

    assert voting(redlock) == [True] * 5


def test_recovery_also_looks_at_votes_that_came_late(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """An early verdict does not wait for the unsynced node; the next one has it."""
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
    """Field by field, from as many nodes as answer."""
    fence = b"redlock:fence"
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
    """Three of the four others (r = N − q + 1): with two, it waits."""
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


def test_recovery_is_not_tried_by_everyone_all_the_time(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """At most once in 0.2 s: reading all counters is not free."""
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


def test_recovery_names_the_life_for_which_it_was_read(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A node that restarted since refuses what was read for an earlier life."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    life = nodes.nodes[0].memory.redis.hget(b"redlock:meta", b"life")

    redlock.check()

    (sync,) = args_of(nodes, "sync")
    assert life
    assert sync[:2] == [life.decode(), 0]


def test_recovery_of_a_node_that_restarts_meanwhile_fails(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Its counters are gone again, and the quarantine of the new life is to come."""
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


def test_recovery_without_unsynced_nodes_asks_nothing(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The usual case is free."""
    redlock.acquire("k")
    redlock.acquire("l")

    assert asked(nodes) == ["acquire"] * 2


def test_fences_are_in_order_across_a_recovery(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Whoever restarts, one at a time: each grant is greater than all before."""
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
    """Bytes as nodes send them; each field once; numbers, not texts, are compared."""
    pairs = [b"1", b"9", b"2", b"5", b"1", b"10", b"floor", b"7", b"2", b"4"]

    assert greatest(pairs) == [b"1", 10, b"2", 5, b"floor", 7]
    assert greatest([]) == []


def test_stripe_of_k_is_known(nodes: FakeNodes, redlock: Redlock) -> None:
    """What these tests look at is the counter of their key."""
    lease = redlock.acquire("k")

    assert counters(nodes, STRIPE_OF_K) == [lease.fence] * 5
