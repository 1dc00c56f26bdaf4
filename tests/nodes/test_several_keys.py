"""Several keys at once on real servers: taken, lost and released together."""

from __future__ import annotations

import itertools
import time

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locking import lock
from celery_redlock.locks.redlock import Redlock
from celery_redlock.testing.faults import force_release, held_elsewhere, lose_lock
from tests.nodes.support import (
    run_threads,
    until_nothing_is_left,
)

SOON = 10.0  # seconds


def pair(key: str) -> list[str]:
    """Return the two keys of a test."""
    return [f"{key}-a", f"{key}-b"]


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
