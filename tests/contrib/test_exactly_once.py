"""Effects exactly once: by Django and SQLAlchemy, in SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from celery import Celery, signals, states
from celery.exceptions import Ignore, Reject
from django.apps import apps
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings
from kombu.exceptions import EncodeError
from kombu.utils.uuid import uuid
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from celery_redlock import ConfigurationError, LockLost, Outbox, StaleFence
from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.contrib.sqlalchemy import current_session
from celery_redlock.devnodes import DevNodes
from celery_redlock.effects import exactly_once
from celery_redlock.effects.call_records import PRUNE, now
from celery_redlock.policies import Abort, Loss, LossDecision, Warn
from celery_redlock.task.call import Call
from tests.contrib.ledgers import (
    DjangoLedger,
    Ledger,
    SqlAlchemyLedger,
    closing_connections,
    elsewhere,
    lent,
)
from tests.contrib.storages import default_database, use_django
from tests.harness.standby import held_commits, hold_commits, let_commits_go
from tests.harness.waiting import until
from tests.unit.tasks.support import Worker

DAY = timedelta(days=1)
LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)

# SQLite has one writer at a time: two transactions never overlap.
overlapping = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
def sqlite_rows(sqlite: str) -> Iterator[DjangoLedger]:
    """Give rows and records of Django in SQLite, for what is Django's alone."""
    yield from lent(DjangoLedger(sqlite))


@pytest.fixture
def postgres_rows(postgres: str) -> Iterator[DjangoLedger]:
    """Give rows and records of Django in PostgreSQL."""
    yield from lent(DjangoLedger(postgres))


@pytest.fixture
def session_rows(sqlite: str) -> Iterator[SqlAlchemyLedger]:
    """Give rows and records of SQLAlchemy in SQLite."""
    yield from lent(SqlAlchemyLedger(sqlite))


@pytest.fixture(scope="module")
def redis() -> Iterator[DevNodes]:
    """Give a Redis of its own."""
    with DevNodes(1, initialize=False) as nodes:
        yield nodes


@dataclass(eq=False)
class Starting:
    """A worker that starts."""

    app: Celery
    options: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def other_database(alias: str, url: str, **settings: Any) -> Iterator[None]:
    """Let Django have another database for a while."""
    of_sqlite = use_django(url)  # under the alias of its kind
    before = connections.settings[of_sqlite]
    connections.settings[alias] = {**before, **settings}
    try:
        yield
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


def adding(worker: Worker, ledger: Ledger, **options: Any) -> Any:
    """Return a task that adds a row and returns its name in a list."""
    runs: list[str] = []

    @worker.task(**{"exactly_once_in": ledger.database, **options})
    def add(name: str) -> list[str]:
        runs.append(name)
        ledger.add(name)
        return [name]

    add.runs = runs
    return add


def forget_result(task: Any, task_id: str) -> None:
    """Lose a result on its way, as when the worker is killed before it is stored."""
    task.backend.delete(task.backend.get_key_for_task(task_id))


# -- Effects and record are there, or neither ----------------------------------------


def test_record_of_a_long_id_has_its_beginning(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """Nodes store longer ids than a database; the record is found by a digest."""
    add = adding(worker, ledger)
    task_id = f"{name}-{'x' * 300}"

    first, again = worker.run(add, name, id=task_id), worker.run(add, name, id=task_id)

    assert first.result == again.result == [name]
    assert ledger.count(name) == 1
    (record,) = ledger.records()
    assert record["task_id"] == task_id[:255]


def test_record_of_an_id_with_a_nul_can_be_stored(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """PostgreSQL has no NUL in a text, and nodes and brokers have."""
    add = adding(worker, ledger)

    call = worker.run(add, name, id=f"{name}-\0-")

    assert call.result == [name]
    (record,) = ledger.records()
    assert record["task_id"] == f"{name}-·-"


def test_effects_and_record_are_committed_together(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """The record has the task, the id and key of the call, its fence and its result."""
    add = adding(worker, ledger)

    run = worker.run(add, name)

    assert run.result == [name]
    assert ledger.count(name) == 1
    (record,) = ledger.records()
    assert (record["task"], record["task_id"]) == ("job", run.id)
    assert record["key"] == "'the-key'"
    assert record["fence"] > 0
    assert (record["state"], record["result"]) == ("SUCCESS", f'["{name}"]')
    assert record["keep_until"] - record["recorded_at"] == timedelta(days=30)


def test_redelivered_copy_is_given_the_recorded_result(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """A copy whose result was lost on its way stores the recorded one; no body runs."""
    add = adding(worker, ledger)
    first = worker.run(add, name)
    forget_result(add, first.id)

    again = worker.redeliver(add, name, id=first.id)

    assert again.stored == states.SUCCESS
    assert again.result == [name]
    assert add.runs == [name]
    assert ledger.count(name) == 1


def test_other_call_runs(worker: Worker, ledger: Ledger, name: str) -> None:
    """A call with another id is another call, also with the same key."""
    add = adding(worker, ledger)

    worker.run(add, name)
    worker.run(add, name)

    assert ledger.count(name) == 2


def test_other_task_with_the_same_id_is_another_call(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """A record is of one task: another one never gets its result."""
    add, other = adding(worker, ledger), adding(worker, ledger, name="other")
    first = worker.run(add, name)
    forget_result(add, first.id)

    worker.run(other, name, id=first.id)

    assert other.runs == [name]
    assert ledger.count(name) == 2


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), Ignore("no"), Reject("no")],
    ids=["error", "Ignore", "Reject"],
)
def test_error_rolls_back_and_leaves_no_record(
    worker: Worker, ledger: Ledger, name: str, error: Exception
) -> None:
    """A body that ends in any other way than a result leaves neither."""

    @worker.task(exactly_once_in=ledger.database)
    def fail() -> None:
        ledger.add(name)
        raise error

    worker.run(fail)

    assert ledger.count(name) == 0
    assert ledger.records() == []


@pytest.mark.parametrize("how", ["self.retry", "autoretry_for"])
def test_retry_is_the_same_call_and_not_yet_done(
    worker: Worker, ledger: Ledger, name: str, how: str
) -> None:
    """The run that retries is rolled back; the retry does the call, once."""
    options = {"autoretry_for": (KeyError,)} if how == "autoretry_for" else {}

    @worker.task(exactly_once_in=ledger.database, bind=True, max_retries=3, **options)
    def add(self: Any) -> str:
        ledger.add(name)
        if self.request.retries:
            return "done"
        if options:
            raise KeyError(name)
        raise self.retry(countdown=0)

    first = worker.run(add)
    assert first.stored == states.RETRY
    assert ledger.count(name) == 0
    assert ledger.records() == []

    again = worker.run(add, id=first.id, retries=1)
    assert again.result == "done"
    assert ledger.count(name) == 1


def test_result_that_cannot_be_serialized_is_no_failure_of_the_body(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """It is not recorded, so a retry may end otherwise."""

    @worker.task(
        exactly_once_in=ledger.database,
        exactly_once_failures=True,
        bind=True,
        autoretry_for=(EncodeError,),
        retry_kwargs={"max_retries": 1, "countdown": 0},
    )
    def add(self: Any) -> object:
        ledger.add(name)
        return "done" if self.request.retries else object()

    first = worker.run(add)
    assert first.stored == states.RETRY
    assert ledger.records() == []

    again = worker.run(add, id=first.id, retries=1)
    assert again.result == "done"
    assert ledger.count(name) == 1


def test_body_that_replaces_itself_is_refused(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """Celery ends it by ``Ignore``, which rolls back, and the call would succeed."""

    @worker.app.task(name="next")
    def following() -> None: ...

    @worker.task(exactly_once_in=ledger.database, bind=True)
    def add(self: Any) -> None:
        ledger.add(name)
        raise self.replace(following.si())

    run = worker.run(add)

    assert isinstance(run.result, ConfigurationError)
    assert "outbox" in str(run.result)
    assert worker.published == []
    assert ledger.count(name) == 0


def test_result_is_recorded_by_the_serializer_of_results(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """Another serializer than JSON, as bytes, returns the same value."""
    worker.app.conf.update(accept_content=["pickle"], result_serializer="pickle")

    @worker.task(exactly_once_in=ledger.database)
    def add() -> Any:
        ledger.add(name)
        return {1, 2}

    first = worker.run(add)
    forget_result(add, first.id)

    assert worker.redeliver(add, id=first.id).result == {1, 2}
    assert ledger.count(name) == 1


@pytest.mark.parametrize("is_ignored", [True, False], ids=["ignored", "no backend"])
def test_result_that_is_not_stored_may_be_anything(
    worker: Worker, ledger: Ledger, name: str, *, is_ignored: bool
) -> None:
    """Celery stores nothing for it, so the record has nothing to say."""
    if not is_ignored:
        worker.app.conf.result_backend = None

    @worker.task(exactly_once_in=ledger.database, ignore_result=is_ignored)
    def add() -> object:
        ledger.add(name)
        return object()

    with contextlib.suppress(AttributeError):  # of Celery, which has no result to tell
        worker.run(add)

    assert ledger.count(name) == 1
    assert [record["result"] for record in ledger.records()] == ["null"]


def test_savepoint_of_the_body_may_fail_alone(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """A nested block is a savepoint of the one transaction."""

    @worker.task(exactly_once_in=ledger.database)
    def add() -> None:
        ledger.add(name)
        with contextlib.suppress(KeyError), ledger.savepoint():
            ledger.add(name)
            raise KeyError(name)

    assert worker.run(add).stored == states.SUCCESS
    assert ledger.count(name) == 1


def test_body_that_commits_is_refused(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """The error says who commits, and nothing is committed."""

    @worker.task(exactly_once_in=ledger.database)
    def add() -> None:
        ledger.add(name)
        ledger.commit()

    run = worker.run(add)

    assert isinstance(run.result, ConfigurationError)
    assert "commits the effects of a call and its record together" in str(run.result)
    assert ledger.count(name) == 0


def test_failure_is_recorded_if_asked_for(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """A copy then ends in the same failure, and its body does not run again."""
    runs = []

    @worker.task(exactly_once_in=ledger.database, exactly_once_failures=True)
    def fail() -> None:
        runs.append(1)
        ledger.add(name)
        raise ValueError(name)

    first = worker.run(fail)
    forget_result(fail, first.id)
    again = worker.redeliver(fail, id=first.id)

    assert isinstance(again.result, ValueError)
    assert str(again.result) == name
    assert len(runs) == 1
    assert ledger.count(name) == 0


# -- Chains, links and errors after the commit ---------------------------------------


def test_chain_goes_on_with_the_recorded_result(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """A copy publishes the rest of its chain, with the same id as the first time."""
    add = adding(worker, ledger, key="{name}")
    rest = add.s().set(task_id=uuid())
    first = worker.run(add, name, chain=[dict(rest)])
    forget_result(add, first.id)

    worker.redeliver(add, name, id=first.id, chain=[dict(rest)])

    sent = [headers["id"] for headers, _ in worker.published]
    assert sent == [rest.id, rest.id]
    assert [body[0] for _, body in worker.published] == [[[name]], [[name]]]


def test_chain_goes_on_with_a_result_whose_serializer_is_not_accepted(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """The worker reads what it has written itself."""
    worker.app.conf.result_serializer = "pickle"
    add = adding(worker, ledger, ignore_result=True)
    rest = dict(add.s().set(task_id=uuid()))

    for _ in range(2):
        worker.redeliver(add, name, id=worker.call_id, chain=[rest])

    assert [body[0] for _, body in worker.published] == [[[name]], [[name]]]
    assert add.runs == [name]


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery
def test_chord_is_given_the_recorded_result_of_a_member_that_stores_none(
    worker: Worker,
    ledger: Ledger,
    name: str,
    redis: DevNodes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process is killed after the commit, and before Celery counts it."""
    worker.app.conf.result_backend = redis.urls[0]
    # Celery 5.5 asks the current app for the results of the chord.
    monkeypatch.setattr("celery._state._tls.current_app", worker.app)
    add = adding(worker, ledger, ignore_result=True)
    member = {"id": name, "group": name, "group_index": 0, "chord": dict(add.s())}
    backend = add.backend
    worker.run(add, name, **member)
    for counted in (".j", ".d"):
        backend.client.delete(backend.get_key_for_group(name, counted))
    backend.set_chord_size(name, 1)

    worker.redeliver(add, name, **member)

    assert [arguments for _, (arguments, *_) in worker.published] == [[[[name]]]]
    assert add.runs == [name]


# -- Two transactions, no record yet -------------------------------------------------


def overtaken(
    worker: Worker, ledger: Ledger, name: str, decision: LossDecision
) -> tuple[Any, Any]:
    """Run a call which is frozen in its body past its ttl, while a copy does it.

    Returns:
        The run that was frozen, and that of the copy.
    """
    others: list[Any] = []
    is_over = threading.Event()

    def after_the_freeze(_: Loss) -> LossDecision:
        is_over.wait(20)
        return decision

    @worker.task(exactly_once_in=ledger.database, on_lock_lost=after_the_freeze)
    def add() -> str:
        if not others:
            others.append(None)
            worker.nodes.clock.sleep(60)
            others[0] = elsewhere(lambda: worker.run(add, id=worker.call_id))
            is_over.set()
        ledger.add(name)
        return name

    return worker.run(add, id=worker.call_id), others[0]


@overlapping
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "result lost"])
def test_late_fence_is_rolled_back(  # noqa: PLR0913, PLR0917  (fixtures)
    worker: Worker,
    ledger: Ledger,
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    stored: bool,
) -> None:
    """Frozen before the commit, another one has done it: StaleFence, rolled back."""
    if not stored:
        monkeypatch.setattr(Call, "keeps_result", lambda _: False)

    late, other = overtaken(worker, ledger, name, Warn())

    assert other.result == name
    assert late.state == (states.SUCCESS if not stored else "IGNORED")
    assert (late.stored, late.result) == (states.SUCCESS, name)
    assert ledger.count(name) == 1
    (record,) = ledger.records()
    assert f"StaleFence: The record of job[{late.id}] has fence {record['fence']}" in (
        caplog.text
    )


@overlapping
def test_late_run_that_is_aborted_keeps_the_result(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """A lock that was lost ends in LockLost only if no other run has done the call."""
    late, _ = overtaken(worker, ledger, name, Abort())

    assert (late.stored, late.result) == (states.SUCCESS, name)
    assert ledger.count(name) == 1


def test_lost_lock_rolls_back(worker: Worker, ledger: Ledger, name: str) -> None:
    """Without a lock a run does not commit, unless `on_lock_lost` lets it go on."""

    @worker.task(exactly_once_in=ledger.database)
    def add() -> None:
        ledger.add(name)
        worker.nodes.clock.sleep(60)

    run = worker.run(add)

    assert isinstance(run.result, LockLost)
    assert ledger.count(name) == 0


@pytest.mark.parametrize("decision", ["abort", "warn"])
def test_body_does_not_begin_after_the_lock_was_lost(
    worker: Worker,
    ledger: Ledger,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    decision: str,
) -> None:
    """A database that takes long to begin can outlast the lock."""
    add = adding(worker, ledger, on_lock_lost=decision)
    store = runtime_of(worker.app).options(add).records
    transaction = store.transaction

    def slow(*args: Any, **options: Any) -> Any:
        worker.nodes.clock.sleep(60)
        return transaction(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store, "transaction", slow)
        run = worker.run(add, name)

    goes_on = decision == "warn"
    assert goes_on or isinstance(run.result, LockLost)
    assert add.runs == ([name] if goes_on else [])
    assert ledger.count(name) == goes_on


@overlapping
def test_two_runs_without_a_lock_have_one_effect(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """The database alone decides: both have begun without a record, and one commits."""
    both = threading.Barrier(2, timeout=20)
    tries: list[int] = []

    options = {"exactly_once_per": "key", "exactly_once_for": DAY}

    @worker.task(exactly_once_in=ledger.database, on_conflict="allow", **options)
    def add() -> str:
        tries.append(1)
        if len(tries) <= 2:
            both.wait()
        ledger.add(name)
        return name

    def run(_: int) -> Any:
        with closing_connections():
            return worker.run(add)

    worker.app.finalize()  # Celery binds tasks on first use, in one thread
    with ThreadPoolExecutor(2) as threads:
        runs = [*threads.map(run, range(2))]

    assert len(tries) == 2
    assert [run.result for run in runs] == [name, name]
    assert ledger.count(name) == 1


def test_answer_to_the_commit_that_is_lost_is_looked_up(
    worker: Worker, ledger: Ledger, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the connection dies after the commit, the record says that it took place."""
    add = adding(worker, ledger)
    store = runtime_of(worker.app).options(add).records
    transaction, answers = store.transaction, [OSError("connection reset")]

    class Broken:
        def __init__(self, *args: Any, **options: Any) -> None:
            self._real = transaction(*args, **options)

        def __enter__(self) -> Any:
            return self._real.__enter__()

        def __exit__(self, *error: object) -> None:
            self._real.__exit__(*error)
            if answers:
                raise answers.pop()

    monkeypatch.setattr(store, "transaction", Broken)

    run = worker.run(add, name)

    assert (run.stored, run.result) == (states.SUCCESS, [name])
    assert ledger.count(name) == 1


@overlapping
def test_commit_that_the_server_still_finishes_is_waited_for(
    worker: Worker, ledger: Ledger, postgres: str, name: str
) -> None:
    """The connection dies while the server waits for its standby: no record is seen."""
    server = psycopg.connect(postgres.replace("+psycopg", ""), autocommit=True)
    lost: list[psycopg.Connection] = []

    @worker.task(exactly_once_in=ledger.database)
    def add() -> str:
        ledger.add(name)
        connection = ledger.driver_connection()
        connection.execute("SET LOCAL synchronous_commit = on")
        lost.append(connection)
        return name

    def is_waited_for() -> bool:
        asked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return server.execute(asked).fetchone() is not None

    def finish() -> None:
        """Lose the connection in its commit; end it when another one waits for it."""
        until(lambda: held_commits(server))
        with socket.socket(fileno=os.dup(lost[0].fileno())) as its_socket:
            its_socket.shutdown(socket.SHUT_RDWR)
        until(lambda: is_waited_for() or has_ended.is_set())
        let_commits_go(server)

    hold_commits(server)
    has_ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        finished = pool.submit(finish)
        try:
            run = worker.run(add)
        finally:
            has_ended.set()
    finished.result()
    server.close()

    assert (run.stored, run.result) == (states.SUCCESS, name)
    assert ledger.count(name) == 1


def test_connection_that_dies_in_the_body_rolls_back(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """Neither effects nor a record are there, and the next copy does it."""
    broken: list[int] = []

    @worker.task(exactly_once_in=ledger.database)
    def add() -> str:
        ledger.add(name)
        if not broken:
            broken.append(1)
            ledger.break_connection()
        return name

    first = worker.run(add, id=worker.call_id)
    assert first.stored == states.FAILURE
    assert ledger.count(name) == 0
    assert ledger.records() == []

    forget_result(add, worker.call_id)
    assert worker.redeliver(add, id=worker.call_id).result == name
    assert ledger.count(name) == 1


def test_connection_that_its_driver_knows_to_be_dead_is_replaced(
    worker: Worker, postgres_rows: DjangoLedger, name: str
) -> None:
    """The begin of the transaction fails: the call has not begun yet."""
    add = adding(worker, postgres_rows)
    connections[postgres_rows.database].ensure_connection()
    postgres_rows.break_connection()

    run = worker.run(add, name)

    assert (run.stored, run.result) == (states.SUCCESS, [name])
    assert postgres_rows.count(name) == 1


def test_connection_that_django_has_replaced_is_no_open_one(
    worker: Worker,
    postgres_rows: DjangoLedger,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It connects anew where a rollback fails; the error was of the one before."""
    add, breaks = adding(worker, postgres_rows), [postgres_rows.break_connection]
    store = runtime_of(worker.app).options(add).records
    find = store._find  # noqa: SLF001  (the first statement of the transaction)

    def find_after_break(record_id: str) -> Any:
        if breaks:
            breaks.pop()()
        return find(record_id)

    monkeypatch.setattr(store, "_find", find_after_break)

    run = worker.run(add, name)

    assert (run.stored, run.result) == (states.SUCCESS, [name])
    assert postgres_rows.count(name) == 1


def test_dead_connections_of_a_pool_are_replaced(
    worker: Worker, postgres: str, postgres_rows: DjangoLedger, name: str
) -> None:
    """After a restart of the server, none of those that the pool has is alive."""
    pytest.importorskip("psycopg_pool")
    pool = {"min_size": 3, "max_size": 3}
    options = {"pool": pool, "application_name": name}

    @worker.task(exactly_once_in="pooled")
    def add() -> str:
        with connections["pooled"].cursor() as cursor:
            cursor.execute("INSERT INTO shop_customer (name) VALUES (%s)", [name])
        return name

    with other_database("pooled", postgres, OPTIONS=options):
        try:
            with connections["pooled"].cursor() as cursor:
                cursor.execute("SELECT 1")
            connections["pooled"].close()  # now the pool has it
            connections["pooled"].pool.wait()
            with psycopg.connect(postgres.replace("+psycopg", "")) as server:
                ended = server.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE application_name = %s",
                    (name,),
                ).fetchall()

            run = worker.run(add)
        finally:
            connections["pooled"].close()
            connections["pooled"].close_pool()

    assert ended == [(True,)] * 3
    assert (run.stored, run.result) == (states.SUCCESS, name)
    assert postgres_rows.count(name) == 1


@pytest.mark.parametrize("retries", [True, False])
def test_error_of_the_body_is_told_where_the_rollback_fails(
    worker: Worker, ledger: Ledger, name: str, retries: bool
) -> None:
    """The server is gone and rolls back by itself; Celery hears what the body did."""

    @worker.task(exactly_once_in=ledger.database, bind=True)
    def add(self: Any) -> None:
        ledger.add(name)
        ledger.break_connection()
        if retries:
            raise self.retry(countdown=0)
        raise KeyError(name)

    run = worker.run(add)

    assert run.stored == (states.RETRY if retries else states.FAILURE)
    assert retries or isinstance(run.result, KeyError)
    assert ledger.count(name) == 0
    assert ledger.records() == []


@pytest.mark.parametrize("moment", ["begin", "commit"])
@pytest.mark.parametrize("backoff", [False, True])
def test_error_outside_of_the_body_is_retried_as_one_inside(  # noqa: PLR0913, PLR0917
    worker: Worker,
    ledger: Ledger,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    backoff: bool,
) -> None:
    """With `autoretry_for`, also where the database is away at begin or commit."""
    add = adding(
        worker,
        ledger,
        autoretry_for=(OSError,),
        retry_kwargs={"max_retries": 1, "countdown": 0},
        retry_backoff=backoff,
    )
    store = runtime_of(worker.app).options(add).records
    transaction = store.transaction

    steps: list[float | str] = []

    @contextlib.contextmanager
    def away(*args: Any, **options: Any) -> Iterator[Any]:
        steps.append("look")
        if moment == "begin":
            raise OSError(name)
        with transaction(*args, **options) as found:
            yield found
            if found is None and add.runs:
                raise OSError(name)

    with monkeypatch.context() as broken:
        broken.setattr(store, "transaction", away)
        broken.setattr(
            exactly_once, "SYSTEM_CLOCK", SimpleNamespace(sleep=steps.append)
        )
        first = worker.run(add, name)
        last = worker.run(add, name, id=first.id, retries=1)
    assert (first.stored, last.stored) == (states.RETRY, states.FAILURE)
    assert isinstance(last.result, OSError)
    assert steps[-1] == "look"  # no pause after the last one
    assert ledger.count(name) == 0

    again = worker.run(add, name, retries=1)
    assert again.result == [name]
    assert ledger.count(name) == 1


def test_other_error_outside_of_the_body_is_not_retried(
    worker: Worker, sqlite: str
) -> None:
    """`autoretry_for=(Exception,)` does not mean a wrong setting."""
    engine = create_engine(sqlite, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    @worker.task(exactly_once_in=lambda: Session(engine), autoretry_for=(Exception,))
    def job() -> None:
        """Do nothing."""

    run = worker.run(job)

    assert run.stored == states.FAILURE
    assert isinstance(run.result, ConfigurationError)


# -- An idempotency key --------------------------------------------------------------


def test_call_with_the_same_key_is_given_the_first_result(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """Another call of the key within the time gets the result; with another key not."""
    options = {"exactly_once_per": "key", "exactly_once_for": DAY, "key": "{name}"}
    add = adding(worker, ledger, **options)

    results = [worker.run(add, name).result for _ in range(2)]
    worker.run(add, f"{name}-2")

    assert results == [[name], [name]]
    assert ledger.count(name) == 1
    assert ledger.count(f"{name}-2") == 1


def test_record_may_count_and_be_kept_for_ever(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """The period may be longer than a date can tell."""
    ever = timedelta.max
    options = {"exactly_once_per": "key", "exactly_once_for": ever}
    add = adding(worker, ledger, record_keep=ever, **options)

    results = [worker.run(add, name).result for _ in range(2)]

    assert results == [[name], [name]]
    assert ledger.count(name) == 1
    assert worker.app.tasks[PRUNE].run() == 0


def test_call_with_the_same_key_runs_after_the_time(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """The record is replaced by that of the new run, once."""
    add = adding(worker, ledger, exactly_once_per="key", exactly_once_for=DAY)
    worker.run(add, name)
    ledger.change_records(recorded_at=LONG_AGO)

    results = [worker.run(add, name) for _ in range(2)]

    assert ledger.count(name) == 2
    (record,) = ledger.records()
    assert record["task_id"] == results[0].id


@overlapping
def test_record_of_the_key_may_be_deleted_while_the_body_runs(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """`prune` deletes one that counts no more, and the run writes its own."""

    @worker.task(
        exactly_once_in=ledger.database, exactly_once_per="key", exactly_once_for=DAY
    )
    def add() -> None:
        ledger.add(name)
        if ledger.count(name):
            elsewhere(worker.app.tasks[PRUNE].run)

    worker.run(add)
    ledger.change_records(recorded_at=LONG_AGO, keep_until=LONG_AGO)

    run = worker.run(add)

    assert run.stored == states.SUCCESS
    assert ledger.count(name) == 2
    assert [record["task_id"] for record in ledger.records()] == [run.id]


@overlapping
def test_record_of_the_key_that_was_replaced_while_the_body_runs_stays(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """The late run is rolled back, and given the result of the other one."""

    @worker.task(
        exactly_once_in=ledger.database, exactly_once_per="key", exactly_once_for=DAY
    )
    def add() -> str:
        ledger.add(name)
        if ledger.count(name):
            ledger.change_records(recorded_at=now(), result='"of the other run"')
        return name

    worker.run(add)
    ledger.change_records(recorded_at=LONG_AGO)

    run = worker.run(add)

    assert (run.stored, run.result) == (states.SUCCESS, "of the other run")
    assert ledger.count(name) == 1


def test_late_fence_of_the_key_is_refused(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """A record of a later holder is not replaced, also if it counts no more."""
    add = adding(worker, ledger, exactly_once_per="key", exactly_once_for=DAY)
    worker.run(add, name)
    ledger.change_records(recorded_at=LONG_AGO, fence=2**62)

    run = worker.run(add, name)

    assert isinstance(run.result, StaleFence)
    assert run.result.args[0].startswith("The record of job[")
    assert ledger.count(name) == 1


# -- Mistakes ------------------------------------------------------------------------


def refusal(worker: Worker, database: Any, **options: Any) -> str:
    """Return the error of a call whose body must not run."""
    runs: list[int] = []

    @worker.task(exactly_once_in=database, **options)
    def add() -> None:
        runs.append(1)

    run = worker.run(add)

    assert runs == []
    assert isinstance(run.result, ConfigurationError), run.result
    return str(run.result)


def test_missing_table_is_one_clear_error(
    worker: Worker, tmp_path: Path, orm: str
) -> None:
    """The body does not run, and the error names the command that makes the table."""
    url = f"sqlite:///{tmp_path / 'empty'}"
    if orm == "django":
        with other_database("empty", url):
            said = refusal(worker, "empty")
        assert "manage.py migrate celery_redlock --database=empty" in said
    else:
        engine = create_engine(url, poolclass=NullPool)
        said = refusal(worker, lambda: Session(engine))
        assert "record_table(Base.metadata)" in said
    assert "Nothing was done" in said


def test_session_is_closed_where_the_table_is_missing(
    worker: Worker, tmp_path: Path
) -> None:
    """Its connection goes back to the pool."""
    engine = create_engine(f"sqlite:///{tmp_path / 'empty'}", poolclass=NullPool)
    made: list[Session] = []
    closed: list[Session] = []

    class Noted(Session):
        def close(self) -> None:
            closed.append(self)
            super().close()

    def make() -> Session:
        made.append(Noted(engine))
        return made[-1]

    refusal(worker, make)

    assert closed == made


def test_session_that_begins_nothing_by_itself_will_do(
    worker: Worker, session_rows: SqlAlchemyLedger, sqlite: str, tmp_path: Path
) -> None:
    """A project may have it so (``autobegin=False``); the package begins."""
    engines = [create_engine(url) for url in (sqlite, f"sqlite:///{tmp_path}/empty")]

    def strict(number: int = 0) -> Session:
        return Session(engines[number], autobegin=False)

    add = adding(worker, session_rows, name="strict", exactly_once_in=strict)
    results = [worker.run(add, "a", id="the-call").result for _ in range(2)]
    waiting = Outbox(strict, app=worker.app).waiting()
    said = refusal(worker, lambda: strict(1))
    for engine in engines:
        engine.dispose()

    assert results == [["a"], ["a"]]
    assert waiting.messages == 0
    assert "record_table(Base.metadata)" in said


def test_unknown_alias_is_refused_when_the_worker_starts(
    worker: Worker, sqlite: str
) -> None:
    """The worker ends with the name that was meant."""
    use_django(sqlite)
    worker.leased_job(exactly_once_in="sqlit")

    with pytest.raises(SystemExit, match=r"'sqlit' is not in DATABASES.*'sqlite'"):
        signals.worker_init.send(sender=Starting(worker.app))


def of_async_engine() -> Session:
    """Return a session that works in coroutines only."""
    return Session(create_async_engine("postgresql+psycopg://").sync_engine)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (AsyncSession, "AsyncSession; it must return a sqlalchemy.orm.Session. A body"),
        (object, "builtins.object; it must return a sqlalchemy.orm.Session"),
        (Session, "session of exactly_once_in has no engine for the tables of this"),
        (of_async_engine, "session with the engine of an AsyncEngine, which works in"),
    ],
    ids=["async", "another kind", "without an engine", "engine of coroutines"],
)
def test_session_of_another_kind_is_refused_when_the_worker_starts(
    worker: Worker, made: Any, said: str
) -> None:
    """The callable is tried once; a session opens no connection."""
    worker.leased_job(exactly_once_in=made)

    with pytest.raises(SystemExit, match=said):
        signals.worker_init.send(sender=Starting(worker.app))


def test_session_that_commits_by_itself_is_refused(worker: Worker, sqlite: str) -> None:
    """With AUTOCOMMIT, each statement would be committed without the record."""
    engine = create_engine(sqlite, isolation_level="AUTOCOMMIT", poolclass=NullPool)

    assert "AUTOCOMMIT" in refusal(worker, lambda: Session(engine))


def test_transaction_around_the_call_is_refused(
    worker: Worker, sqlite: str, sqlite_rows: DjangoLedger
) -> None:
    """The commit would be that of another one, and come after the lock has ended."""
    with transaction.atomic(using=sqlite_rows.database):
        said = refusal(worker, sqlite_rows.database)

    assert "open before the body begins" in said


@pytest.mark.parametrize("how", ["rollback", "close"])
def test_body_that_ends_its_session_is_refused(
    worker: Worker, session_rows: SqlAlchemyLedger, how: str
) -> None:
    """Otherwise a record would be committed without the effects."""

    @worker.task(exactly_once_in=session_rows.database)
    def add() -> None:
        session_rows.add("ended")
        getattr(current_session(), how)()

    run = worker.run(add)

    assert "rolled back or closed its session" in str(run.result)
    assert session_rows.records() == []


def test_body_that_commits_behind_the_orm_is_refused(
    worker: Worker, sqlite_rows: DjangoLedger
) -> None:
    """The driver says that the transaction has ended: no record is written."""

    @worker.task(exactly_once_in=sqlite_rows.database)
    def add() -> None:
        sqlite_rows.add("committed")
        connections[sqlite_rows.database].connection.commit()

    run = worker.run(add)

    assert "ended the transaction of 'sqlite' by itself" in str(run.result)
    assert sqlite_rows.records() == []


def test_session_of_a_call_is_for_its_body() -> None:
    """Elsewhere there is none, and the error says where it is."""
    with pytest.raises(ConfigurationError, match="for the body of a task"):
        current_session()


# -- Django --------------------------------------------------------------------------


def test_functions_for_the_commit_run_after_it(
    worker: Worker, sqlite_rows: DjangoLedger
) -> None:
    """They find the effects and the record; an error of theirs changes no result."""
    found: list[int] = []

    def look() -> None:
        found.append(len(sqlite_rows.records()))
        raise KeyError("later")

    @worker.task(exactly_once_in=sqlite_rows.database)
    def add() -> str:
        sqlite_rows.add("looked")
        transaction.on_commit(look, using=sqlite_rows.database)
        return "done"

    assert worker.run(add).result == "done"
    assert found == [1]


def test_eager_call_is_a_part_of_the_transaction_of_its_caller(
    worker: Worker, sqlite_rows: DjangoLedger
) -> None:
    """With `redlock_eager` the caller commits effects and record, or neither."""
    worker.app.conf.redlock_eager = True
    add = adding(worker, sqlite_rows)

    with transaction.atomic(using=sqlite_rows.database):
        assert add.apply(("eager",)).result == ["eager"]
        transaction.set_rollback(True, using=sqlite_rows.database)

    assert sqlite_rows.count("eager") == 0
    assert sqlite_rows.records() == []


def test_migrations_are_complete(sqlite: str) -> None:
    """`makemigrations --check` finds nothing to add."""
    use_django(sqlite)
    options = {"check": True, "dry_run": True, "verbosity": 0}

    with default_database(use_django(sqlite)):
        call_command("makemigrations", "celery_redlock", **options)


def test_migration_makes_the_table_and_works_with_naive_moments(
    worker: Worker, tmp_path: Path
) -> None:
    """A database that was migrated has records, also of a project without USE_TZ."""
    with (
        other_database("migrated", f"sqlite:///{tmp_path / 'migrated'}"),
        override_settings(USE_TZ=False),
    ):
        call_command("migrate", "celery_redlock", database="migrated", verbosity=0)

        @worker.task(exactly_once_in="migrated")
        def job() -> int:
            return 1

        first = worker.run(job, id=worker.call_id)
        forget_result(job, first.id)
        again = worker.redeliver(job, id=worker.call_id)

    assert (first.result, again.result) == (1, 1)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_moments_of_a_database_with_a_zone_of_its_own_are_read_in_it(
    worker: Worker, tmp_path: Path, zone: str
) -> None:
    """A key counts for its hour, and a message has waited for no hours."""
    with other_database("zoned", f"sqlite:///{tmp_path / 'zoned'}", TIME_ZONE=zone):
        call_command("migrate", "celery_redlock", database="zoned", verbosity=0)
        hour = timedelta(hours=1)
        outbox = Outbox("zoned", app=worker.app)
        runs: list[int] = []

        @worker.task(
            exactly_once_in="zoned", exactly_once_per="key", exactly_once_for=hour
        )
        def count() -> int:
            runs.append(1)
            return len(runs)

        with transaction.atomic(using="zoned"):
            outbox.send(count)
            assert outbox.waiting().oldest < hour.total_seconds()
            transaction.set_rollback(True, using="zoned")
        within = [worker.run(count).result for _ in range(2)]
        model = apps.get_model("celery_redlock", "CallRecord")
        record = model.objects.using("zoned").get()
        record.recorded_at -= hour
        record.save()
        after = worker.run(count).result

    assert (within, after) == ([1, 1], 2)


# -- Deleting old records ------------------------------------------------------------


def test_prune_deletes_what_is_not_kept_any_more(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """The periodic task is in the app, and deletes records after `record_keep`."""
    add = adding(worker, ledger, record_keep=DAY)
    worker.run(add, name)
    prune = worker.app.tasks[PRUNE]

    assert prune.run() == 0
    ledger.change_records(keep_until=LONG_AGO)
    assert prune.run() == 1
    assert ledger.records() == []


def test_prune_goes_on_where_a_database_is_away(
    worker: Worker, ledger: Ledger, name: str, tmp_path: Path
) -> None:
    """It deletes what it can, and then fails with the error of the other one."""
    engine = create_engine(f"sqlite:///{tmp_path / 'away' / 'db'}")
    add = adding(worker, ledger)
    for task in ("first", "last"):  # in the order of names, `job` is between
        adding(worker, ledger, name=task, exactly_once_in=lambda: Session(engine))
    worker.run(add, name)
    ledger.change_records(keep_until=LONG_AGO)

    with pytest.raises(OperationalError, match="unable to open"):
        worker.app.tasks[PRUNE].run()

    assert ledger.records() == []


# -- The worker's own time -----------------------------------------------------------


def test_interrupted_body_is_rolled_back(
    worker: Worker, ledger: Ledger, name: str
) -> None:
    """A lock that is lost ends the body as without the option."""
    worker.use_real_time(0.3)

    @worker.task(exactly_once_in=ledger.database)
    def add() -> None:
        ledger.add(name)
        worker.nodes.partition()
        while True:
            SYSTEM_CLOCK.sleep(0.005)

    run = worker.run(add)

    assert isinstance(run.result, LockLost)
    assert ledger.count(name) == 0
