"""`Lease.ensure`: what it knows for nothing, and what it learns by asking the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import LockLost, QuorumUnreachable
from tests.nodes.support import client, until, until_all_vote, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes


@pytest.mark.every_server
def test_ensure_notices_what_an_operator_deleted(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """The free check cannot know; the one that asks the nodes does."""
    lease = redlock.acquire(key)
    lease.ensure()
    lease.ensure(network=True)
    for node in shared_nodes.nodes[:3]:
        node.command("DEL", f"redlock:lock:{key}")

    lease.ensure()
    with pytest.raises(LockLost, match="write nothing more"):
        lease.ensure(network=True)
    redlock.release(lease)


@pytest.mark.every_server
def test_ensure_is_content_with_a_majority(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Two of five nodes that lost the lock do not end the lease."""
    lease = redlock.acquire(key)
    until(lambda: None not in values(shared_nodes, key))
    for node in shared_nodes.nodes[:2]:
        node.command("DEL", f"redlock:lock:{key}")

    lease.ensure(network=True)
    redlock.release(lease)


def test_ensure_cannot_tell_without_a_majority(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Too few answers are no proof of a loss: the error says that nobody knows."""
    nodes = start_nodes(3)
    with client(nodes, node_timeout=0.1) as redlock:
        lease = redlock.acquire(key)
        for node in nodes.nodes[:2]:
            node.pause()

        with pytest.raises(QuorumUnreachable):
            lease.ensure(network=True)

        assert lease.is_valid()
        for node in nodes.nodes[:2]:
            node.resume()
        until_all_vote(redlock)
        lease.ensure(network=True)
        redlock.release(lease)
