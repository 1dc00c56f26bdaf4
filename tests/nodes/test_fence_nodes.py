"""Fences on real servers: unique, growing, one round trip, bounded memory."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.clock import SystemClock
from celery_redlock.core.fence import STRIPES, stripe_of
from celery_redlock.errors import LockUnavailable
from tests.nodes.support import (
    client,
    counters,
    run_python,
    until,
    until_nothing_is_left,
    wires,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.devnodes import DevNode, DevNodes
    from tests.nodes.support import Wire

SHORT: dict[str, Any] = {"ttl": 0.5, "max_ttl": 0.5, "node_timeout": 0.15}


def scripts_called(node: DevNode) -> int:
    """Count the scripts that a node was asked to run."""
    stats = node.command("INFO", "commandstats")
    names = ("cmdstat_evalsha", "cmdstat_eval")
    return sum(stats[name]["calls"] for name in names if name in stats)


def set_counters(nodes: Sequence[DevNode], key: str, *numbers: int) -> None:
    """Give the nodes these counters for the stripe of the key, and no floor."""
    for node, number in zip(nodes, numbers, strict=True):
        node.command("DEL", "redlock:fence")
        node.command("HSET", "redlock:fence", stripe_of(key), number)


# -- Round trips -----------------------------------------------------------------------


@pytest.mark.every_server
def test_uncontended_grant_costs_one_round_trip(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Acquire is one script per node and no second one; release is another."""
    nodes = start_nodes(5)
    with client(nodes) as redlock:
        until(lambda: redlock.check().problems == [])
        until_nothing_is_left(nodes)
        before = [scripts_called(node) for node in nodes.nodes]

        for number in range(20):
            redlock.release(redlock.acquire(f"{key}:{number}"))

        def called() -> list[int]:
            now = [scripts_called(node) for node in nodes.nodes]
            return [count - old for count, old in zip(now, before, strict=True)]

        until(lambda: min(called()) >= 40)  # also by nodes that nobody waited for
        assert called() == [40] * 5
        until_nothing_is_left(nodes)


@pytest.mark.every_server
def test_counters_that_differ_cost_a_second_round(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Where the granting nodes disagree, they are raised to the greatest number."""
    nodes = start_nodes(3)
    far = 4_000_000_000_000_000  # µs: beyond any clock, so that hints do not help
    with client(nodes) as redlock:
        until(lambda: redlock.check().problems == [])
        set_counters(nodes.nodes, key, far, far + 10, far + 20)
        before = sum(scripts_called(node) for node in nodes.nodes)

        lease = redlock.acquire(key)
        after = sum(scripts_called(node) for node in nodes.nodes)
        assert after - before >= 4  # a majority, twice
        until(lambda: redlock.inspect(key).votes == 3)

        assert lease.fence in (far + 11, far + 21)
        reached = [counters(node)[str(stripe_of(key))] for node in nodes.nodes]
        assert sum(number >= lease.fence for number in reached) >= 2
        redlock.release(lease)
        again = redlock.acquire(key)
        assert again.fence > lease.fence
        redlock.release(again)


def test_wrong_client_clock_neither_refuses_nor_drags(
    shared_nodes: DevNodes, key: str
) -> None:
    """A client a year ahead or behind gets fences like everybody's."""
    year_us = 365 * 24 * 3600 * 1_000_000
    with client(shared_nodes) as redlock:
        before = redlock.acquire(key)
        redlock.release(before)
    for skew in (year_us, -year_us):
        with client(shared_nodes, clock=Skewed(skew)) as skewed:
            lease = skewed.acquire(key, wait=5)
            assert before.fence < lease.fence < before.fence + 600_000_000
            skewed.release(lease)
            before = lease
    with client(shared_nodes) as redlock:
        lease = redlock.acquire(key, wait=5)
        assert lease.fence > before.fence
        redlock.release(lease)


class Skewed(SystemClock):
    """A clock whose wall time is wrong."""

    def __init__(self, skew_us: int) -> None:
        self._skew_us = skew_us

    def wall_us(self) -> int:
        """Return the wrong one."""
        return super().wall_us() + self._skew_us


# -- Order -----------------------------------------------------------------------------


@pytest.mark.every_server
def test_fences_are_unique_and_grow_across_processes(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Each grant has a greater fence than every grant that was over before it."""
    nodes = start_nodes(3)
    program = """
import sys, time
from celery_redlock.core.redlock import Redlock
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=0.5)
for _ in range(40):
    lease = redlock.acquire(key, wait=60)
    print(time.monotonic(), lease.fence)
    redlock.release(lease)
"""
    grants: list[tuple[float, int]] = []

    def run() -> None:
        for line in run_python(program, key, *nodes.urls):
            instant, fence = line.split()
            grants.append((float(instant), int(fence)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(grants) == 160
    fences = [fence for _, fence in sorted(grants)]
    assert fences == sorted(set(fences))


def test_fence_is_stable_across_renewals(shared_nodes: DevNodes, key: str) -> None:
    """Renewing, also onto nodes that had lost the lock, never changes the fence."""
    with client(shared_nodes) as redlock:
        lease = redlock.acquire(key)
        fence = lease.fence
        for number in range(30):
            shared_nodes.nodes[number % 5].command("DEL", f"redlock:lock:{key}")
            assert redlock.extend(lease)
            assert lease.fence == fence
        until(lambda: redlock.extend(lease) and redlock.inspect(key).votes == 5)
        assert lease.fence == fence
        for node in shared_nodes.nodes:
            value = node.command("GET", f"redlock:lock:{key}")
            assert value.split("\n")[1] == str(fence)
            assert counters(node)[str(stripe_of(key))] >= fence
        redlock.release(lease)


def test_restored_node_hands_out_greater_fences(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A node that got the lock by renewal knows its fence, and goes on from there."""
    nodes = start_nodes(3)
    far = 4_000_000_000_000_000
    with client(nodes) as redlock:
        until(lambda: redlock.check().problems == [])
        set_counters(nodes.nodes, key, far, far, 5)
        nodes.nodes[2].pause()
        lease = redlock.acquire(key)
        assert lease.fence == far + 1
        nodes.nodes[2].resume()
        until(lambda: redlock.inspect(key).votes == 3)
        nodes.nodes[2].command("DEL", f"redlock:lock:{key}")
        set_counters(nodes.nodes[2:], key, 5)

        until(lambda: redlock.extend(lease) and redlock.inspect(key).votes == 3)

        assert counters(nodes.nodes[2])[str(stripe_of(key))] == far + 1
        redlock.release(lease)


class Trouble:
    """Does one thing after the other to nodes and lines, at random."""

    def __init__(self, lines: Sequence[Wire], seed: int) -> None:
        self.lines = lines
        self.chance = random.Random(seed)  # noqa: S311  (no secret)
        self.over = threading.Event()

    def run(self) -> None:
        """Make trouble until it is over, for one node at a time."""
        for _ in range(30):
            line = self.chance.choice(self.lines)
            node = line.target
            ways: list[tuple[Callable[[], None], Callable[[], None]]] = [
                (line.hold, line.resume),
                (line.hold_replies, line.resume),
                (line.cut, line.mend),
                (node.pause, node.resume),
                (node.kill, node.restart),
            ]
            happen, end = self.chance.choice(ways)
            happen()
            self.over.wait(self.chance.uniform(0, 0.2))
            end()
            self.over.wait(self.chance.uniform(0, 0.1))
        self.over.set()


@pytest.mark.parametrize("seed", range(2))
def test_fences_grow_whatever_one_node_at_a_time_does(
    start_nodes: Callable[..., DevNodes], key: str, seed: int
) -> None:
    """Kills, restarts, partitions: no fence comes twice, none is out of order."""
    nodes = start_nodes(5, initialize=False)
    grants: list[tuple[float, float, int]] = []
    with wires(nodes) as lines:
        urls = [line.url for line in lines]
        trouble = Trouble(lines, seed)
        with client(urls, **SHORT) as redlock:
            redlock.initialize()

        def work() -> None:
            with client(urls, **SHORT) as redlock:
                while not trouble.over.is_set():
                    with contextlib.suppress(LockUnavailable):
                        lease = redlock.acquire(key, wait=0.3)
                        granted_at = redlock.clock.monotonic()
                        grants.append((lease.started_at, granted_at, lease.fence))
                        redlock.release(lease)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        trouble.run()
        for thread in threads:
            thread.join()

    assert len(grants) > 30
    fences = [fence for _, _, fence in grants]
    assert len(set(fences)) == len(fences)
    assert_ordered(grants)


def assert_ordered(grants: list[tuple[float, float, int]]) -> None:
    """Assert that what began after another was granted has the greater fence."""
    by_end = sorted(grants, key=lambda grant: grant[1])
    greatest = list(itertools.accumulate((fence for _, _, fence in by_end), max))
    ends = [granted_at for _, granted_at, _ in by_end]
    for started_at, _, fence in grants:
        over_before = sum(end < started_at for end in ends)
        if over_before:
            assert fence > greatest[over_before - 1]


@pytest.mark.parametrize("lost", ["one", "two"])
def test_fence_grows_over_counters_that_were_far_ahead(
    start_nodes: Callable[..., DevNodes], key: str, lost: str
) -> None:
    """Recovered counters come from the others, and not from any clock.

    The counters are years ahead of all clocks: only who reads them can exceed them.
    N = 5, so r = 3 others must tell: two nodes may have forgotten at once.
    """
    nodes = start_nodes(5, max_ttl=0.5)
    far = 4_000_000_000_000_000
    with client(nodes, **SHORT) as redlock:
        set_counters(nodes.nodes, key, far, far, far, far, far)
        before = redlock.acquire(key)
        assert before.fence == far + 1
        redlock.release(before)
        for node in nodes.nodes[: 1 if lost == "one" else 2]:
            node.restart()
        until(lambda: redlock.check().problems == [])
        for node in nodes.nodes[3:]:  # a majority has the ones that forgot in it
            node.kill()

        lease = redlock.acquire(key, wait=5)

        assert lease.fence > before.fence
        redlock.release(lease)


# -- Memory ----------------------------------------------------------------------------


@pytest.mark.every_server
def test_memory_is_bounded_by_the_stripes(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Ten million keys share 4096 counters, which take less than 1 MB on a node."""
    names: dict[int, str] = {}
    for number in itertools.count():
        if len(names) == STRIPES:
            break
        names.setdefault(stripe_of(f"k{number}"), f"k{number}")
    (node,) = start_nodes(1).nodes

    def memory() -> int:
        assert len(counters(node)) == STRIPES + 1  # and the floor
        return int(node.command("MEMORY", "USAGE", "redlock:fence", "SAMPLES", "0"))

    with client([node.url]) as redlock:
        for name in names.values():
            redlock.release(redlock.acquire(name))
        assert 100_000 < memory() < 1_000_000

        for number in range(10_000_000, 10_000_500):  # the others change nothing
            redlock.release(redlock.acquire(f"k{number}"))

        assert memory() < 1_000_000


def test_every_key_of_a_stripe_grows_with_the_others(
    shared_nodes: DevNodes,
) -> None:
    """Keys that share a counter share one growing sequence."""
    first = "stripe-0"
    twin = next(
        name
        for name in (f"stripe-{n}" for n in itertools.count(1))
        if stripe_of(name) == stripe_of(first)
    )
    with client(shared_nodes) as redlock:
        one = redlock.acquire(first)
        two = redlock.acquire(twin)
        redlock.release(one)
        three = redlock.acquire(first)
        assert one.fence < two.fence < three.fence
        for lease in (two, three):
            redlock.release(lease)
