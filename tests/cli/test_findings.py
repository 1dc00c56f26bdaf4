"""The findings of the doctor on real servers, by the module of the rule."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.basics.clock import SystemClock
from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from celery_redlock.devnodes.processes import Process, free_port
from celery_redlock.errors import RedlockError
from celery_redlock.locks.limits import Limit
from celery_redlock.locks.redlock import Redlock
from celery_redlock.members.view import CLOSED
from celery_redlock.operations.doctor import (
    RULES,
    Case,
    Finding,
    Severity,
    diagnose,
    findings_of,
    state_of_nodes,
)
from celery_redlock.operations.doctor.placement import (
    celery_servers,
    hosts,
    password,
    tls,
)
from celery_redlock.operations.doctor.rule import Rule
from celery_redlock.operations.doctor.settings import runtimes
from celery_redlock.operations.inspect import (
    NodeReport,
    NodeState,
    node_status,
)
from tests.cli.project import Project
from tests.nodes.clocks import clock_environment
from tests.nodes.support import BRIEF, client, until

Start = Callable[..., DevNodes]
Clock = Callable[[str], DevNode]

NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR
ALWAYS = {"one-host"}  # all nodes of a test are on this machine


def found_on(
    nodes: DevNodes | Sequence[DevNode | str],
    app: Celery | None = None,
    span: float = 0.05,
    rules: Iterable[Rule] = RULES,
    **options: Any,
) -> list[Finding]:
    """Return the findings of a diagnosis of these nodes, or URLs."""
    servers = nodes.nodes if isinstance(nodes, DevNodes) else nodes
    urls = [node.url if isinstance(node, DevNode) else node for node in servers]
    with client(urls, **options) as redlock:
        return diagnose(redlock, app, span=span, rules=rules)


def the(code: str, findings: Sequence[Finding]) -> Finding:
    """Return the only finding with this code; it has a fact and a remedy."""
    (finding,) = [finding for finding in findings if finding.code == code]
    assert finding.fact.endswith(".")
    assert finding.remedy.rstrip(")").endswith(".")
    return finding


def codes(findings: Sequence[Finding]) -> set[str]:
    """Return the codes of the findings, without those that every test has."""
    return {finding.code for finding in findings} - ALWAYS


def label(node: DevNode) -> str:
    """Return the name of the node."""
    return f"127.0.0.1:{node.port}/0"


# -- votes -------------------------------------------------------------------------


@pytest.mark.every_server
def test_healthy_deployment_has_no_findings(start_nodes: Start) -> None:
    """Three or five nodes that are set up well and in use have no findings."""
    for count in (3, 5):
        nodes = start_nodes(count)
        with client(nodes) as redlock:
            redlock.acquire("k")
            assert codes(diagnose(redlock)) == set()


def test_node_that_is_down_is_unreachable(five_nodes: DevNodes) -> None:
    """The other four nodes are enough."""
    five_nodes.nodes[2].kill()

    found = found_on(five_nodes)

    assert codes(found) == {"unreachable"}
    finding = the("unreachable", found)
    assert finding.severity is WARNING
    assert finding.fact == f"Node {label(five_nodes.nodes[2])} refused the connection."


def test_node_that_hangs_is_unreachable(five_nodes: DevNodes) -> None:
    """A stopped process accepts connections and does not answer in time."""
    five_nodes.nodes[2].pause()

    found = found_on(five_nodes, connect_timeout=2.0)

    finding = the("unreachable", found)
    assert "accepts connections, but did not answer within 2 s" in finding.fact
    assert "Start it" not in finding.remedy
    assert "Do not restart it" in finding.remedy


def test_wrong_password_is_named_as_such(start_nodes: Start) -> None:
    """The remedy differs from that for a node that is down."""
    options = ServerOptions(password="right")
    nodes = start_nodes(1, options=options, initialize=False)

    found = found_on([nodes.urls[0].replace("right", "wrong")])

    finding = the("unreachable", found)
    assert "rejected the credentials" in finding.fact
    assert "password" in finding.remedy


@pytest.mark.parametrize(
    ("dead", "code", "severity", "fact"),
    [(1, "quorum-edge", WARNING, "2 of 3 nodes"), (2, "no-quorum", ERROR, "1 of 3")],
)
def test_bare_quorum_is_a_warning_and_a_lost_one_an_error(
    three_nodes: DevNodes, dead: int, code: str, severity: Severity, fact: str
) -> None:
    """With two of three nodes, one more loss stops all locks. Errors come first."""
    for node in three_nodes.nodes[:dead]:
        node.kill()

    found = found_on(three_nodes)

    assert codes(found) == {"unreachable", code}
    assert the(code, found).severity is severity is found[0].severity
    assert fact in the(code, found).fact


def test_new_node_has_its_quarantine_ahead(start_nodes: Start) -> None:
    """The quarantine begins with the diagnosis, if no client has asked before."""
    nodes = start_nodes(3, initialize=False)

    found = found_on(nodes, node_timeout=1.0)

    assert codes(found) == {"quarantine", "no-quorum"}
    said = re.search(r"and does not vote for (\d+) s more", str(found[1]))
    assert said
    assert 0 < int(said[1]) <= 63
    assert "`celery -A proj redlock init` ends the wait" in found[1].remedy


def test_new_node_beside_silent_ones_waits_for_a_majority(start_nodes: Start) -> None:
    """Alone it cannot tell which locks it has forgotten, so its wait has no end yet."""
    nodes = start_nodes(3, initialize=False)
    for node in nodes.nodes[:2]:
        node.kill()

    found = found_on(nodes)

    assert codes(found) == {"quarantine", "no-quorum", "unreachable"}
    assert (
        "until a majority of the nodes has been asked" in the("quarantine", found).fact
    )


def test_new_node_beside_one_with_other_settings_waits_for_no_time(
    start_nodes: Start,
) -> None:
    """Clients found no deployment beside a node of another one, and init refuses."""
    nodes = start_nodes(3)
    for node in nodes.nodes[1:]:
        node.restart()

    found = found_on(nodes, node_timeout=1.0, max_ttl=120.0)

    waits = [it for it in found if it.code == "quarantine"]
    assert len(waits) == 2
    for finding in waits:
        assert "does not vote while other nodes are set up differently" in finding.fact
        assert not re.search(r"\d s|by itself|init", f"{finding.fact}{finding.remedy}")


def test_node_that_ran_on_waits_because_a_majority_forgot(start_nodes: Start) -> None:
    """It did not restart. The finding says why it waits, and blames no server."""
    nodes = start_nodes(3)
    with client(nodes, node_timeout=1.0) as redlock:
        redlock.release(redlock.acquire("k"))
    for node in nodes.nodes[1:]:
        node.restart()

    with client(nodes, node_timeout=1.0) as redlock:
        found = diagnose(redlock, span=0.05)
        doubts = node_status(redlock).doubts

    ran_on = label(nodes.nodes[0])
    (finding,) = [it for it in found if it.about == ran_on]
    assert finding.code == "quarantine"
    assert "restarted" not in finding.fact
    assert "a majority of them is new or may have forgotten locks" in finding.fact
    assert "it may have forgotten" not in doubts[ran_on]


def test_founder_is_confirmed_when_all_have_waited(start_nodes: Start) -> None:
    """Its own wait may be over before that of the others."""
    nodes = start_nodes(3, initialize=False)
    with client(nodes, node_timeout=1.0) as redlock:
        first, *others = [NodeReport(it) for it in node_status(redlock)]
        early = replace(first.status, state=NodeState.UNSYNCED, wait=0.0)
        case = Case(redlock, [NodeReport(early), *others])
        found = findings_of(case, [state_of_nodes])

    assert [it.code for it in found] == ["unsynced", "quarantine", "quarantine"]
    assert re.search(r"does not vote for \d+ s more", found[0].fact)
    assert f"Node {early.label} waits with all nodes" in found[0].fact
    assert "restarted" not in found[0].fact


def test_wait_for_a_silent_node_is_in_the_sum(start_nodes: Start) -> None:
    """Too few vote, so a client waits one max_ttl for it before the quarantine."""
    nodes = start_nodes(3, initialize=False)
    nodes.nodes[2].kill()

    found = found_on(nodes, node_timeout=1.0)

    facts = [it.fact for it in found if it.code == "quarantine"]
    silent = label(nodes.nodes[2])
    assert len(facts) == 2
    for fact in facts:
        said = re.search(r"for (\d+) s more at most, while clients go on asking", fact)
        assert said
        assert 120 <= int(said[1]) <= 123
        assert f"60 s for {silent} to answer" in fact


def test_silent_node_is_watched_while_others_are_in_quarantine(
    start_nodes: Start,
) -> None:
    """Else the wait for it would begin anew when the quarantine has ended."""
    nodes = start_nodes(3, initialize=False)
    first = nodes.nodes[0]

    def scripts_run() -> str:
        with redis.Redis.from_url(first.url) as server:
            return str(server.info("commandstats").get("cmdstat_evalsha"))

    with client(nodes, node_timeout=1.0) as redlock:
        assert {it.state for it in node_status(redlock)} == {NodeState.QUARANTINED}
        nodes.nodes[2].kill()
        before = scripts_run()
        seen = node_status(redlock)
        assert scripts_run() != before

        case = Case(redlock, [NodeReport(it) for it in seen])
        fact = findings_of(case, [state_of_nodes])[0].fact
    silent = label(nodes.nodes[2])
    assert f"or until a client has waited 60 s for {silent} to answer" in fact


def test_node_that_restarted_empty_is_in_quarantine(five_nodes: DevNodes) -> None:
    """The finding says for how long the node does not vote."""
    five_nodes.nodes[0].restart()
    with client(five_nodes) as redlock:
        began = time.monotonic()
        redlock.check()

        found = diagnose(redlock, span=0.05)

    assert codes(found) == {"quarantine"}
    assert the("quarantine", found).remedy == "It votes again by itself."
    said = re.search(r"does not vote for (\d+)", the("quarantine", found).fact)
    assert said
    assert 61 - (time.monotonic() - began) < int(said[1]) <= 63


def test_node_after_its_quarantine_waits_for_fences(start_nodes: Start) -> None:
    """Its quarantine has ended, and too few others vote to confirm it."""
    nodes = start_nodes(5, max_ttl=BRIEF)
    brief: dict[str, Any] = {"ttl": BRIEF, "max_ttl": BRIEF}
    first = nodes.nodes[0]
    first.restart()
    with client(nodes, **brief) as redlock:

        def is_in_quarantine() -> str | None:
            redlock.check()  # the node may be late
            said: str | None = first.command("HGET", "redlock:meta", "quarantine_until")
            return said

        ends_at = int(until(is_in_quarantine) or 0)
    for node in nodes.nodes[3:]:
        node.kill()
    until(lambda: time.time() * 1000 > ends_at)

    found = found_on(nodes, **brief)

    assert codes(found) == {"unsynced", "no-quorum", "unreachable", "ttl"}
    assert "and have known it for one max_ttl" in the("unsynced", found).remedy


def test_other_settings_are_compared(three_nodes: DevNodes) -> None:
    """Another max_ttl, or another list of nodes, is named with both values."""
    other_ttl = found_on(three_nodes, max_ttl=120.0)
    other_list = found_on(three_nodes.urls[:2])

    missing = label(three_nodes.nodes[2])
    assert codes(other_ttl) == {"configuration", "no-quorum"}
    fact = other_ttl[1].fact
    assert "at epoch 1 with max_ttl 60 s; this client has max_ttl 120 s" in fact
    assert missing in other_list[1].fact


def test_unfinished_reconfiguration_is_found(three_nodes: DevNodes) -> None:
    """A closed node names its new configuration. The remedy is to go on."""
    with client(three_nodes) as redlock:
        redlock.check()
        view = redlock.guard.config.replace("max_ttl 60", "max_ttl 90")
    for node in three_nodes.nodes:
        node.command("HSET", "redlock:meta", "config", f"{CLOSED}{view}")

    found = found_on(three_nodes)

    assert codes(found) == {"closed", "no-quorum"}
    assert "moving to format 4, max_ttl 90 s" in found[1].fact
    assert "reconfigure" in found[1].remedy


def test_server_that_is_listed_twice_is_found(five_nodes: DevNodes) -> None:
    """Two names of one server count as one vote."""
    again = five_nodes.urls[0].replace("127.0.0.1", "localhost")

    found = found_on([*five_nodes.urls, again], restart_guard=False)

    finding = the("same-server", found)
    assert finding.severity is ERROR
    assert f"{label(five_nodes.nodes[0])} and localhost" in finding.fact


def follow(replica: DevNode, master: DevNode) -> None:
    """Make a node a replica of another one, and wait until it has its data."""

    def is_up() -> bool:
        status = replica.command("INFO", "replication").get("master_link_status")
        return bool(status == "up")

    master.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")  # else 5 s
    replica.command("REPLICAOF", "127.0.0.1", master.port)
    until(is_up, 30, what="the replica to have followed")


def test_replica_is_found(three_nodes: DevNodes) -> None:
    """The finding names its master. The master has a note about its replica."""
    first, second, _ = three_nodes.nodes
    follow(second, first)

    found = found_on(three_nodes)

    finding = the("replica", found)
    assert finding.severity is ERROR
    assert f"is a replica of 127.0.0.1:{first.port}" in finding.fact
    assert the("replicas", found).fact == f"Node {label(first)} has 1 replica."


def test_promoted_replica_is_found(three_nodes: DevNodes) -> None:
    """A node that was promoted by a failover may be demoted by the next one.

    A master that had replicas looks the same after a restart with its own file.
    """
    first, second, _ = three_nodes.nodes
    follow(second, first)
    second.command("REPLICAOF", "NO", "ONE")

    finding = the("promoted", found_on(three_nodes))

    assert (finding.severity, finding.about) == (WARNING, label(second))
    assert "or has restarted with the file of a master" in finding.fact
    assert "and restart it" in finding.remedy


def promote(nodes: DevNodes) -> None:
    """Make one node a replica, of no server, and promote it."""
    nodes.nodes[1].command("REPLICAOF", "127.0.0.1", free_port())
    nodes.nodes[1].command("REPLICAOF", "NO", "ONE")


def empty(nodes: DevNodes) -> None:
    """Delete all that one node has."""
    nodes.nodes[1].command("FLUSHALL")


def restart(nodes: DevNodes) -> None:
    """Restart one node."""
    nodes.nodes[1].restart()


@pytest.mark.parametrize("lose_memory", [promote, empty, restart])
def test_quarantine_names_no_cause_that_it_may_not_have(
    three_nodes: DevNodes, lose_memory: Callable[[DevNodes], None]
) -> None:
    """A node that was promoted or emptied has not restarted."""
    lose_memory(three_nodes)

    with client(three_nodes, node_timeout=1.0) as redlock:
        found = diagnose(redlock, span=0.05)
        doubts = node_status(redlock).doubts

    forgot = label(three_nodes.nodes[1])
    assert re.fullmatch(
        f"Node {forgot} is new or may have forgotten locks, and does not vote for "
        r"\d+ s more\.",
        the("quarantine", found).fact,
    )
    assert "restarted" not in doubts[forgot]


@pytest.mark.every_server
def test_sentinel_is_found(
    start_nodes: Start, redis_server: str, tmp_path: Path
) -> None:
    """It is named as what it is, and not as a server that has renamed commands."""
    nodes, port = start_nodes(2), free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n")
    command = [redis_server, str(config), "--sentinel"]
    log, ready = tmp_path / "sentinel.log", "Sentinel ID is"
    sentinel = Process("sentinel", command, log=log, ready=ready)
    sentinel.start()
    try:
        sentinel.wait_until_ready()
        found = found_on([f"redis://127.0.0.1:{port}/0", *nodes.urls])
    finally:
        sentinel.kill()

    assert codes(found) == {"cluster", "configuration", "no-quorum"}
    assert "runs in sentinel mode: it has no vote" in the("cluster", found).fact


def test_redis_cluster_is_found(start_nodes: Start) -> None:
    """Members of a cluster have no vote."""
    options = ServerOptions(config={"cluster-enabled": "yes"})
    nodes = start_nodes(3, options=options, initialize=False)

    found = found_on(nodes)

    assert codes(found) == {"cluster", "no-quorum"}
    assert "belongs to a Redis Cluster" in found[1].fact


# -- servers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maxmemory", "severity"), [("50mb", ERROR), ("0", NOTE)], ids=["limit", "no limit"]
)
def test_eviction_is_found(
    three_nodes: DevNodes, maxmemory: str, severity: Severity
) -> None:
    """Eviction is an error with a memory limit, and a note without one."""
    node = three_nodes.nodes[0]
    node.command("CONFIG", "SET", "maxmemory", maxmemory)
    node.command("CONFIG", "SET", "maxmemory-policy", "volatile-lru")

    finding = the("eviction", found_on(three_nodes))

    assert (finding.severity, finding.about) == (severity, label(node))


def test_persistence_is_noted(start_nodes: Start) -> None:
    """Writing to disk does no harm, and does not replace the restart guard."""
    append_only = start_nodes(3, options=ServerOptions(config={"appendonly": "yes"}))
    snapshots = start_nodes(3, options=ServerOptions(config={"save": "3600 1"}))

    by_file, by_snapshot = found_on(append_only), found_on(snapshots)

    assert codes(by_file) == codes(by_snapshot) == {"persistence"}
    assert "an append-only file" in by_file[-1].fact
    assert "snapshots ('3600 1')" in by_snapshot[-1].fact
    assert {finding.severity for finding in by_file + by_snapshot} == {NOTE}


def test_guard_that_is_off_is_found(start_nodes: Start) -> None:
    """Nodes without persistence are an error then, those with it a warning."""
    nodes = start_nodes(3, initialize=False)
    with client(nodes, restart_guard=False) as redlock:
        redlock.initialize()
    nodes.nodes[0].command("CONFIG", "SET", "appendonly", "yes")

    found = found_on(nodes, restart_guard=False)

    assert codes(found) == {"guard-off", "persistence"}
    assert the("guard-off", found).severity is WARNING
    assert "delete the key `meta` on all nodes" in the("guard-off", found).remedy
    kept = {f.about: f.severity for f in found if f.code == "persistence"}
    assert kept[label(nodes.nodes[0])] is WARNING
    assert kept[label(nodes.nodes[1])] is ERROR


def test_missing_permissions_are_found(start_nodes: Start) -> None:
    """The denied commands are named, and not what follows from them."""
    acl = "~redlock:* resetchannels &redlock:* +@all -hset"
    options = ServerOptions(username="u", password="p", acl=acl)
    nodes = start_nodes(3, options=options, initialize=False)
    nodes.nodes[1].command("ACL", "SETUSER", "u", "-info")

    found = [finding for finding in found_on(nodes) if finding.code == "acl"]

    assert [finding.severity for finding in found] == [ERROR] * 3
    assert found[0].fact.endswith("denies our user the commands hset.")
    assert found[1].fact.endswith("denies our user the commands info.")
    assert "doctor --acl" in found[0].remedy


# -- sharing -----------------------------------------------------------------------


def test_foreign_keys_are_found(three_nodes: DevNodes) -> None:
    """Keys of a cache or broker are found in our database and in others."""
    three_nodes.nodes[0].command("SET", ":1:views.cache", "page")
    with redis.Redis.from_url(three_nodes.urls[1].replace("/0", "/1")) as other:
        other.set("session", "1")

    found = [f for f in found_on(three_nodes) if f.code == "shared"]

    assert [f.about for f in found] == [label(node) for node in three_nodes.nodes[:2]]
    assert "the key ':1:views.cache'" in found[0].fact
    assert "database 1" in found[1].fact


def found_with(
    nodes: DevNodes | list[str],
    code: str,
    settings: dict[str, Any] | None = None,
    rules: Iterable[Rule] = RULES,
    **options: Any,
) -> list[Finding]:
    """Return the findings with this code, for an app with one lock task.

    All rules ask a broker, if it is a real one, four times for running workers.
    """
    app = Celery("proj", set_as_current=False)
    backends = {"broker_url": "memory://", "result_backend": "cache+memory://"}
    app.conf.update({**backends, **(settings or {})})

    @singleton_task(app=app, name="proj.send_invoice", shared=False, **options)
    def send_invoice() -> None: ...

    found = found_on(nodes, app, rules=rules)
    return [finding for finding in found if finding.code == code]


def test_node_that_is_the_broker_is_found(
    three_nodes: DevNodes, start_nodes: Start
) -> None:
    """The server is compared, so another name or database does not hide it."""
    apart = start_nodes(1, initialize=False).urls[0]
    port = three_nodes.nodes[1].port
    here = f"redis://localhost:{port}//"

    def found(**settings: str) -> list[Finding]:
        return found_with(three_nodes, "shared", settings, [celery_servers])

    shared = found(broker_url=f"{apart};{here}")
    as_backend = found(result_backend=here)
    separate = found(broker_url=apart, result_backend=apart)

    (finding,) = shared
    assert (finding.severity, finding.about) == (WARNING, label(three_nodes.nodes[1]))
    assert "is Celery's broker as well" in finding.fact
    assert finding.remedy.endswith("a full one refuses them.")
    assert "result backend" in as_backend[0].fact
    assert separate == []


def test_unreachable_broker_is_ignored(three_nodes: DevNodes) -> None:
    """The doctor examines the nodes, not the broker."""
    unreachable = {"broker_url": "redis://127.0.0.1:1"}

    assert found_with(three_nodes, "shared", unreachable) == []


def test_password_of_the_broker_is_not_shown(three_nodes: DevNodes) -> None:
    """The finding has the URL of the broker without its password."""
    url = three_nodes.urls[0].replace("://", "://:hush@")
    three_nodes.nodes[0].command("CONFIG", "SET", "requirepass", "hush")

    app = Celery("proj", broker=url, set_as_current=False)
    found = found_on([url, *three_nodes.urls[1:]], app, restart_guard=False)

    assert "***@127.0.0.1" in the("shared", found).fact
    assert "hush" not in str(found)


FIRST_DAY = [
    ("rediss", "plain", "", "did not answer as a TLS server", "Write redis:// in its"),
    (
        "redis",
        "tls",
        "",
        "closed the connection at the first",
        "Write rediss:// in its",
    ),
    ("rediss", "tls", "", "whose authority is not known here", "?ssl_ca_certs=/path"),
    ("redis", "plain", "/9999", "no database with this number", "such as /0, or raise"),
    (
        "redis",
        "web",
        "",
        "does not speak the protocol of Redis",
        "Correct the host and",
    ),
    ("rediss", "web", "", "does not speak TLS at this port", "Write redis:// in its"),
    (
        "redis",
        "unknown",
        "",
        "a host name that this machine does",
        "Correct it in redl",
    ),
]


@pytest.fixture
def servers(
    start_nodes: Start, certificate: tuple[Path, Path]
) -> Iterator[dict[str, str]]:
    """Give the addresses of a Redis, one with TLS, and an HTTP server."""
    options = ServerOptions(certificate=(str(certificate[0]), str(certificate[1])))
    try:
        with_tls = start_nodes(1, options=options, initialize=False)
    except RedlockError as error:
        if "tls" not in str(error):
            raise
        pytest.skip("this redis-server was built without TLS")
    plain = start_nodes(1, initialize=False)
    with web_server() as web:
        urls = {"plain": plain.urls[0], "tls": with_tls.urls[0], "web": web}
        urls["unknown"] = "redis://no-such-host.invalid:6379/0"
        yield {name: urlsplit(url).netloc for name, url in urls.items()}


class _Refuses(BaseHTTPRequestHandler):
    """Answers as nginx does: it reads what still comes, so the answer is not lost."""

    def handle(self) -> None:
        self.request.recv(1 << 16)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        self.request.shutdown(socket.SHUT_WR)
        while self.request.recv(1 << 16):
            pass


@contextlib.contextmanager
def web_server() -> Iterator[str]:
    """Give the URL of a server that answers each command as a web server does."""
    with HTTPServer(("127.0.0.1", 0), _Refuses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_faults_of_the_first_day_have_a_remedy_each(servers: dict[str, str]) -> None:
    """A wrong scheme, port, host, number or certificate is no matter of a firewall."""
    for scheme, name, database, fact, remedy in FIRST_DAY:
        url = f"{scheme}://{servers[name]}{database or '/0'}"

        finding = the("unreachable", found_on([url], connect_timeout=1.0))

        assert fact in finding.fact, (url, finding)
        assert remedy in finding.remedy, (url, finding)
        assert "firewall" not in finding.remedy


@pytest.mark.usefixtures("servers")  # which skips without TLS
def test_node_with_tls_that_hangs_is_not_to_be_started(
    start_nodes: Start, certificate: tuple[Path, Path]
) -> None:
    """It accepts connections, so it runs: a restart would lose its locks."""
    options = ServerOptions(certificate=(str(certificate[0]), str(certificate[1])))
    hanging = start_nodes(1, options=options, initialize=False)
    hanging.nodes[0].pause()

    finding = the("unreachable", found_on(hanging, connect_timeout=1.0))

    assert "did not answer as a TLS server within 1 s" in finding.fact
    assert "start it" not in finding.remedy.replace("Do not restart it", "")
    assert "Do not restart it" in finding.remedy


def test_server_that_answers_with_an_error_is_not_to_be_started(
    start_nodes: Start,
) -> None:
    """A restart loses the locks of a Redis. Each reason has a remedy of its own."""
    url = start_nodes(1).urls[0]
    with redis.Redis.from_url(url, single_connection_client=True) as other:
        other.config_set("maxclients", 1)
        finding = the("unreachable", found_on([url], connect_timeout=1.0))

    assert "accepts no more clients (max number of clients reached)" in finding.fact
    assert finding.remedy == (
        "End clients that are not needed, and raise maxclients. Do not restart it: "
        "that loses its locks."
    )


def test_one_redis_for_all_is_no_warning(start_nodes: Start) -> None:
    """It is what a project begins with."""
    nodes = start_nodes(1)

    broker = {"broker_url": nodes.urls[0]}
    found = found_with(nodes, "shared", broker, [celery_servers])

    assert {one.severity for one in found} == {NOTE}


# -- placement ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "code", "severity"),
    [
        (1, "few-nodes", NOTE),
        (2, "few-nodes", WARNING),
        (3, None, None),
        (4, "even-nodes", NOTE),
        (5, None, None),
        (6, "even-nodes", NOTE),
    ],
)
def test_number_of_nodes_is_judged(
    start_nodes: Start, count: int, code: str | None, severity: Severity | None
) -> None:
    """Fewer than three nodes, or an even number, are not recommended."""
    found = found_on(start_nodes(count))

    assert codes(found) == ({code} if code else set())
    assert all(f.severity is severity for f in found if f.code == code)


def judged(rule: Rule, *urls: str) -> list[Finding]:
    """Return the findings of one rule for these settings, without connections."""
    redlock = Redlock(urls)
    reports: list[Any] = [
        SimpleNamespace(label=address.name, status=SimpleNamespace(info={}))
        for address in redlock.addresses
    ]
    return list(rule(Case(redlock, reports)))


def test_nodes_on_one_machine_are_found() -> None:
    """On this machine it is a note, on another one a warning."""
    (here,) = judged(hosts, "redis://127.0.0.1:1", "redis://localhost:2", "unix:///s")
    (there,) = judged(hosts, "redis://10.9.8.7:1", "redis://10.9.8.7:2")

    assert (here.code, here.severity) == ("one-host", NOTE)
    assert (there.code, there.severity) == ("one-host", WARNING)
    assert "10.9.8.7" in there.fact
    assert judged(hosts, "redis://10.9.8.7:1", "redis://10.9.8.6:1") == []


def test_address_of_another_machine_without_tls_is_found() -> None:
    """A public address is a warning, a private one a note; loopback is neither."""
    public, private, net = judged(
        tls,
        *("redis://8.8.8.8:6379", "redis://10.0.0.1", "redis://[fd00::1]"),
        *("rediss://8.8.4.4", "redis://127.0.0.1", "redis://[::1]:2", "unix:///s"),
    )

    assert {public.code, private.code, net.code} == {"no-tls"}
    assert [f.severity for f in (public, private, net)] == [WARNING, NOTE, NOTE]
    assert "8.8.8.8" in public.fact
    assert "10.0.0.1" in private.fact


def test_node_on_another_machine_without_a_password_is_found() -> None:
    """A client certificate replaces a password; nodes on loopback need none."""
    (bare,) = judged(
        password,
        *("redis://10.0.0.1", "redis://:p@10.0.0.2", "redis://u:p@10.0.0.3"),
        *("redis://10.0.0.4?password=p", "rediss://10.0.0.5?ssl_certfile=/c.pem"),
        *("redis://127.0.0.1", "unix:///s"),
    )

    assert (bare.code, bare.severity) == ("no-password", WARNING)
    assert bare.fact.startswith("Node 10.0.0.1:6379/0 is reached without a password")


def test_full_disk_below_an_append_only_file_is_found(
    redis_server: str, tmp_path: Path
) -> None:
    """The remedy turns that file off, and it is one: locks are granted again."""
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {redis_server} \"$@\"\n")
    program.chmod(0o755)
    options = ServerOptions(config={"appendonly": "yes"})
    node = DevNode(binary=str(program), options=options)
    node.start()
    try:
        with client([node.url]) as redlock:
            redlock.initialize()
            _, most = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (0, most))
            with contextlib.suppress(RedlockError):
                node.command("SET", "some", "value")
            until(lambda: "AOF file" in str(diagnose(redlock, span=0.05)))
            finding = the("refused-writes", diagnose(redlock, span=0.05))
            assert "(CONFIG SET appendonly no)" in finding.remedy
            assert "CONFIG SET save" not in finding.remedy

            node.command("CONFIG", "SET", "appendonly", "no")

            until(lambda: not codes(diagnose(redlock, span=0.05)) & {"no-quorum"})
            assert redlock.release(redlock.acquire("k")) == 1
    finally:
        node.stop()


# -- clocks ------------------------------------------------------------------------


@pytest.fixture
def start_with_clock(redis_server: str) -> Iterator[Clock]:
    """Give a function that starts a server with a clock set by ``FAKETIME``."""
    faked = clock_environment(redis_server)
    with contextlib.ExitStack() as stack:

        def start(setting: str) -> DevNode:
            environment = {**faked, "FAKETIME": setting}
            options = ServerOptions(environment=environment)
            node = DevNode(binary=redis_server, options=options)
            stack.callback(node.stop)
            node.start()
            return node

        yield start


def with_clocks(start: Clock, *settings: str) -> list[DevNode]:
    """Start a deployment of nodes with these clocks."""
    nodes = [start(setting) for setting in settings]
    with client([node.url for node in nodes]) as redlock:
        redlock.initialize()
    return nodes


def test_clock_that_differs_is_found(start_with_clock: Clock) -> None:
    """One node of three is ten seconds ahead of the others."""
    nodes = with_clocks(start_with_clock, "+0", "+10", "+0")

    found = found_on(nodes)

    assert codes(found) == {"node-clock"}
    fact = "has a clock that is 10.0 s ahead of those of most nodes."
    assert the("node-clock", found).fact == f"Node {label(nodes[1])} {fact}"


def test_clock_that_drifts_is_found(start_with_clock: Clock) -> None:
    """One node of three runs 5 % fast. Locks allow for 1 %."""
    nodes = with_clocks(start_with_clock, "+0", "+0 x1.05", "+0")

    finding = the("clock-drift", found_on(nodes, span=1.0))

    assert (finding.severity, finding.about) == (ERROR, label(nodes[1]))
    assert "too fast" in finding.fact


def test_clock_that_stands_still_is_found(start_with_clock: Clock) -> None:
    """The time of one node of three does not pass."""
    nodes = with_clocks(start_with_clock, "+0", "+0 x0.000001", "+0")

    found = found_on(nodes)

    finding = the("clock-stopped", found)
    assert (finding.severity, finding.about) == (ERROR, label(nodes[1]))
    assert codes(found) <= {"clock-stopped", "node-clock"}


def test_clock_of_this_machine_that_stands_still_is_found(
    three_nodes: DevNodes,
) -> None:
    """The nodes' clocks move, and ours does not."""

    class Stopped(SystemClock):
        @staticmethod
        def monotonic() -> float:
            return 1000.0

    redlock = Redlock(three_nodes.urls)
    redlock.clock = Stopped()
    found = diagnose(redlock, span=0.05)
    redlock.close()

    assert codes(found) == {"client-clock-stopped"}
    assert the("client-clock-stopped", found).severity is ERROR


def test_clock_of_this_machine_is_found_to_differ(start_with_clock: Clock) -> None:
    """All nodes differ from this machine by more than a quarter of max_ttl."""
    found = found_on(with_clocks(start_with_clock, "+20", "+20", "+20"))

    assert codes(found) == {"client-clock"}
    finding = the("client-clock", found)
    assert "is 20.0 s behind those of the nodes" in finding.fact
    assert "15 s (max_ttl / 4)" in finding.fact


def test_slow_node_is_named(five_nodes: DevNodes) -> None:
    """A node is slow if it needs more than half of the node timeout."""
    finding = found_on(five_nodes, node_timeout=1e-6)[0]

    assert (finding.code, finding.severity) == ("slow", WARNING)
    assert "redlock_node_timeout is 0.001 ms" in finding.fact


# -- tasks -------------------------------------------------------------------------


def test_task_that_outlives_its_unrenewed_lock_is_found(project: Project) -> None:
    """The lock on the nodes says when the task started."""
    project.hold("young", started=time.time())
    quick = found_with(project.urls, "runtime", renew=False)
    project.hold("old", started=time.time() - 20)
    slow = found_with(project.urls, "runtime", renew=False)
    renewed = found_with(project.urls, "runtime")

    assert (quick, renewed) == ([], [])
    (finding,) = slow
    assert (finding.severity, finding.about) == (WARNING, "proj.send_invoice")
    said = r"running for \d+ s, and its lock of 30 s is not renewed"
    assert re.search(said, finding.fact)


def test_start_of_a_rate_is_no_running_task(project: Project) -> None:
    """Its permit is kept for the period after the start, whether the run has ended."""
    redis_broker = {"broker_url": "redis://127.0.0.1:1"}
    starts = (Limit("mail", 5), Limit("mail", 5, 9000.0))
    lease = project.hold("mail", limits=starts, started=time.time() - 4000)

    def found(**options: Any) -> list[Finding]:
        return found_with(project.urls, "runtime", redis_broker, [runtimes], **options)

    assert len(found(acks_late=True)) == 1
    project.service.release(lease)

    assert found(acks_late=True) == []
    assert found(renew=False) == []


def test_lock_that_is_held_at_least_so_long_is_no_running_task(
    project: Project,
) -> None:
    """It is kept from the start, whether the run has ended."""
    project.hold("k", started=time.time() - 20)
    options: dict[str, Any] = {"renew": False, "time_limit": 20}

    assert found_with(project.urls, "runtime", hold_at_least=60, **options) == []
    assert len(found_with(project.urls, "runtime", hold_at_least=10, **options)) == 1


def test_locks_of_another_project_are_found(project: Project) -> None:
    """Two projects with one prefix refuse each other's calls where keys are equal."""
    project.hold("ours")
    project.hold("beat", task="beat-1", task_id="")  # a leader
    assert found_with(project.urls, "other-app") == []
    project.hold("theirs", task="shop.send_invoice")

    (finding,) = found_with(project.urls, "other-app")

    assert finding.severity is NOTE
    assert "shop.send_invoice" in finding.fact
    assert "redlock_prefix" in finding.remedy


def test_task_that_runs_past_the_visibility_timeout_is_found(project: Project) -> None:
    """The broker redelivers its message while it runs."""
    redis_broker = {"broker_url": "redis://127.0.0.1:1"}
    project.hold("k", started=time.time() - 4000)

    def found(**options: Any) -> list[Finding]:
        return found_with(project.urls, "runtime", redis_broker, [runtimes], **options)

    (finding,) = found(acks_late=True)

    assert "after 3600 s (visibility_timeout)" in finding.fact
    assert found() == []
