"""A number greater than every number granted before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.fence import STRIPES, stripe_of
from celery_redlock.errors import LockContended
from tests.unit.core.support import STRIPE_OF_K, args_of, asked, counters, holders

if TYPE_CHECKING:
    from collections.abc import Callable

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


# -- what a raise may count on --------------------------------------------------------


def during_raise(nodes: FakeNodes, clock: FakeClock, event: Callable[[], Any]) -> None:
    """Let something happen after the grants are known and before the raise arrives.

    A question takes 20 ms; the raise is the second.
    """
    nodes.latency(0.02)
    clock.at(0.01, event)


def test_raise_counts_only_where_the_lock_is_still_ours(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Two nodes lost it meanwhile: with them there is no quorum, and no lease."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)

    def lose() -> None:
        for index in (2, 3, 4):
            nodes.nodes[index].memory.redis.delete(b"redlock:lock:k")

    during_raise(nodes, clock, lose)
    lease = redlock.acquire("k")

    # The first try failed; the second found all counters of a quorum raised by it.
    assert asked(nodes)[:3] == ["acquire", "raise_fence", "release"]
    assert asked(nodes).count("acquire") == 2
    assert lease.fence > AHEAD + 1


def test_raise_counts_only_on_nodes_whose_number_was_counted(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A node that granted too late was not part of the max: its yes is nothing.

    Three granted in time, two of them agree; the third no longer has the lock, and
    two others, whose own counters may be greater, have it by the time of the raise.
    """
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.045, 3, 4)
    clock.at(0.0005, lambda: nodes.nodes[2].memory.redis.delete(b"redlock:lock:k"))
    nodes.latency(0.001, 0, 1, 2)

    redlock.acquire("k")

    first = asked(nodes)[:3]
    assert first == ["acquire", "raise_fence", "release"]
    assert holders(nodes)[3] != ""


def test_raise_that_too_few_confirm_is_no_grant(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Without a fence there is no lease, whoever granted; nothing stays locked."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.01)

    def freeze() -> None:
        nodes.freeze(2, 3, 4)

    clock.at(0.005, freeze)

    with pytest.raises(LockContended) as caught:
        redlock.acquire("k")

    nodes.thaw()
    assert "its fence or its validity could not be confirmed" in str(caught.value)
    assert holders(nodes) == [""] * 5


def test_raise_does_not_wait_for_more_than_a_quorum(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """One raise that is confirmed beside the two that agreed is enough."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.01)
    clock.at(0.005, lambda: nodes.freeze(3, 4))
    before = clock.monotonic()

    lease = redlock.acquire("k")

    assert clock.monotonic() == pytest.approx(before + 0.02)
    assert lease.fence == AHEAD + 1


def test_raise_fails_as_soon_as_a_quorum_is_out_of_reach(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Who has refused need not be waited for."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.01)

    def kill() -> None:
        for index in (2, 3, 4):
            nodes.nodes[index].restart(keep_memory=True)

    clock.at(0.015, kill)
    redlock.acquire("k")

    assert asked(nodes)[:3] == ["acquire", "raise_fence", "release"]


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
    assert stripe_of("naïve ☃") == __import__("zlib").crc32("naïve ☃".encode()) % 4096
