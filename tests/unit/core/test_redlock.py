"""The service itself: it opens nothing before its first use, and tells no secret."""

from __future__ import annotations

from celery_redlock.core.redlock import Redlock
from celery_redlock.testing import FakeNodes
from tests.unit.core.support import asked


def test_building_one_asks_nothing() -> None:
    """No question, no connection: that is for the first use."""
    nodes = FakeNodes(3)

    Redlock(nodes.urls, transport=nodes, clock=nodes.clock)

    assert asked(nodes) == []


def test_repr_names_nodes_and_no_password() -> None:
    """What ends up in logs."""
    redlock = Redlock(["redis://user:secret@a:1/2", "unix:///s.sock"])

    assert repr(redlock) == "<Redlock a:1/2, /s.sock/0>"


def test_close_ends_the_conversation_and_the_next_use_begins_another(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """What had no answer has none any more; a closed service is opened by using it."""
    nodes.freeze(4)
    ballot = redlock.inspect("a").ballot
    assert "was closed" not in ballot.reasons()

    redlock.close()

    assert "node-5:6379/0 was closed" in ballot.reasons()
    nodes.thaw()
    assert redlock.acquire("b").votes == 5
