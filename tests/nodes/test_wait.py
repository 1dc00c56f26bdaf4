"""Waiting for a lock: its release wakes the first waiter of the queue.

Also in a child of a process that waits, and with the permissions of the doctor alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from celery_redlock.errors import LockUnavailable
from celery_redlock.locks.lease import Lease
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.acl import acl_rules
from tests.nodes.support import (
    StartNodes,
    client,
    held,
    run_python,
    scripts_run,
    until,
    until_nothing_is_left,
)

LONG = 60.0  # seconds: a waiter without the lock by then has failed


class Waiter:
    """A thread that waits for a lock.

    Attributes:
        lease: The lease that it got.
        error: The error that it got instead.
    """

    def __init__(self, redlock: Redlock, key: str) -> None:
        self.redlock = redlock
        self.key = key
        self.lease: Lease | None = None
        self.error: LockUnavailable | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self, nodes: DevNodes, place: int) -> None:
        """Begin to wait; return when it is at this place in the queue of every node."""
        assert self.redlock.listener
        # A new subscription makes a waiter look again, and it takes a lock that is free
        # by then. So they exist before it waits, and its only look is its entry.
        self._subscribes = self.redlock.listener.add_waiter()
        until(self.hears)
        self.thread.start()
        until_in_queue(nodes, self.key, place)

    def _run(self) -> None:
        try:
            self.lease = self.redlock.acquire(self.key, wait=LONG)
        except LockUnavailable as error:
            self.error = error

    def hears(self) -> bool:
        """Tell whether every node can wake it."""
        listener = self.redlock.listener
        return bool(listener and listener.listening == len(self.redlock.labels))

    def end(self) -> None:
        """Wait for its end, and assert that it got the lock."""
        self.thread.join(LONG)
        assert self.error is None
        assert self.lease


@contextmanager
def connected(nodes: DevNodes) -> Iterator[Redlock]:
    """Give a service that is connected to all nodes."""
    with client(nodes, node_timeout=1.0) as redlock:
        until(lambda: redlock.inspect("any").ballot.answered == len(nodes.nodes))
        yield redlock


@contextmanager
def waiters(nodes: DevNodes, key: str, count: int) -> Iterator[list[Waiter]]:
    """Give waiters that are in the queue in this order.

    Each gets the lock before the end of the block, or the test fails.
    """
    with ExitStack() as stack:
        made = [
            Waiter(stack.enter_context(connected(nodes)), key) for _ in range(count)
        ]
        for place, waiter in enumerate(made, 1):
            waiter.start(nodes, place)
        yield made
        for waiter in made:
            waiter.end()


def in_queue(node: DevNode, key: str) -> list[str]:
    """Return the waiters in the queue of this node."""
    return list(node.command("ZRANGE", f"redlock:line:{key}", 0, -1))


def until_in_queue(nodes: DevNodes, key: str, count: int) -> None:
    """Wait until every node has so many waiters in its queue."""
    found: list[list[str]] = []

    def is_so() -> bool:
        found[:] = [in_queue(node, key) for node in nodes.nodes]
        return all(len(queue) == count for queue in found)

    try:
        until(is_so)
    except AssertionError:
        raise AssertionError(f"the queues have {found}, not {count} each") from None


def release_in_turn(made: Sequence[Waiter]) -> None:
    """Let each waiter that gets the lock release it, until all have had it."""
    left = list(made)
    while left:
        # On a busy machine a late answer may cost the first waiter its turn.
        holder = until(lambda: [waiter for waiter in left if waiter.lease], LONG)[0]
        left.remove(holder)
        assert holder.lease
        holder.redlock.release(holder.lease)


@dataclass
class Queue:
    """A lock that is held, and waiters in its queue."""

    redlock: Redlock
    lease: Lease
    waiters: list[Waiter]

    def release(self) -> None:
        """Release the lock."""
        self.redlock.release(self.lease)


@contextmanager
def queue(nodes: DevNodes, key: str, count: int) -> Iterator[Queue]:
    """Give a lock and waiters; after the block, they all get the lock in turn."""
    with client(nodes) as redlock:
        lease = held(redlock, nodes, key)
        with waiters(nodes, key, count) as made:
            yield Queue(redlock, lease, made)
            release_in_turn(made)


@pytest.mark.every_server
@pytest.mark.usefixtures("no_polling")
def test_release_wakes_the_next_waiter(three_nodes: DevNodes, key: str) -> None:
    """The lock goes from waiter to waiter, and none of them polls."""
    with queue(three_nodes, key, 3) as line:
        line.release()
    until_nothing_is_left(three_nodes)
    assert [in_queue(node, key) for node in three_nodes.nodes] == [[]] * 3


def test_waiter_polls_no_more_than_once_a_second(
    three_nodes: DevNodes, key: str
) -> None:
    """A waiter in the queue asks each node at most once a second."""
    with queue(three_nodes, key, 4) as line:
        began, before = SYSTEM_CLOCK.monotonic(), scripts_run(three_nodes)
        until(lambda: SYSTEM_CLOCK.monotonic() > began + 3.0)
        asked = scripts_run(three_nodes) - before
        seconds = SYSTEM_CLOCK.monotonic() - began

        assert 0 < asked <= 3 * (seconds + 1) * len(line.waiters)
        line.release()


def test_forked_child_listens_with_its_own_connections(
    three_nodes: DevNodes, key: str
) -> None:
    """The child of a process that waits is woken, and later its parent, too."""
    program = """
import os, sys, threading
import redis
from celery_redlock.locks import wait_queue
from celery_redlock.locks.redlock import Redlock
from tests.harness.waiting import until
wait_queue._LEAST_LOOK_EVERY = wait_queue._LOOK_EVERY = 600.0
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=1.0)
holder = Redlock(urls, node_timeout=1.0)

def all_hear():
    return redlock.listener.listening == 3

def in_queue(key):
    nodes = [redis.Redis.from_url(url, retry=None) for url in urls]
    return all(node.zcard(f"redlock:line:{key}") for node in nodes)

def wait_for(key, got):
    thread = threading.Thread(target=lambda: got.append(redlock.acquire(key, wait=60)))
    thread.start()
    until(all_hear)
    return thread

mine, got = holder.acquire(key), []
thread = wait_for(key, got)
channel = redlock.listener.channel
child = os.fork()
if not child:
    lease, got = holder.acquire(key + ":child"), []
    thread = wait_for(key + ":child", got)
    assert redlock.listener.channel != channel
    until(lambda: in_queue(key + ":child"))
    holder.release(lease)
    thread.join(30)
    redlock.release(got[0])
    os._exit(0)
print("child", os.waitpid(child, 0)[1])
assert redlock.listener.channel == channel and all_hear()
holder.release(mine)
thread.join(30)
redlock.release(got[0])
print("parent", len(got))
"""
    assert run_python(program, key, *three_nodes.urls) == ["child 0", "parent 1"]
    until_nothing_is_left(three_nodes)


@pytest.mark.every_server
@pytest.mark.usefixtures("no_polling")
def test_acl_of_the_doctor_is_enough_to_be_woken(
    start_nodes: StartNodes, key: str
) -> None:
    """A user with only the printed permissions waits without polling."""
    options = ServerOptions(username="u", password="p", acl=acl_rules("redlock"))
    nodes = start_nodes(3, options=options)
    with queue(nodes, key, 2) as line:
        line.release()
    refused = [str(node.command("ACL", "LOG")) for node in nodes.nodes]
    assert not [log for log in refused if "publish" in log or "subscribe" in log]
