"""`redlock init` starts a deployment that is new, and refuses one that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.devnodes import DevNodes, ServerOptions
from celery_redlock.errors import QuorumUnreachable, RedlockError
from celery_redlock.scripts import INITIALIZE, Script
from tests.harness.waiting import until
from tests.nodes.support import client


@pytest.mark.every_server
def test_init_refuses_where_locks_live(start_nodes: Callable[..., DevNodes]) -> None:
    """A deployment with a live lock is not new: nothing is changed."""
    nodes = start_nodes(3)
    with client(nodes) as redlock:
        lease = redlock.acquire("k")
        before = nodes.nodes[0].command("HGETALL", "redlock:meta")

        with pytest.raises(RedlockError, match=r"live locks.*\(1 of them\).*not new"):
            redlock.initialize()

        assert nodes.nodes[0].command("HGETALL", "redlock:meta") == before
        redlock.release(lease)


def test_init_refuses_the_wait_that_clients_with_older_locks_have_begun(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """All nodes have lost power. Their clients run, and one still trusts its lock.

    The error that they get recommends no init, either.
    """
    nodes = start_nodes(3)
    with client(nodes) as worker, client(nodes) as operator:
        lease = worker.acquire(key, ttl=60.0)
        for node in nodes.nodes:
            node.restart()
        until(lambda: worker.check().retry_after is not None)

        with pytest.raises(QuorumUnreachable) as waits:
            worker.acquire("another")
        with pytest.raises(RedlockError) as refused:
            operator.initialize()

        assert "vote again by themselves in" in str(waits.value)
        assert "redlock init" not in str(waits.value)
        assert "were in use before they lost their memory" in str(refused.value)
        assert "vote by themselves in" in str(refused.value)
        with pytest.raises(QuorumUnreachable):
            operator.acquire(key)
        assert lease.is_valid()


def test_init_refuses_a_wait_that_a_new_client_began_before_those_with_older_locks(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A command has asked the nodes before the worker, which only renews its lock."""
    nodes = start_nodes(3)
    with client(nodes) as worker, client(nodes) as command:
        lease = worker.acquire(key, ttl=60.0)
        for node in nodes.nodes:
            node.restart()
        until(lambda: command.check().retry_after is not None)

        until(lambda: not worker.extend(lease) and told_of_use(nodes))
        with pytest.raises(RedlockError, match="were in use before they lost their"):
            command.initialize()

        assert lease.is_valid()


def told_of_use(nodes: DevNodes) -> bool:
    """Tell whether a majority has heard of an earlier deployment."""
    found = [node.command("HGET", "redlock:meta", "used") for node in nodes.nodes]
    return found.count(b"1") > 1 or found.count("1") > 1


def test_init_refuses_nodes_that_do_not_tell_how_long_they_wait(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """They deny TIME: an error is not read as the end of the wait."""
    options = ServerOptions(username="locker", password="secret")
    nodes = start_nodes(3, options=options)
    with client(nodes) as worker, client(nodes) as operator:
        worker.acquire(key, ttl=60.0)
        for node in nodes.nodes:
            node.restart()
        until(lambda: worker.check().retry_after is not None)
        for node in nodes.nodes:
            node.command("ACL", "SETUSER", "locker", "-time")
        before = [node.command("HGETALL", "redlock:meta") for node in nodes.nodes]

        with pytest.raises(RedlockError, match=r"time.*othing was changed"):
            operator.initialize()

        after = [node.command("HGETALL", "redlock:meta") for node in nodes.nodes]
        assert after == before


def test_init_that_was_interrupted_is_run_again(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Two nodes vote. One has what an older version stored, and joins them."""
    nodes = start_nodes(3)
    older = nodes.nodes[2]
    older.command("DEL", "redlock:meta")
    older.command("HSET", "redlock:meta", "config", "format 3, max_ttl 60 s, nodes a")
    with client(nodes) as redlock:
        with pytest.raises(RedlockError, match="Only 2 of 3 nodes can vote"):
            redlock.initialize()
        until(lambda: "is in quarantine" in redlock.check().problems[0])


def test_init_names_a_replica_and_not_what_its_master_was_told(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """It has the words of the clients of its master, and no vote for another reason."""
    nodes = start_nodes(3)
    first, second, third = nodes.nodes
    with client(nodes) as worker, client(nodes) as operator:
        worker.acquire(key)
        first.restart()
        third.restart()
        until(lambda: worker.check().retry_after is not None)
        second.command("REPLICAOF", "127.0.0.1", first.port)
        until(lambda: second.command("INFO")["master_link_status"] == "up")

        with pytest.raises(RedlockError) as refused:
            operator.initialize()

    replica = f"Node 127.0.0.1:{second.port}/0 is a replica of 127.0.0.1:{first.port}."
    assert str(refused.value).startswith(replica)


def test_init_that_lets_no_node_vote_does_not_say_that_some_do(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """One server has two names, so the nodes get no view that one of them lacks."""
    urls = start_nodes(2, initialize=False).urls
    again = urls[0].replace("127.0.0.1", "localhost")
    with client([*urls, again], connect_timeout=0.5) as redlock:
        with pytest.raises(RedlockError, match=r"Only 2 of 3 nodes can vote.*once"):
            redlock.initialize()

        assert redlock.check().ballot.granted == 0


def test_init_ends_the_wait_that_a_worker_begins_meanwhile(
    start_nodes: Callable[..., DevNodes],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that founds the deployment between two requests costs no client time."""
    nodes = start_nodes(3, initialize=False)
    with client(nodes) as redlock, client(nodes) as worker:
        ask = redlock.guard.ask
        founded: list[bool] = []

        def found_first(script: Script, *args: Any) -> Any:
            if script is INITIALIZE and not founded:
                founded.append(True)
                with pytest.raises(QuorumUnreachable, match="is in quarantine"):
                    worker.acquire(key)
            return ask(script, *args)

        monkeypatch.setattr(redlock.guard, "ask", found_first)
        redlock.initialize()

        assert founded
        worker.release(worker.acquire(key))
        redlock.release(redlock.acquire(key))


def test_init_sees_locks_under_a_prefix_with_wildcards(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Init finds live locks if SCAN could read the prefix as a pattern."""
    nodes = start_nodes(1, initialize=False)
    with client(nodes, prefix="shop[1]") as redlock:
        redlock.initialize()
        redlock.acquire("k")

        with pytest.raises(RedlockError, match="live locks"):
            redlock.initialize()


@pytest.mark.parametrize("change", ["nodes", "max_ttl", "guard"])
def test_init_refuses_nodes_of_another_deployment(
    start_nodes: Callable[..., DevNodes], key: str, change: str
) -> None:
    """One "yes" must not give two deployments one node. The error names both."""
    nodes = start_nodes(5, initialize=False)
    urls = nodes.urls[:3]
    each: dict[str, dict[str, Any]] = {
        "nodes": {},
        "max_ttl": {"max_ttl": 120.0},
        "guard": {"restart_guard": False},
    }
    with client(urls) as redlock:
        redlock.initialize()
        lease = redlock.acquire(key)
        redlock.release(lease)
        others = [urls[0], *nodes.urls[3:]] if change == "nodes" else urls
        with client(others, **each[change]) as other:
            with pytest.raises(RedlockError, match="is set up differently") as refused:
                other.initialize()
            remedy = "celery -A proj redlock reconfigure"
            if change == "guard":
                remedy = "move the nodes by hand"
            assert remedy in str(refused.value)
            if change == "nodes":
                assert not nodes.nodes[3].command("KEYS", "*")

        assert redlock.acquire(key).fence > lease.fence
