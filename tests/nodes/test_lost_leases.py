"""A lease that is lost: its holder is told, in time and once, and never too soon."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import LeaseState
from celery_redlock.errors import LockLost, LockUnavailable
from celery_redlock.locking import lock
from tests.nodes.lines import wires
from tests.nodes.support import client, until, until_nothing_is_left, values
from tests.nodes.watching import BRIEF, Diary, watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.lease import Lease
    from celery_redlock.devnodes import DevNodes


@pytest.mark.every_server
def test_stolen_lock_is_announced_as_lost(shared_nodes: DevNodes, key: str) -> None:
    """A majority that names somebody else ends the lease, and is left to them."""
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        thief = f"{'f' * 32}.{'0' * 16}\n1"
        for node in shared_nodes.nodes[:3]:
            node.command("SET", f"redlock:lock:{key}", thief, "PX", 20_000)
        dog.watch(lease, **diary.ears)

        until(lambda: diary.losses)

        assert diary.renewals == []
        assert diary.losses[0][1] >= lease.until
        assert not dog.forget(lease)
        redlock.release(lease)
        until(lambda: values(shared_nodes, key) == [thief] * 3 + [None] * 2)
        for node in shared_nodes.nodes[:3]:
            node.command("DEL", f"redlock:lock:{key}")


def test_unwatched_end_is_announced_without_renewing(
    shared_nodes: DevNodes, key: str
) -> None:
    """With `renew=False` the lease is left alone, and its end is told."""
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        end = lease.until
        dog.watch(lease, renew=False, **diary.ears)
        dog.renew_now(lease)

        until(lambda: diary.losses)

        assert diary.losses[0][1] >= end == lease.until
        assert lease.state is LeaseState.LOST
        assert diary.renewals == []


def test_confirmation_that_comes_too_late_is_a_loss(
    three_nodes: DevNodes, key: str
) -> None:
    """A renewal that a majority confirms after the end of validity saves nothing."""
    with (
        wires(three_nodes) as lines,
        client([line.url for line in lines], **BRIEF) as redlock,
        watchdog(redlock) as dog,
    ):
        redlock.initialize()
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        for line in lines[:2]:
            line.hold_replies()
        dog.watch(lease, **diary.ears)
        until(lambda: diary.losses)

        for line in lines:
            line.resume()  # extended, extended: the nodes did their part in time

        until(lambda: redlock.check().problems == [])
        assert not lease.is_valid()
        assert lease.state is LeaseState.LOST
        assert diary.renewals == []
        assert len(diary.losses) == 1
        with pytest.raises(LockLost):
            lease.ensure()
        assert not redlock.extend(lease)
        redlock.release(lease)
        until_nothing_is_left(three_nodes)


@pytest.mark.parametrize("way", ["dead", "hung"])
def test_holder_without_a_majority_is_told_in_time(
    start_nodes: Callable[..., DevNodes], key: str, way: str
) -> None:
    """A majority that is gone ends the lease with its validity, and no sooner."""
    nodes = start_nodes(5)
    told: list[float] = []
    with client(nodes, ttl=1.0, node_timeout=0.1) as redlock:
        lease = redlock.acquire(key)
        redlock.release(lease)

        def run() -> None:
            for node in nodes.nodes[:3]:
                node.kill() if way == "dead" else node.pause()
            until(lambda: told)

        def note(_: Lease) -> None:
            told.append(redlock.clock.monotonic())

        with pytest.raises(LockLost), lock(redlock, key, on_lost=note) as lease:
            run()

        assert lease.state is LeaseState.LOST
        assert told[0] >= lease.until
        assert len(told) == 1
        for node in nodes.nodes[:3]:
            node.restart() if way == "dead" else node.resume()
        until_nothing_is_left(nodes, key)


def test_loss_is_told_while_other_threads_wait_for_hung_nodes(
    five_nodes: DevNodes, key: str
) -> None:
    """However many threads are asking nodes that hang, no loss is told late."""
    over = threading.Event()
    options = {"ttl": 2.0, "node_timeout": 0.6}
    with client(five_nodes, **options) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        leases = [redlock.acquire(f"{key}:{number}") for number in range(5)]
        for lease in leases:
            dog.watch(lease, **diary.ears)

        def ask() -> None:
            while not over.is_set():
                with contextlib.suppress(LockUnavailable):
                    redlock.acquire(f"{key}:other")

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for node in five_nodes.nodes[:3]:
            node.pause()
        for thread in threads:
            thread.start()
        try:
            until(lambda: len(diary.losses) == len(leases))
        finally:
            over.set()
            for node in five_nodes.nodes[:3]:
                node.resume()
            for thread in threads:
                thread.join()
        for lease, told_at in diary.losses:
            assert 0 <= told_at - lease.until < options["node_timeout"]
