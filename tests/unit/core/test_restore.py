"""A renewal puts the lock back where it is missing, while the lease is valid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.core.support import VALIDITY, asked, counters, forget, holders, put

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_extension_restores_where_the_lock_is_missing(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A minority without the key is given it in passing: nobody waits for that."""
    lease = redlock.acquire("k")
    forget(nodes, 0, 1)
    nodes.asked.clear()

    assert redlock.extend(lease)

    assert asked(nodes) == ["extend", "restore"]
    assert lease.votes == 3
    assert holders(nodes) == [lease.token] * 5


def test_restore_raises_the_fence_counter(nodes: FakeNodes, redlock: Redlock) -> None:
    """The node is as if it had granted: later grants there are greater."""
    lease = redlock.acquire("k")
    nodes.nodes[0].memory.redis.delete(b"redlock:fence")
    forget(nodes, 0)

    redlock.extend(lease)

    assert counters(nodes)[0] == lease.fence


def test_first_renewal_claims_nodes_that_were_away_at_acquire(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A lock on a bare majority becomes one on all."""
    nodes.nodes[0].kill()
    lease = redlock.acquire("k")
    nodes.nodes[0].restart(keep_memory=True)

    redlock.extend(lease)

    assert holders(nodes) == [lease.token] * 5


def test_restore_makes_a_majority(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Where a majority forgot it, the lease is saved while it is valid."""
    lease = redlock.acquire("k")
    clock.advance(4.0)
    before = clock.monotonic()
    forget(nodes, 0, 1, 2, 3)
    nodes.latency(0.02)
    nodes.asked.clear()

    assert redlock.extend(lease)

    assert asked(nodes) == ["extend", "restore"]
    assert lease.until == pytest.approx(before + VALIDITY)
    assert clock.monotonic() == pytest.approx(before + 0.04)


def test_restore_counts_each_node_once(nodes: FakeNodes, redlock: Redlock) -> None:
    """Those who extended are told to restore as well: two votes are one."""
    lease = redlock.acquire("k")
    forget(nodes, 0)
    for index in (1, 2, 3):
        put(nodes, index, "other.1")

    assert not redlock.extend(lease)

    assert holders(nodes) == [lease.token, *["other.1"] * 3, lease.token]


def test_restore_counts_only_while_the_lease_is_valid(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Restored a moment too late is lost."""
    lease = redlock.acquire("k")
    clock.advance(VALIDITY - 0.03)
    forget(nodes, 0, 1, 2)
    nodes.latency(0.02)
    until = lease.until

    assert not redlock.extend(lease)

    assert lease.until == until


def test_restore_is_not_sent_after_the_validity_ended(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """It would revive, on that node, a lock that nobody trusts any more."""
    lease = redlock.acquire("k")
    clock.advance(VALIDITY - 0.01)
    forget(nodes, 0, 1, 2)
    nodes.latency(0.02)

    redlock.extend(lease)

    assert asked(nodes) == ["acquire", "extend"]
    assert holders(nodes)[:3] == [""] * 3


def test_restore_is_not_sent_once_release_began(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """It would bring a released lock back, and nobody would release it again."""
    lease = redlock.acquire("k")
    forget(nodes, 0, 1, 2)
    extension = redlock.commands.extension(lease)
    nodes.send(extension.question)
    nodes.wait(extension.question, until=nodes.clock.monotonic())
    restore = extension.advance(out_of_time=False)
    assert restore is not None

    redlock.release(lease)
    nodes.send(restore)

    assert asked(nodes) == ["acquire", "extend", "release"]
    assert holders(nodes) == [""] * 5
    assert extension.advance(out_of_time=False) is None
    assert extension.result is False
