"""A RabbitMQ whose alarm is on: what cannot be asked over it is said to be unknown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.doctor import Case, Severity, Workers, findings_of
from celery_redlock.operations.doctor import workers as rules
from celery_redlock.operations.kill_holder import HolderLives, kill_holder
from tests.harness.brokers import running_rabbitmq
from tests.harness.servers import RabbitMQ
from tests.unit.test_kill_holder import HOLDER

pytestmark = pytest.mark.long
NODES = ["redis://127.0.0.1:1/0"]  # nothing listens there, and nothing asks it
RULES = (rules.versions, rules.nodes, rules.processes, rules.broker)


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """Give a RabbitMQ; without one, skip here and fail in CI."""
    with running_rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def app(rabbitmq: RabbitMQ, own_tasks: None) -> Iterator[Celery]:
    """Give an app with this broker and a task; no worker runs."""
    app = Celery("proj", broker=rabbitmq.url, set_as_current=False)
    app.conf.redlock_nodes = NODES

    @singleton_task(app=app, name="mine", shared=False, limit=2)
    def job() -> None: ...

    yield app
    app.close()


@contextlib.contextmanager
def alarm(rabbitmq: RabbitMQ) -> Iterator[None]:
    """Have the alarm on in a block."""
    rabbitmq.raise_alarm()
    try:
        yield
    finally:
        rabbitmq.clear_alarm()


def test_doctor_tells_an_alarm_from_the_absence_of_workers(
    app: Celery, rabbitmq: RabbitMQ
) -> None:
    """It is no finding that no worker runs. Under an alarm nothing is known of them."""
    before = findings_of(Case(Redlock(NODES), [], app), RULES)
    with alarm(rabbitmq):
        (found,) = findings_of(Case(Redlock(NODES), [], app), RULES)
    after = findings_of(Case(Redlock(NODES), [], app), RULES)

    assert (before, after) == ([], [])
    assert (found.code, found.severity) == ("broker", Severity.NOTE)
    assert "could not be asked: the broker takes no messages (an alarm" in found.fact
    assert "`rabbitmq-diagnostics alarms`" in found.remedy


def test_user_who_may_not_publish_to_the_default_exchange_asks_all_the_same(
    app: Celery, rabbitmq: RabbitMQ
) -> None:
    """It gets no word of an alarm. Its inquiries work as without the look for one."""
    rabbitmq.control("add_user", "limited", "secret")
    names = r"^(celery|.*pidbox.*|reply.*)$"
    rabbitmq.control("set_permissions", "limited", names, names, names)
    app.conf.broker_url = rabbitmq.url.replace("guest:guest", "limited:secret")
    workers = Workers(app)

    assert workers.told("ping") == {}
    assert workers.silence == ""


def test_holder_is_not_said_to_be_in_no_worker_under_an_alarm(
    app: Celery, rabbitmq: RabbitMQ
) -> None:
    """No worker gets the question."""
    with alarm(rabbitmq), pytest.raises(HolderLives) as lives:
        kill_holder(app, HOLDER)

    assert "was not killed: the workers could not be asked" in str(lives.value)
    assert "because the broker takes no messages (an alarm" in str(lives.value)
    assert "no worker says" not in str(lives.value)
