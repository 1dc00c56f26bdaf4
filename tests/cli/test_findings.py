"""What a diagnosis finds, each thing provoked on real servers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.redlock import Redlock
from celery_redlock.devnodes import DevNode, ServerOptions
from celery_redlock.diagnostics import Case, Severity, diagnose
from celery_redlock.diagnostics.deployment import hosts, tls
from tests.nodes.support import PATIENT, client, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_redlock.devnodes import DevNodes
    from celery_redlock.diagnostics import Finding

AS_ALWAYS = {"one-host"}  # these are tests: all nodes are on this machine
NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR


def found_on(nodes: DevNodes | Sequence[Any], **options: Any) -> list[Finding]:
    """Return what a diagnosis of these nodes finds."""
    with client(nodes, **options) as redlock:
        return diagnose(redlock, span=0.05)


def the(code: str, findings: Sequence[Finding]) -> Finding:
    """Return the only finding of this kind; there must be a fact and a remedy."""
    (finding,) = [finding for finding in findings if finding.code == code]
    assert finding.fact.endswith(".")
    assert finding.remedy.rstrip(")").endswith(".")
    return finding


def codes(findings: Sequence[Finding]) -> set[str]:
    """Return what kinds of things were found, besides what always is."""
    return {finding.code for finding in findings} - AS_ALWAYS


def label(node: DevNode) -> str:
    """Return what the node is called."""
    return f"127.0.0.1:{node.port}/0"


@pytest.mark.every_server
def test_healthy_deployment_is_met_with_silence(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Three and five nodes, well set up and in use: nothing to complain about."""
    for count in (3, 5):
        nodes = start_nodes(count)
        with client(nodes) as redlock:
            redlock.acquire("k")
            assert codes(diagnose(redlock)) == set()


# -- Whether they answer and vote --------------------------------------------------


def test_node_that_is_down_is_unreachable(five_nodes: DevNodes) -> None:
    """One of five is missed, and the others do."""
    five_nodes.nodes[2].kill()

    found = found_on(five_nodes)

    assert codes(found) == {"unreachable"}
    finding = the("unreachable", found)
    assert finding.severity is WARNING
    assert finding.fact == f"Node {label(five_nodes.nodes[2])} refused the connection."


def test_node_that_hangs_is_unreachable(five_nodes: DevNodes) -> None:
    """A stopped process still accepts connections; it is given up in time."""
    five_nodes.nodes[2].pause()

    found = found_on(five_nodes, connect_timeout=0.3)

    assert "within 0.3 s" in the("unreachable", found).fact


def test_wrong_password_is_named_as_such(start_nodes: Callable[..., DevNodes]) -> None:
    """The remedy is another one than for a node that is down."""
    options = ServerOptions(password="right")
    nodes = start_nodes(1, options=options, initialize=False)

    found = found_on([nodes.urls[0].replace("right", "wrong")])

    finding = the("unreachable", found)
    assert "rejected the credentials" in finding.fact
    assert "password" in finding.remedy


def test_bare_quorum_is_at_its_edge(three_nodes: DevNodes) -> None:
    """Two of three vote: it works, and one more loss stops everything."""
    three_nodes.nodes[0].kill()

    found = found_on(three_nodes)

    assert codes(found) == {"unreachable", "quorum-edge"}
    assert the("quorum-edge", found).severity is WARNING


def test_no_quorum_is_an_error(three_nodes: DevNodes) -> None:
    """One of three votes: nothing can be locked."""
    for node in three_nodes.nodes[:2]:
        node.kill()

    found = found_on(three_nodes)

    assert found[0] is the("no-quorum", found)
    assert found[0].severity is ERROR
    assert "Only 1 of 3 nodes vote" in found[0].fact


def test_slow_node_is_named(five_nodes: DevNodes) -> None:
    """Who answers in more than half of the time that is allowed is too slow."""
    finding = found_on(five_nodes, node_timeout=1e-6)[0]

    assert (finding.code, finding.severity) == ("slow", WARNING)
    assert "redlock_node_timeout is 0.001 ms" in finding.fact


def test_new_node_will_be_in_quarantine(start_nodes: Callable[..., DevNodes]) -> None:
    """It has not been asked yet, so its wait has not even begun."""
    nodes = start_nodes(3, initialize=False)

    found = found_on(nodes)

    assert codes(found) == {"quarantine", "no-quorum"}
    assert "will not vote for 62 s from when it is first asked" in found[1].fact


def test_node_that_restarted_empty_is_in_quarantine(five_nodes: DevNodes) -> None:
    """How long it still does not vote is said."""
    five_nodes.nodes[0].restart()
    with client(five_nodes) as redlock:
        redlock.check()

        found = diagnose(redlock, span=0.05)

    assert codes(found) == {"quarantine"}
    assert "does not vote for 6" in the("quarantine", found).fact


def test_node_after_its_quarantine_waits_for_fences(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Its quarantine has ended, and nobody has told it the fences yet."""
    nodes = start_nodes(5, max_ttl=0.5)
    short = {"ttl": 0.5, "max_ttl": 0.5, "node_timeout": 0.1}
    nodes.nodes[0].restart()
    with client(nodes, **short) as redlock:
        redlock.check()
    until(lambda: not nodes.nodes[0].command("EXISTS", "redlock:quarantine"))

    found = found_on(nodes, **short)

    assert codes(found) == {"unsynced", "ttl"}


def test_other_settings_are_told_apart_by_what_differs(
    three_nodes: DevNodes,
) -> None:
    """Another max_ttl, and another list of nodes, are named with both values."""
    other_ttl = found_on(three_nodes, max_ttl=120.0)
    other_list = found_on(three_nodes.urls[:2])

    missing = label(three_nodes.nodes[2])
    assert codes(other_ttl) == {"configuration", "no-quorum"}
    fact = other_ttl[1].fact
    assert "their redlock_max_ttl is 60 s, yours 120 s" in fact
    assert f"they have {missing}, which you have not" in other_list[1].fact


def test_unfinished_reconfiguration_is_found(three_nodes: DevNodes) -> None:
    """Closed nodes say where they are moving to, and the remedy is to go on."""
    for node in three_nodes.nodes:
        node.command("HSET", "redlock:meta", "config", "closed: moving to elsewhere")

    found = found_on(three_nodes)

    assert codes(found) == {"closed", "no-quorum"}
    assert "moving to elsewhere" in found[1].fact
    assert "reconfigure" in found[1].remedy


# -- What they are -----------------------------------------------------------------


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
    import redis  # noqa: PLC0415

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


# -- Clocks ------------------------------------------------------------------------


@pytest.fixture
def faketime(redis_server: str) -> dict[str, str]:
    """Give the variables with which a server's clock obeys ``FAKETIME``."""
    from tests.nodes.test_clock_steps import stepped  # noqa: PLC0415

    return stepped(redis_server)


@pytest.fixture
def start_with_clock(
    redis_server: str, faketime: dict[str, str]
) -> Iterator[Callable[[str], DevNode]]:
    """Give a function that starts a server with such a clock."""
    with contextlib.ExitStack() as stack:

        def start(setting: str) -> DevNode:
            environment = {**faketime, "FAKETIME": setting}
            options = ServerOptions(environment=environment)
            node = DevNode(binary=redis_server, options=options)
            stack.callback(node.stop)
            node.start()
            return node

        yield start


def with_clocks(
    start: Callable[[str], DevNode], *settings: str
) -> tuple[list[DevNode], list[str]]:
    """Start a deployment of nodes with these clocks."""
    nodes = [start(setting) for setting in settings]
    urls = [node.url for node in nodes]
    redlock = Redlock(urls, node_timeout=PATIENT)
    redlock.initialize()
    redlock.close()
    return nodes, urls


def test_clock_that_differs_is_found(
    start_with_clock: Callable[[str], DevNode],
) -> None:
    """One node of three is ten seconds ahead of the others."""
    nodes, urls = with_clocks(start_with_clock, "+0", "+10", "+0")

    found = found_on(urls)

    assert codes(found) == {"node-clock"}
    assert the("node-clock", found).fact.startswith(
        f"The clock of node {label(nodes[1])} is 10.0 s ahead"
    )


def test_clock_that_drifts_is_found(
    start_with_clock: Callable[[str], DevNode],
) -> None:
    """One node of three runs 5 % fast, which is more than locks allow for."""
    nodes, urls = with_clocks(start_with_clock, "+0", "+0 x1.05", "+0")

    with client(urls) as redlock:
        finding = the("clock-drift", diagnose(redlock, span=1.0))

    assert (finding.severity, finding.about) == (ERROR, label(nodes[1]))
    assert "too fast" in finding.fact


def test_our_own_clock_is_found_to_be_off(
    start_with_clock: Callable[[str], DevNode],
) -> None:
    """When all nodes differ from us by more than a quarter of max_ttl, it is ours."""
    _, urls = with_clocks(start_with_clock, "+20", "+20", "+20")

    found = found_on(urls)

    assert codes(found) == {"client-clock"}
    finding = the("client-clock", found)
    assert "is 20.0 s behind those of the nodes" in finding.fact
    assert "15 s (max_ttl / 4)" in finding.fact


# -- How they are chosen -----------------------------------------------------------


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
