"""Several keys at once on real servers: all or none, also while nodes fail."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locking import alock, current_lease, lock
from celery_redlock.testing.faults import force_release, held_elsewhere, lose_lock
from tests.nodes.support import (
    StartNodes,
    client,
    delete_lock,
    failing,
    run_threads,
    until,
    until_all_vote,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes
    from celery_redlock.locks.redlock import Redlock

SOON = 10.0  # seconds
TTL = 5.0  # seconds: short, because a quarantine takes as long


def pair(key: str) -> list[str]:
    """Return the two keys of a test."""
    return [f"{key}-a", f"{key}-b"]


def on_nodes(nodes: DevNodes, key: str) -> list[int]:
    """Return on how many running nodes each of the two keys has a lock."""
    found = [values(nodes, one) for one in pair(key)]
    return [sum(value is not None for value in one) for one in found]


def whole_on(nodes: DevNodes, key: str) -> int:
    """Return how many running nodes have both keys; none has one of them alone."""
    names = [f"redlock:lock:{one}" for one in pair(key)]
    running = [node for node in nodes.nodes if node.is_running]
    found = [node.command("MGET", *names) for node in running]
    there = [sum(value is not None for value in values) for values in found]
    assert set(there) <= {0, 2}, there
    return there.count(2)


def test_minority_that_is_down_changes_nothing(
    start_nodes: StartNodes, key: str
) -> None:
    """Two of five nodes hang: both keys are taken, renewed and released."""
    nodes = start_nodes(5)
    with client(nodes) as redlock, client(nodes) as rival:
        until_all_vote(redlock)
        with failing(nodes.nodes[:2]):
            lease = redlock.acquire(pair(key), wait=SOON)
            assert redlock.extend(lease)
            lease.ensure(network=True)
            for one in pair(key):
                with pytest.raises(LockHeld):
                    rival.acquire(one)
            assert redlock.release(lease)
        until_nothing_is_left(nodes, key, SOON)


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


def test_release_while_nodes_hang_leaves_no_part(
    start_nodes: StartNodes, key: str
) -> None:
    """A node that hangs releases both keys when it goes on."""
    nodes = start_nodes(5)
    with client(nodes, node_timeout=1.0) as redlock:
        until_all_vote(redlock)
        lease = redlock.acquire(pair(key), wait=SOON)

        def is_whole() -> bool:
            redlock.extend(lease)
            return whole_on(nodes, key) == 5

        until(is_whole)
        with failing(nodes.nodes[:2]):
            redlock.release(lease)
        assert redlock.extend(lease) is False

        def is_released() -> bool:
            redlock.check()
            return whole_on(nodes, key) == 0

        until(is_released, SOON)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_node_that_lost_one_key_gets_it_again(
    shared_nodes: DevNodes, redlock: Redlock, key: str, lost: str
) -> None:
    """A renewal restores it, and the lease holds both keys on all nodes."""
    lease = redlock.acquire(pair(key), wait=SOON)
    delete_lock(shared_nodes.nodes[:1], f"{key}-{lost}")

    def is_restored() -> bool:
        redlock.extend(lease)
        return on_nodes(shared_nodes, key) == [len(shared_nodes.nodes)] * 2

    until(is_restored)
    assert redlock.release(lease)
    until_nothing_is_left(shared_nodes, key)


def test_refused_client_leaves_no_part(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """The key that was free stays free."""
    free, held = pair(key)
    with lock(rival, held, wait=SOON):
        with pytest.raises(LockHeld) as refused:
            redlock.acquire(pair(key))
        assert refused.value.held_key == held
        until_nothing_is_left(shared_nodes, free)
        rival.release(rival.acquire(free))


@pytest.mark.parametrize("first", [0, 1])
def test_waiter_has_all_keys_when_the_last_one_is_released(
    redlock: Redlock, rival: Redlock, key: str, first: int
) -> None:
    """Whichever of the keys is released first."""
    holders = [rival.acquire(one, wait=SOON) for one in pair(key)]
    listener: Any = redlock.listener

    def release_both() -> None:
        until(lambda: listener._waiters)  # noqa: SLF001
        rival.release(holders[first])
        rival.release(holders[1 - first])

    def take() -> None:
        with lock(redlock, pair(key), wait=SOON) as lease:
            assert set(lease.keys) == set(pair(key))

    run_threads(take, release_both)


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


def test_coroutine_takes_all_keys(redlock: Redlock, rival: Redlock, key: str) -> None:
    """Its lease has each of them, and its cancellation releases each of them."""

    async def hold(entered: asyncio.Event) -> None:
        async with alock(redlock, pair(key), wait=SOON) as lease:
            assert current_lease(f"{key}-b") is lease
            for one in pair(key):
                with pytest.raises(LockHeld):
                    rival.acquire(one)
            entered.set()
            await asyncio.Event().wait()

    async def work() -> None:
        entered = asyncio.Event()
        holder = asyncio.create_task(hold(entered))
        await entered.wait()
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
        lease = await rival.aacquire(pair(key), wait=SOON)
        await rival.arelease(lease)

    asyncio.run(asyncio.wait_for(work(), 4 * SOON))


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
