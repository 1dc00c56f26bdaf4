"""Connections that break: clients connect again, and no lock is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.devnodes import DevNodes, ServerOptions
from celery_redlock.errors import RedlockError
from tests.harness.tcp import proxies
from tests.nodes.support import (
    client,
    locks,
    run_python,
    until,
    until_all_vote,
    until_nothing_is_left,
    use,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.every_server
def test_restarted_node_is_connected_to_again(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A node that was restarted votes again without an operator's help."""
    nodes = start_nodes(3)
    with client(nodes, restart_guard=False) as redlock:
        for node in nodes.nodes:
            use(redlock, key)
            node.kill()
            use(redlock, key)
            node.restart()
            until_all_vote(redlock)
    until_nothing_is_left(nodes)


def test_connecting_imports_no_module(shared_nodes: DevNodes) -> None:
    """A child that is forked while a thread of its parent connects can connect.

    A fork during an import leaves the child a half-imported module and its lock.
    """
    program = """
import sys
from celery_redlock.core.redlock import Redlock
redlock = Redlock(sys.argv[1:], node_timeout=1.0)
before = set(sys.modules)
assert redlock.check().problems == []
print(sorted(set(sys.modules) - before))
"""
    assert run_python(program, *shared_nodes.urls) == ["[]"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_idle_connections_that_were_closed_cost_no_acquire(
    three_nodes: DevNodes, key: str, count: int
) -> None:
    """An idle service notices connections that servers closed before it uses them."""
    with client(three_nodes) as redlock:
        for number in range(2):
            until_all_vote(redlock)
            idle_since = redlock.clock.monotonic()
            for node in three_nodes.nodes[:count]:
                node.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            until(lambda: redlock.clock.monotonic() - idle_since > 0.6)  # noqa: B023

            lease = redlock.acquire(f"{key}:{number}")  # and not wait=...

            assert redlock.release(lease)


def test_servers_time_limit_for_idle_clients_costs_no_acquire(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """With `timeout 1` on all servers an occasional task still gets its lock."""
    nodes = start_nodes(3, options=ServerOptions(config={"timeout": "1"}))
    with client(nodes) as redlock:
        redlock.release(redlock.acquire(key))

        def are_closed() -> bool:
            connected = [n.command("INFO", "clients") for n in nodes.nodes]
            return all(info["connected_clients"] == 1 for info in connected)

        until(are_closed)
        redlock.release(redlock.acquire(key))


def test_line_that_is_cut_again_and_again_is_not_stormed(
    three_nodes: DevNodes, key: str
) -> None:
    """A node that breaks off gets each release again, in bursts of limited size."""
    with proxies(three_nodes) as lines:
        with client([line.url for line in lines]) as redlock:
            redlock.initialize()
            until_all_vote(redlock)
            leases = [redlock.acquire(f"{key}:{number}") for number in range(10)]
            until(lambda: None not in values(three_nodes, leases[-1].key))
            breaks = lines[0].cut_when(key.encode())
            for lease in leases:
                redlock.release(lease)

            def has_tried() -> bool:
                redlock.transport.drain(redlock.clock.monotonic())
                return breaks() >= 25

            until(has_tried, seconds=20)
            assert lines[0].longest_burst < 200_000
            lines[0].cut_when(None)

            def is_told() -> bool:
                redlock.transport.drain(redlock.clock.monotonic())
                return not values(three_nodes, leases[-1].key)[0]

            until(is_told)
        until_nothing_is_left(three_nodes)


def test_closed_service_opens_again(shared_nodes: DevNodes, key: str) -> None:
    """After `close`, even twice, the next use connects again; held locks stay held."""
    with client(shared_nodes) as redlock:
        lease = redlock.acquire(key)
        redlock.close()
        redlock.close()

        until(lambda: redlock.extend(lease))

        redlock.close()
        redlock.release(lease)

        def is_told() -> bool:
            redlock.check()  # the next request sends the release
            return not locks(shared_nodes, key)

        until(is_told)
        redlock.close()


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
