"""What a diagnosis finds of servers that are no independent masters for locks alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis

from celery_redlock.core.redlock import Redlock
from celery_redlock.devnodes import DevNode, ServerOptions
from celery_redlock.diagnostics import Case, Severity
from celery_redlock.diagnostics.deployment import hosts, tls
from tests.cli.findings import ERROR, NOTE, WARNING, codes, found_on, label, the
from tests.nodes.support import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.devnodes import DevNodes
    from celery_redlock.diagnostics import Finding

# -- who they are ------------------------------------------------------------------


def test_server_that_is_listed_twice_is_found(five_nodes: DevNodes) -> None:
    """Two names of one server are one vote."""
    twin = five_nodes.urls[0].replace("127.0.0.1", "localhost")

    found = found_on([*five_nodes.urls, twin], restart_guard=False)

    finding = the("same-server", found)
    assert finding.severity is ERROR
    assert f"{label(five_nodes.nodes[0])} and localhost" in finding.fact


def follow(replica: DevNode, master: DevNode) -> None:
    """Make a node a replica of another one, and wait until it has its data."""

    def is_up() -> bool:
        status = replica.command("INFO", "replication").get("master_link_status")
        return bool(status == "up")

    replica.command("REPLICAOF", "127.0.0.1", master.port)
    until(is_up, 30, what="the replica to have followed")


def test_replica_is_found(three_nodes: DevNodes) -> None:
    """It is named with its master; the master's replica is noted as well."""
    first, second, _ = three_nodes.nodes
    follow(second, first)

    found = found_on(three_nodes)

    finding = the("replica", found)
    assert finding.severity is ERROR
    assert f"is a replica of 127.0.0.1:{first.port}" in finding.fact
    assert the("replicas", found).about == label(first)


def test_promoted_replica_is_found(three_nodes: DevNodes) -> None:
    """A failover has put it where it is: it may do so again."""
    first, second, _ = three_nodes.nodes
    follow(second, first)
    second.command("REPLICAOF", "NO", "ONE")

    finding = the("promoted", found_on(three_nodes))

    assert (finding.severity, finding.about) == (WARNING, label(second))


@pytest.mark.every_server
def test_redis_cluster_is_found(start_nodes: Callable[..., DevNodes]) -> None:
    """Members of a cluster get no vote."""
    options = ServerOptions(config={"cluster-enabled": "yes"})
    nodes = start_nodes(3, options=options, initialize=False)

    found = found_on(nodes)

    assert codes(found) == {"cluster", "no-quorum"}
    assert "belongs to a Redis Cluster" in found[1].fact


# -- how they are set up -----------------------------------------------------------


@pytest.mark.parametrize(
    ("maxmemory", "severity"), [("50mb", ERROR), ("0", NOTE)], ids=["limit", "no limit"]
)
def test_eviction_is_found(
    three_nodes: DevNodes, maxmemory: str, severity: Severity
) -> None:
    """It is an error where memory is limited, and a note where it is not yet."""
    node = three_nodes.nodes[0]
    node.command("CONFIG", "SET", "maxmemory", maxmemory)
    node.command("CONFIG", "SET", "maxmemory-policy", "volatile-lru")

    finding = the("eviction", found_on(three_nodes))

    assert (finding.severity, finding.about) == (severity, label(node))


def test_keys_of_others_are_found(three_nodes: DevNodes) -> None:
    """A cache or broker beside the locks, in our database or in another one."""
    three_nodes.nodes[0].command("SET", ":1:views.cache", "page")
    with contextlib.closing(_database_1_of(three_nodes.nodes[1])) as other:
        other.set("session", "1")

    found = [f for f in found_on(three_nodes) if f.code == "shared"]

    assert [finding.about for finding in found] == [
        label(node) for node in three_nodes.nodes[:2]
    ]
    assert "the key ':1:views.cache'" in found[0].fact
    assert "database 1" in found[1].fact


def _database_1_of(node: DevNode) -> Any:
    return redis.Redis.from_url(node.url.replace("/0", "/1"))


def test_persistence_is_noted(start_nodes: Callable[..., DevNodes]) -> None:
    """It does no harm, and is not what protects from a restart."""
    append_only = start_nodes(3, options=ServerOptions(config={"appendonly": "yes"}))
    snapshots = start_nodes(3, options=ServerOptions(config={"save": "3600 1"}))

    by_file, by_snapshot = found_on(append_only), found_on(snapshots)

    assert codes(by_file) == codes(by_snapshot) == {"persistence"}
    assert "an append-only file" in by_file[0].fact
    assert "snapshots ('3600 1')" in by_snapshot[0].fact
    assert {finding.severity for finding in by_file + by_snapshot} == {NOTE}


def test_guard_that_is_off_is_found(start_nodes: Callable[..., DevNodes]) -> None:
    """Nodes that keep nothing are an error then, those that try to are a warning."""
    nodes = start_nodes(3)
    nodes.nodes[0].command("CONFIG", "SET", "appendonly", "yes")

    found = found_on(nodes, restart_guard=False)

    assert codes(found) == {"guard-off", "persistence"}
    assert the("guard-off", found).severity is WARNING
    kept = {f.about: f.severity for f in found if f.code == "persistence"}
    assert kept[label(nodes.nodes[0])] is WARNING
    assert kept[label(nodes.nodes[1])] is ERROR


def test_missing_permissions_are_found(start_nodes: Callable[..., DevNodes]) -> None:
    """The commands are named, and what follows from their lack is not."""
    acl = "~redlock:* &redlock:* +@all -hset"
    options = ServerOptions(username="u", password="p", acl=acl)
    nodes = start_nodes(3, options=options, initialize=False)
    nodes.nodes[1].command("ACL", "SETUSER", "u", "-info")

    found = [finding for finding in found_on(nodes) if finding.code == "acl"]

    assert [finding.severity for finding in found] == [ERROR] * 3
    assert found[0].fact.endswith("denies our user the commands hset.")
    assert found[1].fact.endswith("denies our user the commands info.")
    assert "doctor --acl" in found[0].remedy


# -- how they are chosen -----------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "code", "severity"),
    [
        (1, "few-nodes", WARNING),
        (2, "few-nodes", WARNING),
        (3, None, None),
        (4, "even-nodes", NOTE),
        (5, None, None),
        (6, "even-nodes", NOTE),
    ],
)
def test_number_of_nodes_is_judged(
    start_nodes: Callable[..., DevNodes],
    count: int,
    code: str | None,
    severity: Severity | None,
) -> None:
    """Fewer than three, and an even number, give little for what they cost."""
    found = found_on(start_nodes(count))

    assert codes(found) == ({code} if code else set())
    assert all(f.severity is severity for f in found if f.code == code)


def judged(rule: Callable[[Case], Iterator[Finding]], *urls: str) -> list[Finding]:
    """Return what one rule finds in these settings; nothing is connected to."""
    redlock = Redlock(urls)
    charts: list[Any] = [None] * len(urls)
    return list(rule(Case(redlock, charts)))


def test_nodes_on_one_machine_are_found() -> None:
    """Here it is a note, on any other machine a warning, on several it is nothing."""
    (here,) = judged(hosts, "redis://127.0.0.1:1", "redis://localhost:2", "unix:///s")
    (there,) = judged(hosts, "redis://10.9.8.7:1", "redis://10.9.8.7:2")

    assert (here.code, here.severity) == ("one-host", NOTE)
    assert (there.code, there.severity) == ("one-host", WARNING)
    assert "10.9.8.7" in there.fact
    assert judged(hosts, "redis://10.9.8.7:1", "redis://10.9.8.6:1") == []


def test_public_address_without_tls_is_found() -> None:
    """With TLS, or on a private network, there is nothing to say."""
    public, *more = judged(tls, "redis://8.8.8.8:6379", "rediss://8.8.4.4", "unix:///s")

    assert not more
    assert (public.code, public.severity) == ("no-tls", WARNING)
    assert "8.8.8.8" in public.fact
    assert (
        judged(tls, "redis://10.0.0.1", "redis://127.0.0.1", "redis://[fd00::1]") == []
    )
