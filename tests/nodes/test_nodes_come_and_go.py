"""Nodes that die, hang and come back: leases last, and dead nodes cost no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.quorum import VoteKind
from celery_redlock.errors import LockHeld, QuorumUnreachable
from tests.nodes.support import client, kinds, until, until_nothing_is_left, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


@pytest.mark.every_server
def test_lock_moves_over_as_nodes_die_and_come_back(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A lease outlives the loss of each of its nodes in turn, renewed in between."""
    nodes = start_nodes(3, max_ttl=30.0)
    with client(nodes, max_ttl=30.0) as redlock, client(nodes, max_ttl=30.0) as rival:
        lease = redlock.acquire(key)
        for node in nodes.nodes:
            node.kill()
            assert redlock.extend(lease)
            node.restart()
            until(lambda: redlock.extend(lease) and None not in values(nodes, key))
            with pytest.raises((LockHeld, QuorumUnreachable)):
                rival.acquire(key)
        assert lease.is_valid()
        lease.ensure(network=True)
        assert redlock.release(lease) >= 2
    until_nothing_is_left(nodes)


def test_client_started_before_the_nodes(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A client that found no node at all gets its lock as soon as the nodes are up."""
    nodes = start_nodes(3)
    for node in nodes.nodes:
        node.kill()
    with client(nodes, restart_guard=False) as redlock:
        with pytest.raises(QuorumUnreachable, match="refused the connection"):
            redlock.acquire(key)
        for node in nodes.nodes:
            node.restart()

        lease = redlock.acquire(key, wait=20)

        assert redlock.release(lease)
    until_nothing_is_left(nodes)


def test_dead_nodes_cost_no_time(start_nodes: Callable[..., DevNodes]) -> None:
    """A node that is not connected is a failed vote at once, not after a time-out."""
    nodes = start_nodes(5)
    with client(nodes, node_timeout=5.0) as redlock:
        redlock.release(redlock.acquire("k"))
        for node in nodes.nodes[:3]:
            node.kill()
        with pytest.raises(QuorumUnreachable):
            redlock.acquire("k")
        began = redlock.clock.monotonic()

        for _ in range(10):
            with pytest.raises(QuorumUnreachable):
                redlock.acquire("k")

        assert redlock.clock.monotonic() - began < 5.0  # less than one time-out


def test_hung_minority_is_waited_for_once(start_nodes: Callable[..., DevNodes]) -> None:
    """A node that was late still gets requests, but no client waits for it again."""
    nodes = start_nodes(5)
    with client(nodes, node_timeout=3.0) as redlock:
        redlock.release(redlock.acquire("k"))
        for node in nodes.nodes[:2]:
            node.pause()
        redlock.inspect("k")  # asks all nodes, so it runs into the time-out
        began = redlock.clock.monotonic()

        for _ in range(10):
            redlock.inspect("k")
            redlock.release(redlock.acquire("k"))

        # Waiting for them each time would take a minute and a half.
        assert redlock.clock.monotonic() - began < 30.0
        for node in nodes.nodes[:2]:
            node.resume()
        until(lambda: kinds(redlock.inspect("k").ballot) == [VoteKind.FREE] * 5)
