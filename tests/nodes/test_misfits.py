"""Servers that get no vote: replicas, clusters, other programs, one listed twice."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.quorum import VoteKind
from celery_redlock.core.redlock import Redlock
from celery_redlock.devnodes import DevNodes, ServerOptions
from celery_redlock.errors import ConfigurationError, LockUnavailable, QuorumUnreachable
from tests.harness.tcp import ScriptedServer, proxies
from tests.nodes.support import client, kinds, refusal, until, until_all_vote, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.mark.every_server
def test_redis_cluster_is_refused(start_nodes: Callable[..., DevNodes]) -> None:
    """Nodes of a cluster are not independent; each is recognized and gets no vote."""
    options = ServerOptions(config={"cluster-enabled": "yes"})
    nodes = start_nodes(3, options=options, initialize=False)
    with client(nodes, restart_guard=False) as redlock:
        error = refusal(redlock)

    assert "belongs to a Redis Cluster; use independent masters" in str(error)
    assert not any(node.command("KEYS", "*") for node in nodes.nodes)


@pytest.mark.every_server
def test_replica_is_refused(three_nodes: DevNodes, key: str) -> None:
    """A replica follows another node; its vote would be that node's second one."""
    first, second, third = three_nodes.nodes
    second.command("REPLICAOF", "127.0.0.1", first.port)
    third.kill()
    with client(three_nodes) as redlock:
        error = refusal(redlock, key)

        assert f"is a replica of 127.0.0.1:{first.port}" in str(error)
        second.command("REPLICAOF", "NO", "ONE")
        # Whether it had already taken over the other's data decides what it says.
        votes = (VoteKind.QUARANTINED, VoteKind.GRANTED)
        until(lambda: kinds(redlock.check().ballot)[1] in votes)


@pytest.mark.parametrize("guard", [True, False], ids=["guarded", "unguarded"])
def test_node_that_becomes_a_replica_loses_its_vote(
    three_nodes: DevNodes, key: str, *, guard: bool
) -> None:
    """It grants nothing, also on a connection that was made while it was a master."""
    first, second, third = three_nodes.nodes
    with client(three_nodes, restart_guard=guard) as redlock:
        until_all_vote(redlock)
        second.command("REPLICAOF", "127.0.0.1", first.port)
        third.kill()
        for number in range(20):
            with pytest.raises(LockUnavailable):
                redlock.acquire(f"{key}:{number}")


def test_one_server_under_two_names_is_one_vote(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A second name of one server gets no vote, whichever name replies first."""
    (node,) = start_nodes(1).nodes
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        dead = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        with proxies([node, node]) as lines:
            urls = [*(line.url for line in lines), dead]
            for number in range(15):
                options: dict[str, Any] = {
                    "prefix": f"{number}",
                    "restart_guard": False,
                }
                with client(urls, **options) as redlock:
                    with pytest.raises(QuorumUnreachable):
                        redlock.acquire(key)
                    assert "the same server as" in str(redlock.check().problems)
                    with pytest.raises(QuorumUnreachable) as refused:
                        redlock.acquire(key)
                    assert "list each one once" in str(refused.value)


@pytest.mark.parametrize(
    "names",
    [
        ("127.0.0.1:{0}/0", "127.0.0.1:{0}/0"),
        ("127.0.0.1:{0}/0", "127.0.0.1:{0}/1"),
        ("127.0.0.1:{0}/0", "user:pass@127.0.0.1:{0}/0"),
    ],
)
def test_one_server_that_is_listed_twice_is_refused_at_once(
    names: tuple[str, str],
) -> None:
    """Two entries with the same host and port are refused without a connection."""
    urls = [f"redis://{name.format(7000)}" for name in names]

    with pytest.raises(ConfigurationError) as refused:
        Redlock([*urls, "redis://127.0.0.1:7001/0"])

    assert "pass" not in str(refused.value)


def test_server_that_is_no_redis_is_an_error_of_that_node(
    three_nodes: DevNodes, key: str
) -> None:
    """A server that is no Redis costs one vote, and the error names it."""
    with contextlib.ExitStack() as stack:
        web = stack.enter_context(stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        odd = stack.enter_context(stranger(b"$-999999999999\r\n"))
        urls = [three_nodes.urls[0], web, odd]
        redlock = stack.enter_context(client(urls, connect_timeout=0.5))

        error = refusal(redlock, key)

        assert kinds(error.ballot)[1:] == [VoteKind.SILENT] * 2
        for label in redlock.labels[1:]:
            assert label in str(error)


@contextlib.contextmanager
def stranger(answer: bytes) -> Iterator[str]:
    """Give the URL of a server that sends this answer to each command."""
    server = ScriptedServer(lambda *_: answer)
    try:
        yield server.url
    finally:
        server.stop()


def test_node_that_cannot_be_resolved_is_an_error_of_that_node(
    shared_nodes: DevNodes, key: str
) -> None:
    """A name that DNS does not know costs its own vote and no time."""
    urls = [*shared_nodes.urls[:2], "redis://no-such-host.invalid:6379/0"]
    with client(urls, prefix=key, restart_guard=False) as redlock:
        use(redlock, key)
        until(lambda: "no-such-host.invalid:6379/0 " in str(redlock.check().problems))
