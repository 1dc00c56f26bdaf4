"""A PgBouncer between us and PostgreSQL, in each of its modes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from celery_redlock.devnodes.processes import Process, free_port
from celery_redlock.devnodes.stores.postgresql import unprivileged
from celery_redlock.errors import QuorumUnreachable
from celery_redlock.locks import wait_queue
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.doctor import diagnose
from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.postgresql import PostgreSQL as Store
from celery_redlock.stores.postgresql_statements import Statements
from tests.conftest import missing
from tests.harness.waiting import until

SOON = 30.0
NEVER = 600.0  # seconds: longer than any test
PATIENT: Any = {"node_timeout": 5.0, "connect_timeout": 5.0}
SETTINGS = """
[databases]
postgres = host=127.0.0.1 port={server} user=redlock
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
"""


@pytest.fixture(scope="module")
def start_pooler(
    postgresql_store: str,
) -> Iterator[Callable[[str], str]]:
    """Give a function that starts a PgBouncer in a mode, and returns its URL."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        missing("PgBouncer is not installed: on Debian, apt-get install pgbouncer")
    server = conninfo_to_dict(postgresql_store)["port"]
    with ExitStack() as stack:
        temporary = stack.enter_context(TemporaryDirectory())
        folder = Path(temporary)
        folder.chmod(0o755)  # PgBouncer refuses to run as root

        def start(mode: str) -> str:
            port = free_port()
            settings = folder / f"{port}.ini"
            settings.write_text(SETTINGS.format(server=server, port=port, mode=mode))
            pooler = Process(
                "pgbouncer",
                [program, str(settings)],
                log=folder / f"{port}.log",
                ready="process up",
                **unprivileged(),
            )
            pooler.start()
            stack.callback(pooler.kill)
            pooler.wait_until_ready()
            return f"postgresql://redlock@127.0.0.1:{port}/postgres"

        yield start


@pytest.fixture(scope="module")
def session_mode(start_pooler: Callable[[str], str]) -> str:
    """Give the URL of a pooler in session mode."""
    return start_pooler("session")


@pytest.fixture
def transaction_mode(start_pooler: Callable[[str], str]) -> str:
    """Give the URL of a new pooler in transaction mode."""
    return start_pooler("transaction")


@pytest.fixture
def connect(postgresql_store: str) -> Iterator[Callable[[str], Redlock]]:
    """Give a function that makes a service of the deployment, by another address."""
    name = Store.name_of(postgresql_store)
    with ExitStack() as stack:

        def connect(url: str) -> Redlock:
            redlock = Redlock([{"url": url, "name": name}], **PATIENT)
            return stack.enter_context(closing(redlock))

        yield connect


def test_session_mode_wakes_a_waiter(
    session_mode: str,
    connect: Callable[[str], Redlock],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A waiter that never looks by itself gets the lock when it is released."""
    monkeypatch.setattr(wait_queue, "_LEAST_LOOK_EVERY", NEVER)
    monkeypatch.setattr(wait_queue, "_LOOK_EVERY", NEVER)
    ours, theirs = connect(session_mode), connect(session_mode)
    lease = ours.acquire(key, ttl=60.0)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(theirs.acquire, key, wait=NEVER)
        with closing(Store(session_mode, 5.0)) as store:
            line = b"redlock:line:" + key.encode()
            until(lambda: store.run([[b"ZCARD", line]])[0])
        ours.release(lease)
        later = waiter.result(timeout=SOON)
    assert theirs.release(later) == 1


def test_full_pool_is_told_with_its_remedy(start_pooler: Callable[[str], str]) -> None:
    """A client that gets no connection of the pool is accepted, and not answered."""
    url = start_pooler("session\ndefault_pool_size = 1")
    with (
        closing(Store(url, 5.0)),
        pytest.raises(
            StoreError, match=r"accepted us and did not answer.*default_pool"
        ),
    ):
        Store(url, 2.0)


def test_paused_pooler_is_told_with_its_remedy(
    start_pooler: Callable[[str], str],
) -> None:
    """It accepts clients and does not answer them, as one whose pool is too small."""
    url = start_pooler("session\nadmin_users = redlock")
    Store(url, 5.0).close()
    console = url.removesuffix("postgres") + "pgbouncer"
    with psycopg.connect(console, autocommit=True) as admin:
        admin.execute("PAUSE")

        with pytest.raises(StoreError, match="paused: RESUME it"):
            Store(url, 2.0)

        admin.execute("RESUME")
    Store(url, 5.0).close()


def test_doctor_tells_of_a_pooler(
    session_mode: str, postgresql_store: str, connect: Callable[[str], Redlock]
) -> None:
    """A note says that it must be in session mode. A direct connection has none."""
    (note,) = [
        found
        for found in diagnose(connect(session_mode), span=0.1)
        if found.code == "pooler"
    ]
    assert note.severity.word == "note"
    assert "session mode" in note.remedy
    direct = diagnose(connect(postgresql_store), span=0.1)
    assert "pooler" not in {found.code for found in direct}


def test_statements_of_another_client_are_told_as_transaction_mode(
    transaction_mode: str, connect: Callable[[str], Redlock]
) -> None:
    """A PgBouncer before 1.21 does not keep prepared statements apart."""
    with closing(Store(transaction_mode, 5.0)):
        problems = connect(transaction_mode).check().problems
    assert len(problems) == 1
    assert "goes through a pooler in transaction mode; use session mode" in problems[0]


def test_transactions_on_several_connections_are_refused(
    transaction_mode: str, connect: Callable[[str], Redlock], key: str
) -> None:
    """Also a pooler that keeps prepared statements does not keep a listener."""
    ours = connect(transaction_mode)
    ours.release(ours.acquire(key))
    with (
        psycopg.connect(transaction_mode) as first,
        psycopg.connect(transaction_mode) as second,
    ):
        first.execute("SELECT")  # has the server's connection that was ours
        second.execute("SELECT")
        Statements(second)
        second.commit()
        with pytest.raises(QuorumUnreachable, match="a pooler in transaction mode"):
            ours.acquire(key)


def test_statement_mode_is_one_clear_error(
    start_pooler: Callable[[str], str], connect: Callable[[str], Redlock], key: str
) -> None:
    """It takes no transaction of several statements."""
    with pytest.raises(QuorumUnreachable, match="statement pooling mode"):
        connect(start_pooler("statement")).acquire(key)
