"""LockHeld: a majority names somebody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import Holder
from celery_redlock.errors import LockHeld
from tests.unit.core.support import TTL, asked, hold, holders, put

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_lock_held_names_the_holder(redlock: Redlock, rival: Redlock) -> None:
    """Who has it, how sure that is, and when it ends unless renewed."""
    facts = Holder("", task="report", task_id="42", host="h", pid=3)
    lease = rival.acquire("k", facts=facts)

    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")

    error = caught.value
    assert (error.key, error.retry_after) == ("k", TTL)
    assert error.holder is not None
    assert (error.holder.token, error.holder.task_id) == (lease.token, "42")
    assert error.ballot is not None
    assert error.ballot.taken == 5
    assert str(error) == (
        "The lock 'k' is held by report[42] on h (pid 3), as 5 of 5 nodes say, for "
        "10.0 s more unless renewed. Nothing is locked by you."
    )


def test_lock_held_costs_one_round_trip(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """No second question, no pause: a duplicate is told at once."""
    rival.acquire("k")

    with pytest.raises(LockHeld):
        redlock.acquire("k")

    assert asked(nodes) == ["acquire"]
    assert clock.slept == []


def test_lock_held_by_a_majority_releases_what_was_granted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Nothing of the loser stays, and nothing of the holder goes."""
    hold(nodes, 0, 1, 2)

    with pytest.raises(LockHeld):
        redlock.acquire("k")

    assert asked(nodes) == ["acquire", "release"]
    assert holders(nodes) == ["other.1"] * 3 + [""] * 2


def test_lock_held_does_not_wait_for_the_slow(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The verdict is certain; those who may still grant are told to let go."""
    hold(nodes, 0, 1, 2)
    nodes.latency(0.01)
    nodes.latency(0.04, 3, 4)
    before = clock.monotonic()

    with pytest.raises(LockHeld):
        redlock.acquire("k")

    assert clock.monotonic() == pytest.approx(before + 0.01)
    assert asked(nodes) == ["acquire", "release"]
    assert holders(nodes)[3:] == ["", ""]


@pytest.mark.parametrize(
    ("left", "retry_after"),
    [([5, 5, 5], 5.0), ([1, 4, 9], 1.0), ([1, 2, 3, 4, 5], 3.0), ([1, 2, 3, 4], 2.0)],
)
def test_retry_after_is_when_no_majority_names_the_holder(
    nodes: FakeNodes, redlock: Redlock, left: list[int], retry_after: float
) -> None:
    """Nodes end a lock one after the other; fewer than a quorum are no holder."""
    for index, seconds in enumerate(left):
        put(nodes, index, "other.1", ttl_ms=seconds * 1000)

    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")

    assert caught.value.retry_after == retry_after


def test_retry_after_of_a_lock_that_never_ends_is_not_negative(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A key without ttl, of somebody else's making, is -1 to the nodes."""
    for node in nodes.nodes:
        node.memory.redis.set(b"redlock:lock:k", b"theirs")

    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")

    assert caught.value.retry_after == 0
