"""Reaching nodes: TLS, ACLs, sockets; who is turned away; lines that come and go."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.redlock import Redlock
from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions, redis_servers
from celery_redlock.errors import (
    ConfigurationError,
    LockUnavailable,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.locking import lock
from tests.conftest import missing
from tests.nodes.support import (
    client,
    kinds,
    locks,
    until,
    until_nothing_is_left,
    values,
    wires,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECRET = "s3cr3t/@:%#&=?+ ü"


def use(redlock: Redlock, key: str) -> None:
    """Take a lock, renew it and let it go."""
    lease = redlock.acquire(key, wait=5)
    assert redlock.extend(lease)
    lease.ensure(network=True)
    assert redlock.release(lease)


def until_all_vote(redlock: Redlock, seconds: float = 10.0) -> None:
    """Wait until every node gives this service its vote."""
    until(lambda: redlock.check().problems == [], seconds, what="all nodes to vote")


def refusal(redlock: Redlock, key: str = "k") -> QuorumUnreachable:
    """Fail to take a lock and return the error."""
    with pytest.raises(QuorumUnreachable) as refused:
        redlock.acquire(key)
    return refused.value


# -- Ways to reach a node --------------------------------------------------------------


@pytest.fixture
def tls_nodes(
    certificate: tuple[Path, Path], request: pytest.FixtureRequest
) -> Iterator[DevNodes]:
    """Give three nodes that speak TLS and nothing else."""
    files = str(certificate[0]), str(certificate[1])
    options = ServerOptions(certificate=files, password="pass word")
    for binary in redis_servers():
        nodes = DevNodes(3, binary=binary, options=options)
        try:
            nodes.start()
        except RedlockError as error:
            if "tls" not in str(error):
                raise
            continue
        yield nodes
        nodes.stop()
        return
    missing("no redis-server here was built with TLS")


def test_nodes_are_reached_by_tls(tls_nodes: DevNodes, key: str) -> None:
    """With rediss:// all goes over TLS, also what is longer than one record."""
    assert all(url.startswith("rediss://") for url in tls_nodes.urls)
    with client(tls_nodes) as redlock:
        until_all_vote(redlock)
        use(redlock, key)
        use(redlock, "k" * 40_000)
        with lock(redlock, key, ttl=1) as lease:
            end = lease.until
            until(lambda: lease.until > end + 0.7)
    until_nothing_is_left(tls_nodes)


def test_tls_nodes_recover_their_fences(
    tls_nodes: DevNodes, certificate: tuple[Path, Path]
) -> None:
    """A hundred kilobytes of counters, in both directions, fit through TLS."""
    short: dict[str, Any] = {"ttl": 0.9, "max_ttl": 1.0}
    with client(tls_nodes, **short, prefix="short") as redlock:
        redlock.initialize()
        for node in tls_nodes.nodes:
            fields = [word for n in range(4096) for word in (n, 4 * 10**15 + n)]
            node.command("HSET", "short:fence", *fields)
        tls_nodes.nodes[0].command("DEL", "short:meta", "short:fence")

        until_all_vote(redlock)

        assert tls_nodes.nodes[0].command("HGET", "short:fence", 17) == str(
            4 * 10**15 + 17
        )


def test_certificate_that_is_not_trusted_is_an_error_of_that_node(
    tls_nodes: DevNodes,
) -> None:
    """A node that cannot prove who it is gets no vote, and the error says why."""
    urls = [url.partition("?")[0] for url in tls_nodes.urls]
    with client(urls) as redlock:
        error = refusal(redlock)

    assert "certificate" in str(error).lower()
    assert "pass" not in str(error)


def test_plain_client_of_a_tls_node_is_told(tls_nodes: DevNodes) -> None:
    """redis:// to a node that speaks TLS fails, and does not hang."""
    urls = [f"redis://:x@127.0.0.1:{node.port}/0" for node in tls_nodes.nodes]
    with client(urls) as redlock:
        error = refusal(redlock)

    assert kinds(error.ballot) == [VoteKind.SILENT] * 3


@pytest.mark.every_server
def test_nodes_are_reached_by_unix_socket(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """With unix:// there is no port; labels are the paths."""
    nodes = start_nodes(3, options=ServerOptions(unix_socket=True, password=SECRET))
    with client(nodes) as redlock:
        assert all(label.endswith("/socket/0") for label in redlock.labels)
        assert not any("s3cr3t" in label for label in redlock.labels)
        use(redlock, key)
        nodes.nodes[0].kill()
        nodes.nodes[1].kill()
        error = refusal(redlock, key)
        until(lambda: "refused the connection" in str(refusal(redlock, key)))
        assert redlock.labels[0] in str(error)
        assert "s3cr3t" not in str(refusal(redlock, key))


@pytest.mark.every_server
def test_nodes_are_reached_as_a_limited_user(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A user with the rights that the README names needs no more than those."""
    options = ServerOptions(
        username="locker",
        password=SECRET,
        acl="~redlock:* +eval +evalsha +script +info +time +scan +get +set +del "
        "+hget +hset +hmget +hgetall +pttl +pexpire",
    )
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock:
        until_all_vote(redlock)
        use(redlock, key)
        for node in nodes.nodes:
            node.command("SCRIPT", "FLUSH")
        use(redlock, key)
    until_nothing_is_left(nodes)


@pytest.mark.every_server
@pytest.mark.parametrize("missing_right", ["info", "evalsha", "hset", "set"])
def test_right_that_is_missing_is_named(
    start_nodes: Callable[..., DevNodes], key: str, missing_right: str
) -> None:
    """A user who may not do what is needed gets no vote, with the server's words."""
    options = ServerOptions(username="locker", password="secret")
    nodes = start_nodes(3, options=options)
    for node in nodes.nodes:
        node.command("ACL", "SETUSER", "locker", f"-{missing_right}")
    with client(nodes) as redlock:
        error = refusal(redlock, key)

    assert missing_right in str(error) or "permission" in str(error).lower()
    assert "secret" not in str(error)
    until_nothing_is_left(nodes)


def test_wrong_password_is_named_and_not_shown(
    start_nodes: Callable[..., DevNodes], caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials that are rejected appear nowhere: not in errors, labels or logs."""
    caplog.set_level(logging.DEBUG)
    nodes = start_nodes(3, options=ServerOptions(password="right"))
    wrong = quote(SECRET, safe="")
    urls = [f"redis://:{wrong}@127.0.0.1:{node.port}/0" for node in nodes.nodes]
    with client(urls) as redlock:
        error = refusal(redlock)
        said = [str(error), repr(error), repr(redlock), *redlock.labels, caplog.text]
        said += [repr(redlock.addresses), str(redlock.check().problems)]

    assert "rejected the credentials" in str(error)
    assert not any(part in text for text in said for part in ("s3cr3t", wrong))


def test_missing_password_is_named(start_nodes: Callable[..., DevNodes]) -> None:
    """A node that wants a password, and gets none, says so."""
    nodes = start_nodes(3, options=ServerOptions(password="right"))
    urls = [f"redis://127.0.0.1:{node.port}/0" for node in nodes.nodes]
    with client(urls) as redlock:
        assert "rejected the credentials" in str(refusal(redlock))


def test_password_that_changes_is_noticed_and_repaired(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A user whose connections were ended at a change gets in again by itself."""
    options = ServerOptions(username="locker", password="one")
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock:
        use(redlock, key)
        for node in nodes.nodes:
            node.command("ACL", "SETUSER", "locker", "resetpass", ">two")
            node.command("CLIENT", "KILL", "USER", "locker")
        until(lambda: "rejected the credentials" in str(refusal(redlock, key)))
        for node in nodes.nodes:
            node.command("ACL", "SETUSER", "locker", ">one")

        until_all_vote(redlock)
        use(redlock, key)


# -- Who is turned away ----------------------------------------------------------------


@pytest.mark.every_server
def test_redis_cluster_is_refused(start_nodes: Callable[..., DevNodes]) -> None:
    """Its nodes are not independent: each is told apart and gets no vote."""
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
    """Also on a connection that was made while it was a master, it grants nothing."""
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
    """The same run id twice is refused, by whichever name it is met first."""
    (node,) = start_nodes(1).nodes
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        with wires_to(node, node) as (one, two):
            for number in range(15):
                options: dict[str, Any] = {
                    "prefix": f"{number}",
                    "restart_guard": False,
                }
                with client([one, two, dead], **options) as redlock:
                    with pytest.raises(QuorumUnreachable):
                        redlock.acquire(key)
                    assert "the same server as" in str(redlock.check().problems)
                    with pytest.raises(QuorumUnreachable) as refused:
                        redlock.acquire(key)
                    assert "list each one once" in str(refused.value)


@contextlib.contextmanager
def wires_to(*targets: DevNode) -> Iterator[list[str]]:
    """Give URLs of lines to these nodes."""
    nodes = DevNodes(len(targets))
    nodes.nodes[:] = targets
    with wires(nodes) as lines:
        yield [line.url for line in lines]


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
    """Two entries of one host and port are a mistake that needs no network."""
    urls = [f"redis://{name.format(7000)}" for name in names]

    with pytest.raises(ConfigurationError) as refused:
        Redlock([*urls, "redis://127.0.0.1:7001/0"])

    assert "pass" not in str(refused.value)


def test_server_that_is_no_redis_is_an_error_of_that_node(
    three_nodes: DevNodes, key: str
) -> None:
    """Whatever listens there, it costs a vote, and the error names it."""
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
    """Give the URL of a server that answers everything like this."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                while connection.recv(4096):
                    connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


# -- Lines that come and go ------------------------------------------------------------


@pytest.mark.every_server
def test_restarted_node_is_connected_to_again(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A node that was away is back in the vote without anybody's help."""
    nodes = start_nodes(3)
    with client(nodes, restart_guard=False) as redlock:
        for node in nodes.nodes:
            use(redlock, key)
            node.kill()
            use(redlock, key)
            node.restart()
            until_all_vote(redlock)
    until_nothing_is_left(nodes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_idle_connections_that_were_closed_cost_no_acquire(
    three_nodes: DevNodes, key: str, count: int
) -> None:
    """A service that was idle notices what servers closed meanwhile, before it asks."""
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
    """With `timeout 1` on all servers a task now and then still gets its lock."""
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
    """A node that breaks off at each release is told each again, but not ever more."""
    with wires(three_nodes) as lines:
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
    """After `close`, twice, the next use connects anew; locks are not touched by it."""
    with client(shared_nodes) as redlock:
        lease = redlock.acquire(key)
        redlock.close()
        redlock.close()

        until(lambda: redlock.extend(lease))

        redlock.close()
        redlock.release(lease)

        def is_told() -> bool:
            redlock.check()  # whatever comes next brings it along
            return not locks(shared_nodes, key)

        until(is_told)
        redlock.close()


def test_node_that_cannot_be_resolved_is_an_error_of_that_node(
    shared_nodes: DevNodes, key: str
) -> None:
    """A name that DNS does not know costs its own vote and no time."""
    urls = [*shared_nodes.urls[:2], "redis://no-such-host.invalid:6379/0"]
    with client(urls, prefix=key, restart_guard=False) as redlock:
        use(redlock, key)
        until(lambda: "no-such-host.invalid:6379/0 " in str(redlock.check().problems))


def test_no_error_of_redis_py_gets_out(three_nodes: DevNodes) -> None:
    """Whatever is asked of nodes that are gone, the error is one of the package's."""
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
