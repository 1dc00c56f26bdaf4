"""QuorumUnreachable: too few nodes gave a vote, in time or at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.ballot import VoteKind
from celery_redlock.errors import QuorumUnreachable
from tests.unit.core.support import NOBODY, holders, kinds, restart

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_too_few_nodes_is_told_with_who_and_why(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Numbers, reasons, what holds now, and the remedy. The few granted let go."""
    nodes.nodes[0].kill()
    nodes.nodes[1].kill()
    nodes.freeze(2)

    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")

    assert str(caught.value) == (
        "Only 2 of 5 nodes gave a vote on 'k' within 0.05 s (need 3): node-1:6379/0 "
        "refused the connection, node-2:6379/0 refused the connection, node-3:6379/0 "
        "had not answered. Nothing is locked. Run `celery -A proj redlock doctor`."
    )
    assert caught.value.retry_after is None
    assert caught.value.key == "k"
    assert holders(nodes)[3:] == ["", ""]


def test_server_error_is_a_refusal_with_its_words(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Somebody else's key of that name is no vote and no exception of redis-py."""
    for node in nodes.nodes[:3]:
        node.memory.redis.hset(b"redlock:lock:k", {b"field": b"theirs"})

    with pytest.raises(QuorumUnreachable, match="node-1:6379/0 answered WRONGTYPE"):
        redlock.acquire("k")


def test_refusal_is_not_waited_for(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Three errors out of five settle it at once."""
    for node in nodes.nodes[:3]:
        node.kill()

    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    assert clock.monotonic() == 1000.0


def test_silence_is_waited_for_one_node_timeout(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Not longer, whoever hangs."""
    nodes.freeze(0, 1, 2)

    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    assert clock.monotonic() == pytest.approx(1000.05)


def test_late_grants_are_released(nodes: FakeNodes, redlock: Redlock) -> None:
    """A node that hung does first what was sent first: grant, then let go."""
    nodes.freeze(0, 1, 2)
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    nodes.thaw()

    assert holders(nodes) == NOBODY


def test_grants_whose_answer_was_late_are_released(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Release goes to ALL nodes, also to those that seemed to fail."""
    nodes.latency(0.2, 0, 1, 2)

    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    assert holders(nodes) == NOBODY


def test_late_answers_are_entered_where_they_belong(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The answer to a question that was given up is not that to the next one."""
    nodes.latency(0.2, 0, 1, 2)
    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")
    nodes.latency(0.0)
    clock.advance(0.2)

    inspection = redlock.inspect("k")

    assert inspection.holder is None
    assert kinds(inspection.ballot) == [VoteKind.FREE] * 5
    assert caught.value.ballot is not None
    assert caught.value.ballot.granted == 5  # by now


def test_node_that_was_late_is_not_waited_for_again(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A minority that hangs costs one time-out, not one with each call."""
    nodes.freeze(0)
    redlock.check()
    before = clock.monotonic()

    redlock.check()
    redlock.acquire("k")

    assert clock.monotonic() == before


def test_node_in_quarantine_is_told_with_its_wait(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A brand-new deployment says when it votes, and how not to wait."""
    restart(nodes, 0, 1, 2)

    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")

    assert caught.value.retry_after == pytest.approx(62.2)
    assert "node-1:6379/0 is in quarantine for 62.2 s" in str(caught.value)
    assert "They vote again by themselves in 62.2 s" in str(caught.value)
    assert "redlock init" in str(caught.value)
