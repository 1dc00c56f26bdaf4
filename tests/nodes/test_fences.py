"""Fences: they grow from grant to grant, and usually cost no extra round trip."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from celery_redlock.basics.clock import SystemClock
from celery_redlock.scripts.keys import MOST, STRIPES, stripe_of
from tests.nodes.support import (
    StartNodes,
    client,
    counters,
    delete_lock,
    failing,
    run_python,
    run_threads,
    scripts_run,
    set_counters,
    until,
    until_all_vote,
    until_nothing_is_left,
)

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes

FAR = 4_000_000_000_000_000  # µs: beyond any clock, so that hints do not count


# -- Order -------------------------------------------------------------------------


@pytest.mark.every_server
def test_fences_grow_across_processes(three_nodes: DevNodes, key: str) -> None:
    """Each grant has a greater fence than every grant that was over before it."""
    program = """
import sys, time
from celery_redlock.locks.redlock import Redlock
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=0.5)
for _ in range(15):
    lease = redlock.acquire(key, wait=60)
    print(time.monotonic(), lease.fence)
    redlock.release(lease)
"""
    grants: list[tuple[float, int]] = []

    def run() -> None:
        for line in run_python(program, key, *three_nodes.urls):
            instant, fence = line.split()
            grants.append((float(instant), int(fence)))

    run_threads(*[run] * 4)

    assert len(grants) == 60
    fences = [fence for _, fence in sorted(grants)]
    assert fences == sorted(set(fences))


def test_fence_is_stable_across_renewals(shared_nodes: DevNodes, key: str) -> None:
    """Renewals never change the fence, not even onto nodes that had lost the lock."""
    with client(shared_nodes) as redlock:
        lease = redlock.acquire(key)
        fence = lease.fence
        for number in range(30):
            delete_lock([shared_nodes.nodes[number % 5]], key)
            until(lambda: redlock.extend(lease))
            assert lease.fence == fence
        until(lambda: redlock.extend(lease) and redlock.inspect(key).votes == 5)
        assert lease.fence == fence
        for node in shared_nodes.nodes:
            value = node.command("GET", f"redlock:lock:{key}")
            assert value.split("\n")[1] == str(fence)
            assert counters(node)[str(stripe_of(key))] >= fence
        redlock.release(lease)


def test_restored_node_grants_greater_fences(three_nodes: DevNodes, key: str) -> None:
    """A node that got the lock by a renewal counts on from its fence."""
    nodes = three_nodes.nodes
    with client(three_nodes) as redlock:
        until_all_vote(redlock)
        set_counters(nodes, key, FAR, FAR, 5)
        with failing(nodes[2:]):
            lease = redlock.acquire(key)
            assert lease.fence == FAR + 1
        until(lambda: redlock.inspect(key).votes == 3)
        delete_lock(nodes[2:], key)
        set_counters(nodes[2:], key, 5)

        until(lambda: redlock.extend(lease) and redlock.inspect(key).votes == 3)

        assert counters(nodes[2])[str(stripe_of(key))] == FAR + 1
        redlock.release(lease)


def test_keys_of_a_stripe_share_one_sequence(shared_nodes: DevNodes) -> None:
    """The fences of keys that share a counter grow together."""
    names = (f"stripe-{number}" for number in itertools.count(1))
    first = "stripe-0"
    second = next(name for name in names if stripe_of(name) == stripe_of(first))
    with client(shared_nodes) as redlock:
        one, two = redlock.acquire(first), redlock.acquire(second)
        redlock.release(one)
        three = redlock.acquire(first)
        assert one.fence < two.fence < three.fence
        for lease in (two, three):
            redlock.release(lease)


class SkewedClock(SystemClock):
    """A clock whose wall time is wrong."""

    def __init__(self, skew: float) -> None:
        self._skew = skew

    def wall(self) -> float:
        """Return the wrong time."""
        return super().wall() + self._skew


def test_wrong_client_clock_neither_refuses_nor_drags(
    shared_nodes: DevNodes, key: str
) -> None:
    """A client that is a year ahead or behind gets the next fences as others do."""
    year = 365 * 24 * 3600
    fences = []
    for skew in (0, year, -year, 0):
        with client(shared_nodes, clock=SkewedClock(skew)) as skewed:
            lease = skewed.acquire(key, wait=5)
            fences.append(lease.fence)
            skewed.release(lease)

    assert fences == sorted(set(fences))
    for before, fence in itertools.pairwise(fences[:3]):
        assert fence < before + 600_000_000


# -- Cost --------------------------------------------------------------------------


@pytest.mark.every_server
def test_uncontended_grant_costs_one_round_trip(five_nodes: DevNodes, key: str) -> None:
    """An acquire is one script per node, and a release is another one."""
    with client(five_nodes) as redlock:
        until_all_vote(redlock)
        until_nothing_is_left(five_nodes)
        before = [scripts_run([node]) for node in five_nodes.nodes]

        for number in range(20):
            redlock.release(redlock.acquire(f"{key}:{number}"))

        def called() -> list[int]:
            now = [scripts_run([node]) for node in five_nodes.nodes]
            return [count - old for count, old in zip(now, before, strict=True)]

        until(lambda: min(called()) >= 40)  # also by nodes that answered late
        assert called() == [40] * 5
        until_nothing_is_left(five_nodes)


@pytest.mark.every_server
def test_counters_that_differ_cost_a_second_round(
    three_nodes: DevNodes, key: str
) -> None:
    """If counters of granting nodes differ, a client raises them to the greatest."""
    with client(three_nodes) as redlock:
        until_all_vote(redlock)
        set_counters(three_nodes.nodes, key, FAR, FAR + 10, FAR + 20)
        before = scripts_run(three_nodes)

        lease = redlock.acquire(key)
        after = scripts_run(three_nodes)
        assert after - before >= 4  # a majority, twice
        until(lambda: redlock.inspect(key).votes == 3)

        assert lease.fence in (FAR + 11, FAR + 21)
        reached = [counters(node)[str(stripe_of(key))] for node in three_nodes.nodes]
        assert sum(number >= lease.fence for number in reached) >= 2
        redlock.release(lease)
        again = redlock.acquire(key)
        assert again.fence > lease.fence
        redlock.release(again)


@pytest.mark.every_server
def test_memory_is_bounded_by_the_stripes(start_nodes: StartNodes) -> None:
    """All keys share 4096 counters, which take less than 1 MB on a node."""
    names = {stripe_of(name): name for name in (f"k{n}" for n in range(50_000))}
    assert len(names) == STRIPES
    (node,) = start_nodes(1).nodes

    def memory() -> int:
        assert len(counters(node)) == STRIPES + 1  # and the floor
        return int(node.command("MEMORY", "USAGE", "redlock:meta", "SAMPLES", "0"))

    with client([node.url]) as redlock:
        for first in range(0, STRIPES, MOST):
            redlock.release(redlock.acquire([*names.values()][first : first + MOST]))
        assert 100_000 < memory() < 1_000_000

        for number in range(10_000_000, 10_000_500):  # more keys add no counter
            redlock.release(redlock.acquire(f"k{number}"))

        assert memory() < 1_000_000
