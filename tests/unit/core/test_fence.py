"""A number greater than every number granted before."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.ballot import Verdict
from celery_redlock.core.fence import STRIPES, Fence, stripe_of
from celery_redlock.errors import QuorumUnreachable
from tests.unit.core.support import (
    STRIPE_OF_K,
    args_of,
    asked,
    counters,
    forget,
    holders,
)

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes

AHEAD = 1_900_000_000_000_000  # µs, beyond the clock of these tests


def count(nodes: FakeNodes, *numbers: int) -> None:
    """Set the counter of ``k`` on each node."""
    for node, number in zip(nodes.nodes, numbers, strict=True):
        fields = {STRIPE_OF_K: str(number).encode()}
        node.memory.redis.hset(b"redlock:fence", fields)


def test_fences_grow(redlock: Redlock, rival: Redlock) -> None:
    """Each grant of a key has a greater fence than the one before."""
    fences = []
    for service in (redlock, rival) * 3:
        lease = service.acquire("k")
        fences.append(lease.fence)
        service.release(lease)

    assert fences == sorted(set(fences))


def test_fence_is_the_wall_clock_where_that_is_right(
    redlock: Redlock, clock: FakeClock
) -> None:
    """In microseconds: nodes agree on it, and people can read it."""
    clock.advance(10)

    assert redlock.acquire("k").fence == clock.wall_us()


def test_fence_that_a_quorum_returned_costs_nothing(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Three of five say the same and none says more: one round trip."""
    count(nodes, AHEAD, AHEAD, AHEAD, 5, 5)

    lease = redlock.acquire("k")

    assert lease.fence == AHEAD + 1
    assert asked(nodes) == ["acquire"]


def test_fence_on_which_nodes_differ_costs_a_second_round(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The greatest, raised to on the others while the lock is ours there."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)

    lease = redlock.acquire("k")

    assert lease.fence == AHEAD + 1
    assert asked(nodes) == ["acquire", "raise_fence"]
    assert counters(nodes) == [AHEAD + 1] * 5
    holder = redlock.inspect("k").holder
    assert holder is not None
    assert holder.fence == AHEAD + 1


def test_fence_is_the_greatest_of_all_that_granted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Also where a quorum agrees on less: the one node may have been in a quorum."""
    count(nodes, AHEAD, 5, 5, 5, 5)

    assert redlock.acquire("k").fence == AHEAD + 1


def test_fence_survives_a_wall_clock_that_is_set_back(
    redlock: Redlock, clock: FakeClock
) -> None:
    """Counters do not go back with it."""
    lease = redlock.acquire("k")
    redlock.release(lease)
    clock.step_wall(-3600.0)

    assert redlock.acquire("k").fence == lease.fence + 1


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_hint_of_a_client_whose_clock_is_off_is_ignored(
    nodes: FakeNodes, step: float
) -> None:
    """It gets its lock all the same, and moves no counter far."""
    before = nodes.redlock().acquire("k").fence

    class Wrong:
        """The clock of the nodes, seen by somebody who is wrong by an hour."""

        def monotonic(self) -> float:
            return nodes.clock.monotonic()

        def sleep(self, seconds: float) -> None:
            nodes.clock.sleep(seconds)

        def wall_us(self) -> int:
            return nodes.clock.wall_us() + round(step * 1e6)

    nodes.clock.sleep(60.0)
    lease = nodes.redlock(clock=Wrong()).acquire("k")

    assert lease.fence == before + 1


# -- what a raise may count on ----------------------------------------------------


class Grant:
    """A grant that is known, before its fence is."""

    def __init__(self, nodes: FakeNodes, redlock: Redlock) -> None:
        self.nodes = nodes
        self.question = redlock.commands.acquire("k", ttl=10.0, token="t.1", facts="f")
        nodes.ask(self.question)
        assert self.question.ballot.verdict() is Verdict.WON

    def settle(self) -> int | None:
        """Agree on the fence."""
        return Fence(self.nodes, "redlock:fence").settle(
            self.question.ballot,
            lock_key="redlock:lock:k",
            token="t.1",
            facts="f",
            stripe=int(STRIPE_OF_K),
        )


def test_raise_counts_only_where_the_lock_is_still_ours(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Raising a counter without holding lets a later grant get the same number."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    grant = Grant(nodes, redlock)
    forget(nodes, 2, 3, 4)
    before = counters(nodes)

    assert grant.settle() is None
    assert counters(nodes) == before


def test_raise_counts_only_on_nodes_whose_number_was_counted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A node that granted too late was not part of the max: its yes is nothing.

    Two agree, the third has lost the lock, and two more hold it by the time of the
    raise; but what they had promised to others before is not known.
    """
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.02, 3, 4)
    grant = Grant(nodes, redlock)
    forget(nodes, 2)
    nodes.latency(0.0, 3, 4)
    nodes.latency(0.03, 2)

    assert grant.settle() is None
    assert counters(nodes)[3:] == [AHEAD + 1] * 2


def test_raise_of_one_is_enough_beside_those_that_agreed(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Nobody waits for more than a quorum; a minority may hang, or be gone."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    grant = Grant(nodes, redlock)
    nodes.freeze(3, 4)
    before = clock.monotonic()

    assert grant.settle() == AHEAD + 1
    assert clock.monotonic() == before


def test_raise_fails_as_soon_as_a_quorum_is_out_of_reach(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The refusals settle it; the ones that hang are not waited for."""
    count(nodes, AHEAD, 5, 5, 5, 5)
    grant = Grant(nodes, redlock)
    forget(nodes, 1, 2, 3)
    nodes.freeze(4)
    before = clock.monotonic()

    assert grant.settle() is None
    assert clock.monotonic() == before


def test_raise_that_is_not_confirmed_in_time_is_no_grant(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Without a fence there is no lease, whoever granted; nothing stays locked."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.01)
    clock.at(0.005, lambda: nodes.freeze(2, 3, 4))

    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    assert asked(nodes)[:3] == ["acquire", "raise_fence", "release"]
    nodes.thaw()
    assert holders(nodes) == [""] * 5


def test_try_whose_fence_was_not_confirmed_is_followed_by_another(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """As with split votes: a moment later it may be granted, with a new token."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.01)
    clock.at(0.005, lambda: forget(nodes, 2, 3, 4))

    lease = redlock.acquire("k")

    script_names = ["acquire", "raise_fence", "release"]
    assert asked(nodes) == [*script_names, "acquire", "raise_fence"]
    assert lease.fence == AHEAD + 2


def test_raise_says_whose_and_how_far(nodes: FakeNodes, redlock: Redlock) -> None:
    """Token, facts, stripe and fence, in the order of the script's table."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)

    lease = redlock.acquire("k")

    assert args_of(nodes, "raise_fence") == [
        [lease.token, lease.facts, int(STRIPE_OF_K), lease.fence]
    ]


def test_stripes_are_bounded_and_stable() -> None:
    """The same number for a key everywhere, and not more than 4096 of them."""
    stripes = {stripe_of(f"key-{number}") for number in range(100_000)}

    assert stripes == set(range(STRIPES))
    assert str(stripe_of("k")).encode() == STRIPE_OF_K
    assert stripe_of("naïve ☃") == zlib.crc32("naïve ☃".encode()) % 4096
