"""Fences grow: from grant to grant, whoever asks and whatever their clocks say."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.clock import SystemClock
from celery_redlock.core.fence import stripe_of
from tests.nodes.support import client, counters, run_python, set_counters, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


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


class Skewed(SystemClock):
    """A clock whose wall time is wrong."""

    def __init__(self, skew_us: int) -> None:
        self._skew_us = skew_us

    def wall_us(self) -> int:
        """Return the wrong one."""
        return super().wall_us() + self._skew_us


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
