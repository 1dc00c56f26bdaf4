"""Servers that get no vote, and answers that are unusual.

Replicas, clusters, other programs, one server that is listed twice; forgotten scripts,
refused writes.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from celery_redlock.errors import (
    ConfigurationError,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.locking import watchdog_of
from celery_redlock.locks.lease import Lease
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.inspect import node_status
from celery_redlock.wire.broadcast import Broadcast
from celery_redlock.wire.node import Node
from celery_redlock.wire.quorum import VoteKind
from tests.harness.tcp import ScriptedServer, proxies
from tests.nodes.support import (
    BRIEF,
    SHORT,
    StartNodes,
    client,
    granted,
    held,
    initialize_anew,
    kinds,
    refusal,
    until,
    until_all_vote,
    until_nothing_is_left,
    use,
)

# -- Servers that get no vote ------------------------------------------------------


@pytest.mark.every_server
def test_redis_cluster_is_refused(start_nodes: StartNodes) -> None:
    """Nodes of a cluster are not independent; each is recognized and gets no vote."""
    options = ServerOptions(config={"cluster-enabled": "yes"})
    nodes = start_nodes(3, options=options, initialize=False)
    with client(nodes, restart_guard=False) as redlock:
        refusal(redlock, says="belongs to a Redis Cluster; use independent masters")

    assert not any(node.command("KEYS", "*") for node in nodes.nodes)


@pytest.mark.every_server
@pytest.mark.parametrize("read_only", ["yes", "no"])
def test_replica_is_refused(three_nodes: DevNodes, key: str, read_only: str) -> None:
    """A replica follows another node; its vote would be that node's second one.

    This holds also if it takes writes.
    """
    first, second, third = three_nodes.nodes
    second.command("CONFIG", "SET", "replica-read-only", read_only)
    second.command("REPLICAOF", "127.0.0.1", first.port)
    third.kill()
    with client(three_nodes) as redlock:
        refusal(redlock, key, says=f"is a replica of 127.0.0.1:{first.port}")
        second.command("REPLICAOF", "NO", "ONE")
        # Whether it had already taken over the other's data decides what it says.
        votes = (VoteKind.QUARANTINED, VoteKind.GRANTED, VoteKind.UNSYNCED)
        until(lambda: kinds(redlock.check().ballot)[1] in votes)


def test_node_that_is_a_replica_again_is_logged_again(
    three_nodes: DevNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """The line of the first time says nothing of the second one."""
    first, second, _ = three_nodes.nodes
    with client(three_nodes) as redlock:
        for times in (1, 2):
            second.command("REPLICAOF", "127.0.0.1", first.port)
            second.command("CLIENT", "KILL", "TYPE", "normal")
            until(lambda: "is a replica" in redlock.check().ballot.reasons())
            said = [it for it in caplog.messages if it.endswith("It does not vote.")]
            assert len(said) == times
            second.command("REPLICAOF", "NO", "ONE")
            until(lambda: "is a replica" not in redlock.check().ballot.reasons())


@pytest.mark.parametrize("guard", [True, False], ids=["guarded", "unguarded"])
def test_node_that_becomes_a_replica_loses_its_vote(
    three_nodes: DevNodes, key: str, *, guard: bool
) -> None:
    """It grants nothing, also on a connection that was made while it was a master."""
    first, second, third = three_nodes.nodes
    with client(three_nodes, restart_guard=guard) as redlock:
        initialize_anew(redlock, three_nodes)
        until_all_vote(redlock)
        second.command("REPLICAOF", "127.0.0.1", first.port)
        third.kill()
        for number in range(20):
            with pytest.raises(LockUnavailable):
                redlock.acquire(f"{key}:{number}")


@pytest.mark.every_server
def test_writable_replica_loses_its_vote_with_its_memory(
    start_nodes: StartNodes, key: str
) -> None:
    """It has the identity and the name of its master, and is a replica: no vote.

    The writes of its master may overwrite a lock on it at any time. A node that
    restarts later shows when a node that has lost its memory would vote.
    """
    options = ServerOptions(config={"repl-diskless-sync-delay": "0"})
    nodes = start_nodes(5, options=options, max_ttl=SHORT["max_ttl"])
    master, replica, other, *_ = nodes.nodes
    with client(nodes, **SHORT) as redlock:
        until_all_vote(redlock)
        replica.command("CONFIG", "SET", "replica-read-only", "no")
        replica.command("REPLICAOF", "127.0.0.1", master.port)
        until(lambda: replica.command("INFO")["master_link_status"] == "up", 30.0)
        redlock.check()
        other.restart()

        until(lambda: kinds(redlock.check().ballot)[2] is VoteKind.GRANTED, 30.0)
        vote = VoteKind.SILENT
        while vote is VoteKind.SILENT:
            vote = kinds(redlock.check().ballot)[1]
        assert vote is VoteKind.UNSYNCED
        replica.command("REPLICAOF", "NO", "ONE")
        until_all_vote(redlock, 30.0)
        redlock.release(granted(redlock, key))


def test_node_waits_when_its_first_replica_comes_and_after_the_last_has_gone(
    start_nodes: StartNodes, node: DevNode, key: str
) -> None:
    """Redis gives its data another name each time. A lock that is held is renewed."""
    options = ServerOptions(config={"repl-backlog-ttl": "1"})
    nodes = start_nodes(1, options=options, max_ttl=BRIEF)
    with client(nodes, ttl=BRIEF, max_ttl=BRIEF) as redlock:
        for master in (("127.0.0.1", nodes.nodes[0].port), ("NO", "ONE")):
            lease = granted(redlock, key)
            node.command("REPLICAOF", *master)

            def is_in_quarantine(lease: Lease = lease) -> bool:
                assert redlock.extend(lease) or lease.is_valid()
                return kinds(redlock.check().ballot) == [VoteKind.QUARANTINED]

            until(is_in_quarantine, 30.0)
            until(partial(redlock.extend, lease))
            redlock.release(lease)
            until_all_vote(redlock, 30.0)


@pytest.mark.every_server
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_node_that_may_evict_has_no_vote(
    start_nodes: StartNodes, key: str, policy: str
) -> None:
    """A lock that is evicted is lost. The node votes when its policy is mended."""
    options = ServerOptions(config={"maxmemory": "50mb", "maxmemory-policy": policy})
    nodes = start_nodes(1, options=options, initialize=False)
    with client(nodes) as redlock:
        says = f"may evict locks (maxmemory-policy {policy})"
        refusal(redlock, key, says=says)
        nodes.nodes[0].command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        until(lambda: kinds(redlock.check().ballot) == [VoteKind.QUARANTINED])


def test_release_reaches_a_node_that_had_no_vote_when_it_was_sent(
    three_nodes: DevNodes, key: str
) -> None:
    """It gets the release when it votes again. Else the lock stays until its ttl."""
    with client(three_nodes) as redlock:
        lease = redlock.acquire(key)
        for node in three_nodes.nodes:
            set_policy(node, "allkeys-lru")
            node.command("CLIENT", "KILL", "TYPE", "normal")
        # A node is connected to again for a request, and each check is one.
        until(lambda: str(redlock.check().problems).count("may evict") == 3)
        until(lambda: all(it.unfit_because for it in nodes_of(redlock)))
        assert redlock.release(lease) == 0
        for node in three_nodes.nodes:
            set_policy(node, "noeviction")

        until(lambda: not redlock.check().problems)

        until_nothing_is_left(three_nodes, key)


def test_one_server_under_two_names_is_one_vote(
    start_nodes: StartNodes, key: str
) -> None:
    """A second name of one server gets no vote, whichever name replies first."""
    (node,) = start_nodes(1).nodes
    with socket.socket() as listener, proxies([node, node]) as lines:
        listener.bind(("127.0.0.1", 0))
        dead = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        urls = [*(line.url for line in lines), dead]
        for number in range(15):
            with client(urls, prefix=f"{number}", restart_guard=False) as redlock:
                refusal(redlock, key, says="list each one once")
                assert "the same server as" in str(redlock.check().problems)


def test_no_release_waits_for_a_node_that_never_had_a_vote(
    three_nodes: DevNodes, key: str
) -> None:
    """It has granted nothing, also where it was connected to time after time."""
    set_policy(three_nodes.nodes[0], "allkeys-lru")
    with client(three_nodes) as redlock:
        lease = granted(redlock, key)
        misfit = nodes_of(redlock)[0]

        def is_found() -> bool:
            redlock.inspect(key)  # it may have been connected to after the grant
            return bool(misfit.unfit_because)

        until(is_found)
        first = misfit.facts

        def is_connected_anew() -> bool:
            redlock.inspect(key)
            return misfit.facts is not None and misfit.facts is not first

        until(is_connected_anew)
        assert redlock.release(lease) == 2

        assert not misfit.has_pending


def nodes_of(redlock: Redlock) -> Sequence[Node]:
    """Return the nodes of a service, as its transport knows them."""
    assert isinstance(redlock.transport, Broadcast)
    return redlock.transport.nodes


def set_policy(node: DevNode, policy: str) -> None:
    """Have a node with a limit of its memory evict keys by this policy."""
    node.command("CONFIG", "SET", "maxmemory", "1gb")
    node.command("CONFIG", "SET", "maxmemory-policy", policy)


@pytest.mark.parametrize(
    "other", ["127.0.0.1:7000/0", "127.0.0.1:7000/1", "user:pass@127.0.0.1:7000/0"]
)
def test_one_server_that_is_listed_twice_is_refused_at_once(other: str) -> None:
    """Two entries with the same host and port are refused without a connection."""
    urls = ["127.0.0.1:7000/0", other, "127.0.0.1:7001/0"]

    with pytest.raises(ConfigurationError) as refused:
        Redlock([f"redis://{url}" for url in urls])

    assert "pass" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the protocol"),
        (b"$-999999999999\r\n", "but did not answer within 1 s"),
        (b"-ERR max number of clients reached\r\n", "(max number of clients reached)"),
        (b"-LOADING Redis is loading the dataset\r\n", "loads its data from its disk"),
        (b"*2147483647\r\n", "but did not answer within 1 s"),
        (b"$999999999999\r\n" + bytes(2 << 20), "sent over a megabyte"),
        (b"." * (2 << 20), "sent over a megabyte"),
    ],
    ids=["http", "length", "full", "loading", "array", "bulk", "stream"],
)
def test_server_that_is_no_redis_is_an_error_of_that_node(
    shared_nodes: DevNodes, key: str, answer: bytes, reason: str
) -> None:
    """It has no vote. The error is ours, and names it with the reason."""
    with (
        stranger(answer) as one,
        stranger(answer) as two,
        client([shared_nodes.urls[0], one, two], connect_timeout=1.0) as redlock,
    ):
        until(lambda: str(refusal(redlock, key)).count(reason) == 2)
        error = refusal(redlock, key)

        assert kinds(error.ballot)[1:] == [VoteKind.SILENT] * 2
        for label in redlock.labels[1:]:
            assert label in str(error)


@contextlib.contextmanager
def stranger(answer: bytes) -> Iterator[str]:
    """Give the URL of a server that greets with this, and answers each command so."""
    server = ScriptedServer(lambda *_: answer)
    server.greeting = answer
    try:
        yield server.url
    finally:
        server.stop()


def test_node_that_cannot_be_resolved_is_an_error_of_that_node(
    shared_nodes: DevNodes, key: str
) -> None:
    """A name that DNS does not know costs its own vote and no time."""
    urls = [*shared_nodes.urls[:2], "redis://no-such-host.invalid:6379/0"]
    with client(urls, prefix=key, ttl=BRIEF, max_ttl=BRIEF) as redlock:
        use(redlock, key)
        until(lambda: "no-such-host.invalid:6379/0 " in str(redlock.check().problems))


LONG = "x" * 300_000


def refused(redlock: Redlock) -> str:
    """Return the error of a lock that is not granted."""
    with pytest.raises(LockUnavailable) as raised:
        redlock.acquire("key")
    return str(raised.value)


@pytest.mark.parametrize(
    "told",
    [
        {"SCRIPT": f"-ERR {LONG}", "EVALSHA": f"-ERR {LONG}"},
        {"EVALSHA": f"-ERR user_script: \x1b[2J{LONG}"},
        {"EVALSHA": f"*3\r\n:2\r\n${len(LONG)}\r\n{LONG}\r\n:9"},
        {"EVALSHA": f"*2\r\n:5\r\n${len(LONG)}\r\n{LONG}"},
        {"EVALSHA": f"*2\r\n:6\r\n${len(LONG)}\r\n{LONG}"},
        {"server": f"run_id:{LONG}\r\nredis_version:{LONG}\r\nredis_mode:{LONG}"},
        {"replication": f"role:slave\r\nmaster_host:{LONG}\r\nmaster_port:\x1b[2J"},
        {"memory": f"maxmemory:1\r\nmaxmemory_policy:{LONG}\x1b[2J"},
        {"INFO": f"-ERR {LONG}\x1b[2J"},
        {"INFO": f"-NOAUTH {LONG}"},
        {"INFO": f"{LONG}\x1b[2J"},
    ],
    ids=range(11),
)
def test_text_of_a_hostile_node_is_cut(
    told: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Errors and log lines have the start of what it says, and no escapes."""
    numbers = itertools.count()
    infos = {
        "server": "redis_version:7.0.0\r\nredis_mode:standalone",
        "replication": "role:master",
        "memory": "maxmemory:0",
    }
    infos |= {name: text for name, text in told.items() if name in infos}

    def answer(command: list[bytes], _: socket.socket) -> bytes:
        name, word = command[0].decode().upper(), command[-1].decode()
        if name in told:
            return f"{told[name]}\r\n".encode()
        if name == "INFO":
            text = infos.get(word, "\r\n".join(infos.values()))
            if word == "server" and "server" not in told:
                text += f"\r\nrun_id:{next(numbers)}"
            return f"${len(text)}\r\n{text}\r\n".encode()
        return b"+OK\r\n"

    caplog.set_level("DEBUG")
    servers = [ScriptedServer(answer) for _ in range(3)]
    try:
        with client([server.url for server in servers]) as redlock:
            until(lambda: "did not answer" not in refused(redlock))
            said = [refused(redlock), *redlock.check().problems]
            said += [one.doubt for one in node_status(redlock)]
    finally:
        for server in servers:
            server.stop()

    said += caplog.messages
    assert [len(text) for text in said if len(text) > 5_000] == []
    assert "\x1b" not in "".join(said)


# -- Unusual answers ---------------------------------------------------------------


@pytest.mark.every_server
def test_forgotten_scripts_are_sent_again(three_nodes: DevNodes, key: str) -> None:
    """A node that has forgotten its scripts costs a round trip and no vote."""

    def forget() -> None:
        for node in three_nodes.nodes:
            node.command("SCRIPT", "FLUSH")

    with client(three_nodes) as redlock:
        for step in range(5):
            lease = redlock.acquire(f"{key}:{step}")
            forget()
            assert redlock.extend(lease)
            forget()
            assert redlock.inspect(lease.key).votes >= 2
            forget()
            assert redlock.release(lease) >= 1
        until_nothing_is_left(three_nodes)


@pytest.mark.every_server
def test_fresh_nodes_get_the_scripts(five_nodes: DevNodes, key: str) -> None:
    """On new servers the first lock and its release reach all nodes."""
    with client(five_nodes) as redlock, client(five_nodes) as rival:
        redlock.check()  # connects to all of them
        lease = held(redlock, five_nodes, key)

        rival.release_base(key, lease.token.partition(".")[0])
        watchdog_of(rival).resend_releases()  # to nodes that were still connecting

        until_nothing_is_left(five_nodes)


@pytest.mark.every_server
def test_node_that_refuses_writes_is_an_error_of_that_node(
    three_nodes: DevNodes, key: str
) -> None:
    """A node without enough replicas or memory refuses; the other nodes decide."""
    first, second, third = three_nodes.nodes
    with client(three_nodes) as redlock:
        redlock.release(redlock.acquire(key))
        first.command("CONFIG", "SET", "min-replicas-to-write", "1")
        lease = redlock.acquire(key)
        assert redlock.extend(lease)
        redlock.release(lease)
        until_nothing_is_left([second, third])
        second.command("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(QuorumUnreachable, match=r"(?s)NOREPLICAS.*OOM") as refused:
            redlock.acquire(key)

        assert kinds(refused.value.ballot)[:2] == [VoteKind.REFUSED] * 2
        second.command("CONFIG", "SET", "maxmemory", "0")
        until_nothing_is_left(three_nodes)
        redlock.release(redlock.acquire(key))
