"""The connection to a store: who waits for it, what runs together, and its end."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.postgresql import PostgreSQL
from celery_redlock.stores.postgresql_statements import Statements
from celery_redlock.wire.connection import ConnectionLost
from celery_redlock.wire.store_connection import StoreConnection, open_store
from celery_redlock.wire.url import parse_node
from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg
    from psycopg.pq.abc import PGresult

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.stores.connection import Command, Waits
    from celery_redlock.stores.postgresql_statements import Statement
    from celery_redlock.wire.requests import ScriptRequest

LONG = 40.0  # seconds: longer than the test


@pytest.fixture
def opened(store_url: str) -> Iterator[StoreConnection]:
    """Give a connection to each store."""
    opened = open_store(parse_node(store_url), 5.0)
    assert isinstance(opened, StoreConnection)
    with closing(opened):
        yield opened


def release(redlock: Redlock, key: str) -> ScriptRequest:
    """Return a request that changes nothing: it releases a lock of no holder."""
    return redlock.release_request(key, "of no holder")


def replies_of(opened: StoreConnection, count: int) -> list[Any]:
    """Return this many replies."""
    found: list[Any] = []

    def are_there() -> bool:
        found.extend(opened.replies())
        return len(found) == count

    until(are_there, what="the replies")
    return found


def test_caller_that_is_alone_waits_for_postgresql_itself(
    redlock: Redlock, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the I/O thread rests, no other thread takes part."""
    threads: set[int] = set()
    carry_out = Statements.carry_out

    def seen(self: Statements, steps: Sequence[Statement]) -> Waits[list[PGresult]]:
        threads.add(threading.get_ident())
        return carry_out(self, steps)

    monkeypatch.setattr(Statements, "carry_out", seen)

    def are_by_this_thread() -> bool:
        threads.clear()
        redlock.release(redlock.acquire(key, LONG))
        return threads == {threading.get_ident()}

    until(are_by_this_thread, what="an acquire and a release by this thread")


def test_requests_that_come_meanwhile_run_together(
    redlock: Redlock, opened: StoreConnection, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are one transaction, after the one that runs; the replies are in order."""
    together: list[int] = []
    runs: Any = opened._runs  # noqa: SLF001  (what it runs is the point)
    running = runs.running

    def counted(commands: Sequence[Command]) -> Waits[list[Any]]:
        together.append(len(commands))
        return running(commands)  # type: ignore[no-any-return]

    monkeypatch.setattr(runs, "running", counted)
    opened.send([release(redlock, key)])
    opened.send([release(redlock, key)])
    opened.send([release(redlock, key), release(redlock, key)])

    assert opened.is_working
    assert replies_of(opened, 4) == [0] * 4
    assert together == [1, 3]
    assert not opened.is_working


def test_connection_that_another_thread_uses_is_only_interrupted(
    redlock: Redlock, postgresql_store: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that uses it gets an error and closes it, as drivers demand."""
    opened = open_store(parse_node(postgresql_store), 5.0)
    assert isinstance(opened, StoreConnection)
    runs: Any = opened._runs  # noqa: SLF001  (the driver's connection)
    in_use, is_interrupted = threading.Event(), threading.Event()
    closed_by: list[int] = []
    driver = runs._connection  # noqa: SLF001
    interrupt, close, running = runs.interrupt, driver.close, runs.running

    def slow(commands: Sequence[Command]) -> Waits[list[Any]]:
        in_use.set()
        assert is_interrupted.wait(LONG)
        return running(commands)  # type: ignore[no-any-return]

    def interrupted() -> None:
        interrupt()
        is_interrupted.set()

    def noted() -> None:
        closed_by.append(threading.get_ident())
        close()

    monkeypatch.setattr(runs, "running", slow)
    monkeypatch.setattr(runs, "interrupt", interrupted)
    monkeypatch.setattr(driver, "close", noted)
    users: list[int] = []

    def ask() -> None:
        opened.send([release(redlock, key)])
        replies_of(opened, 1)

    def use() -> None:
        users.append(threading.get_ident())
        with pytest.raises(ConnectionLost):
            ask()

    user = threading.Thread(target=use)
    user.start()
    assert in_use.wait(LONG)
    opened.close()
    user.join()

    assert closed_by == users
    with pytest.raises(ConnectionLost, match="was closed"):
        opened.send([release(redlock, key)])


def test_service_that_is_dropped_leaves_no_session(
    postgresql_store: str, connection: psycopg.Connection
) -> None:
    """It was not closed; the collector does so."""

    def sessions() -> int:
        connection.rollback()
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", (pids,)
        ).fetchone()
        assert found is not None
        count: int = found[0]
        return count

    opened = open_store(parse_node(postgresql_store), 5.0)
    assert isinstance(opened, StoreConnection)
    pids = [opened._runs._process]  # type: ignore[union-attr]  # noqa: SLF001
    assert sessions() == 1
    del opened
    gc.collect()

    until(lambda: sessions() == 0, what="the end of the session")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such timer")
def test_signal_handler_locks_while_a_script_runs(
    redlock: Redlock, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets a connection of its own; what it has interrupted is tried again."""
    redlock.release(redlock.acquire(key, LONG))
    found: list[str] = []
    carry_out = Statements.carry_out

    def handle(*_: object) -> None:
        lease = redlock.acquire(f"{key}:handler", LONG, wait=LONG)
        found.append(lease.key)
        redlock.release(lease)

    def interrupted(
        self: Statements, steps: Sequence[Statement]
    ) -> Waits[list[PGresult]]:
        if threading.current_thread() is threading.main_thread():
            monkeypatch.setattr(Statements, "carry_out", carry_out)
            signal.raise_signal(signal.SIGTERM)
        return carry_out(self, steps)

    def was_interrupted() -> bool:
        monkeypatch.setattr(Statements, "carry_out", interrupted)
        redlock.release(redlock.acquire(f"{key}:outer", LONG, wait=LONG))
        monkeypatch.setattr(Statements, "carry_out", carry_out)
        return bool(found)  # else the I/O thread has carried it out

    before = signal.signal(signal.SIGTERM, handle)
    try:
        until(was_interrupted, what="an interrupted request")
    finally:
        signal.signal(signal.SIGTERM, before)

    assert found == [f"{key}:handler"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such timer")
def test_exception_of_a_caller_that_waits_costs_no_connection(
    redlock: Redlock, connection: psycopg.Connection, key: str
) -> None:
    """A time limit ends the call while the server works; its release comes after it."""
    redlock.release(redlock.acquire(key, LONG))
    transport: Any = redlock.transport
    process = transport.nodes[0]._conversation.connection._runs._process  # noqa: SLF001
    connection.execute("LOCK TABLE redlock_keys IN ACCESS EXCLUSIVE MODE")

    class TimeLimit(BaseException):
        pass

    def handle(*_: object) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeLimit):
            redlock.acquire(key, LONG)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        connection.rollback()

    redlock.release(redlock.acquire(key, LONG, wait=LONG))
    now = transport.nodes[0]._conversation.connection._runs._process  # noqa: SLF001
    assert now == process


@pytest.mark.skipif(sys.platform == "win32", reason="Windows freezes no process so")
@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.load([b"what a script asks for"]),
        lambda store: store.listens(b"a channel"),
        lambda store: store.run([[b"GET", b"what an operator asks for"]]),
    ],
    ids=["statement", "query", "transaction"],
)
def test_server_that_stalls_is_given_up(postgresql_store: str, ask: Any) -> None:
    """The thread that carries a script out waits for all nodes: it must go on."""
    store = PostgreSQL(postgresql_store, 0.3)
    process = store._process  # noqa: SLF001  (of the server)
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(StoreError, match=r"did not answer within 0\.3 s"):
            ask(store)
    finally:
        os.kill(process, signal.SIGCONT)
        store.close()
