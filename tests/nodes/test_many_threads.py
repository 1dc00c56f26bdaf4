"""One service that hundreds of threads or greenlets use at the same time."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import LockUnavailable
from celery_redlock.locks.watchdog import Watchdog
from tests.nodes.support import client, run_python, until, until_all_vote

THREADS = 200
SECONDS = 60.0  # for a machine that is busy

GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys, gevent
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.errors import LockUnavailable
from tests.harness.waiting import until
key, *urls = sys.argv[1:]
redlock = Redlock(urls, ttl=20.0, node_timeout=1.0)  # a busy machine
until(lambda: not redlock.check().problems)
watchdog, renewals, losses, over = Watchdog(redlock), [], [], []

def work(number):
    while not over:
        try:
            redlock.release(redlock.acquire(f"{key}:{number}"))
        except LockUnavailable:
            pass

lease = redlock.acquire(key)
watchdog.watch(lease, on_lost=losses.append, on_renewed=lambda *_: renewals.append(1))
greenlets = [gevent.spawn(work, number) for number in range(500)]
until(lambda: losses or len(renewals) >= 2, 60.0)
over.append(True)
gevent.joinall(greenlets)
print(len(losses), lease.is_valid())
"""


def test_new_client_gives_each_of_many_threads_its_lock(
    three_nodes: DevNodes, key: str
) -> None:
    """Their first requests are on the way before the client knows the view."""
    with client(three_nodes) as redlock:
        until_all_vote(redlock)
    barrier = threading.Barrier(32)

    def take(number: int) -> bool:
        barrier.wait(SECONDS)
        lease = redlock.acquire(f"{key}:{number}", wait=10)
        return redlock.release(lease) > 0

    with client(three_nodes) as redlock, ThreadPoolExecutor(32) as pool:
        assert all(pool.map(take, range(32)))


@pytest.mark.long
def test_threads_without_pause_cost_no_lease(three_nodes: DevNodes, key: str) -> None:
    """A lease is renewed while 200 threads acquire and release in a loop."""
    over, renewals, losses = threading.Event(), list[Any](), list[Any]()
    with client(three_nodes, ttl=6.0) as redlock:
        until_all_vote(redlock)

        def work(number: int) -> None:
            while not over.is_set():
                with contextlib.suppress(LockUnavailable):
                    redlock.release(redlock.acquire(f"{key}:{number}"))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        watchdog, lease = Watchdog(redlock), redlock.acquire(key, wait=10)
        watchdog.watch(
            lease,
            on_lost=losses.append,
            on_renewed=lambda _, late: renewals.append(late),
        )
        for thread in threads:
            thread.start()
        try:
            until(lambda: losses or len(renewals) >= 3, SECONDS)
        finally:
            over.set()
            for thread in threads:
                thread.join()
            watchdog.stop()

        assert losses == []
        assert lease.is_valid()


@pytest.mark.long
def test_greenlets_without_pause_cost_no_lease(three_nodes: DevNodes, key: str) -> None:
    """The renewals of a process with 500 greenlets come in time, too."""
    lines = run_python(GREENLETS, key, *three_nodes.urls, timeout=2 * SECONDS)

    assert lines == ["0 True"]
