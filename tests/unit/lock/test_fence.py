"""The fence: a number greater than every number granted before."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import pytest

from celery_redlock.errors import QuorumUnreachable
from celery_redlock.locks.fence import raise_fence
from celery_redlock.locks.redlock import Redlock, run
from celery_redlock.scripts.keys import STRIPES, stripe_of
from celery_redlock.testing import FakeNodes
from celery_redlock.wire.quorum import Verdict, Vote
from tests.unit.lock.support import (
    STRIPE_OF_K,
    Site,
    args_of,
    asked,
    counters,
    forget,
    holders,
)

AHEAD = 1_900_000_000_000_000  # µs, beyond the clock of these tests


def count(nodes: FakeNodes, *numbers: int) -> None:
    """Set the counter of ``k`` on each node."""
    for node, number in zip(nodes.nodes, numbers, strict=True):
        fields = {STRIPE_OF_K: str(number).encode()}
        node.memory.redis.hset(b"redlock:meta", fields)


def test_fence_is_the_wall_clock_if_that_is_right(site: Site) -> None:
    """In microseconds: nodes agree on it, and operators can read it."""
    site.clock.advance(60)  # the counters of new nodes begin above TIME

    assert site.redlock.acquire("k").fence == round(site.clock.wall() * 1e6)


@pytest.mark.parametrize(
    ("counted", "scripts"),
    [
        ((AHEAD, AHEAD, AHEAD, 5, 5), ["acquire"]),
        ((AHEAD, 5, 5, 5, 5), ["acquire", "raise_fence"]),
    ],
)
def test_fence_is_the_greatest_number_of_all_grants(
    site: Site, counted: tuple[int, ...], scripts: list[str]
) -> None:
    """It costs nothing if a quorum returned it. One node may have been in a quorum."""
    count(site.nodes, *counted)

    assert site.redlock.acquire("k").fence == AHEAD + 1
    assert asked(site.nodes) == scripts


def test_fence_costs_a_second_round_if_nodes_differ(site: Site) -> None:
    """The other nodes are raised to the greatest number while they hold the lock."""
    count(site.nodes, AHEAD, AHEAD, 5, 5, 5)

    lease = site.redlock.acquire("k")

    assert lease.fence == AHEAD + 1
    assert asked(site.nodes) == ["acquire", "raise_fence"]
    assert args_of(site.nodes, "raise_fence") == [
        [lease.token, lease.holder_info, AHEAD + 1, int(STRIPE_OF_K)]
    ]
    assert counters(site.nodes) == [AHEAD + 1] * 5
    holder = site.redlock.inspect("k").holder
    assert holder is not None
    assert holder.fence == AHEAD + 1


def test_fence_survives_a_wall_clock_that_is_set_back(site: Site) -> None:
    """Counters do not go back with the clock."""
    lease = site.redlock.acquire("k")
    site.redlock.release(lease)
    site.clock.step_wall(-3600.0)

    assert site.redlock.acquire("k").fence == lease.fence + 1


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_hint_of_a_client_with_a_wrong_clock_is_ignored(
    site: Site, step: float
) -> None:
    """The client gets its lock all the same, and moves no counter far."""
    before = site.nodes.redlock().acquire("k").fence

    class Wrong:
        """A clock that differs from the nodes' by an hour."""

        def monotonic(self) -> float:
            return site.nodes.clock.monotonic()

        def sleep(self, seconds: float) -> None:
            site.nodes.clock.sleep(seconds)

        def wall(self) -> float:
            return site.nodes.clock.wall() + step

    site.nodes.clock.sleep(60.0)
    lease = site.nodes.redlock(clock=Wrong()).acquire("k")

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
        keys, stripes = ["redlock:lock:k", "redlock:meta"], [int(STRIPE_OF_K)]
        ballot, nodes = self.request.ballot, self.redlock.nodes
        steps = raise_fence(ballot, nodes, keys, ("t.1", "f"), stripes)
        return run(steps, self.redlock.transport, self.redlock.clock)


def test_raise_counts_only_on_nodes_that_still_hold_the_lock(site: Site) -> None:
    """A raise without the lock lets a later grant get the same number."""
    count(site.nodes, AHEAD, AHEAD, 5, 5, 5)
    grant = Grant(site.nodes, site.redlock)
    forget(site.nodes, 2, 3, 4)
    before = counters(site.nodes)

    assert grant.fence() is None
    assert counters(site.nodes) == before


def test_raise_counts_only_on_nodes_whose_number_was_counted(site: Site) -> None:
    """A node that granted too late was not part of the maximum, so it does not count.

    Two nodes agree, the third has lost the lock, and two more hold it by the time of
    the raise. But the numbers that those two granted before are not known.
    """
    count(site.nodes, AHEAD, AHEAD, 5, 5, 5)
    site.nodes.latency(0.02, 3, 4)
    grant = Grant(site.nodes, site.redlock)
    forget(site.nodes, 2)
    site.nodes.latency(0.0, 3, 4)
    site.nodes.latency(0.03, 2)

    assert grant.fence() is None
    assert counters(site.nodes)[3:] == [AHEAD + 1] * 2


class VotesThatChange(list[Vote | None]):
    """Votes of which another thread enters a late one after each look at them."""

    def __init__(self, votes: list[Vote | None], enter: Callable[[], None]) -> None:
        super().__init__(votes)
        self._enter = enter

    def __iter__(self) -> Iterator[Vote | None]:
        seen = list(super().__iter__())
        self._enter()
        return iter(seen)


def test_vote_that_comes_during_the_count_is_left_out_of_it(site: Site) -> None:
    """Another thread may enter a late vote between any two looks at the ballot.

    Two nodes agree, and the fourth confirms the raise. But its vote was too late to be
    part of the maximum.
    """
    count(site.nodes, AHEAD, AHEAD, 5, 5, 5)
    site.nodes.latency(0.02, 3, 4)
    grant = Grant(site.nodes, site.redlock)
    forget(site.nodes, 2)
    site.nodes.latency(0.0, 3)
    site.nodes.freeze(4)

    def enter_late_vote() -> None:
        site.clock.advance(0.02)
        site.nodes.drain()

    ballot = grant.request.ballot
    ballot.votes = VotesThatChange(ballot.votes, enter_late_vote)
    keys, stripes = ["redlock:lock:k", "redlock:meta"], [int(STRIPE_OF_K)]

    steps = raise_fence(ballot, site.redlock.nodes, keys, ("t.1", "f"), stripes)
    assert run(steps, site.redlock.transport, site.redlock.clock) is None
    assert ballot.votes[3] is not None


def test_raise_of_one_is_enough_beside_those_that_agreed(site: Site) -> None:
    """A quorum is enough; a minority may hang, or be down."""
    count(site.nodes, AHEAD, AHEAD, 5, 5, 5)
    grant = Grant(site.nodes, site.redlock)
    site.nodes.freeze(3, 4)
    before = site.clock.monotonic()

    assert grant.fence() == AHEAD + 1
    assert site.clock.monotonic() == before


def test_raise_waits_for_each_node_that_the_quorum_needs(site: Site) -> None:
    """As long as the nodes that have not answered yet can make a quorum."""
    count(site.nodes, AHEAD, 5, 5, 5, 5)
    site.nodes.freeze(3, 4)
    grant = Grant(site.nodes, site.redlock)
    site.nodes.latency(0.02)

    assert grant.fence() == AHEAD + 1


def test_raise_fails_as_soon_as_a_quorum_is_out_of_reach(site: Site) -> None:
    """The refusals decide; nodes that hang are not waited for."""
    count(site.nodes, AHEAD, 5, 5, 5, 5)
    grant = Grant(site.nodes, site.redlock)
    forget(site.nodes, 1, 2, 3)
    site.nodes.freeze(4)
    before = site.clock.monotonic()

    assert grant.fence() is None
    assert site.clock.monotonic() == before


def test_raise_that_is_not_confirmed_in_time_is_no_grant(site: Site) -> None:
    """Without a fence there is no lease, and the grants are released."""
    count(site.nodes, AHEAD, AHEAD, 5, 5, 5)
    site.nodes.latency(0.01)
    site.clock.at(0.005, lambda: site.nodes.freeze(2, 3, 4))

    with pytest.raises(QuorumUnreachable):
        site.redlock.acquire("k")

    assert asked(site.nodes)[:3] == ["acquire", "raise_fence", "release"]
    site.nodes.thaw()
    assert holders(site.nodes) == [""] * 5


def test_try_whose_fence_was_not_confirmed_is_followed_by_another(site: Site) -> None:
    """The next try, a moment later and with a new token, may be granted."""
    count(site.nodes, AHEAD, AHEAD, 5, 5, 5)
    site.nodes.latency(0.01)
    site.clock.at(0.005, lambda: forget(site.nodes, 2, 3, 4))

    lease = site.redlock.acquire("k")

    script_names = ["acquire", "raise_fence", "release"]
    assert asked(site.nodes) == [*script_names, "acquire", "raise_fence"]
    assert lease.fence == AHEAD + 2


def test_stripes_are_bounded_and_stable() -> None:
    """A key has the same stripe everywhere, and there are 4096 stripes."""
    stripes = {stripe_of(f"key-{number}") for number in range(100_000)}

    assert stripes == set(range(STRIPES))
    assert str(stripe_of("k")).encode() == STRIPE_OF_K
    assert stripe_of("naïve ☃") == zlib.crc32("naïve ☃".encode()) % 4096
