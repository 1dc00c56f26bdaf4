"""Waiting for a lock: its release wakes who is first in line, and nobody else."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.errors import LockHeld
from celery_redlock.locking import lock
from tests.nodes.support import client, scripts_run, until, until_nothing_is_left
from tests.nodes.waiters import (
    LONG,
    Waiter,
    connected,
    in_line,
    is_past,
    release_in_turn,
    until_in_line,
    waiters,
)

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes


@pytest.mark.every_server
@pytest.mark.usefixtures("no_looking")
def test_release_wakes_who_waits(three_nodes: DevNodes, key: str) -> None:
    """The lock goes from one to the next, though nobody would look for long."""
    with client(three_nodes) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 3) as made:
            redlock.release(lease)

            release_in_turn(made)
    until_nothing_is_left(three_nodes)
    assert [in_line(node, key) for node in three_nodes.nodes] == [[]] * 3


@pytest.mark.usefixtures("no_looking")
def test_release_wakes_one_waiter_alone(three_nodes: DevNodes, key: str) -> None:
    """The others are not stirred up: they stay in line and ask nothing."""
    with client(three_nodes) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 4) as made:
            before = until(lambda: looks_when_quiet(three_nodes))
            redlock.release(lease)
            (successor,) = until(lambda: made[0].leases)

            assert until(lambda: looks_when_quiet(three_nodes)) == before
            assert [len(in_line(node, key)) for node in three_nodes.nodes] == [3] * 3
            made[0].redlock.release(successor)
            release_in_turn(made[1:])


def looks_when_quiet(nodes: DevNodes) -> int:
    """Return how often people have looked; 0 if somebody just did, or might have."""
    counts = []
    for seconds in (0.0, 0.2):
        until(functools.partial(is_past, SYSTEM_CLOCK.monotonic() + seconds))
        stats = [node.command("INFO", "commandstats") for node in nodes.nodes]
        counts.append(sum(s["cmdstat_zadd"]["calls"] for s in stats))
    return counts[0] if counts[0] == counts[1] else 0


@pytest.mark.usefixtures("no_looking")
def test_waiters_of_other_keys_are_left_alone(three_nodes: DevNodes, key: str) -> None:
    """A process that waits for two locks is told of the one that is free."""
    with client(three_nodes) as redlock, connected(three_nodes) as other:
        held = [redlock.acquire(f"{key}:{name}") for name in "ab"]
        pair = [Waiter(other, f"{key}:{name}") for name in "ab"]
        for waiter in pair:
            waiter.start()
            until_in_line(three_nodes, waiter.key, 1)
        until(pair[0].hears)

        redlock.release(held[1])
        until(lambda: pair[1].leases)

        assert not pair[0].leases
        redlock.release(held[0])
        release_in_turn(pair)
        for waiter in pair:
            waiter.thread.join(LONG)


def test_waiting_is_quiet(three_nodes: DevNodes, key: str) -> None:
    """Once in line, a waiter asks each node no more than once a second."""
    with client(three_nodes, ttl=30.0) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 4) as made:
            before, began = scripts_run(three_nodes), SYSTEM_CLOCK.monotonic()
            until(functools.partial(is_past, began + 3.0))
            asked = scripts_run(three_nodes) - before
            seconds = SYSTEM_CLOCK.monotonic() - began

            assert 0 < asked <= 3 * seconds * len(made)
            redlock.release(lease)
            release_in_turn(made)


@pytest.mark.usefixtures("no_looking")
def test_end_of_a_ttl_is_not_slept_through(three_nodes: DevNodes, key: str) -> None:
    """A holder that dies announces nothing: its waiters know when its lock ends."""
    with client(three_nodes) as redlock:
        redlock.acquire(key, ttl=2.0)
        with waiters(three_nodes, key, 2) as made:
            release_in_turn(made)


@pytest.mark.usefixtures("no_looking")
def test_hold_at_least_is_announced_with_its_end(
    three_nodes: DevNodes, key: str
) -> None:
    """The first in line is told how long the lock is still kept, and comes then."""
    with client(three_nodes) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 1) as made:
            redlock.release(lease, keep=0.5)

            release_in_turn(made)
            assert made[0].leases[0].fence > lease.fence


def test_wait_that_ends_leaves_the_line(three_nodes: DevNodes, key: str) -> None:
    """The error names who has the lock then; nothing of the waiter is left."""
    with client(three_nodes) as redlock, client(three_nodes) as other:
        with lock(redlock, key) as lease, pytest.raises(LockHeld) as caught:
            other.acquire(key, wait=0.3)
        assert caught.value.holder
        assert caught.value.holder.token == lease.token
        until(lambda: not any(in_line(node, key) for node in three_nodes.nodes))
    until_nothing_is_left(three_nodes)
