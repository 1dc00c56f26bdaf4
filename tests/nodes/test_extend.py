"""Extending a lease: it lives on, nodes get it back, and what has ended stays ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.timing import drift_of
from tests.nodes.support import locks, until, until_nothing_is_left, values

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

pytestmark = pytest.mark.every_server

FOREIGN = f"{'f' * 32}.{'0' * 16}"


def test_extend_moves_validity_and_keeps_the_fence(
    redlock: Redlock, key: str, shared_nodes: DevNodes
) -> None:
    """A renewal counts from its own start; the fence stays what it was."""
    lease = redlock.acquire(key, ttl=2)
    fence, before = lease.fence, lease.until
    until(lambda: lease.remaining() < 1.5)

    assert redlock.extend(lease)

    assert lease.until > before
    assert lease.until <= redlock.clock.monotonic() + 2 - drift_of(2)
    assert lease.fence == fence
    until(lambda: min(ttls(shared_nodes, key)) > 1_500)
    redlock.release(lease)


def ttls(nodes: DevNodes, key: str) -> list[int]:
    """Return the milliseconds that each node still keeps the lock."""
    return [node.command("PTTL", f"redlock:lock:{key}") for node in nodes.nodes]


def test_extend_restores_a_minority(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Nodes that lost the lock get it back from the holder, with fence and facts."""
    lease = redlock.acquire(key)
    until(lambda: None not in values(shared_nodes, key))
    before = values(shared_nodes, key)
    for node in shared_nodes.nodes[:2]:
        node.command("DEL", f"redlock:lock:{key}")

    # A majority may say yes before these two are heard; then the next one restores.
    until(lambda: redlock.extend(lease) and values(shared_nodes, key) == before)
    redlock.release(lease)


def test_extend_does_not_take_what_another_has(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Where a majority names another token the renewal fails and touches nothing."""
    lease = redlock.acquire(key)
    until_before = lease.until
    for node in shared_nodes.nodes[:3]:
        node.command("SET", f"redlock:lock:{key}", f"{FOREIGN}\n1", "PX", 20_000)

    assert not redlock.extend(lease)

    assert lease.until == until_before
    assert [str(value)[:50] for value in values(shared_nodes, key)].count(
        f"{FOREIGN}\n"
    ) == 3
    redlock.release(lease)
    until(lambda: len(locks(shared_nodes, key)) == 3)
    for node in shared_nodes.nodes[:3]:
        node.command("DEL", f"redlock:lock:{key}")


def test_expired_lease_is_never_resurrected(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Extending a lease that has ended fails and creates nothing."""
    lease = redlock.acquire(key, ttl=1)
    until(lambda: not lease.is_valid())
    until_nothing_is_left(shared_nodes, key)

    assert not redlock.extend(lease)

    assert not lease.is_valid()
    assert locks(shared_nodes, key) == []
