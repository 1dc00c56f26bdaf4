"""Several keys at once on real servers: all or none, also while nodes fail."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locking import lock
from celery_redlock.testing.faults import force_release, held_elsewhere, lose_lock
from tests.nodes.support import (
    StartNodes,
    client,
    failing,
    run_threads,
    until,
    until_all_vote,
    until_nothing_is_left,
)

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes
    from celery_redlock.locks.redlock import Redlock

SOON = 10.0  # seconds
TTL = 5.0  # seconds: short, because a quarantine takes as long


def pair(key: str) -> list[str]:
    """Return the two keys of a test."""
    return [f"{key}-a", f"{key}-b"]


def whole_on(nodes: DevNodes, key: str) -> int:
    """Return how many running nodes have both keys; none has one of them alone."""
    names = [f"redlock:lock:{one}" for one in pair(key)]
    running = [node for node in nodes.nodes if node.is_running]
    found = [node.command("MGET", *names) for node in running]
    there = [sum(value is not None for value in values) for values in found]
    assert set(there) <= {0, 2}, there
    return there.count(2)


@pytest.mark.parametrize(("count", "dead"), [(3, 1), (5, 2)])
@pytest.mark.long
def test_held_keys_outlive_nodes_that_die_and_come_back_empty(
    start_nodes: StartNodes, key: str, count: int, dead: int
) -> None:
    """The majority renews both, nodes get both again, and a release ends both.

    No node has one of them alone at any time.
    """
    nodes = start_nodes(count, max_ttl=TTL)
    options: dict[str, Any] = {"ttl": TTL, "max_ttl": TTL, "node_timeout": 1.0}
    with client(nodes, **options) as redlock, client(nodes, **options) as rival:
        until_all_vote(redlock)
        until_all_vote(rival)
        lease = redlock.acquire(pair(key), wait=SOON)

        def until_whole_on(wanted: int) -> None:
            def is_whole() -> bool:
                redlock.extend(lease)
                redlock.check()  # so that nodes that may vote again do
                lease.ensure(network=True)
                return whole_on(nodes, key) == wanted

            until(is_whole, 4 * TTL)

        until_whole_on(count)
        with failing(nodes.nodes[:dead], "dead"):
            until(lambda: redlock.extend(lease))
            until_whole_on(count - dead)
            for one in pair(key):
                with pytest.raises(LockHeld):
                    rival.acquire(one)
        until_whole_on(count)
        for one in pair(key):
            with pytest.raises(LockHeld):
                rival.acquire(one)
        assert redlock.release(lease)
        until_nothing_is_left(nodes, key)
        later = rival.acquire(pair(key), wait=SOON)
        assert later.fence > lease.fence
        rival.release(later)


def test_two_orders_never_wait_for_each_other(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """Clients that name the keys in two orders, or one of them, take turns."""
    stays: list[tuple[float, float, int]] = []

    def work(service: Redlock, keys: str | list[str]) -> None:
        for _ in range(10):
            with lock(service, keys, wait=6 * SOON) as lease:
                began = time.monotonic()
                time.sleep(0.001)  # the work of the body
                stays.append((began, time.monotonic(), lease.fence))

    one, other = pair(key)
    run_threads(
        lambda: work(redlock, [one, other]),
        lambda: work(rival, [other, one]),
        lambda: work(rival, [one, other]),
        lambda: work(redlock, other),
    )

    assert len(stays) == 40
    for (_, end, fence), (began, _, later) in itertools.pairwise(sorted(stays)):
        assert began >= end
        assert later > fence


# -- for tests of users ------------------------------------------------------------


def test_lock_of_several_keys_is_held_elsewhere(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """Each of them is."""
    with held_elsewhere(redlock, pair(key)):
        for one in pair(key):
            with pytest.raises(LockHeld):
                rival.acquire(one)


@pytest.mark.parametrize("part", [0, 1])
def test_lock_of_several_keys_is_lost(redlock: Redlock, key: str, part: int) -> None:
    """To name one of the keys is enough."""
    with pytest.raises(LockLost), lock(redlock, pair(key), wait=SOON):
        lose_lock(redlock, pair(key)[part])


@pytest.mark.parametrize("part", [0, 1])
def test_lock_of_several_keys_is_released_by_force(
    shared_nodes: DevNodes, redlock: Redlock, key: str, part: int
) -> None:
    """An operator who names one of the keys releases all of them."""
    with (
        pytest.raises(LockLost, match="was released by an operator"),
        lock(redlock, pair(key), wait=SOON),
    ):
        force_release(redlock, pair(key)[part])
    until_nothing_is_left(shared_nodes, key)
