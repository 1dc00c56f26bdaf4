"""Stores that refuse us: the doctor names what is missing, and the remedy."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from celery import Celery, signals
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_digest_acl
from psycopg import sql

from celery_redlock import runtime_of, singleton_task
from celery_redlock.errors import ConfigurationError, QuorumUnreachable, RedlockError
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.doctor import diagnose
from celery_redlock.stores.connection import DROPPED, StoreError
from celery_redlock.stores.etcd import Etcd
from celery_redlock.stores.postgresql import PostgreSQL
from celery_redlock.stores.zookeeper import ZooKeeper
from celery_redlock.testing import FakeNodes
from tests.harness.store_nodes import store_servers
from tests.harness.waiting import until
from tests.unit.tasks.support import Worker

SECRET = "geheim"
HOOKS = "celery_redlock.app.worker_hooks"  # a logger
PATIENT: Any = {"node_timeout": 5.0, "connect_timeout": 5.0}
REJECTED = (
    "unreachable: rejected the credentials. Correct its user and password in "
    "redlock_nodes."
)
START = "Start it, or check the network and the firewall."
SILENT = "accepts connections, but did not answer in time"
LATE = "gives no answer: it did not answer in time"
NO_TLS = "write etcd:// in redlock_nodes if it speaks no TLS, "
TABLE = "redlock_keys"
GRANT = "rant what `celery -A proj redlock doctor --acl` prints."
NO_RIGHTS = (
    "unreachable: does not let our user read and write below /redlock. Correct its "
    f"user and password in redlock_nodes, or g{GRANT}"
)


def examined(url: str) -> list[str]:
    """Return the code, the fact and the remedy of each finding, without the node.

    Nothing that is said shows the password.
    """
    with closing(Redlock([url], **PATIENT)) as redlock:
        problems = redlock.check().problems
        found = diagnose(redlock, span=0.1)
        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire("k")
    assert SECRET not in " ".join([*problems, str(refused.value), *map(str, found)])
    return [
        f"{it.code}: {it.fact.removeprefix(f'Node {it.about} ')} {it.remedy}"
        for it in found
    ]


# -- PostgreSQL ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Give ``{}host:port/{}`` of a PostgreSQL with users who lack something."""
    with store_servers("postgresql") as store:
        (url,) = store.urls
        with psycopg.connect(url, autocommit=True) as server:
            server.execute("CREATE ROLE poor LOGIN")
            server.execute(f"CREATE ROLE secured LOGIN PASSWORD '{SECRET} right'")
            server.execute("CREATE DATABASE empty")
            server.execute("CREATE DATABASE prepared")
            server.execute("CREATE DATABASE calm")
            PostgreSQL.prepare(url.replace("/postgres", "/calm"), 5.0)
            server.execute(
                "ALTER DATABASE calm SET default_transaction_read_only TO on"
            )
            server.execute("CREATE DATABASE locked")
            server.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0")
            server.execute("CREATE ROLE rejected LOGIN")
            server.execute("CREATE ROLE nologin")
            (file,) = server.execute("SHOW hba_file").fetchone() or ("",)
            rules = (
                "COPY (VALUES ('host all secured all scram-sha-256'), "
                "('host all rejected all reject'), ('host all all all trust')) TO {}"
            )
            server.execute(sql.SQL(rules).format(sql.Literal(file)))
            server.execute("SELECT pg_reload_conf()")
        yield url.replace("redlock@", "{}").replace("/postgres", "/{}")


@pytest.mark.parametrize(
    ("login", "database", "told"),
    [
        (
            "poor",
            "postgres",
            (
                "unreachable: denies our user SELECT, INSERT, UPDATE, DELETE on the "
                f"table redlock_keys. G{GRANT}"
            ),
        ),
        (
            "redlock",
            "empty",
            (
                "unreachable: has no table redlock_keys. Run `celery -A proj redlock "
                "init`, or the migrations of celery_redlock.contrib.django. "
                f"{DROPPED}."
            ),
        ),
        (
            "redlock",
            "absent",
            (
                'unreachable: cannot be connected to: database "absent" does not '
                "exist. Create it, or correct redlock_nodes."
            ),
        ),
        (
            "stranger",
            "postgres",
            (
                'unreachable: cannot be connected to: role "stranger" does not exist. '
                "Create it, or correct redlock_nodes."
            ),
        ),
        (f"secured:{SECRET}", "postgres", REJECTED),
        ("secured", "postgres", REJECTED),
        (
            "crowded",
            "postgres",
            (
                "unreachable: cannot be connected to: too many connections for role "
                '"crowded". Close connections that no process needs, or raise the '
                "limit (max_connections, or CONNECTION LIMIT): it runs."
            ),
        ),
        (
            "nologin",
            "postgres",
            (
                'unreachable: cannot be connected to: role "nologin" is not permitted '
                "to log in. ALTER ROLE … LOGIN, or correct redlock_nodes."
            ),
        ),
        (
            "redlock",
            "calm",
            (
                "read-only: is read-only: it has no vote. Use a user and a database "
                "without default_transaction_read_only."
            ),
        ),
    ],
)
def test_refusal_of_postgresql_is_told_with_its_remedy(
    postgresql: str, login: str, database: str, told: str
) -> None:
    """Each thing that is missing has its own remedy."""
    found = examined(postgresql.format(f"{login}@", database))
    assert told in found
    assert found[0].startswith(
        "no-quorum: The store does not vote: nothing can be locked."
    )


@pytest.mark.parametrize(
    ("database", "wanted", "remedy"),
    [
        (
            "calm",
            "read-write",
            (
                "Start the primary server, or promote a standby: the server that "
                "answers is a standby, or has default_transaction_read_only."
            ),
        ),
        (
            "postgres",
            "standby",
            (
                "Write target_session_attrs=read-write in redlock_nodes: locks need "
                "the primary server."
            ),
        ),
    ],
)
def test_server_of_another_role_than_wanted_is_told(
    postgresql: str, database: str, wanted: str, remedy: str
) -> None:
    """In a failover, the primary is down and the standby answers: it runs."""
    url = postgresql.format("redlock@127.0.0.1:1,", database)
    (told,) = (
        one
        for one in examined(f"{url}?target_session_attrs={wanted}")
        if one.startswith("unreachable: ")
    )
    assert told.endswith(remedy)


@pytest.mark.parametrize("severity", ["FATAL", "FATALE", "致命错误"])
def test_refusal_in_another_language_comes_from_a_server_that_runs(
    severity: str,
) -> None:
    """Its lc_messages also translates the severity: a start is no remedy."""
    error = f"S{severity}\0VFATAL\0C53300\0Mtrop de connexions\0\0".encode()
    reply = b"E" + (len(error) + 4).to_bytes(4, "big") + error
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.callback(server.shutdown, socket.SHUT_RDWR)  # which ends `accept`

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(1024)
                        client.sendall(reply)

        pool.submit(refuse)
        port = server.getsockname()[1]
        found = examined(f"postgresql://app@127.0.0.1:{port}/app?sslmode=disable")

    (told,) = (one for one in found if one.startswith("unreachable: "))
    assert told == (
        "unreachable: cannot be connected to: trop de connexions. It runs, and says so "
        "itself: look into its log."
    )


def test_postgresql_that_rejects_this_host_is_told(postgresql: str) -> None:
    """It runs: a line of its pg_hba.conf is the remedy."""
    (told,) = (
        one
        for one in examined(postgresql.format("rejected@", "postgres"))
        if one.startswith("unreachable: ")
    )
    assert "cannot be connected to: pg_hba.conf rejects" in told
    assert told.endswith(
        "Let our user in with a line of its pg_hba.conf and reload that, or correct "
        "redlock_nodes."
    )


@pytest.mark.parametrize("is_first", [True, False])
def test_refusal_of_the_server_that_runs_is_told(
    postgresql: str, *, is_first: bool
) -> None:
    """The other one of the two is down, as a standby may be."""
    url = postgresql.format("stranger@", "postgres")
    server = url.partition("@")[2].partition("/")[0]
    servers = [server, "127.0.0.1:1"][:: 1 if is_first else -1]

    found = examined(url.replace(server, ",".join(servers)))

    assert (
        'unreachable: cannot be connected to: role "stranger" does not exist. Create '
        "it, or correct redlock_nodes."
    ) in found


def test_locked_table_of_postgresql_is_told(postgresql: str) -> None:
    """A migration or a VACUUM FULL locks it: a restart of the server is no remedy."""
    url = postgresql.format("redlock@", "locked")
    PostgreSQL.prepare(url, 5.0)
    with psycopg.connect(url) as other:
        other.execute(f"LOCK TABLE {TABLE}")
        found = examined(url)
    assert (
        "unreachable: cannot be used: canceling statement due to lock timeout. Another "
        f"transaction has locked the table {TABLE}, as migrations and VACUUM FULL do: "
        "wait for its end, or end it."
    ) in found


def fill_disk(server: psycopg.Connection) -> None:
    """Let each insert fail as with a full disk, until the trigger is dropped."""
    server.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE "
        "EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file "
        '"base/5/2": No space left on device\'; END $$'
    )
    server.execute(
        f"CREATE TRIGGER fails BEFORE INSERT ON {TABLE} EXECUTE FUNCTION fail()"
    )


def test_full_disk_of_postgresql_is_told_with_its_remedy(own_postgresql: int) -> None:
    """Its own words name what is full, and the remedy is space."""
    url = f"postgresql://redlock@127.0.0.1:{own_postgresql}/postgres"
    PostgreSQL.prepare(url, 5.0)
    with psycopg.connect(url, autocommit=True) as server:
        with closing(Redlock([url], **PATIENT)) as redlock:
            redlock.initialize()
        fill_disk(server)
        found = examined(url)
        server.execute(f"DROP TRIGGER fails ON {TABLE}")
    assert (
        'refused-writes: grants no lock: could not extend file "base/5/2": No space '
        "left on device. Free space on its disk. It votes again as soon as it takes "
        "writes."
    ) in found
    with closing(Redlock([url], **PATIENT)) as redlock:
        assert refusal(redlock) == ""


def lose_standby(server: psycopg.Connection) -> None:
    """Let each commit wait for a standby that is not there, until it may be none."""
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
    server.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    ("breaks", "repair", "reason"),
    [
        (
            fill_disk,
            f"DROP TRIGGER fails ON {TABLE}",
            "No space left on device",
        ),
        (
            lose_standby,
            "ALTER SYSTEM RESET synchronous_standby_names",
            "had not answered",
        ),
    ],
)
def test_postgresql_that_grants_nothing_is_one_outage(
    own_postgresql: int,
    caplog: pytest.LogCaptureFixture,
    breaks: Callable[[psycopg.Connection], None],
    repair: str,
    reason: str,
) -> None:
    """It tells who holds a lock meanwhile. That it votes again is said when it does."""
    url = f"postgresql://redlock@127.0.0.1:{own_postgresql}/postgres"
    PostgreSQL.prepare(url, 5.0)
    app = Celery("full", broker="memory://", backend="cache+memory://")
    app.conf.redlock_nodes, app.conf.redlock_node_timeout = [url], 3.0
    outage_log = "celery_redlock.app.outage_log"
    caplog.set_level(logging.INFO, outage_log)

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == outage_log]

    @singleton_task(app=app, shared=False, key="{key}", on_backend_error="skip")
    def job(key: str) -> None: ...

    worker = Worker(app, FakeNodes(1))
    with (
        psycopg.connect(url, autocommit=True) as server,
        closing(Redlock([url], **PATIENT)) as rival,
    ):
        rival.initialize()
        rival.acquire("held", ttl=60.0)
        breaks(server)
        while not runtime_of(app).outage_log.is_on:  # the settings are loaded
            worker.run(job, "free")
        for key in ("held", "held", "free"):
            worker.run(job, key)
        (began,) = lines()
        server.execute(repair)
        server.execute("SELECT pg_reload_conf()")
        while runtime_of(app).outage_log.is_on:
            worker.run(job, "free")
    runtime_of(app).stop()
    assert reason in began
    assert lines()[1].startswith("The lock nodes vote again")


class Starting:
    """The sender of the signals of a worker that starts."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.on_decode_error = None  # of the consumer, which Celery calls


def test_worker_that_starts_says_why_the_store_does_not_vote(
    postgresql: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line names the reason and the remedy; its tasks wait."""
    app = Celery("stores", broker="memory://", set_as_current=False)
    app.conf.redlock_nodes = [postgresql.format(f"secured:{SECRET}@", "postgres")]

    @singleton_task(app=app, shared=False, name="job-in-a-store")
    def job() -> None: ...

    with caplog.at_level(logging.ERROR, HOOKS):
        signals.worker_ready.send(sender=Starting(app))
    runtime_of(app).stop()
    app.close()

    (said,) = (one.getMessage() for one in caplog.records if one.name == HOOKS)
    assert said.startswith("The store does not vote: ")
    assert "rejected the credentials" in said
    assert "Tasks that need a lock do not run until it votes." in said
    assert SECRET not in said


def refusal(redlock: Redlock) -> str:
    """Return why the store refuses a lock now; ``""`` if it grants the lock."""
    try:
        redlock.release(redlock.acquire("k"))
    except QuorumUnreachable as refused:
        return str(refused)
    return ""


ENDS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'used'"
CALM = "ALTER DATABASE used SET default_transaction_read_only TO"


@pytest.mark.parametrize(
    ("broken", "told", "repaired"),
    [
        (
            [f"ALTER TABLE {TABLE} RENAME TO away"],
            f'relation "{TABLE}" does not exist',
            [f"ALTER TABLE away RENAME TO {TABLE}"],
        ),
        (
            [f"ALTER TABLE {TABLE} RENAME TO away", ENDS],
            f"has no table {TABLE}; run `celery -A proj redlock init`",
            [f"ALTER TABLE away RENAME TO {TABLE}"],
        ),
        (
            [f"REVOKE ALL ON {TABLE} FROM used"],
            f"permission denied for table {TABLE}",
            [f"GRANT ALL ON {TABLE} TO used"],
        ),
        pytest.param(
            [f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY"],
            f'query would be affected by row-level security policy for table "{TABLE}"',
            [f"ALTER TABLE {TABLE} DISABLE ROW LEVEL SECURITY"],
            marks=pytest.mark.long,
        ),
        (
            [f"{CALM} on", ENDS],
            "read-only",
            [f"{CALM} off", ENDS],
        ),
        pytest.param(
            ["ALTER ROLE used NOLOGIN", ENDS],
            'role "used" is not permitted to log in',
            ["ALTER ROLE used LOGIN"],
            marks=pytest.mark.long,
        ),
    ],
    ids=["no table", "no new table", "no right", "hidden rows", "read-only", "login"],
)
def test_postgresql_that_refuses_later_is_told_and_used_again(
    postgresql: str, broken: list[str], told: str, repaired: list[str]
) -> None:
    """An operator may change the server while workers use it."""

    def execute(*texts: str) -> None:
        for text in texts:
            database = "used" if TABLE in text else "postgres"
            url = postgresql.format("redlock@", database)
            with psycopg.connect(url, autocommit=True) as operator:
                operator.execute(text)

    execute("CREATE DATABASE used", "CREATE ROLE used LOGIN")
    try:
        PostgreSQL.prepare(postgresql.format("redlock@", "used"), 5.0)
        execute(f"GRANT ALL ON {TABLE} TO used")
        with closing(Redlock([postgresql.format("used@", "used")], **PATIENT)) as ours:
            ours.initialize()
            assert refusal(ours) == ""
            execute(*broken)
            until(lambda: told in refusal(ours))  # at first, that its connection ended
            execute(*repaired)
            until(lambda: refusal(ours) == "")
    finally:
        execute("DROP DATABASE used WITH (FORCE)", "DROP ROLE used")


def test_user_who_may_not_make_the_table_can_use_it(postgresql: str) -> None:
    """Once it is made, ``init`` needs no more rights than a worker."""
    owner = postgresql.format("redlock@", "prepared")
    poor = postgresql.format("poor@", "prepared")
    with closing(Redlock([poor], **PATIENT)) as redlock:
        with pytest.raises(
            RedlockError, match="run this again as a user who may"
        ) as it:
            redlock.initialize()
        assert str(it.value).endswith("Nothing was changed.")
        PostgreSQL.prepare(owner, 5.0)
        with psycopg.connect(owner, autocommit=True) as server:
            server.execute(PostgreSQL.grants.format(user="poor"))
        redlock.initialize()
        assert redlock.release(redlock.acquire("k")) == 1


# -- etcd ------------------------------------------------------------------------------


def with_users(url: str) -> str:
    """Give an etcd users, of whom some lack a right; return ``etcd://{}host:port,…``."""
    with closing(Etcd(url, 5.0)) as store:
        call = store._call  # noqa: SLF001  (an operator's request)
        for name, roles in {
            "root": ("root",),
            "poor": (),
            "reader": ("reader",),
            "redlock": ("redlock",),
        }.items():
            user = {"name": name, "password": f"{SECRET} right"}
            call("/auth/user/add", user)
            for role in roles:
                call("/auth/role/add", {"name": role})
                call("/auth/user/grant", {"user": name, "role": role})
        for role, kind in (("reader", "READ"), ("redlock", "READWRITE")):
            span = {"key": "cmVkbG9jay8=", "range_end": "cmVkbG9jazA="}  # redlock/
            permission = {"permType": kind, **span}
            grant = {"name": role, "perm": permission}
            call("/auth/role/grant", grant)
        call("/auth/enable", {})
    return url.replace("://", "://{}")


@pytest.fixture(scope="module")
def etcd() -> Iterator[str]:
    """Give ``etcd://{}host:port,…`` of a cluster with users who lack something."""
    with store_servers("etcd") as cluster:
        yield with_users(cluster.urls[0])


def fill(url: str, times: int = 100) -> None:
    """Write 90 kB so many times into an etcd, as another client, and on its disk."""
    with closing(Etcd(url, 5.0)) as store:
        call = store._call  # noqa: SLF001
        for number in range(times):
            put = {"key": f"{number:04d}", "value": "AAAA" * 30_000}
            call("/kv/put", put)
        until(lambda: int(call("/maintenance/status", {})["dbSize"]) > times * 90_000)


@pytest.fixture
def small_etcd(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the URL of an etcd of one member with a quota of 4 MB that votes."""
    monkeypatch.setenv("ETCD_QUOTA_BACKEND_BYTES", "4000000")
    with store_servers("etcd", members=1) as cluster:
        with closing(Redlock(cluster.urls, **PATIENT)) as redlock:
            redlock.initialize()
        yield cluster.urls[0]


def test_full_etcd_is_told_with_its_remedy(small_etcd: str) -> None:
    """It answers, so "start it" would be no help. The doctor warns before."""
    with closing(Redlock([small_etcd], **PATIENT)) as redlock:
        redlock.release(redlock.acquire("k"))
        assert "etcd-size" not in {it.code for it in diagnose(redlock, span=0.1)}
    fill(small_etcd, 25)
    with closing(Redlock([small_etcd], **PATIENT)) as redlock:
        found = {it.code: it.fact for it in diagnose(redlock, span=0.1)}
        assert "At its quota of 4 MB etcd takes no changes" in found["etcd-size"]
        with pytest.raises(StoreError, match="is full"):
            fill(small_etcd)
        with closing(Etcd(small_etcd, 5.0)) as store:  # it may raise the alarm later
            alarm = partial(store._call, "/maintenance/alarm", {})  # noqa: SLF001
            until(lambda: "NOSPACE" in str(alarm()))

        for _ in range(2):
            with pytest.raises(QuorumUnreachable, match=r"is full \(NOSPACE\)") as it:
                redlock.acquire("k")
            assert "Nothing is held. " in str(it.value)
        found = {it.fact: it.remedy for it in diagnose(redlock, span=0.1)}
        (remedy,) = (found[fact] for fact in found if "is full" in fact)
    assert "etcdctl alarm disarm" in remedy


@pytest.mark.long
def test_full_etcd_still_releases_locks(small_etcd: str) -> None:
    """A deletion takes no room, also on a connection that is made meanwhile."""
    with (
        closing(Redlock([small_etcd], **PATIENT)) as holder,
        closing(Redlock([small_etcd], **PATIENT)) as later,
    ):
        first, second = holder.acquire("a"), holder.acquire("b")
        with pytest.raises(StoreError, match="is full"):
            fill(small_etcd)
        assert holder.release(first) == 1
        assert later.release(second) == 1


@pytest.mark.long
def test_acquire_that_no_member_was_sent_is_told_so(etcd: str) -> None:
    """An operator has changed the password: what the client asked for is not done."""
    url = etcd.format(f"redlock:{SECRET}%20right@")
    change, right = "/auth/user/changepw", f"{SECRET} right"
    operator = Etcd(etcd.format(f"root:{SECRET}%20right@"), 5.0)
    with closing(operator), closing(Redlock([url], **PATIENT)) as redlock:
        redlock.initialize()
        redlock.release(redlock.acquire("k"))
        operator._call(change, {"name": "redlock", "password": "another"})  # noqa: SLF001
        try:
            with pytest.raises(QuorumUnreachable, match="authentication") as it:
                redlock.acquire("k")
        finally:
            operator._call(change, {"name": "redlock", "password": right})  # noqa: SLF001
    assert "Nothing is held. " in str(it.value)


def test_etcd_without_a_majority_is_told_by_its_members() -> None:
    """The one that runs cannot answer: each is named, with what is known of it."""
    with store_servers("etcd") as cluster:
        down = [f"127.0.0.1:{one.port} (it " for one in cluster.nodes[:2]]
        (up,) = [f"127.0.0.1:{one.port} (" for one in cluster.nodes[2:]]
        for one in cluster.nodes[:2]:
            one.kill()
        with closing(Redlock(cluster.urls, connect_timeout=1.0)) as redlock:
            found = diagnose(redlock, span=0.1)

    (told,) = (it for it in found if it.code == "unreachable")
    assert all(member in told.fact for member in (*down, up)), told.fact
    assert told.remedy == (
        "Start the members that are down, and check the network between them: without "
        "a majority of them, one that runs cannot answer."
    )


def test_corrupt_etcd_is_told_with_its_remedy(small_etcd: str) -> None:
    """Its members run, so "start it" would be no help."""
    with closing(Etcd(small_etcd, 5.0)) as store:
        member = store._call("/maintenance/status", {})["header"]["member_id"]  # noqa: SLF001
        alarm = {"action": "ACTIVATE", "memberID": member, "alarm": "CORRUPT"}
        store._call("/maintenance/alarm", alarm)  # noqa: SLF001

    with closing(Redlock([small_etcd], **PATIENT)) as redlock:
        (problem,) = redlock.check().problems

    assert "has members with different data (CORRUPT)" in problem
    assert "etcdctl endpoint hashkv" in problem


@pytest.mark.long
def test_etcd_without_tls_is_told_apart_from_a_wrong_certificate() -> None:
    """The remedy is another scheme, and not another certificate."""
    with store_servers("etcd", members=1) as cluster:
        url = cluster.urls[0].replace("etcd://", "etcds://")
        with closing(Redlock([url], **PATIENT)) as redlock:
            (problem,) = redlock.check().problems
    assert "if it speaks no TLS, write etcd:// in redlock_nodes" in problem


def test_certificate_that_is_away_is_told(tmp_path: Path) -> None:
    """It was there when the settings were read, and is gone while it is renewed."""
    file = tmp_path / "ca.pem"
    file.touch()
    with closing(Redlock([f"etcds://127.0.0.1:1?ca={file}"], **PATIENT)) as redlock:
        file.unlink()
        found = {it.code: it.fact for it in diagnose(redlock, span=0.1)}
    assert "cannot be used with these certificates" in found["unreachable"]


@pytest.mark.long
def test_etcd_that_forgets_our_token_costs_no_acquire() -> None:
    """A member that restarts knows no tokens. etcd also forgets unused ones."""
    with store_servers("etcd", members=1) as cluster:
        url = with_users(cluster.urls[0]).format(f"redlock:{SECRET}%20right@")
        with closing(Redlock([url], **PATIENT)) as redlock:
            redlock.initialize()
            (member,) = cluster.nodes
            for _ in range(3):
                member.kill()
                member.restart()
                redlock.release(redlock.acquire("k"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "told", "repaired"),
    [
        (
            ("/auth/user/changepw", {"name": "redlock", "password": "another"}),
            "rejected the credentials",
            ("/auth/user/changepw", {"name": "redlock", "password": f"{SECRET} right"}),
        ),
        (
            ("/auth/user/revoke", {"name": "redlock", "role": "redlock"}),
            "our user may not read and write below redlock/",
            ("/auth/user/grant", {"user": "redlock", "role": "redlock"}),
        ),
    ],
    ids=["password", "no right"],
)
def test_etcd_that_refuses_later_is_told_and_used_again(
    etcd: str, broken: tuple[str, Any], told: str, repaired: tuple[str, Any]
) -> None:
    """An operator may change its users while workers use it."""
    url = etcd.format(f"redlock:{SECRET}%20right@")
    operator = Etcd(etcd.format(f"root:{SECRET}%20right@"), 5.0)
    with closing(operator), closing(Redlock([url], **PATIENT)) as redlock:
        redlock.initialize()
        assert refusal(redlock) == ""
        operator._call(*broken)  # noqa: SLF001  (an operator's request)
        try:
            until(lambda: told in refusal(redlock))
        finally:
            operator._call(*repaired)  # noqa: SLF001  (the same)
        until(lambda: refusal(redlock) == "")


@pytest.mark.long
@pytest.mark.parametrize(
    ("login", "told"),
    [
        (
            "",
            (
                "unreachable: asks for a user and a password. Write them as "
                "etcd://user:password@… in redlock_nodes."
            ),
        ),
        (f"redlock:{SECRET}@", REJECTED),
        (f"stranger:{SECRET}@", REJECTED),
        (
            f"poor:{SECRET}%20right@",
            f"unreachable: does not let our user read below redlock/. G{GRANT}",
        ),
        (
            f"reader:{SECRET}%20right@",
            f"privileges: does not let our user write below redlock/. G{GRANT}",
        ),
    ],
)
def test_refusal_of_etcd_is_told_with_its_remedy(
    etcd: str, login: str, told: str
) -> None:
    """Each thing that is missing has its own remedy."""
    assert told in examined(etcd.format(login))


@pytest.mark.long
def test_user_of_etcd_with_the_printed_role_has_all_it_needs(etcd: str) -> None:
    """The doctor's probe of the rights denies nothing to it."""
    url = etcd.format(f"redlock:{SECRET}%20right@")
    with closing(Redlock([url], **PATIENT)) as redlock:
        assert "privileges" not in {one.code for one in diagnose(redlock, span=0.1)}
        assert redlock.release(redlock.acquire("k")) == 1
    ours, theirs = socket.socketpair()
    with closing(Etcd(url, 5.0)) as store, ours, theirs:
        messages = store.listen(b"allowed", ours)
        assert next(messages) == b""
        assert store.run([[b"PUBLISH", b"allowed", b"news"]]) == [1]
        assert next(messages) == b"news"
        theirs.close()
        assert list(messages) == []


@pytest.mark.long
def test_refused_write_to_etcd_costs_no_connection(etcd: str) -> None:
    """So each refusal has its reason, and not that a connection is lost."""
    url = etcd.format(f"reader:{SECRET}%20right@")
    with closing(Redlock([url], **PATIENT)) as redlock:
        for _ in range(3):
            with pytest.raises(QuorumUnreachable, match="NOPERM our user may not"):
                redlock.acquire("k")


@pytest.mark.long
def test_user_for_an_etcd_without_authentication_is_told() -> None:
    """A URL with a user is refused by a cluster that asks for none."""
    with store_servers("etcd", members=1) as cluster:
        found = examined(cluster.urls[0].replace("://", f"://me:{SECRET}@"))
    told = (
        "unreachable: has its authentication switched off. Remove the user from "
        "redlock_nodes, or run `etcdctl auth enable`."
    )
    assert told in found


@pytest.mark.long
def test_etcd_without_its_gateway_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, and speaks no JSON; etcd 3.4 is so with a configuration file."""
    monkeypatch.setenv("ETCD_ENABLE_GRPC_GATEWAY", "false")
    with store_servers("etcd", members=1, initialize=False) as cluster:
        found = examined(cluster.urls[0])
    told = (
        "unreachable: has its JSON gateway switched off, as some versions have that "
        "are started with a configuration file. Write `enable-grpc-gateway: true` into "
        "it, and restart the members."
    )
    assert told in found


# -- ZooKeeper -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[str]:
    """Give ``zookeeper://{}host:port,…`` of an ensemble with paths that deny something.

    ``/own`` is our user's, and others may read ``/shown``, which has our znodes, and
    ``/locked``, which has none.
    """
    with store_servers("zookeeper") as ensemble:
        (url,) = ensemble.urls
        ours = make_digest_acl("redlock", SECRET, all=True)
        with closing(ZooKeeper(url, 5.0)) as store:
            client = store._client  # noqa: SLF001  (an operator's requests)
            for path, acl in (
                *(("/own", [ours]), ("/locked", [ours, *READ_ACL_UNSAFE])),
                *(("/empty", None), ("/shown", None)),
            ):
                client.create(path, b"", acl=acl)
            with closing(Redlock([f"{url}/shown"], **PATIENT)) as redlock:
                redlock.initialize()
            client.add_auth("digest", f"redlock:{SECRET}")
            paths = ["/shown"]
            while paths:
                path = paths.pop()
                paths += [f"{path}/{one}" for one in client.get_children(path)]
                client.set_acls(path, [ours, *READ_ACL_UNSAFE])
        with closing(
            Redlock([f"zookeeper://redlock:{SECRET}@{url[12:]}/own"], **PATIENT)
        ) as redlock:
            redlock.initialize()
        yield url.replace("://", "://{}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("login", "chroot", "told"),
    [
        ("", "/absent", "unreachable: has no node /absent. Create it first."),
        (
            "",
            "/empty",
            (
                "unreachable: has no /redlock. Run `celery -A proj redlock init`. "
                f"{DROPPED}."
            ),
        ),
        ("", "/own", NO_RIGHTS),
        (f"stranger:{SECRET}@", "/own", NO_RIGHTS),
        (f"redlock:{SECRET}wrong@", "/own", NO_RIGHTS),
        (
            "",
            "/shown",
            f"privileges: does not let our user write below /redlock. G{GRANT}",
        ),
    ],
)
def test_refusal_of_zookeeper_is_told_with_its_remedy(
    zookeeper: str, login: str, chroot: str, told: str
) -> None:
    """Each thing that is missing has its own remedy."""
    assert told in examined(zookeeper.format(login) + chroot)


@pytest.mark.long
def test_user_of_zookeeper_with_the_printed_rights_has_all_it_needs(
    zookeeper: str,
) -> None:
    """The doctor's probe of the rights denies nothing to it, and leaves nothing."""
    url = zookeeper.format(f"redlock:{SECRET}@") + "/own"
    with closing(Redlock([url], **PATIENT)) as redlock:
        assert "privileges" not in {one.code for one in diagnose(redlock, span=0.1)}
        assert redlock.release(redlock.acquire("k")) == 1
    with closing(ZooKeeper(url, 5.0)) as store:
        client = store._client  # noqa: SLF001  (to look at it)
        assert client.get_children("/redlock/wake") == []
        assert "~" not in client.get_children("/redlock/keys/0")


@pytest.mark.long
def test_zookeeper_that_refuses_later_is_told_and_used_again(zookeeper: str) -> None:
    """An operator may take rights, or delete the chroot, while workers use it."""
    url = zookeeper.format("")
    theirs = make_digest_acl("redlock", SECRET, all=True)
    with closing(ZooKeeper(url, 5.0)) as store:
        client = store._client  # noqa: SLF001  (an operator's requests)
        client.add_auth("digest", f"redlock:{SECRET}")
        client.create("/later", b"")
        with closing(Redlock([f"{url}/later"], **PATIENT)) as redlock:
            redlock.initialize()
            assert refusal(redlock) == ""
            shards = [
                f"/later/redlock/keys/{shard}"
                for shard in client.get_children("/later/redlock/keys")
            ]
            for path in shards:
                client.set_acls(path, [theirs])
            until(lambda: "may not read and write below /redl" in refusal(redlock))
            for path in shards:
                client.set_acls(path, OPEN_ACL_UNSAFE)
            until(lambda: refusal(redlock) == "")

            client.delete("/later", recursive=True)  # with all that it remembers
            until(lambda: "/later has" in refusal(redlock))
            assert any("has no node /later" in it for it in examined(f"{url}/later"))
            client.create("/later", b"")
            until(lambda: "redlock init" in refusal(redlock))
            redlock.initialize()
            until(lambda: refusal(redlock) == "")


@pytest.mark.long
def test_zookeeper_without_a_majority_is_told() -> None:
    """The server that runs accepts connections, and closes them."""
    with store_servers("zookeeper") as ensemble:
        for one in ensemble.nodes[:2]:
            one.kill()
        with closing(Redlock(ensemble.urls, connect_timeout=1.0)) as redlock:

            def told() -> list[str]:
                found = diagnose(redlock, span=0.1)
                return [str(it) for it in found if it.code == "unreachable"]

            until(lambda: "closes our connections" in "".join(told()))
            assert "Start the servers that are down, and look into" in "".join(told())


@pytest.mark.long
def test_quota_of_zookeeper_is_told_with_its_remedy(zookeeper: str) -> None:
    """It is no change of another client, so a request is refused at once."""
    url, quota = f"{zookeeper.format('')}/small", "/zookeeper/quota/small/redlock"
    with closing(ZooKeeper(zookeeper.format(""), 5.0)) as store:
        client = store._client  # noqa: SLF001  (an operator's requests)
        client.create("/small", b"")
        with closing(Redlock([url], **PATIENT)) as redlock:
            redlock.initialize()
            client.ensure_path(quota)
            client.create(
                f"{quota}/zookeeper_limits", b"count=-1,bytes=-1;countHardLimit=1"
            )
            client.create(f"{quota}/zookeeper_stats", b"count=1,bytes=1")
            assert "refuses our changes: QuotaExceeded" in refusal(redlock)
            (told,) = (it for it in examined(url) if it.startswith("refused-writes"))
            assert told.endswith("raise that (setquota), or delete it (delquota).")
            client.delete(quota, recursive=True)
            until(lambda: refusal(redlock) == "")


@pytest.mark.long
def test_init_says_that_zookeeper_denies_it(zookeeper: str) -> None:
    """The error names the path and the right, in words."""
    with (
        closing(Redlock([zookeeper.format("") + "/locked"], **PATIENT)) as redlock,
        pytest.raises(RedlockError, match="make /redlock: our user has no permission"),
    ):
        redlock.initialize()


@pytest.mark.long
def test_zookeeper_that_freezes_is_told_in_words() -> None:
    """It had answered before, and does not now: no name of a class tells that."""
    with (
        store_servers("zookeeper", members=1) as store,
        closing(Redlock(store.urls, node_timeout=0.5)) as ours,
    ):
        assert refusal(ours) == ""
        store.nodes[0].pause()
        refused: list[str] = []

        def is_told() -> bool:
            refused.append(refusal(ours))
            return "did not answer in time" in refused[-1]

        until(is_told)
        store.nodes[0].resume()
    assert "Kazoo" not in " ".join(refused)


@pytest.mark.long
def test_refused_write_to_zookeeper_costs_no_connection(zookeeper: str) -> None:
    """So each refusal has its reason, and not that a connection is lost."""
    with closing(Redlock([zookeeper.format("") + "/shown"], **PATIENT)) as redlock:
        for _ in range(3):
            with pytest.raises(QuorumUnreachable, match="NOPERM our user may not"):
                redlock.acquire("k")


# -- all -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "fact"),
    [
        (f"postgresql://app:{SECRET}@127.0.0.1:1/app", "refused the connection"),
        (f"etcd://app:{SECRET}@127.0.0.1:1", "gives no answer: it cannot be reached"),
        pytest.param(
            f"zookeeper://app:{SECRET}@127.0.0.1:1,127.0.0.1:2",
            "refused the connection",
            marks=pytest.mark.long,  # kazoo tries until the timeout
        ),
    ],
)
def test_store_that_is_down_is_to_be_started(url: str, fact: str) -> None:
    """The remedy of a server that is down is its start."""
    (told,) = (one for one in examined(url) if one.startswith("unreachable: "))
    assert told == f"unreachable: {fact}. {START}"


@pytest.mark.parametrize(
    ("scheme", "fact", "first", "last"),
    [
        ("postgresql", SILENT, "", ""),
        ("etcd", LATE, "", ", or a majority of its cluster is away"),
        ("etcds", LATE.replace("in time", "as a TLS server in time"), NO_TLS, ""),
        pytest.param("zookeeper", SILENT, "", "", marks=pytest.mark.long),
    ],
)
def test_store_that_accepts_connections_and_is_silent_is_told(
    scheme: str, fact: str, first: str, last: str
) -> None:
    """Its port is open, as that of a frozen server: a start is no remedy.

    Nor is it for another server, which waits for what its own clients say first.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = examined(f"{scheme}://app:{SECRET}@127.0.0.1:{port}")

    (told,) = (one for one in found if one.startswith("unreachable: "))
    port = "correct the port in redlock_nodes if another server listens there, else "
    busy = "see whether its process is stopped, is busy or swaps"
    rest = f"{first}{port}{busy}{last}."
    assert told == f"unreachable: {fact}. {rest[0].upper()}{rest[1:]}"


@pytest.mark.parametrize("place", ["unix socket", "hostaddr", "environment"])
def test_silent_postgresql_is_told_where_libpq_connects_to(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a socket in a folder, or to an address that its host does not lead to.

    Where the URL has no host, that is in the environment.
    """
    with TemporaryDirectory() as folder, ExitStack() as stack:
        if place == "hostaddr":
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = server.getsockname()[1]
            where = f"db.invalid:{port}/app?hostaddr=127.0.0.1"
        else:
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(f"{folder}/.s.PGSQL.6000")
            server.listen()
            where = f"/app?host={folder}&port=6000"
            if place == "environment":
                monkeypatch.setenv("PGHOST", folder)
                monkeypatch.setenv("PGPORT", "6000")
                where = "/app"
        with pytest.raises(StoreError, match="accepts connections, but did not"):
            PostgreSQL(f"postgresql://app@{where}", 2.0)


@pytest.mark.parametrize(
    "scheme", ["postgresql", pytest.param("zookeeper", marks=pytest.mark.long)]
)
def test_store_that_accepts_no_connection_is_told(scheme: str) -> None:
    """The backlog of its port is full."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        socket.create_connection(server.getsockname()),
    ):
        port = server.getsockname()[1]
        found = examined(f"{scheme}://app:{SECRET}@127.0.0.1:{port}")

    (told,) = (one for one in found if one.startswith("unreachable: "))
    assert told == f"unreachable: did not accept a connection in time. {START}"


def test_unknown_scheme_names_all_stores() -> None:
    """The remedy has each notation."""
    with pytest.raises(ConfigurationError) as refused:
        Redlock(["mysql://db/app"])
    for scheme in ("postgresql://", "django://", "etcd://", "zookeeper://"):
        assert scheme in str(refused.value)
