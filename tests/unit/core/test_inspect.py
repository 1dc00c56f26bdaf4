"""Inspect: who holds a key, without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.core.support import hold, ttls

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_inspect_of_a_free_key(redlock: Redlock) -> None:
    """Nobody, no votes, no time."""
    inspection = redlock.inspect("k")

    assert (inspection.key, inspection.holder) == ("k", None)
    assert (inspection.votes, inspection.ttl_left) == (0, 0.0)
    assert inspection.ballot.answered == 5


def test_inspect_tells_who_holds_it(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Holder, votes and time, without changing anything."""
    lease = rival.acquire("k")
    clock.advance(4.0)

    inspection = redlock.inspect("k")

    assert inspection.holder is not None
    assert inspection.holder.token == lease.token
    assert (inspection.votes, inspection.ttl_left) == (5, 6.0)
    assert ttls(nodes) == [6000] * 5


def test_inspect_takes_a_minority_for_no_holder(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Two of five are nobody's lock; they are counted."""
    hold(nodes, 0, 1)

    inspection = redlock.inspect("k")

    assert (inspection.holder, inspection.votes) == (None, 2)
    assert inspection.ttl_left == 0.0


def test_inspect_asks_everyone(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """What a majority says is not enough for a picture of all."""
    redlock.acquire("k")
    nodes.latency(0.04, 4)

    assert redlock.inspect("k").votes == 5
