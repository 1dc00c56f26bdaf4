"""Operators' commands and errors where a PostgreSQL takes the place of the nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import QuorumUnreachable, RedlockError
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.doctor import Case
from celery_redlock.operations.doctor.placement import tls
from celery_redlock.operations.reconfigure import reconfigure
from celery_redlock.operations.scan import scan
from celery_redlock.settings import Settings
from celery_redlock.stores.postgresql import PostgreSQL as Store
from tests.cli.project import Project
from tests.conftest import with_long
from tests.harness.standby import held_commits, hold_commits, let_commits_go
from tests.harness.store_nodes import StoreNodes
from tests.harness.waiting import until
from tests.nodes.support import granted

PASSWORD = "geheim/&"
QUOTED = "geheim%2F%26"


@pytest.fixture(autouse=True)
def _own_tasks(own_tasks: None) -> None:
    """Let the project have its own tasks only."""


@pytest.fixture(scope="module")
def fresh() -> Iterator[StoreNodes]:
    """Give a PostgreSQL without our table."""
    with StoreNodes(initialize=False) as store:
        yield store


@pytest.fixture
def server(fresh: StoreNodes) -> Iterator[psycopg.Connection]:
    """Give a connection to it. The table is deleted before the test."""
    with psycopg.connect(fresh.urls[0], autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS redlock_keys")
        yield connection


@pytest.fixture
def project(
    fresh: StoreNodes, server: psycopg.Connection, tmp_path: Path
) -> Iterator[Project]:
    """Give a project that names this server."""
    del server
    with Project(tmp_path, fresh, redlock_node_timeout=1.0) as project:  # type: ignore[arg-type]
        yield project


def test_init_makes_the_table_and_lets_it_vote(project: Project) -> None:
    """Before it, every command names it; run again, it changes nothing."""
    before = project.redlock("ls")
    first = project.redlock("init", "--yes")
    again = project.redlock("init", "--yes")
    after = project.redlock("ls")

    assert "has no table redlock_keys; run `celery -A proj redlock init`" in before.out
    assert (first.code, again.code, after.code) == (0, 0, 0)
    assert "The node votes now." in first.out


def test_init_asks_where_the_table_of_a_deployment_was_dropped(
    project: Project, server: psycopg.Connection
) -> None:
    """Its locks are forgotten, and their holders run. Without a yes none is granted."""
    project.redlock("init", "--yes")
    lease = project.hold("invoice:7")
    server.execute("DROP TABLE redlock_keys")

    doctor = project.redlock("doctor")
    run = project.redlock("init")
    with pytest.raises(QuorumUnreachable, match=r"in quarantine|does not vote yet"):
        project.hold("invoice:7")

    assert "answer no to the question of init" in " ".join(doctor.out.split())
    assert "no worker held a lock on this node" in run.err
    assert "No wait was ended" in run.err
    assert run.code == 1
    assert lease.is_valid()


def test_commit_that_waits_for_a_standby_is_no_vote(
    project: Project, server: psycopg.Connection
) -> None:
    """No grant returns from there. What the tools have tried is not left waiting."""
    project.redlock("init", "--yes")
    hold_commits(server)
    try:
        doctor = project.redlock("doctor", "--json")
        waited = project.redlock("doctor", "--wait", "0")
        until(lambda: not held_commits(server))
        explained = project.redlock("explain", "proj.send_invoice", "--args", "[1]")
        until(lambda: not held_commits(server))
    finally:
        let_commits_go(server)

    found = {one["code"]: one for one in doctor.document["findings"]}
    assert "has not finished a write within 1 s" in found["refused-writes"]["fact"]
    assert "synchronous standby" in found["refused-writes"]["remedy"]
    assert [run.code for run in (doctor, waited, explained)] == [3, 3, 3]
    until(lambda: project.redlock("doctor", "--wait", "0").code == 0)


def test_init_waits_for_no_standby_for_ever(
    project: Project, server: psycopg.Connection
) -> None:
    """The commit of the table does not return: an error says so."""
    hold_commits(server)
    try:
        run = project.redlock("init", "--yes")
    finally:
        let_commits_go(server)

    assert run.code == 1
    assert "did not answer within 1 s" in run.err
    until(lambda: project.redlock("init", "--yes").code == 0)


def test_locks_are_listed_shown_and_released(project: Project) -> None:
    """As on Redis nodes."""
    project.redlock("init", "--yes")
    project.hold("invoice:7")

    listed = project.redlock("ls", "--json").document
    shown = project.redlock("show", "invoice:7")
    released = project.redlock("release", "invoice:7", "--yes")

    assert [lock["key"] for lock in listed["locks"]] == ["invoice:7"]
    assert "worker-1" in shown.out
    assert released.code == 0
    assert project.redlock("ls", "--json").document["locks"] == []


@pytest.mark.parametrize(
    "notation",
    with_long(["URL of several hosts", "keywords", "file"], "keywords", "file"),
)
def test_reconfigure_moves_to_a_store_and_back(
    start_nodes: Callable[..., DevNodes],
    server: psycopg.Connection,
    tmp_path: Path,
    notation: str,
) -> None:
    """The store is one node, however many commas and spaces its URL has."""
    short: dict[str, Any] = {"ttl": 0.4, "max_ttl": 0.5, "node_timeout": 0.1}
    settings = {f"redlock_{name}": value for name, value in short.items()}
    nodes = start_nodes(3, max_ttl=0.5)
    info = server.info
    place = f"{info.host}:{info.port},{info.host}:{info.port}"
    spec = f"postgresql://{info.user}@{place}/{info.dbname}"
    if notation == "keywords":
        spec = f"host={info.host} port={info.port} user={info.user} "
        spec += f"dbname={info.dbname}"
    given = spec
    if notation == "file":
        given = f"@{tmp_path / 'nodes'}"
        (tmp_path / "nodes").write_text(f"{spec}\n")
    fences = []
    Store.prepare(spec, 5.0)

    moves: Any = [
        ([], nodes.urls),
        (["--to", given], [spec]),
        (["--from", given, "--to", ",".join(nodes.urls)], nodes.urls),
    ]
    with Project(tmp_path, nodes, **settings) as project:
        for words, urls in moves:
            if words:
                run = project.redlock("reconfigure", *words, "--yes")
                assert run.code == 0, run.err
                # What was left may be the database, or the broker, of the project.
                assert "Shut down those that nothing else uses." in run.out
            with closing(Redlock(urls, **short)) as redlock:
                fences.append(redlock.acquire("k", wait=10.0).fence)
            if "--from" not in words:
                for node in nodes.nodes * bool(words):  # as ones that come back empty
                    node.command("DEL", "redlock:meta")
    assert fences == sorted(set(fences))


def test_doctor_knows_the_server(project: Project) -> None:
    """It advises no three nodes, and finds that this server may forget."""
    project.redlock("init", "--yes")

    found = project.redlock("doctor", "--json").document["findings"]
    shown = project.redlock("doctor").out

    assert [(one["code"], one["severity"]) for one in found] == [("fsync-off", "error")]
    assert "PostgreSQL 1" in shown


def test_doctor_looks_for_no_file_of_redis_in_a_store(project: Project) -> None:
    """A PostgreSQL keeps what it has granted, also with the restart guard off."""
    project.change(redlock_restart_guard=False)
    project.redlock("init", "--yes")

    found = project.redlock("doctor", "--json").document["findings"]

    assert {one["code"] for one in found} == {"fsync-off", "guard-off"}


def test_leaked_of_a_store_names_no_tool_of_redis(
    project: Project, server: psycopg.Connection
) -> None:
    """A lock without a ttl is released, and another key is deleted by hand."""
    project.redlock("init", "--yes")
    project.hold("invoice:7")
    server.execute("UPDATE redlock_keys SET expires_at = NULL")

    run = project.redlock("leaked")

    assert run.code == 1
    assert "redlock:lock:invoice:7" in run.out
    assert "redis-cli" not in run.out


def test_doctor_names_the_session_that_keeps_dead_rows(
    project: Project, server: psycopg.Connection, fresh: StoreNodes
) -> None:
    """An old snapshot makes a key slower that is locked all the time."""
    project.redlock("init", "--yes")
    with psycopg.connect(fresh.urls[0], application_name="report") as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        young = project.redlock("doctor").out
        server.execute(
            "DO $$ BEGIN FOR i IN 1..50000 LOOP "
            "PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
        )
        shown = project.redlock("doctor").out
        pid = old.info.backend_pid
    assert "old-snapshot" not in young
    assert "old-snapshot" in shown
    assert f"session {pid} (report)" in " ".join(shown.split())


def test_doctor_names_the_missing_privileges(
    project: Project, server: psycopg.Connection, fresh: StoreNodes
) -> None:
    """A user who may only read is told what is missing, and how to get it."""
    project.redlock("init", "--yes")
    server.execute("DROP ROLE IF EXISTS reader")
    server.execute("CREATE ROLE reader LOGIN")
    server.execute("GRANT SELECT ON redlock_keys TO reader")
    url = fresh.urls[0].replace("redlock@", "reader@")

    doctor = project.redlock("doctor", "--json", redlock_nodes=[url])
    rules = project.redlock("doctor", "--acl", redlock_nodes=[url]).out
    with (
        closing(Redlock([url], node_timeout=5.0)) as redlock,
        pytest.raises(QuorumUnreachable, match="permission denied"),
    ):
        redlock.acquire("k")

    found = {one["code"]: one["fact"] for one in doctor.document["findings"]}
    assert "denies our user INSERT, UPDATE, DELETE" in found["privileges"]
    assert "no-quorum" in found
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON redlock_keys TO reader;" in rules
    server.execute("DROP OWNED BY reader")
    server.execute("DROP ROLE reader")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://app:{}@127.0.0.1:1/app", "refused the connection"),
        ("postgresql://app:{}@no-such-host.invalid/app", "cannot be connected to"),
    ],
)
def test_error_has_a_reason_and_no_password(
    url: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However the connection fails, the reason is told without the password."""
    with closing(Redlock([url.format(QUOTED)])) as redlock:
        problems = redlock.check().problems
        told = [*problems, repr(redlock), repr(redlock.addresses), caplog.text]

    assert words in problems[0]
    assert not any(PASSWORD in one or QUOTED in one for one in told)


def test_node_timeout_leaves_time_for_the_disk() -> None:
    """Unless it is set."""
    store: Any = ["postgresql://db/app"]

    assert Settings(nodes=store).node_timeout == 0.5
    assert Settings(nodes=store, node_timeout=0.2).node_timeout == 0.2
    assert Settings(nodes=["redis://a:1/0"]).node_timeout == 0.05  # type: ignore[arg-type]


def test_nodes_that_were_left_are_to_be_emptied_before_a_move_back(
    start_nodes: Callable[..., DevNodes], server: psycopg.Connection, fresh: StoreNodes
) -> None:
    """The move that closed them is done: it can be neither finished nor aborted."""
    options: dict[str, Any] = {"ttl": 0.5, "max_ttl": 0.5, "node_timeout": 0.16}
    nodes = start_nodes(3, max_ttl=0.5)
    with (
        closing(Redlock(nodes.urls, **options)) as redis,
        closing(Redlock(fresh.urls, **options)) as store,
        closing(Redlock(fresh.urls, prefix="shop")) as other,
    ):
        redis.release(granted(redis, "k"))
        reconfigure(redis, store)
        other.initialize()
        lease = other.acquire("k")

        with pytest.raises(RedlockError) as refused:
            reconfigure(store, redis)
        told = str(refused.value)
        assert f"the deployment has moved to {store.guard.configuration}" in told
        assert "Delete its keys that begin with redlock:, and run it again." in told
        assert told.endswith("Nothing was changed.")
        assert "--abort" not in told
        store.release(store.acquire("k", wait=20))

        for node in nodes.nodes:
            node.command("DEL", *node.command("KEYS", "redlock:*"))
        reconfigure(store, redis)
        redis.release(redis.acquire("k", wait=20))

        with pytest.raises(RedlockError) as refused:
            reconfigure(redis, store)
        (remedy,) = re.findall("`(DELETE .*)`", str(refused.value))
        server.execute(remedy)
        reconfigure(redis, store)
        store.release(store.acquire("k", wait=20))
        assert other.extend(lease)  # of another project in the same table


def test_move_to_a_store_whose_user_may_not_make_the_table(
    start_nodes: Callable[..., DevNodes], server: psycopg.Connection, fresh: StoreNodes
) -> None:
    """Its owner may make the move: ``init`` would make another deployment there."""
    options: dict[str, Any] = {"ttl": 0.5, "max_ttl": 0.5, "node_timeout": 0.16}
    server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    server.execute("CREATE ROLE poor LOGIN")
    poor = fresh.urls[0].replace("redlock@", "poor@")
    nodes = start_nodes(1, max_ttl=0.5)
    with (
        closing(Redlock(nodes.urls, **options)) as redis,
        closing(Redlock(fresh.urls, **options)) as owner,
        closing(Redlock([poor], **options)) as ours,
    ):
        redis.release(granted(redis, "k"))

        with pytest.raises(
            RedlockError, match="run this again as a user who may"
        ) as it:
            reconfigure(redis, ours)

        assert "redlock init" not in str(it.value)
        reconfigure(redis, owner)
        server.execute(Store.grants.format(user="poor"))
        ours.release(ours.acquire("k", wait=20))


def test_move_from_nodes_that_were_left_tells_where_the_deployment_is(
    start_nodes: Callable[..., DevNodes], server: psycopg.Connection, fresh: StoreNodes
) -> None:
    """They cannot know whether the move that closed them is done."""
    del server
    options: dict[str, Any] = {"ttl": 0.5, "max_ttl": 0.5, "node_timeout": 0.16}
    nodes = start_nodes(3, max_ttl=0.5)
    with (
        closing(Redlock(nodes.urls, **options)) as redis,
        closing(Redlock(fresh.urls, **options)) as store,
        closing(Redlock(nodes.urls[:1], **options)) as other,
    ):
        redis.release(granted(redis, "k"))
        reconfigure(redis, store)
        with pytest.raises(RedlockError, match="If it is done, move from there"):
            reconfigure(redis, other)


def test_settings_in_json_have_no_password(project: Project) -> None:
    """Other programs read the JSON of the commands, and log it."""
    url = f"postgresql://redlock:{QUOTED}@127.0.0.1:1/app"

    document = project.redlock("doctor", "--json", redlock_nodes=[url]).document

    assert PASSWORD not in json.dumps(document)
    assert QUOTED not in json.dumps(document)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("postgresql://app:word@10.0.0.1/app", "Use sslmode=verify-full, unless"),
        ("etcd://10.0.0.1", "Use etcds://, unless"),
        ("zookeeper://10.0.0.1", "TLS to ZooKeeper is not supported"),
    ],
)
def test_remedy_for_missing_tls_exists_there(url: str, remedy: str) -> None:
    """An address of another machine, which is not connected to."""
    redlock = Redlock([url])
    status = SimpleNamespace(info={"encrypted": "no"})
    reports: Any = [SimpleNamespace(label=redlock.labels[0], status=status)]

    (found,) = tls(Case(redlock, reports))

    assert found.code == "no-tls"
    assert remedy in found.remedy


@pytest.mark.parametrize("pattern", ["*a" * 12 + "*b", "[z-a]", "["])
def test_no_pattern_takes_long_or_is_an_error(redlock: Redlock, pattern: str) -> None:
    """A reader of the page chooses it."""
    lease = redlock.acquire("a" * 400)

    seen = scan(redlock, pattern)

    assert (seen.found, seen.nodes.silent) == ([], {})
    redlock.release(lease)
