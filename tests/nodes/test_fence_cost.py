"""What fences cost: no round trip more as a rule, and bounded memory."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.fence import STRIPES, stripe_of
from tests.nodes.support import (
    client,
    counters,
    scripts_run,
    set_counters,
    until,
    until_nothing_is_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


@pytest.mark.every_server
def test_uncontended_grant_costs_one_round_trip(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Acquire is one script per node and no second one; release is another."""
    nodes = start_nodes(5)
    with client(nodes) as redlock:
        until(lambda: redlock.check().problems == [])
        until_nothing_is_left(nodes)
        before = [scripts_run([node]) for node in nodes.nodes]

        for number in range(20):
            redlock.release(redlock.acquire(f"{key}:{number}"))

        def called() -> list[int]:
            now = [scripts_run([node]) for node in nodes.nodes]
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
        before = scripts_run(nodes)

        lease = redlock.acquire(key)
        after = scripts_run(nodes)
        assert after - before >= 4  # a majority, twice
        until(lambda: redlock.inspect(key).votes == 3)

        assert lease.fence in (far + 11, far + 21)
        reached = [counters(node)[str(stripe_of(key))] for node in nodes.nodes]
        assert sum(number >= lease.fence for number in reached) >= 2
        redlock.release(lease)
        again = redlock.acquire(key)
        assert again.fence > lease.fence
        redlock.release(again)


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
