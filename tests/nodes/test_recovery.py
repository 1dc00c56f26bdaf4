"""A node that forgot learns the fences of the others before it votes again."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest

from tests.nodes.support import (
    MAX_TTL,
    QUARANTINE,
    SHORT,
    client,
    counters,
    set_counters,
    until,
    until_all_vote,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes

FLOOR = "Its next fences are greater than its own time"


def test_recovered_node_has_the_fences_of_the_others(
    start_nodes: Callable[..., DevNodes], caplog: pytest.LogCaptureFixture
) -> None:
    """The node has every counter before it votes again, and there is no warning."""
    caplog.set_level(logging.INFO)
    nodes = start_nodes(5, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        for number in range(50):
            redlock.release(redlock.acquire(f"k{number}"))
        nodes.nodes[4].restart()
        until_all_vote(redlock)

        ours = counters(nodes.nodes[4])

        theirs = [counters(node) for node in nodes.nodes[:4]]
        for stripe in set().union(*theirs):
            known = sorted(other.get(stripe, 0) for other in theirs)
            assert ours[stripe] >= known[-1]
    assert FLOOR not in caplog.text
    assert "votes again, and has the fences of the other nodes" in caplog.text


def test_node_recovers_though_no_vote_needs_it(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Acquires that succeed without the node make it recover as well."""
    nodes = start_nodes(5, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        redlock.release(redlock.acquire("k"))
        nodes.nodes[4].restart()

        def is_synced() -> bool:
            redlock.release(redlock.acquire("k"))
            return bool(nodes.nodes[4].command("HGET", "redlock:meta", "votes"))

        until(is_synced)


@pytest.mark.parametrize("lost", ["one", "two"])
def test_fence_grows_over_counters_that_were_far_ahead(
    start_nodes: Callable[..., DevNodes], key: str, lost: str
) -> None:
    """Recovered counters come from the others, and not from any clock.

    The counters are years ahead of all clocks, so only a node that reads them can
    exceed them. N = 5, so r = 3 other nodes must reply: two nodes may have forgotten
    at once.
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
        for node in nodes.nodes[3:]:  # the majority includes the nodes that forgot
            node.kill()

        lease = redlock.acquire(key, wait=5)

        assert lease.fence > before.fence
        redlock.release(lease)


# -- Without enough others ---------------------------------------------------------


@pytest.mark.parametrize(("count", "lost"), [(1, 1), (3, 2), (5, 5)])
def test_majority_that_restarts_grants_nothing_for_a_while(
    start_nodes: Callable[..., DevNodes],
    key: str,
    caplog: pytest.LogCaptureFixture,
    count: int,
    lost: int,
) -> None:
    """No lock is granted for max_ttl; then the nodes recover alone, with a warning."""
    nodes = start_nodes(count, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        lease = redlock.acquire(key)
        for node in nodes.nodes[:lost]:
            node.restart()
        restarted_at = time.monotonic()

        successor = redlock.acquire(key, wait=20)

        assert time.monotonic() - restarted_at >= MAX_TTL
        assert successor.started_at > lease.until
        assert successor.fence > lease.fence
        assert FLOOR in caplog.text
        redlock.release(successor)
        until_all_vote(redlock)


def test_node_that_is_gone_for_good_does_not_block_the_others(
    start_nodes: Callable[..., DevNodes], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With one node restarted and one dead, clocks decide after one more max_ttl."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        lease = redlock.acquire(key)
        nodes.nodes[0].restart()
        nodes.nodes[1].kill()
        gone_at = time.monotonic()

        successor = redlock.acquire(key, wait=20)

        assert time.monotonic() - gone_at >= QUARANTINE
        assert successor.fence > lease.fence
        assert FLOOR in caplog.text
        redlock.release(successor)
