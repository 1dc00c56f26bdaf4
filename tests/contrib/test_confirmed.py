"""Messages of an outbox and repeated calls: the broker has them before they are gone.

The broker is a real RabbitMQ that is killed, stopped, full or short of memory.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from typing import TYPE_CHECKING, Any

import kombu
import pytest
from celery import states
from kombu.exceptions import OperationalError
from kombu.utils.uuid import uuid
from sqlalchemy import MetaData, NullPool, create_engine, text
from sqlalchemy.orm import Session

from celery_redlock import Outbox
from celery_redlock.contrib.sqlalchemy import outbox_table
from celery_redlock.devnodes import DevNodes
from celery_redlock.testing import FakeNodes
from tests.harness.brokers import running_rabbitmq
from tests.harness.waiting import until
from tests.nodes.support import run_python
from tests.unit.tasks.support import KEY, Worker, open_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Engine

    from tests.harness.servers import RabbitMQ

broker: Any = kombu  # it has no types
SHORT = 0.5  # seconds for a confirmation that does not come
FULL = {"x-max-length": 2, "x-overflow": "reject-publish"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """Give a RabbitMQ; without one, skip here and fail in CI."""
    with running_rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def rabbitmq(server: RabbitMQ) -> Iterator[RabbitMQ]:
    """Give a RabbitMQ that a test may stop or kill."""
    yield server
    server.resume()
    if not server.is_running:
        server.start()


class BehindABroker(Worker):
    """A worker whose messages stay in the broker."""

    def collect(self) -> None:
        """Leave the messages where they are."""


@pytest.fixture
def worker(rabbitmq: RabbitMQ) -> Iterator[Worker]:
    """Give a worker with a queue of its own on this broker."""
    nodes = FakeNodes(3)
    with open_app(nodes) as app:
        app.conf.broker_url = rabbitmq.url
        yield BehindABroker(app, nodes)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only shortly for a confirmation."""
    monkeypatch.setattr("celery_redlock.app.confirmed._LONGEST", SHORT)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Give a database with the table of the outbox."""
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}", poolclass=NullPool)
    metadata = MetaData()
    outbox_table(metadata)
    metadata.create_all(engine)
    return engine


@pytest.fixture
def outbox(worker: Worker, engine: Engine) -> Outbox:
    """Give an outbox."""
    return Outbox(lambda: Session(engine), app=worker.app)


def commit(outbox: Outbox, engine: Engine, *orders: str, **options: Any) -> list[str]:
    """Send messages in one transaction, and return their ids."""
    with Session(engine) as session, session.begin():
        return [
            outbox.send("ship", (order,), session=session, **options).id
            for order in orders
        ]


def delivered(worker: Worker, name: str = "") -> list[str]:
    """Return the ids of the messages that have reached the queue."""
    ids = []
    with worker.app.connection_for_read() as connection:
        name = name or worker.app.conf.task_default_queue
        queue = broker.Queue(name)(connection)
        queue.declare()
        while message := queue.get(no_ack=True):
            ids.append(message.headers["id"])
    return sorted(ids)


def add_full_queue(worker: Worker) -> str:
    """Add a queue that takes two messages; return its name."""
    name = f"full-{uuid()}"
    worker.app.conf.task_queues = [
        broker.Queue(worker.app.conf.task_default_queue),
        broker.Queue(name, queue_arguments=FULL),
    ]
    return name


@contextlib.contextmanager
def meanwhile(do: Callable[[], Any]) -> Iterator[None]:
    """Do something in a thread, during the block; then wait for its end."""
    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# -- A broker on Redis ---------------------------------------------------------------


@pytest.fixture
def on_redis(nodes: DevNodes) -> Iterator[Worker]:
    """Give a worker with a broker on Redis, which a test may pause."""
    fakes = FakeNodes(3)
    with open_app(fakes) as app:
        app.conf.broker_url = nodes.urls[0]
        yield BehindABroker(app, fakes)


@pytest.fixture
def nodes() -> Iterator[DevNodes]:
    """Give a Redis of its own."""
    with DevNodes(1, initialize=False) as nodes:
        yield nodes


def test_redis_that_hangs_delays_a_commit_for_a_bounded_time(
    on_redis: Worker, nodes: DevNodes, engine: Engine, soon: None
) -> None:
    """The messages stay, and are published when it goes on: at least once."""
    outbox = Outbox(lambda: Session(engine), app=on_redis.app)
    first = commit(outbox, engine, "first")
    nodes.nodes[0].pause()
    try:
        ids = commit(outbox, engine, *"abc")
        assert outbox.waiting().messages == 3
    finally:
        nodes.nodes[0].resume()

    outbox.publish(grace=0.0)

    assert outbox.waiting().messages == 0
    assert set(delivered(on_redis)) == {*first, *ids}


def test_redis_that_was_restarted_costs_no_message(
    on_redis: Worker, nodes: DevNodes, engine: Engine
) -> None:
    """The connection that waits in the pool has died."""
    outbox = Outbox(lambda: Session(engine), app=on_redis.app)
    commit(outbox, engine, "first")
    nodes.nodes[0].restart()

    (second,) = commit(outbox, engine, "second")

    assert outbox.waiting().messages == 0
    assert second in delivered(on_redis)


def test_message_for_which_redis_has_no_queue_stays_in_the_outbox(
    on_redis: Worker, engine: Engine
) -> None:
    """Kombu would drop it: no queue is bound to its exchange."""
    outbox = Outbox(lambda: Session(engine), app=on_redis.app)

    commit(outbox, engine, "a", exchange="lonely", routing_key="nowhere")
    (other,) = commit(outbox, engine, "b")

    assert outbox.waiting().messages == 1
    assert delivered(on_redis) == [other]


def test_redis_that_has_lost_its_queues_costs_no_message(
    on_redis: Worker, nodes: DevNodes, engine: Engine
) -> None:
    """They are declared anew, though the connection has declared them before."""
    media = broker.Exchange("media", type="topic")
    queue = broker.Queue("films", media, routing_key="films.#")
    on_redis.app.conf.task_queues = [queue]
    outbox = Outbox(lambda: Session(engine), app=on_redis.app)
    commit(outbox, engine, "first", queue="films")
    nodes.nodes[0].command("FLUSHALL")

    (second,) = commit(outbox, engine, "second", queue="films")

    assert outbox.waiting().messages == 0
    assert delivered(on_redis, "films") == [second]


# -- The outbox ----------------------------------------------------------------------


def test_broker_that_is_killed_loses_no_message_of_the_outbox(
    worker: Worker, rabbitmq: RabbitMQ, outbox: Outbox, engine: Engine, soon: None
) -> None:
    """It stops with messages in its socket, and is killed: they are in the table."""
    first = commit(outbox, engine, "first")
    rabbitmq.pause()
    second = commit(outbox, engine, "second", "third")
    rabbitmq.kill()
    rabbitmq.start()

    outbox.publish(grace=0.0)

    assert delivered(worker) == sorted(first + second)
    assert outbox.waiting().messages == 0


def test_full_queue_leaves_its_messages_in_the_outbox(
    worker: Worker,
    outbox: Outbox,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those of other queues are published."""
    name = add_full_queue(worker)
    commit(outbox, engine, *"abcde", queue=name)
    (other,) = commit(outbox, engine, "other")

    assert outbox.publish(grace=0.0) == 0

    assert outbox.waiting().messages == 3
    assert delivered(worker) == [other]
    kept = [r for r in caplog.records if vars(r).get("redlock_event") == "outbox-kept"]
    assert {record.levelno for record in kept} == {logging.WARNING}
    assert "does not take the message" in kept[0].message


def test_message_without_a_queue_stays_in_the_outbox(
    worker: Worker, outbox: Outbox, engine: Engine
) -> None:
    """RabbitMQ would drop it."""
    lonely = broker.Exchange(f"lonely-{uuid()}", type="topic")
    with worker.app.connection_for_write() as connection:
        lonely(connection).declare()

    commit(outbox, engine, "a", exchange=lonely.name, routing_key="nowhere")
    (other,) = commit(outbox, engine, "b")

    assert outbox.waiting().messages == 1
    assert delivered(worker) == [other]


def test_queue_with_other_arguments_leaves_its_messages_in_the_outbox(
    worker: Worker,
    outbox: Outbox,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The reason names the arguments, and what to do; other queues get theirs."""
    name = f"other-{uuid()}"
    with worker.app.connection_for_write() as connection:
        broker.Queue(name, queue_arguments={"x-max-priority": 5})(connection).declare()
    worker.app.conf.task_queues = [
        broker.Queue(worker.app.conf.task_default_queue),
        broker.Queue(name),
    ]

    commit(outbox, engine, "a", queue=name)
    (other,) = commit(outbox, engine, "b")

    assert outbox.waiting().messages == 1
    assert delivered(worker) == [other]
    (kept,) = [r for r in caplog.records if hasattr(r, "redlock_event")]
    assert (kept.levelno, kept.exc_info) == (logging.WARNING, None)
    assert "inequivalent arg 'x-max-priority'" in kept.message
    assert "task_queues" in kept.message


def test_message_that_rabbitmq_refuses_is_told_with_its_reason(
    worker: Worker, outbox: Outbox, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """It names an exchange that was never declared, for one."""
    commit(outbox, engine, "a", exchange="nowhere", routing_key="nowhere")
    (other,) = commit(outbox, engine, "b")

    assert delivered(worker) == [other]
    (kept,) = [r for r in caplog.records if hasattr(r, "redlock_event")]
    assert (kept.levelno, kept.exc_info) == (logging.WARNING, None)
    assert "no exchange 'nowhere'" in kept.message


@pytest.mark.parametrize(
    ("right", "wrong"), [("guest@", "wrong@"), ("//guest", "//other"), ("/$", "/no")]
)
def test_broker_that_refuses_the_connection_is_asked_once(  # noqa: PLR0913, PLR0917
    worker: Worker,
    rabbitmq: RabbitMQ,
    outbox: Outbox,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
    right: str,
    wrong: str,
) -> None:
    """And not for each message: it would refuse all of them."""
    worker.app.conf.broker_url = re.sub(right, wrong, rabbitmq.url)
    commit(outbox, engine, *"abc")
    caplog.clear()

    assert outbox.publish(grace=0.0) == 0

    (said,) = caplog.messages
    assert "refuses the connection" in said
    assert "broker_url" in said


def test_queue_that_was_deleted_is_declared_anew(
    worker: Worker, outbox: Outbox, engine: Engine
) -> None:
    """Though the connection has declared it before."""
    commit(outbox, engine, "first")
    with worker.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(worker.app.conf.task_default_queue)

    (second,) = commit(outbox, engine, "second")

    assert outbox.waiting().messages == 0
    assert delivered(worker) == [second]


@pytest.mark.long
def test_memory_alarm_delays_a_commit_for_a_bounded_time(
    worker: Worker, rabbitmq: RabbitMQ, outbox: Outbox, engine: Engine, soon: None
) -> None:
    """The message stays, and is published when the alarm is over."""
    commit(outbox, engine, "first")
    rabbitmq.raise_alarm()
    try:
        ids = commit(outbox, engine, *"abc")
        assert outbox.waiting().messages == 3
    finally:
        rabbitmq.clear_alarm()
    outbox.publish(grace=0.0)

    assert outbox.waiting().messages == 0
    assert set(ids) < set(delivered(worker))


def test_database_is_free_while_the_broker_does_not_answer(
    rabbitmq: RabbitMQ, outbox: Outbox, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction and no lock of a row lasts while a confirmation is awaited."""
    monkeypatch.setattr("celery_redlock.app.confirmed._LONGEST", 20.0)
    commit(outbox, engine, "first")
    rabbitmq.pause()

    with meanwhile(lambda: commit(outbox, engine, "second")):
        until(lambda: outbox.waiting().messages == 1)
        with engine.connect() as other:
            other.execute(text("PRAGMA busy_timeout = 0"))
            until(lambda: is_taken(engine))
            other.execute(text("BEGIN IMMEDIATE"))
            other.execute(text("UPDATE celery_redlock_message SET task = task"))
            other.rollback()
        rabbitmq.resume()

    assert outbox.waiting().messages == 0


def is_taken(engine: Engine) -> bool:
    """Tell whether a process has taken a message, to publish it."""
    taken = "SELECT count(*) FROM celery_redlock_message WHERE taken_until IS NOT NULL"
    with engine.connect() as connection:
        return bool(connection.scalar(text(taken)))


@pytest.mark.long
def test_dead_connection_is_no_reason_to_wait(
    worker: Worker, rabbitmq: RabbitMQ, outbox: Outbox, engine: Engine
) -> None:
    """The pooled connection has died: the next message goes by a new one."""
    ids = commit(outbox, engine, "first")
    rabbitmq.drop_connections()

    ids += commit(outbox, engine, "second")

    assert outbox.waiting().messages == 0
    assert delivered(worker) == sorted(ids)


def test_forked_processes_do_not_share_a_connection(
    worker: Worker, rabbitmq: RabbitMQ, engine: Engine
) -> None:
    """Each is given the confirmations of its own messages, and no others."""
    program = """
import os, signal, sys
from celery import Celery
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session
from celery_redlock import Outbox
from tests.harness.waiting import until

engine = create_engine(sys.argv[1], poolclass=NullPool)
outbox = Outbox(lambda: Session(engine), app=Celery(broker=sys.argv[2]))
server = int(sys.argv[3])
TAKEN = "SELECT count(*) FROM celery_redlock_message WHERE taken_until IS NOT NULL"

def commit():
    with Session(engine) as session, session.begin():
        outbox.send("ship", session=session)

def go_on():
    with engine.connect() as other:
        until(lambda: other.scalar(text(TAKEN)) == 4)
    os.killpg(server, signal.SIGCONT)

def forked(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return pid

commit()
os.killpg(server, signal.SIGSTOP)
pids = [forked(work) for work in (commit, commit, commit, go_on)]
commit()
print([os.waitpid(pid, 0)[1] for pid in pids], outbox.waiting().messages)
"""
    said = run_python(program, str(engine.url), rabbitmq.url, str(rabbitmq.pid))

    assert said == ["[0, 0, 0, 0] 0"]
    assert len(set(delivered(worker, "celery"))) == 5


def test_late_confirmation_is_none_of_the_next_message(
    worker: Worker, rabbitmq: RabbitMQ, outbox: Outbox, engine: Engine, soon: None
) -> None:
    """The connection without a confirmation is closed, and not used again."""
    name = add_full_queue(worker)
    commit(outbox, engine, *"ab", queue=name)
    rabbitmq.pause()
    commit(outbox, engine, "late")
    rabbitmq.resume()

    commit(outbox, engine, "refused", queue=name)

    assert outbox.waiting().messages == 2


# -- Repeated calls ------------------------------------------------------------------


@pytest.fixture
def other_time(worker: Worker) -> Worker:
    """Give a worker whose locks last in real time."""
    worker.use_real_time(60.0)
    return worker


def test_refused_call_ends_when_its_next_copy_is_confirmed(
    other_time: Worker, rabbitmq: RabbitMQ, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then it keeps its process, so its old copy is not acknowledged."""
    worker = other_time
    job = worker.leased_job(on_conflict="retry", retry_countdown=1)
    job.delay()
    (task_id,) = delivered(worker)
    rabbitmq.pause()

    with worker.held(key=KEY), meanwhile(lambda: worker.run(job, id=task_id)):
        until(lambda: "could not be republished" in caplog.text)
        rabbitmq.resume()

    assert set(delivered(worker)) == {task_id}
    assert job.AsyncResult(task_id).state == states.RETRY


def test_retry_that_is_not_confirmed_leaves_the_old_copy(
    worker: Worker, rabbitmq: RabbitMQ, soon: None
) -> None:
    """``self.retry()`` rejects its message, which goes back to its queue."""

    @worker.task(bind=True)
    def job(self: Any) -> None:
        raise self.retry(countdown=0)

    job.delay()
    (task_id,) = delivered(worker)
    rabbitmq.pause()

    run = worker.run(job, id=task_id)

    assert run.state == states.REJECTED


def test_replacement_that_is_not_confirmed_fails_the_call(
    worker: Worker, rabbitmq: RabbitMQ, soon: None
) -> None:
    """``self.replace()`` raises, so that the call does not end without a word."""
    following = worker.leased_job(name="following", key="other")

    @worker.app.task(name="plain", bind=True)
    def plain(self: Any) -> None:
        raise self.replace(following.si())

    plain.delay()
    (task_id,) = delivered(worker)
    rabbitmq.pause()

    run = worker.run(plain, id=task_id)

    assert isinstance(run.result, OperationalError)
    assert run.stored == states.FAILURE
