"""Nodes that refuse a release, or are away: it is sent again, and nothing is left.

The services have nothing more to ask when they have sent it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from celery_redlock.devnodes import DevNode, DevNodes
from celery_redlock.election import Elector
from celery_redlock.errors import QuorumUnreachable
from celery_redlock.line.backlog import is_first, leave_backlog, number_in_backlog
from celery_redlock.line.claims import Claims
from celery_redlock.locking import Hold, lock, watchdog_of
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.redlock import Redlock
from tests.harness.tcp import Proxy
from tests.nodes.support import (
    SHORT,
    client,
    locks,
    plain_client,
    proxied,
    refusal,
    run_threads,
    until,
    until_all_vote,
    until_nothing_is_left,
)


@contextlib.contextmanager
def without_replicas(node: DevNode) -> Iterator[None]:
    """Have the node refuse writes with -NOREPLICAS."""
    node.command("CONFIG", "SET", "min-replicas-to-write", "1")
    yield
    node.command("CONFIG", "SET", "min-replicas-to-write", "0")


@contextlib.contextmanager
def read_only(node: DevNode) -> Iterator[None]:
    """Have the node refuse writes with -READONLY, as after a failover."""
    node.command("REPLICAOF", "127.0.0.1", "1")
    yield
    node.command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def busy(node: DevNode) -> Iterator[None]:
    """Have the node refuse all commands with -BUSY while a script runs."""
    node.command("CONFIG", "SET", "lua-time-limit", "1")

    def run() -> None:
        with plain_client(node) as other, contextlib.suppress(redis.RedisError):
            other.eval("while true do end", 0)

    def is_busy() -> bool:
        with plain_client(node) as other:
            try:
                other.ping()
            except redis.RedisError as error:
                return "BUSY" in str(error)
            return False

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(is_busy)
        yield
    finally:
        with plain_client(node) as other:
            other.script_kill()
        thread.join()


@contextlib.contextmanager
def watched(nodes: DevNodes) -> Iterator[Redlock]:
    """Give a service that all nodes vote for, and which has a watchdog."""
    with client(nodes, ttl=60.0) as redlock:
        until_all_vote(redlock)
        watchdog = watchdog_of(redlock)
        yield redlock
        watchdog.stop()


@pytest.mark.parametrize("refuse", [without_replicas, read_only, busy])
def test_release_that_nodes_refuse_is_sent_again(
    three_nodes: DevNodes,
    key: str,
    refuse: Callable[[DevNode], contextlib.AbstractContextManager[None]],
) -> None:
    """The lock is gone soon after they take writes again, and not after its ttl."""
    first, second, _ = three_nodes.nodes
    with watched(three_nodes) as redlock:
        lease = redlock.acquire(key)
        until(lambda: redlock.inspect(key).votes == 3)
        with refuse(first), refuse(second):
            assert redlock.release(lease) <= 1
            assert redlock.transport.has_pending

        until_nothing_is_left(three_nodes, key)
        until(lambda: not redlock.transport.has_pending)


def test_busy_node_is_told_with_a_remedy_that_keeps_its_locks(
    three_nodes: DevNodes, key: str
) -> None:
    """The server advises SHUTDOWN NOSAVE, which loses them."""
    first, second, _ = three_nodes.nodes
    with client(three_nodes) as redlock:
        until_all_vote(redlock)
        with busy(first), busy(second):
            error = str(refusal(redlock, key, says="is busy"))

    assert "end it with SCRIPT KILL. Do not restart it" in error
    assert "SHUTDOWN" not in error


def test_claim_whose_release_nodes_refuse_is_released_later(
    three_nodes: DevNodes, key: str
) -> None:
    """No call waits for the reply, and the service is not used any more."""
    with watched(three_nodes) as redlock:
        claims, job = Claims(redlock), Holder.here(task="t", task_id="id")
        assert claims.take(key, job, at_lock=False, at_cooldown=False) is None
        claims.keep(key, "id", 50.0)
        until(lambda: redlock.check().problems == [])
        with contextlib.ExitStack() as stack:
            for node in three_nodes.nodes:
                stack.enter_context(without_replicas(node))
            claims.release(key, "id")
            until(lambda: redlock.transport.has_pending, 10.0)

        name = redlock.keys.claim(key)
        for node in three_nodes.nodes:
            until(lambda: not node.command("EXISTS", name), 10.0)  # noqa: B023


@contextlib.contextmanager
def by_proxies(
    nodes: DevNodes, **options: Any
) -> Iterator[tuple[list[Proxy], Redlock]]:
    """Give a proxy to each node, and a service that all nodes vote for by them."""
    with proxied(nodes, **options) as (lines, redlock):
        until_all_vote(redlock)
        watchdog = watchdog_of(redlock)
        yield lines, redlock
        watchdog.stop()


def test_block_that_gets_no_lock_leaves_none(three_nodes: DevNodes, key: str) -> None:
    """The connections break after the grants, and the service is not used any more."""
    with by_proxies(three_nodes, ttl=60.0) as (lines, redlock):
        for line in lines:
            line.hold_replies()

        def begin() -> None:
            with pytest.raises(QuorumUnreachable), lock(redlock, key):
                pass

        def cut() -> None:
            until(lambda: len(locks(three_nodes, key)) == len(lines))
            for line in lines:
                line.cut()

        run_threads(begin, cut)
        for line in lines:
            line.mend()

        until(lambda: not locks(three_nodes, key), 15.0)


def release(redlock: Redlock, key: str, cut: Callable[[], None]) -> None:
    """Release a lock outside of a block."""
    lease = redlock.acquire(key)
    cut()
    redlock.release(lease)


def release_in_a_coroutine(redlock: Redlock, key: str, cut: Callable[[], None]) -> None:
    """Release a lock outside of a block, in a coroutine."""

    async def use() -> None:
        lease = await redlock.aacquire(key)
        cut()
        await redlock.arelease(lease)

    asyncio.run(use())


def release_of_a_process(redlock: Redlock, key: str, cut: Callable[[], None]) -> None:
    """Release the lock of another process, which is gone."""
    lease = redlock.acquire(key)
    cut()
    redlock.release_base(key, Holder(lease.token).base)


def resign(redlock: Redlock, key: str, cut: Callable[[], None]) -> None:
    """End the term of a leader."""
    elector = Elector(redlock, key)
    assert elector.campaign()
    cut()
    elector.resign()


def lose(redlock: Redlock, key: str, cut: Callable[[], None]) -> None:
    """Find that the term of a leader has ended."""
    elector = Elector(redlock, key, ttl=60.0)
    term = elector.campaign()
    assert term
    term.lease.until = redlock.clock.monotonic()
    cut()
    elector._renew(term)  # noqa: SLF001  (it then stands by, and asks the nodes)


def interrupted(redlock: Redlock, key: str, cut: Callable[[], None]) -> None:
    """Interrupt a block between the grant of its lock and the assignment."""
    hold = Hold(redlock, key)
    hold._process = os.getpid()  # noqa: SLF001  (all that the block knows by then)
    hold._is_used = hold._may_be_granted = True  # noqa: SLF001
    redlock.acquire(key, base=hold._base)  # noqa: SLF001
    cut()
    hold.release()


@pytest.mark.parametrize(
    "end",
    [release, release_in_a_coroutine, release_of_a_process, resign, lose, interrupted],
)
def test_node_that_missed_a_release_gets_it_later(
    three_nodes: DevNodes,
    key: str,
    end: Callable[[Redlock, str, Callable[[], None]], None],
) -> None:
    """The process asks the nodes for nothing more: the lock would stay for its ttl."""
    with proxied(three_nodes, ttl=60.0) as (lines, redlock):
        until_all_vote(redlock)
        if end not in (resign, lose):  # an elector makes it
            watchdog_of(redlock)

        def cut() -> None:
            until(lambda: len(locks(three_nodes, key)) == len(lines))
            lines[0].cut()

        end(redlock, key, cut)
        lines[0].mend()

        until(lambda: not locks(three_nodes, key), 15.0)
        watchdog_of(redlock).stop()


def test_node_that_was_away_for_long_hears_who_has_left_a_line(
    three_nodes: DevNodes, key: str
) -> None:
    """Its word alone would hold up the next call, long after the end of any lock."""
    with by_proxies(three_nodes, **SHORT) as (lines, redlock):
        for task_id in ("first", "second"):
            until(
                lambda task_id=task_id: number_in_backlog(  # type: ignore[misc]
                    redlock, key, task_id, least=1, margin=600
                )
            )
        (name,) = redlock.keys.backlogs(key)
        nodes = three_nodes.nodes
        until(lambda: all(node.command("ZCARD", name) == 2 for node in nodes))

        lines[0].cut()
        leave_backlog(redlock, key, "first", in_order=True)
        until_at = time.monotonic() + 2 * redlock.timing.max_ttl
        until(lambda: time.monotonic() > until_at)
        lines[0].mend()

        until(lambda: nodes[0].command("ZCARD", name) == 1, 15.0)
        until(lambda: is_first(redlock, key, "second"))
