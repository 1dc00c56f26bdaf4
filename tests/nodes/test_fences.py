"""The fence counters of all keys, in the memory of a real server."""

from __future__ import annotations

import pytest

from celery_redlock.scripts.keys import MOST, STRIPES, stripe_of
from tests.nodes.support import (
    StartNodes,
    client,
    counters,
)


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
