"""What all clients of a deployment must agree on, and what one that differs gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.guard import config_text
from celery_redlock.errors import LockHeld, QuorumUnreachable
from tests.unit.core.support import asked

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_configuration_is_readable_and_in_order() -> None:
    """Protocol, max_ttl, node names: what clients must agree on, whatever the order."""
    text = "protocol 1, max_ttl 60 s, nodes a:1/0, b:1/0"

    assert config_text(("b:1/0", "a:1/0"), 60.0) == text
    assert config_text(("a:1/0", "b:1/0"), 60.0) == text
    assert config_text(("a:1/0", "b:1/0"), 0.5) != text


def test_client_that_differs_is_refused_with_the_difference(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Two configurations do not exclude each other, so the second gets nothing."""
    other = nodes.another_client().redlock(max_ttl=90.0)

    with pytest.raises(QuorumUnreachable) as caught:
        other.acquire("k")

    text = str(caught.value)
    assert "Only 0 of 5 nodes gave a vote on 'k'" in text
    assert "node-1:6379/0 is set up differently" in text
    assert (
        "Those nodes are set up for: protocol 1, max_ttl 60 s, nodes node-1:6379/0, "
        "node-2:6379/0, node-3:6379/0, node-4:6379/0, node-5:6379/0. Use the same "
        "settings on all clients" in text
    )
    assert "redlock reconfigure" in text
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
    """Another prefix shares the servers and nothing else."""
    redlock.acquire("k")
    other = nodes.another_client().redlock(prefix="other")
    other.guard.initialize()

    assert other.acquire("k").votes == 5
    with pytest.raises(LockHeld):
        other.acquire("k")
    assert nodes.nodes[0].memory.redis.get(b"other:lock:k")
