"""Waiting for a lock: its release wakes the first waiter of the queue, and no other.

Also with waiters that leave the queue, nodes that die, and wake-ups that are lost or
forbidden.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.devnodes import ServerOptions
from celery_redlock.errors import LockHeld, LockUnavailable
from celery_redlock.locking import lock
from celery_redlock.locks import wait_queue
from celery_redlock.locks.redlock import run
from celery_redlock.operations.acl import acl_rules
from celery_redlock.wire import pubsub
from tests.nodes.support import (
    StartNodes,
    client,
    held,
    plain_client,
    run_python,
    scripts_run,
    until,
    until_nothing_is_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_redlock.devnodes import DevNode, DevNodes
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.redlock import Redlock

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
def waiters(
    nodes: DevNodes, key: str, count: int, *, ahead: int = 0
) -> Iterator[list[Waiter]]:
    """Give waiters that are in the queue in this order, behind ``ahead`` others.

    Each gets the lock before the end of the block, or the test fails.
    """
    with ExitStack() as stack:
        made = [
            Waiter(stack.enter_context(connected(nodes)), key) for _ in range(count)
        ]
        for place, waiter in enumerate(made, ahead + 1):
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

    def release(self, keep: float = 0.0) -> None:
        """Release the lock."""
        self.redlock.release(self.lease, keep=keep)


@contextmanager
def queue(nodes: DevNodes, key: str, count: int) -> Iterator[Queue]:
    """Give a lock and waiters; after the block, they all get the lock in turn."""
    with client(nodes) as redlock:
        lease = held(redlock, nodes, key)
        with waiters(nodes, key, count) as made:
            yield Queue(redlock, lease, made)
            release_in_turn(made)


@contextmanager
def passive_waiter(
    redlock: Redlock, key: str
) -> Iterator[tuple[wait_queue.WaitQueue, pubsub.WakeupListener]]:
    """Give a first waiter that hears its wake-up and does not try for the lock."""
    listener = pubsub.WakeupListener(redlock.addresses, redlock.keys, redlock.timing)
    place = wait_queue.WaitQueue(key, redlock.nodes, redlock.keys, listener)
    try:
        pause = place.pause(SYSTEM_CLOCK.monotonic() + 0.01)
        run(pause, redlock.transport, redlock.clock)
        until(lambda: listener.listening == len(redlock.labels))
        yield place, listener
    finally:
        listener.close()


# -- Waking ------------------------------------------------------------------------


@pytest.mark.every_server
@pytest.mark.usefixtures("no_polling")
def test_release_wakes_the_next_waiter(three_nodes: DevNodes, key: str) -> None:
    """The lock goes from waiter to waiter, and none of them polls."""
    with queue(three_nodes, key, 3) as line:
        line.release()
    until_nothing_is_left(three_nodes)
    assert [in_queue(node, key) for node in three_nodes.nodes] == [[]] * 3


@pytest.mark.usefixtures("no_polling")
def test_release_wakes_one_waiter_alone(three_nodes: DevNodes, key: str) -> None:
    """Every node wakes the first waiter of its queue, and no other."""
    with connected(three_nodes) as redlock:
        lease = held(redlock, three_nodes, key)
        with (
            passive_waiter(redlock, key) as (first, first_listener),
            waiters(three_nodes, key, 3, ahead=1) as others,
            ExitStack() as stack,
        ):
            listeners = [first_listener, *(w.redlock.listener for w in others)]
            channels = [listener.channel for listener in listeners if listener]
            taps = [stack.enter_context(tap(n, channels)) for n in three_nodes.nodes]

            redlock.release(lease)
            until_in_queue(three_nodes, key, 3)

            for messages in taps:
                assert messages() == [(channels[0], "1 0")]
            first.end(acquired=False)
            release_in_turn(others)


@contextmanager
def tap(
    node: DevNode, channels: Sequence[str]
) -> Iterator[Callable[[], list[tuple[str, str]]]]:
    """Give a function that returns all messages that the node has sent since."""
    with plain_client(node).pubsub() as subscription:
        subscription.subscribe(*channels)
        for _ in channels:
            assert subscription.get_message(timeout=LONG)

        def messages() -> list[tuple[str, str]]:
            node.command("PUBLISH", channels[-1], "the end")
            found = []
            for message in subscription.listen():
                if message["data"] == "the end":
                    break
                found.append((message["channel"], message["data"]))
            return found

        yield messages


@pytest.mark.usefixtures("no_polling")
def test_release_wakes_no_waiter_of_another_key(
    three_nodes: DevNodes, key: str
) -> None:
    """A process that waits for two locks gets the one that was released."""
    with client(three_nodes) as redlock, connected(three_nodes) as other:
        leases = [redlock.acquire(f"{key}:{name}") for name in "ab"]
        pair = [Waiter(other, f"{key}:{name}") for name in "ab"]
        for waiter in pair:
            waiter.start(three_nodes, 1)

        redlock.release(leases[1])
        until(lambda: pair[1].lease)

        assert not pair[0].lease
        redlock.release(leases[0])
        release_in_turn(pair)
        for waiter in pair:
            waiter.end()


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


@pytest.mark.usefixtures("no_polling")
def test_waiter_tries_when_the_ttl_ends(three_nodes: DevNodes, key: str) -> None:
    """The holder has died, and no node announces that its lock expires."""
    with client(three_nodes) as redlock, ExitStack() as stack:
        services = [stack.enter_context(connected(three_nodes)) for _ in range(2)]
        redlock.acquire(key, ttl=8.0)
        made = [Waiter(service, key) for service in services]
        for place, waiter in enumerate(made, 1):
            waiter.start(three_nodes, place)
        release_in_turn(made)
        for waiter in made:
            waiter.end()


@pytest.mark.usefixtures("no_polling")
def test_release_tells_the_waiter_when_a_kept_lock_expires(
    three_nodes: DevNodes, key: str
) -> None:
    """With `keep` the first waiter learns when the lock expires, and tries then."""
    with queue(three_nodes, key, 1) as line:
        line.release(keep=0.5)

    (waiter,) = line.waiters
    assert waiter.lease
    assert waiter.lease.fence > line.lease.fence


# -- Leaving the queue -------------------------------------------------------------


def test_wait_that_times_out_leaves_the_queue(three_nodes: DevNodes, key: str) -> None:
    """The error names the holder at that time; nothing of the waiter is left."""
    with client(three_nodes) as redlock, client(three_nodes) as other:
        with lock(redlock, key) as lease, pytest.raises(LockHeld) as caught:
            other.acquire(key, wait=0.3)
        assert caught.value.holder
        assert caught.value.holder.token == lease.token
        until(lambda: not any(in_queue(node, key) for node in three_nodes.nodes))
    until_nothing_is_left(three_nodes)


@pytest.mark.usefixtures("no_polling")
def test_waiter_that_times_out_passes_its_wake_up_on(
    three_nodes: DevNodes, key: str
) -> None:
    """A waiter that was woken, and leaves without the lock, wakes the next."""
    with connected(three_nodes) as redlock, passive_waiter(redlock, key) as (first, _):
        lease = held(redlock, three_nodes, key)
        with waiters(three_nodes, key, 1, ahead=1) as made:
            redlock.release(lease)
            until_in_queue(three_nodes, key, 1)
            assert not made[0].lease

            first.end(acquired=False)

            release_in_turn(made)


@pytest.mark.usefixtures("no_polling")
def test_killed_waiter_is_skipped(three_nodes: DevNodes, key: str) -> None:
    """A process that was killed in the queue keeps no wake-up from the next waiter."""
    program = """
import os, sys
from celery_redlock.locks import wait_queue
from celery_redlock.locks.redlock import Redlock
from tests.harness.waiting import until
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=1.0)

def die_in_the_queue(*_):
    until(lambda: redlock.listener.listening == 3)
    os._exit(0)

until(lambda: redlock.inspect(key).ballot.answered == 3)
wait_queue.WaitQueue._listen = die_in_the_queue
redlock.acquire(key, wait=60)
"""
    with connected(three_nodes) as redlock:
        lease = held(redlock, three_nodes, key)
        run_python(program, key, *three_nodes.urls)
        until_in_queue(three_nodes, key, 1)
        with waiters(three_nodes, key, 1, ahead=1) as made:
            redlock.release(lease)

            release_in_turn(made)


def test_lost_wake_up_delays_until_the_next_poll(
    three_nodes: DevNodes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter that no node wakes finds by polling that the lock is free."""
    monkeypatch.setattr(pubsub.Waiter, "wake", lambda *_: None)
    with queue(three_nodes, key, 2) as line:
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


# -- Nodes -------------------------------------------------------------------------


@pytest.mark.usefixtures("no_polling")
@pytest.mark.parametrize("dead", [0, 1, 2])
def test_wake_up_needs_only_a_majority(
    five_nodes: DevNodes, key: str, dead: int
) -> None:
    """Waiters are woken although a minority of the nodes has died."""
    with queue(five_nodes, key, 2) as line:
        for node in five_nodes.nodes[:dead]:
            node.kill()
        line.release()


def test_restarted_node_is_subscribed_to_again(three_nodes: DevNodes, key: str) -> None:
    """A waiter makes a broken subscription again while it waits."""
    with queue(three_nodes, key, 1) as line:
        (waiter,) = line.waiters
        three_nodes.nodes[1].kill()
        until(lambda: not waiter.hears())
        three_nodes.nodes[1].start()
        until(waiter.hears)

        line.release()


def test_waiter_without_permission_to_subscribe_polls(
    start_nodes: StartNodes, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The waiter gets the lock by polling; the log gives the reason once per node."""
    rules = acl_rules("redlock").replace("&redlock:wake:*", "")
    options = ServerOptions(username="u", password="p", acl=rules)
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock, client(nodes) as other:
        lease = redlock.acquire(key)
        waiter = Waiter(other, key)
        waiter.thread.start()
        until(lambda: caplog.text.count("The subscription to node") == 3)

        assert redlock.release(lease) >= 2

        release_in_turn([waiter])
        waiter.end()
    assert caplog.text.count("The subscription to node") == 3


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
