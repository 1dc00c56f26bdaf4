"""The fence: a number greater than every number granted before."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.fence import raise_fence
from celery_redlock.core.keys import STRIPES, stripe_of
from celery_redlock.core.quorum import Verdict, Vote
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
    from collections.abc import Callable, Iterator

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


def test_fence_is_the_wall_clock_if_that_is_right(
    redlock: Redlock, clock: FakeClock
) -> None:
    """In microseconds: nodes agree on it, and operators can read it."""
    clock.advance(10)

    assert redlock.acquire("k").fence == round(clock.wall() * 1e6)


def test_fence_that_a_quorum_returned_costs_nothing(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Three of five nodes say the same and none says more: one round trip."""
    count(nodes, AHEAD, AHEAD, AHEAD, 5, 5)

    lease = redlock.acquire("k")

    assert lease.fence == AHEAD + 1
    assert asked(nodes) == ["acquire"]


def test_fence_costs_a_second_round_if_nodes_differ(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The other nodes are raised to the greatest number while they hold the lock."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)

    lease = redlock.acquire("k")

    assert lease.fence == AHEAD + 1
    assert asked(nodes) == ["acquire", "raise_fence"]
    assert counters(nodes) == [AHEAD + 1] * 5
    holder = redlock.inspect("k").holder
    assert holder is not None
    assert holder.fence == AHEAD + 1


def test_fence_is_the_greatest_number_of_all_grants(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Even if a quorum agrees on less: the one node may have been in a quorum."""
    count(nodes, AHEAD, 5, 5, 5, 5)

    assert redlock.acquire("k").fence == AHEAD + 1


def test_fence_survives_a_wall_clock_that_is_set_back(
    redlock: Redlock, clock: FakeClock
) -> None:
    """Counters do not go back with the clock."""
    lease = redlock.acquire("k")
    redlock.release(lease)
    clock.step_wall(-3600.0)

    assert redlock.acquire("k").fence == lease.fence + 1


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_hint_of_a_client_with_a_wrong_clock_is_ignored(
    nodes: FakeNodes, step: float
) -> None:
    """The client gets its lock all the same, and moves no counter far."""
    before = nodes.redlock().acquire("k").fence

    class Wrong:
        """A clock that differs from the nodes' by an hour."""

        def monotonic(self) -> float:
            return nodes.clock.monotonic()

        def sleep(self, seconds: float) -> None:
            nodes.clock.sleep(seconds)

        def wall(self) -> float:
            return nodes.clock.wall() + step

    nodes.clock.sleep(60.0)
    lease = nodes.redlock(clock=Wrong()).acquire("k")

    assert lease.fence == before + 1


# -- what a raise may count on ----------------------------------------------------


class Grant:
    """A grant whose fence is not agreed on yet."""

    def __init__(self, nodes: FakeNodes, redlock: Redlock) -> None:
        self.redlock = redlock
        self.request = redlock.acquire_request(
            "k", ttl=10.0, token="t.1", holder_info="f"
        )
        nodes.ask(self.request)
        assert self.request.ballot.verdict() is Verdict.WON

    def fence(self) -> int | None:
        """Agree on the fence."""
        assert self.request.ballot.agreed_number() is None
        keys = ("redlock:lock:k", "redlock:fence")
        args = ("t.1", "f", int(STRIPE_OF_K))
        return raise_fence(self.request.ballot, self.redlock.nodes, keys, args)


def test_raise_counts_only_on_nodes_that_still_hold_the_lock(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A raise without the lock lets a later grant get the same number."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    grant = Grant(nodes, redlock)
    forget(nodes, 2, 3, 4)
    before = counters(nodes)

    assert grant.fence() is None
    assert counters(nodes) == before


def test_raise_counts_only_on_nodes_whose_number_was_counted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A node that granted too late was not part of the maximum, so it does not count.

    Two nodes agree, the third has lost the lock, and two more hold it by the time of
    the raise. But the numbers that those two granted before are not known.
    """
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.02, 3, 4)
    grant = Grant(nodes, redlock)
    forget(nodes, 2)
    nodes.latency(0.0, 3, 4)
    nodes.latency(0.03, 2)

    assert grant.fence() is None
    assert counters(nodes)[3:] == [AHEAD + 1] * 2


class VotesThatChange(list[Vote | None]):
    """Votes of which another thread enters a late one after each look at them."""

    def __init__(self, votes: list[Vote | None], enter: Callable[[], None]) -> None:
        super().__init__(votes)
        self._enter = enter

    def __iter__(self) -> Iterator[Vote | None]:
        seen = list(super().__iter__())
        self._enter()
        return iter(seen)


def test_vote_that_comes_during_the_count_is_left_out_of_it(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Another thread may enter a late vote between any two looks at the ballot.

    Two nodes agree, and the fourth confirms the raise. But its vote was too late to be
    part of the maximum.
    """
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.02, 3, 4)
    grant = Grant(nodes, redlock)
    forget(nodes, 2)
    nodes.latency(0.0, 3)
    nodes.freeze(4)

    def enter_late_vote() -> None:
        clock.advance(0.02)
        nodes.drain(clock.monotonic())

    ballot = grant.request.ballot
    ballot.votes = VotesThatChange(ballot.votes, enter_late_vote)
    keys, args = ("redlock:lock:k", "redlock:fence"), ("t.1", "f", int(STRIPE_OF_K))

    assert raise_fence(ballot, redlock.nodes, keys, args) is None
    assert ballot.votes[3] is not None


def test_raise_of_one_is_enough_beside_those_that_agreed(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A quorum is enough; a minority may hang, or be down."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    grant = Grant(nodes, redlock)
    nodes.freeze(3, 4)
    before = clock.monotonic()

    assert grant.fence() == AHEAD + 1
    assert clock.monotonic() == before


def test_raise_fails_as_soon_as_a_quorum_is_out_of_reach(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The refusals decide; nodes that hang are not waited for."""
    count(nodes, AHEAD, 5, 5, 5, 5)
    grant = Grant(nodes, redlock)
    forget(nodes, 1, 2, 3)
    nodes.freeze(4)
    before = clock.monotonic()

    assert grant.fence() is None
    assert clock.monotonic() == before


def test_raise_that_is_not_confirmed_in_time_is_no_grant(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Without a fence there is no lease, and the grants are released."""
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
    """The next try, a moment later and with a new token, may be granted."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)
    nodes.latency(0.01)
    clock.at(0.005, lambda: forget(nodes, 2, 3, 4))

    lease = redlock.acquire("k")

    script_names = ["acquire", "raise_fence", "release"]
    assert asked(nodes) == [*script_names, "acquire", "raise_fence"]
    assert lease.fence == AHEAD + 2


def test_raise_sends_token_info_stripe_and_fence(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """They are in the order of the script's table."""
    count(nodes, AHEAD, AHEAD, 5, 5, 5)

    lease = redlock.acquire("k")

    assert args_of(nodes, "raise_fence") == [
        [lease.token, lease.holder_info, int(STRIPE_OF_K), lease.fence]
    ]


def test_stripes_are_bounded_and_stable() -> None:
    """A key has the same stripe everywhere, and there are 4096 stripes."""
    stripes = {stripe_of(f"key-{number}") for number in range(100_000)}

    assert stripes == set(range(STRIPES))
    assert str(stripe_of("k")).encode() == STRIPE_OF_K
    assert stripe_of("naïve ☃") == zlib.crc32("naïve ☃".encode()) % 4096
