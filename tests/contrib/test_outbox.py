"""The outbox: published if, and only if, the transaction commits."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import logging
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.local import Proxy
from celery.signals import before_task_publish
from django.db import connections, transaction
from kombu import serialization
from kombu.exceptions import EncodeError, OperationalError
from pydantic import BaseModel
from sqlalchemy import MetaData, NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_redlock import ConfigurationError, LockLost, Outbox
from celery_redlock.contrib.django.outbox import DjangoMessages
from celery_redlock.contrib.sqlalchemy import outbox_table
from celery_redlock.contrib.sqlalchemy.outbox import SqlAlchemyMessages
from celery_redlock.effects.call_records import now
from celery_redlock.effects.outbox import Waiting, outboxes_of, publish_outboxes
from celery_redlock.testing import FakeNodes
from tests.contrib.declared import Base
from tests.contrib.ledgers import (
    DjangoLedger,
    Ledger,
    SqlAlchemyLedger,
    closing_connections,
    open_ledger,
)
from tests.unit.tasks.support import Worker, open_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.result import AsyncResult
    from sqlalchemy import Engine

EMPTY = Waiting(0, 0.0)
KILL_OTHERS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

# Notes the isolation level of each change of a message.
LEVELS = """
    CREATE TABLE levels (change text, level text);
    CREATE FUNCTION note_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO levels VALUES (TG_OP, current_setting('transaction_isolation'));
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_level AFTER INSERT OR UPDATE OR DELETE
    ON celery_redlock_{} EXECUTE FUNCTION note_level();
"""


@pytest.fixture
def ship(worker: Worker) -> Any:
    """Give a task that messages start."""

    @worker.app.task(name="ship", shared=False)
    def ship(order: str, fast: bool = False) -> str:  # noqa: FBT002
        return f"{order} {fast}"

    return ship


@dataclass
class Post:
    """An outbox in the database of the rows, and the worker whose app publishes."""

    worker: Worker
    ledger: Ledger
    outbox: Outbox
    ship: Any

    def send(self, *args: Any, task: Any = None, **options: Any) -> AsyncResult:
        """Write a message in a transaction that commits."""
        task = task or self.ship
        with self.ledger.transaction() as session:
            return self.outbox.send(task, args, session=session, **options)

    def refuse(
        self, error: type[Exception], said: str, *args: Any, **message: Any
    ) -> None:
        """Let a message be refused in a transaction that commits nothing of it."""
        task = message.pop("task", self.ship)
        with self.ledger.transaction() as session, pytest.raises(error, match=said):
            self.outbox.send(task, args, session=session, **message)
        assert self.outbox.waiting() == EMPTY

    def published(self) -> list[tuple[str, Any]]:
        """Return the ids and arguments of the messages that were published."""
        return deliver(self.worker)

    def ids(self) -> list[str]:
        """Return the ids of the messages that were published."""
        return [found for found, _ in self.published()]


@pytest.fixture
def post(worker: Worker, ledger: Ledger, ship: Any) -> Post:
    """Give an outbox by each ORM in each database."""
    return Post(worker, ledger, Outbox(ledger.database, app=worker.app), ship)


class Killed(BaseException):
    """The process is killed."""


@pytest.fixture
def dies_after_commit(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let nothing be published after a commit, as if the process were killed."""
    monkeypatch.setattr(Outbox, "_publish_committed", lambda *_: None)
    return monkeypatch


def deliver(worker: Worker) -> list[tuple[str, Any]]:
    """Return the ids and arguments of the messages that were published."""
    worker.collect()
    sent = [(headers["id"], body[:2]) for headers, body in worker.published]
    worker.published.clear()
    return sent


# -- Published after the commit ------------------------------------------------------


def test_message_is_published_after_the_commit(post: Post) -> None:
    """Not before; its id is known from the beginning, and it is in no table then."""
    with post.ledger.transaction() as session:
        result = post.outbox.send(post.ship, ("a",), {"fast": True}, session=session)
        assert post.published() == []

    assert post.published() == [(result.id, [["a"], {"fast": True}])]
    assert post.outbox.waiting() == EMPTY


def test_rollback_publishes_nothing(post: Post) -> None:
    """Neither then nor at the next commit of the same session."""
    with contextlib.suppress(ZeroDivisionError), post.ledger.transaction() as session:
        post.outbox.send(post.ship, ("a",), session=session)
        raise ZeroDivisionError

    assert post.outbox.publish(grace=0.0) == 0
    assert post.published() == []


def test_rollback_of_a_session_that_goes_on_publishes_nothing(
    worker: Worker, database: str, ship: Any
) -> None:
    """Its next transaction publishes its own messages only."""
    ledger = SqlAlchemyLedger(database)
    outbox = Outbox(ledger.database, app=worker.app)
    with ledger.database() as session:
        outbox.send(ship, ("a",), session=session)
        session.rollback()
        second = outbox.send(ship, ("b",), session=session)
        session.commit()

    assert [found for found, _ in deliver(worker)] == [second.id]


def test_close_of_a_session_that_goes_on_forgets_its_messages(
    worker: Worker, database: str, ship: Any
) -> None:
    """It rolls back. The next commit does not look for them in the database."""
    ledger = SqlAlchemyLedger(database)
    outbox = Outbox(ledger.database, app=worker.app)
    with ledger.database() as session:
        outbox.send(ship, ("a",), session=session)
        session.close()

        assert session.info == {}


@pytest.mark.parametrize("is_undone", [False, True])
def test_end_of_a_savepoint_publishes_nothing(post: Post, *, is_undone: bool) -> None:
    """The commit of the whole transaction does, without what was rolled back."""
    with post.ledger.transaction() as session:
        sent = [post.outbox.send(post.ship, ("a",), session=session).id]
        inner = (
            transaction.atomic(using=post.ledger.database)
            if session is None
            else session.begin_nested()
        )
        with contextlib.suppress(ZeroDivisionError), inner:
            sent.append(post.outbox.send(post.ship, ("b",), session=session).id)
            if is_undone:
                raise ZeroDivisionError
        assert post.published() == []

    assert post.ids() == sent[: 2 - is_undone]


def test_body_that_happens_once_sends_once(post: Post, name: str) -> None:
    """The copy of the call finds the record, and publishes nothing."""

    @post.worker.task(exactly_once_in=post.ledger.database)
    def order(name: str) -> str:
        post.ledger.add(name)
        return str(post.outbox.send(post.ship, (name,)).id)

    first = post.worker.run(order, name, id=post.worker.call_id)
    order.backend.delete(order.backend.get_key_for_task(first.id))
    again = post.worker.redeliver(order, name, id=post.worker.call_id)

    assert first.result == again.result
    assert post.ledger.count(name) == 1
    sent = [entry for entry in post.published() if entry[0] != post.worker.call_id]
    assert sent == [(first.result, [[name], {}])]


def test_body_that_fails_sends_nothing(post: Post, name: str) -> None:
    """Message and effects are rolled back together."""

    @post.worker.task(exactly_once_in=post.ledger.database)
    def order(name: str) -> None:
        post.outbox.send(post.ship, (name,))
        raise ZeroDivisionError(name)

    assert post.worker.run(order, name).state == "FAILURE"

    assert post.outbox.waiting() == EMPTY
    assert post.published() == []


# -- Found by another process --------------------------------------------------------


def test_message_of_a_killed_process_is_found(
    post: Post, dies_after_commit: pytest.MonkeyPatch
) -> None:
    """The periodic task publishes it, with the id that it always had."""
    result = post.send("a")
    assert post.published() == []
    assert post.outbox.waiting().messages == 1

    assert post.worker.app.tasks["celery_redlock.publish_outbox"].run() == 0
    assert post.outbox.waiting().messages == 1  # its process may be about to publish it
    assert publish_outboxes(post.worker.app, grace=0.0) == 1

    assert post.published() == [(result.id, [["a"], {}])]
    assert post.outbox.waiting() == EMPTY


def test_process_that_is_killed_between_both_publishes_the_same_id_again(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was published and not deleted; the receiver knows the id."""
    ship = post.worker.app.tasks["ship"]
    sent = ship.apply_async

    def publish_and_die(*args: Any, **options: Any) -> None:
        sent(*args, **options)
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(ship, "apply_async", publish_and_die)
        with pytest.raises(Killed):
            post.send("a", task_id="id-1")
    assert post.outbox.publish(grace=0.0) == 1

    assert post.ids() == ["id-1", "id-1"]


def test_message_that_a_killed_process_has_taken_is_free_later(
    post: Post, orm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its time is over, no process publishes it a second time."""
    module = f"celery_redlock.contrib.{orm}.outbox"
    store = DjangoMessages if orm == "django" else SqlAlchemyMessages
    with monkeypatch.context() as dying:
        dying.setattr(store, "finish", lambda *_: None)
        result = post.send("a")
    assert post.outbox.publish(grace=0.0) == 0

    later = now() + dt.timedelta(seconds=31)
    monkeypatch.setattr(f"{module}.now", lambda: later)
    monkeypatch.setattr("celery_redlock.effects.outbox.now", lambda: later)
    assert post.outbox.publish(grace=0.0) == 1

    assert post.ids() == [result.id, result.id]


def test_commits_of_all_threads_need_one_connection_each(
    worker: Worker, postgres: str, ship: Any
) -> None:
    """Messages are published when the session has given its connection back."""
    threads = 4
    engine = create_engine(postgres, pool_size=threads, max_overflow=0, pool_timeout=2)
    metadata = MetaData()
    outbox_table(metadata)
    metadata.create_all(engine)
    outbox = Outbox(lambda: Session(engine), app=worker.app)
    # Makes the queue: in Kombu's memory two threads may make two, and one is lost.
    assert deliver(worker) == []
    together = threading.Barrier(threads)

    def commit(order: str) -> None:
        with Session(engine) as session, session.begin():
            outbox.send(ship, (order,), session=session)
            together.wait(30)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(commit, "abcd"))

    assert outbox.waiting() == EMPTY
    assert len(deliver(worker)) == threads
    engine.dispose()


def test_message_waits_while_the_broker_is_away(
    post: Post, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit is not undone, a warning says so, and later they go in their order."""
    with monkeypatch.context() as broker:
        broker.setattr("celery_redlock.effects.outbox._publish", away)
        with post.ledger.transaction() as session:
            results = [
                post.outbox.send(post.ship, (each,), session=session) for each in "abc"
            ]

    kept = [r for r in caplog.records if vars(r).get("redlock_event") == "outbox-kept"]
    assert {record.levelno for record in kept} == {logging.WARNING}
    assert {vars(r)["redlock_task_id"] for r in kept} == {r.id for r in results}
    assert post.outbox.waiting().messages == 3

    assert post.outbox.publish(grace=0.0) == 3
    assert post.ids() == [r.id for r in results]


def away(*_: Any) -> OperationalError:
    """Publish nothing, as while the broker is away."""
    return OperationalError("no broker")


def test_run_stops_when_the_broker_is_away(
    post: Post, dies_after_commit: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try takes as long as the broker's timeout: one is enough."""
    for each in "abc":
        post.send(each)
    dies_after_commit.setattr("celery_redlock.effects.outbox._publish", away)

    assert post.outbox.publish(grace=0.0) == 0
    assert len([r for r in caplog.records if "stays in" in r.message]) == 1
    assert post.outbox.waiting().messages == 3


def test_message_that_cannot_be_published_stops_no_other(
    post: Post, dies_after_commit: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays, and an error says why."""
    monkeypatch = dies_after_commit
    monkeypatch.setattr("celery_redlock.effects.outbox._AT_ONCE", 1)
    bad, good = post.send("bad", queue="a queue"), post.send("good")
    post.worker.app.conf.task_create_missing_queues = False

    assert post.outbox.publish(grace=0.0) == 1

    assert post.ids() == [good.id]
    (error,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert vars(error)["redlock_task_id"] == bad.id
    assert "QueueNotFound" in error.message
    assert post.outbox.waiting().messages == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.long
def test_many_messages_that_cannot_be_published_stop_no_other(
    post: Post, dies_after_commit: pytest.MonkeyPatch
) -> None:
    """They wait for one queue that is full, and the last one for another."""
    with post.ledger.transaction() as session:
        for _ in range(1001):
            post.outbox.send(post.ship, ("bad",), session=session, queue="a queue")
        good = post.outbox.send(post.ship, ("good",), session=session)
    post.worker.app.conf.task_create_missing_queues = False

    assert post.outbox.publish(grace=0.0) == 1

    assert post.ids() == [good.id]
    assert post.outbox.waiting().messages == 1001


def test_database_that_is_away_keeps_no_other_waiting(
    post: Post, dies_after_commit: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The periodic task publishes what it can, and then fails with that error."""
    away = sessionmaker(create_engine(f"sqlite:///{tmp_path / 'away' / 'db'}"))
    dies_after_commit.setattr(away, "__qualname__", "A", raising=False)
    first = Outbox(away, app=post.worker.app)
    result = post.send("a")

    with pytest.raises(DBAPIError, match="unable to open"):
        publish_outboxes(post.worker.app, grace=0.0)

    assert outboxes_of(post.worker.app) == [first, post.outbox]
    assert post.ids() == [result.id]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.long
def test_two_processes_publish_a_message_once(
    post: Post, dies_after_commit: pytest.MonkeyPatch
) -> None:
    """The second one leaves out what the first one has locked."""
    result = post.send("a")
    publishing, may_end = threading.Event(), threading.Event()
    ship = post.worker.app.tasks["ship"]
    sent = ship.apply_async

    def slowly(*args: Any, **options: Any) -> None:
        publishing.set()
        assert may_end.wait(30)
        sent(*args, **options)

    def publish() -> None:
        with closing_connections():
            post.outbox.publish(grace=0.0)

    dies_after_commit.setattr(ship, "apply_async", slowly)
    first = threading.Thread(target=publish)
    first.start()
    try:
        assert publishing.wait(30)
        assert post.outbox.publish(grace=0.0) == 0
    finally:
        may_end.set()
        first.join()

    assert post.ids() == [result.id]
    assert post.outbox.waiting() == EMPTY


@pytest.fixture
def serializable(postgres: str) -> Iterator[str]:
    """Give a PostgreSQL whose transactions are SERIALIZABLE, if none says otherwise."""
    engine = create_engine(postgres, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    setting = f"ALTER DATABASE {engine.url.database} {{}} default_transaction_isolation"
    with engine.connect() as connection:
        connection.execute(text(f"{setting.format('SET')} = 'serializable'"))
        yield postgres
        connection.execute(text(setting.format("RESET")))


def test_messages_are_taken_and_deleted_by_read_committed_transactions(
    worker: Worker, serializable: str, orm: str, ship: Any
) -> None:
    """Serializable ones fail beside others, and then messages are published twice."""
    ledger = open_ledger(orm, serializable)
    outbox = Outbox(ledger.database, app=worker.app)
    engine = create_engine(serializable, poolclass=NullPool)
    with engine.begin() as connection:
        table = "message" if orm == "sqlalchemy" else "outboxmessage"
        connection.execute(text(LEVELS.format(table)))
    with closing_connections(), ledger.transaction() as session:
        outbox.send(ship, ("a",), session=session)

    with engine.begin() as connection:
        found = connection.execute(text("SELECT DISTINCT * FROM levels")).all()
        connection.execute(text("DROP FUNCTION note_level CASCADE; DROP TABLE levels"))
    assert sorted(found) == [
        ("DELETE", "read committed"),
        ("INSERT", "serializable"),
        ("UPDATE", "read committed"),
    ]
    assert len(deliver(worker)) == 1


def test_session_of_a_connection_in_a_transaction_will_do(
    worker: Worker, pooled: Engine, ship: Any
) -> None:
    """As in tests of a project that roll back an outer transaction."""
    with pooled.connect() as connection, connection.begin() as outer:
        mode: Any = "create_savepoint"
        made = sessionmaker(connection, join_transaction_mode=mode)
        outbox = Outbox(made, app=worker.app)
        with made.begin() as session:
            outbox.send(ship, ("a",), session=session)

        assert outbox.waiting() == EMPTY
        outer.rollback()

    assert len(deliver(worker)) == 1


@pytest.mark.parametrize("interrupt", [SoftTimeLimitExceeded(), LockLost("lost")])
def test_interrupt_that_comes_while_a_message_is_published_ends_the_body(
    post: Post, interrupt: Exception
) -> None:
    """It is no error of the broker. The message waits for the next run."""
    arriving = [interrupt]

    class Interrupted(Task):
        def apply_async(self, *args: Any, **options: Any) -> Any:
            if arriving:
                raise arriving.pop()
            return super().apply_async(*args, **options)

    @post.worker.app.task(name="interrupted", base=Interrupted, shared=False)
    def ship() -> None:
        pass

    with pytest.raises(type(interrupt)):
        post.send(task=ship)

    assert post.outbox.waiting().messages == 1
    assert post.outbox.publish(grace=0.0) == 1


# -- Messages ------------------------------------------------------------------------


def test_task_may_be_a_name(post: Post) -> None:
    """Also of a task that is not in this program."""
    result = post.send("a", task="elsewhere.ship", task_id="id-1")

    assert result.id == "id-1"
    assert post.published() == [("id-1", [["a"], {}])]


def test_countdown_begins_when_the_message_is_written(
    post: Post, dies_after_commit: pytest.MonkeyPatch
) -> None:
    """A message that waits for its publication is not delayed by it once more."""
    before = dt.datetime.now(dt.timezone.utc)
    now_ = before.replace(tzinfo=None)  # Celery prefers the countdown
    post.send("a", countdown=60, expires=3600, eta=now_)
    after = dt.datetime.now(dt.timezone.utc)
    post.outbox.publish(grace=0.0)

    post.worker.collect()
    ((headers, _),) = post.worker.published
    for name, seconds in (("eta", 60), ("expires", 3600)):
        span = dt.timedelta(seconds=seconds)
        moment = dt.datetime.fromisoformat(headers[name])
        assert before + span <= moment <= after + span


def test_expiry_of_the_task_begins_when_the_message_is_written(
    post: Post, dies_after_commit: object
) -> None:
    """Else a message that has waited for the broker would run after its time."""

    @post.worker.app.task(name="pack", shared=False, expires=3600)
    def pack() -> None:
        """Do nothing."""

    post.send(task=pack)
    written = dt.datetime.now(dt.timezone.utc)
    post.outbox.publish(grace=0.0)

    post.worker.collect()
    ((headers, _),) = post.worker.published
    expires = dt.datetime.fromisoformat(headers["expires"])
    assert expires <= written + dt.timedelta(hours=1)


@pytest.fixture
def packed() -> Iterator[str]:
    """Give the name of a serializer that makes bytes."""
    name = "packed"
    serialization.register(  # type: ignore[no-untyped-call]
        name,
        lambda value: zlib.compress(json.dumps(value).encode()),
        lambda value: json.loads(zlib.decompress(value)),
        content_type="application/x-packed",
        content_encoding="binary",
    )
    yield name
    serialization.unregister(name)  # type: ignore[no-untyped-call]


def test_arguments_go_by_the_serializer_of_the_task(post: Post, packed: str) -> None:
    """Also one that makes bytes, in the table and in the message."""
    post.worker.app.conf.accept_content = ["json", packed]

    @post.worker.app.task(name="pack", shared=False, serializer=packed)
    def pack(order: str) -> None:
        """Do nothing."""

    result = post.send("a", task=pack)

    assert post.published() == [(result.id, [["a"], {}])]


def test_serializer_that_is_not_accepted_is_an_error_before_the_commit(
    post: Post,
) -> None:
    """No process could read the message from its row, and publish it."""
    post.refuse(ConfigurationError, "accept_content", "a", serializer="pickle")


class Order(BaseModel):
    """An argument of a task with ``pydantic=True``."""

    number: int


@pytest.mark.skipif(
    not hasattr(Task, "_dump_pydantic_arguments"), reason="Celery sends no models"
)
def test_model_of_pydantic_is_written_as_it_is_sent(post: Post) -> None:
    """`apply_async` sends what Celery dumps it to."""

    @post.worker.app.task(name="pack", shared=False, pydantic=True)
    def pack(order: Order) -> None:
        """Do nothing."""

    result = post.send(Order(number=3), task=pack)

    assert post.published() == [(result.id, [[{"number": 3}], {}])]


def test_task_that_is_a_class_is_sent(post: Post) -> None:
    """Celery gives it no check of its arguments, and sends it without one."""

    class Pack(Task):
        name = "pack"

        def run(self, order: str) -> None:
            """Do nothing."""

    pack = post.worker.app.register_task(Pack())
    result = post.send("a", task=pack)

    assert post.published() == [(result.id, [["a"], {}])]


def test_singleton_task_is_sent_as_it_is(post: Post) -> None:
    """Its call has an id that a caller may wait for, so no claim holds it back."""
    job = post.worker.unique_job()
    sent = [post.send(0, task=job).id for _ in range(2)]

    assert post.ids() == sent


# -- Bad input -----------------------------------------------------------------------


def test_signature_is_refused(post: Post) -> None:
    """The message has one task, and its arguments are given apart."""
    ship = post.ship
    for one in (ship.s("a"), ship.s("a") | ship.si("b")):
        post.refuse(ConfigurationError, "is a signature", task=one)


def test_transaction_of_another_database_is_refused(
    worker: Worker, sqlite: str, postgres: str, ship: Any
) -> None:
    """The message would be published also after a rollback of that transaction."""
    here, other = (DjangoLedger(url).database for url in (sqlite, postgres))
    outbox = Outbox(here, app=worker.app)
    with (
        closing_connections(),
        transaction.atomic(using=other),
        pytest.raises(ConfigurationError, match=f"in a transaction of '{other}'"),
    ):
        outbox.send(ship, ("a",))

    assert deliver(worker) == []


@pytest.fixture
def pooled(postgres: str) -> Iterator[Engine]:
    """Give an engine that keeps its connections, and the tables."""
    SqlAlchemyLedger(postgres)
    engine = create_engine(postgres)
    yield engine
    engine.dispose()


def test_message_is_deleted_though_the_connection_died_while_it_was_published(
    worker: Worker, postgres: str, pooled: Engine, orm: str, ship: Any
) -> None:
    """Otherwise it would be published again."""
    ledger = DjangoLedger(postgres)
    database: Any = ledger.database
    begun: Any = ledger.transaction
    if orm == "sqlalchemy":
        database = sessionmaker(pooled)
        begun = database.begin
    outbox = Outbox(database, app=worker.app)

    def kill_connections(**_: object) -> None:
        alone = create_engine(postgres, poolclass=NullPool)
        with alone.connect() as connection:
            connection.execute(text(KILL_OTHERS))

    before_task_publish.connect(kill_connections, weak=False)
    try:
        with closing_connections():
            with begun() as session:
                outbox.send(ship, ("a",), session=session)

            assert outbox.waiting() == EMPTY
    finally:
        before_task_publish.disconnect(kill_connections)

    assert len(deliver(worker)) == 1


@pytest.mark.parametrize("is_atomic", [False, True])
def test_message_in_a_transaction_by_hand_is_refused(
    worker: Worker, database: str, ship: Any, *, is_atomic: bool
) -> None:
    """Without AUTOCOMMIT, Django's `atomic` commits nothing."""
    alias = DjangoLedger(database).database
    outbox = Outbox(alias, app=worker.app)
    with closing_connections():
        transaction.set_autocommit(False, using=alias)
        block: Any = contextlib.nullcontext()
        if is_atomic:
            block = transaction.atomic(using=alias)
        with block, pytest.raises(ConfigurationError, match=r"AUTOCOMMIT of .* is off"):
            outbox.send(ship, ("a",))
        transaction.commit(using=alias)

        assert outbox.waiting() == EMPTY
        transaction.rollback(using=alias)


def test_connection_without_autocommit_publishes_nothing(
    worker: Worker, database: str, ship: Any, dies_after_commit: pytest.MonkeyPatch
) -> None:
    """It would keep the locks of rows, and publish the messages again and again."""
    ledger = DjangoLedger(database)
    alias = ledger.database
    outbox = Outbox(alias, app=worker.app)
    with closing_connections():
        with transaction.atomic(using=alias):
            outbox.send(ship, ("a",))
        dies_after_commit.undo()
        transaction.set_autocommit(False, using=alias)
        with pytest.raises(ConfigurationError, match=r"AUTOCOMMIT of .* is off"):
            outbox.publish(grace=0.0)
        transaction.set_autocommit(True, using=alias)

        assert outbox.publish(grace=0.0) == 1
        assert outbox.waiting() == EMPTY
        ledger.clear()


def test_session_of_another_database_is_refused(
    worker: Worker, sqlite: str, tmp_path: Path, ship: Any
) -> None:
    """No process would find the message there; so it is in a task that happens once."""
    ledger, here = SqlAlchemyLedger(sqlite), Path(make_url(sqlite).database or "")
    there = create_engine(f"sqlite:///{tmp_path / 'other'}", poolclass=NullPool)
    outbox = Outbox(lambda: Session(there), app=worker.app)

    @worker.task(exactly_once_in=ledger.database)
    def order() -> None:
        outbox.send(ship, ("a",))

    with ledger.transaction() as session, pytest.raises(ConfigurationError) as given:
        outbox.send(ship, ("a",), session=session)
    in_body = worker.run(order).result

    assert [*map(str, (given.value, in_body))] == [str(given.value)] * 2
    assert f"of the database {here.resolve()}, and this" in str(given.value)
    assert deliver(worker) == []


def test_session_of_the_same_database_by_another_name_will_do(
    worker: Worker, sqlite: str, ship: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path names the file as well."""
    ledger, path = SqlAlchemyLedger(sqlite), Path(make_url(sqlite).database or "")
    monkeypatch.chdir(path.parent)
    relative = create_engine(f"sqlite:///{path.name}", poolclass=NullPool)
    outbox = Outbox(lambda: Session(relative), app=worker.app)

    with ledger.transaction() as session:
        result = outbox.send(ship, ("a",), session=session)

    assert [found for found, _ in deliver(worker)] == [result.id]


def test_callable_may_return_the_session_of_the_transaction(
    worker: Worker, sqlite: str, ship: Any
) -> None:
    """It is in none any more when its messages are published."""
    ledger = SqlAlchemyLedger(sqlite)

    with contextlib.closing(ledger.database()) as session:
        outbox = Outbox(lambda: session, app=worker.app)
        assert outbox.waiting() == EMPTY
        session.begin()
        result = outbox.send(ship, ("a",), session=session)
        session.commit()

    assert [found for found, _ in deliver(worker)] == [result.id]


def test_session_with_engines_for_models_only_is_refused(
    worker: Worker, sqlite: str, ship: Any
) -> None:
    """The tables of this package have no model, so none of the engines is theirs."""
    ledger = SqlAlchemyLedger(sqlite)
    binds: dict[Any, Any] = {Base: create_engine(sqlite, poolclass=NullPool)}
    outbox = Outbox(ledger.database, app=worker.app)
    no_default = Outbox(lambda: Session(binds=binds), app=worker.app)

    with Session(binds=binds) as session:
        for one in (outbox, no_default):
            with pytest.raises(ConfigurationError, match=r"Write Session\(engine, "):
                one.send(ship, ("a",), session=session)

    assert outbox.waiting() == EMPTY


def test_arguments_that_do_not_fit_are_an_error_before_the_commit(post: Post) -> None:
    """As those of `apply_async`; so are values that cannot be serialized."""
    post.refuse(TypeError, "order")
    post.refuse(EncodeError, "serializable", object())


@pytest.mark.parametrize(
    ("task_id", "fault"),
    [
        ("two\nlines", "must be one line of text"),
        ("x" * 256, "has 256 characters; an outbox stores at most"),
        ("a\0b", "has a NUL, which an outbox cannot store"),
    ],
    ids=["no-line", "too-long", "nul"],
)
def test_id_that_cannot_be_stored_is_an_error_before_it_is_written(
    post: Post, task_id: str, fault: str
) -> None:
    """Nodes would refuse it after each commit, or the database the transaction."""
    post.refuse(ValueError, fault, 0, task=post.worker.leased_job(), task_id=task_id)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("x" * 256, "has 256 characters; an outbox stores at most"),
        ("a\0b", "has a NUL, which an outbox cannot store"),
    ],
    ids=["too-long", "nul"],
)
def test_task_name_that_cannot_be_stored_is_an_error_before_it_is_written(
    post: Post, name: str, fault: str
) -> None:
    """The database would refuse the transaction."""
    post.refuse(ValueError, fault, task=name)


@pytest.mark.parametrize("option", ["countdown", "expires"])
@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e12])
def test_moment_that_no_date_can_tell_is_refused(
    post: Post, option: str, seconds: float
) -> None:
    """It is after the year 9999, or never."""
    said = "knows no moment that comes in"
    post.refuse(ConfigurationError, said, "a", **{option: seconds})


@pytest.mark.parametrize(
    ("option", "hint"), [("countdwon", "countdown"), ("link", "countdown")]
)
def test_unknown_option_is_refused(post: Post, option: str, hint: str) -> None:
    """Callbacks too: they would have no fixed id."""
    post.refuse(ConfigurationError, f"(?s){option}.*{hint}", "a", **{option: 1})


@pytest.mark.parametrize("option", ["ttl", "limit"])  # nearly time_limit
def test_lock_option_of_one_message_is_refused(post: Post, option: str) -> None:
    """The error says where it belongs."""
    job = post.worker.leased_job(name="job")
    remedy = rf"^job: .* Nothing was written\. Write @singleton_task\({option}="
    post.refuse(ConfigurationError, remedy, task=job, **{option: 5})


@pytest.mark.parametrize("database", ["", None, 3])
def test_database_of_another_kind_is_refused(database: Any) -> None:
    """It is what `exactly_once_in` is."""
    with pytest.raises(ConfigurationError, match="alias of a Django database"):
        Outbox(database)


def test_unknown_alias_is_refused(worker: Worker, sqlite: str, ship: Any) -> None:
    """When the first message is written."""
    DjangoLedger(sqlite)
    outbox = Outbox("sqlit", app=worker.app)

    said = r"^Outbox\('sqlit'\) is not in DATABASES. Did you mean 'sqlite'"
    with pytest.raises(ConfigurationError, match=said):
        outbox.send(ship, ("a",))


def test_callable_that_returns_no_session_is_refused(worker: Worker, ship: Any) -> None:
    """The error names the outbox, and no option of a task."""
    outbox = Outbox(lambda: 3, app=worker.app)

    with pytest.raises(ConfigurationError, match=r"^Outbox\(<a callable>\) has ret"):
        outbox.send(ship, ("a",))


def test_session_must_be_known(worker: Worker, sqlite: str, ship: Any) -> None:
    """Outside of a task that happens once, SQLAlchemy's has to be given."""
    outbox = Outbox(SqlAlchemyLedger(sqlite).database, app=worker.app)

    with pytest.raises(ConfigurationError, match="session="):
        outbox.send(ship, ("a",))


def test_session_of_coroutines_is_given_by_its_sync_session(
    worker: Worker, postgres: str, ship: Any
) -> None:
    """The error says how."""
    outbox = Outbox(SqlAlchemyLedger(postgres).database, app=worker.app)

    async def send() -> None:
        engine = create_async_engine(postgres, poolclass=NullPool)
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(ConfigurationError, match=r"await session\.run_sync"):
                outbox.send(ship, ("a",), session=session)
            await session.run_sync(lambda s: outbox.send(ship, ("b",), session=s))

    asyncio.run(send())

    assert outbox.waiting() == EMPTY
    assert [args for _, (args, _) in deliver(worker)] == [["b"]]


def test_session_is_not_for_django(worker: Worker, sqlite: str, ship: Any) -> None:
    """Django has one connection for each alias and thread."""
    outbox = Outbox(DjangoLedger(sqlite).database, app=worker.app)

    with pytest.raises(ConfigurationError, match="takes no session"):
        outbox.send(ship, ("a",), session=object())
    connections["sqlite"].close()


def test_scoped_session_will_do(worker: Worker, database: str, ship: Any) -> None:
    """The messages are published in a session beside the one of the thread."""
    SqlAlchemyLedger(database)
    sessions = scoped_session(sessionmaker(create_engine(database, poolclass=NullPool)))
    outbox = Outbox(lambda: sessions, app=worker.app)

    result = outbox.send(ship, ("a",), session=sessions)
    assert isinstance(sessions(), Session)
    sessions.commit()

    assert [found for found, _ in deliver(worker)] == [result.id]
    sessions.remove()


def test_outbox_belongs_to_its_app(worker: Worker) -> None:
    """Without an app, it belongs to all; one that is dropped belongs to none."""
    mine, all_ = Outbox("mine", app=worker.app), Outbox("all")
    with open_app(FakeNodes(1)) as other:
        other_app = Outbox("other", app=other)
        assert {mine, all_} <= {*outboxes_of(worker.app)}
        assert other_app not in outboxes_of(worker.app)
    assert all_.app is not None
    names = [one.name for one in outboxes_of(worker.app)]
    by_proxy = Outbox("proxy", app=Proxy(lambda: worker.app))  # as `current_app` is
    assert by_proxy in outboxes_of(worker.app)
    del mine, all_, by_proxy
    assert len(outboxes_of(worker.app)) == len(names) - 2
