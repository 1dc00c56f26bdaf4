"""Connections that break, and replies that are late or lost.

Clients connect again and misread no reply, and no lock is left behind.
"""

from __future__ import annotations

import pytest

from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from celery_redlock.errors import LockHeld, QuorumUnreachable, RedlockError
from celery_redlock.locking import lock, watchdog_of
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts import INSPECT, RELEASE
from tests.nodes.support import (
    StartNodes,
    client,
    failing,
    held,
    locks,
    proxied,
    run_python,
    until,
    until_all_vote,
    until_nothing_is_left,
    values,
)


def until_released(redlock: Redlock, nodes: DevNodes, key: str) -> None:
    """Wait until no node has the lock; each request sends what is still pending."""

    def is_released() -> bool:
        redlock.check()
        return not locks(nodes, key)

    until(is_released)


# -- Closing ---------------------------------------------------------------------


def test_service_that_is_dropped_closes_its_connections(shared_nodes: DevNodes) -> None:
    """The garbage collector does it, and Python warns of no socket left open.

    Without a finalizer, the order in which the collector ends objects decides whether
    redis-py closes a socket before Python warns. Old objects end in the order that
    warns.
    """
    program = """
import gc, sys, warnings, weakref
from celery_redlock.locks.redlock import Redlock
redlock = Redlock(sys.argv[1:], node_timeout=1.0)
assert redlock.check().problems == []
dropped = weakref.ref(redlock)
cycle = [redlock]
cycle.append(cycle)
for _ in range(3):
    gc.collect()  # the last generation has them now
del redlock, cycle
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always", ResourceWarning)
    gc.collect()
assert dropped() is None
print([str(warning.message) for warning in warned])
"""
    assert run_python(program, *shared_nodes.urls) == ["[]"]


# -- Connecting again --------------------------------------------------------------


def test_connecting_imports_no_module(shared_nodes: DevNodes) -> None:
    """A child that is forked while a thread of its parent connects can connect.

    A fork during an import leaves the child a half-imported module and its lock.
    """
    program = """
import sys
from celery_redlock.locks.redlock import Redlock
redlock = Redlock(sys.argv[1:], node_timeout=1.0)
before = set(sys.modules)
assert redlock.check().problems == []
print(sorted(set(sys.modules) - before))
"""
    assert run_python(program, *shared_nodes.urls) == ["[]"]


def test_servers_time_limit_for_idle_clients_costs_no_acquire(
    start_nodes: StartNodes, key: str
) -> None:
    """With `timeout 1` on all servers an occasional task still gets its lock."""
    nodes = start_nodes(3, options=ServerOptions(config={"timeout": "1"}))
    with client(nodes) as redlock:
        redlock.release(redlock.acquire(key))
        until(lambda: not any(map(open_connections, nodes.nodes)))

        redlock.release(redlock.acquire(key))


def open_connections(node: DevNode) -> int:
    """Return how many connections the node has besides the one that asks."""
    return int(node.command("INFO", "clients")["connected_clients"]) - 1


def test_connection_that_is_made_after_close_is_closed(node: DevNode) -> None:
    """A client that was closed keeps no connection open to a slow node."""

    def made() -> int:
        return int(node.command("INFO", "stats")["total_connections_received"])

    before = made()
    redlock = Redlock([node.url], connect_timeout=30.0)
    with failing([node]):
        redlock.nodes.tell(INSPECT, [redlock.keys.lock("k")])
        redlock.close()

    until(lambda: made() > before, what="the connection to be made")
    until(lambda: open_connections(node) == 0, what="it to be closed again")


def test_no_error_of_redis_py_gets_out(three_nodes: DevNodes) -> None:
    """An operation on dead nodes raises one of the package's errors, or reports it."""
    with client(three_nodes) as redlock:
        lease = redlock.acquire("k")
        for node in three_nodes.nodes:
            node.kill()
        for act in (
            lambda: redlock.acquire("k"),
            lambda: lease.ensure(network=True),
            redlock.initialize,
        ):
            with pytest.raises(RedlockError):
                act()
        assert redlock.extend(lease) is False
        assert redlock.release(lease) == 0
        assert redlock.inspect("k").holder is None
        assert len(redlock.check().problems) == 3


# -- Late and lost replies ---------------------------------------------------------


@pytest.mark.every_server
def test_late_replies_are_never_taken_for_others(
    three_nodes: DevNodes, key: str
) -> None:
    """A late reply about one key never counts for the next key."""
    with (
        client(three_nodes, node_timeout=0.02) as redlock,
        client(three_nodes, ttl=60) as rival,
    ):
        redlock.release(redlock.acquire(key, wait=10))
        taken = held(rival, three_nodes, f"{key}:taken")
        for number in range(30):
            with failing(three_nodes.nodes[:2]), pytest.raises(QuorumUnreachable):
                redlock.acquire(f"{key}:{number}")
            # Two late replies to that acquire are on their way; both grant it.
            with pytest.raises((LockHeld, QuorumUnreachable)):
                redlock.acquire(taken.key)
        assert rival.extend(taken)
        assert rival.release(taken) >= 2
        until_nothing_is_left(three_nodes)


@pytest.mark.parametrize("cut", [False, True], ids=["late", "lost"])
def test_replies_that_are_lost_leave_no_lock(
    three_nodes: DevNodes, key: str, *, cut: bool
) -> None:
    """Nodes that granted, but whose reply was late or lost, get a release."""
    with proxied(three_nodes) as (lines, redlock):
        redlock.release(redlock.acquire(key))
        for line in lines[:2]:
            line.hold_replies()
        with pytest.raises(QuorumUnreachable):
            redlock.acquire(key)
        for line in lines[:2]:
            line.cut() if cut else line.resume()
            line.mend()

        until_all_vote(redlock)
        until_nothing_is_left(three_nodes)


def test_refusal_whose_release_did_not_arrive_leaves_no_lock(
    three_nodes: DevNodes, key: str
) -> None:
    """The release is sent again also if the caller asks for nothing more."""
    with proxied(three_nodes) as (lines, redlock):
        redlock.release(redlock.acquire(key))
        until_nothing_is_left(three_nodes)
        for line in lines[:2]:
            line.hold_replies()
        breaks = [line.cut_when(RELEASE.sha.encode()) for line in lines[:2]]
        with pytest.raises(QuorumUnreachable), lock(redlock, key, ttl=60.0):
            pass
        until(lambda: all(count() for count in breaks))
        assert len(locks(three_nodes, key)) >= 2
        for line in lines[:2]:
            line.cut_when(None)
            line.resume()

        until(lambda: not locks(three_nodes, key), 30.0)
        watchdog_of(redlock).stop()


def test_acquire_overtaken_by_its_release_leaves_nothing(
    three_nodes: DevNodes, key: str
) -> None:
    """If a connection breaks with an acquire on it, the node gets the release again.

    The node reads the acquire only after the client has closed that connection and
    opened another one. So the node performs the acquire after the first release.
    """
    with proxied(three_nodes) as (lines, redlock):
        redlock.release(redlock.acquire(key))
        for number in range(5):
            with failing(three_nodes.nodes[:1]):
                redlock.release(redlock.acquire(f"{key}:{number}"))
                lines[0].cut()
                lines[0].mend()
                redlock.check()

            until_released(redlock, three_nodes, key)


def test_line_that_is_cut_again_and_again_is_not_stormed(
    three_nodes: DevNodes, key: str
) -> None:
    """A node that breaks off gets each release again, in bursts of limited size."""
    with proxied(three_nodes) as (lines, redlock):
        until_all_vote(redlock)
        leases = [redlock.acquire(f"{key}:{number}") for number in range(10)]
        last = leases[-1].key
        until(lambda: None not in values(three_nodes, last))
        breaks = lines[0].cut_when(key.encode())
        for lease in leases:
            redlock.release(lease)

        def drain() -> bool:
            redlock.transport.drain()
            return True

        until(lambda: drain() and breaks() >= 25, seconds=20)
        assert lines[0].longest_burst < 200_000
        lines[0].cut_when(None)

        until(lambda: drain() and not values(three_nodes, last)[0])
    until_nothing_is_left(three_nodes)
