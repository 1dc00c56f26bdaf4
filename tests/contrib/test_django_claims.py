"""Claims and transactions: a rollback releases the claims of its transaction."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from celery.backends.base import BaseBackend
from celery.contrib.django.task import DjangoTask
from django.db import connection, transaction

from celery_redlock import ConfigurationError, DuplicateTask, SingletonTask
from celery_redlock.line.claims import Claims
from celery_redlock.testing import FakeNodes, SignalRecorder
from tests.contrib.storages import default_database, use_django
from tests.unit.tasks.support import Worker, open_app


class Undone(Exception):  # noqa: N818  (the reason of a rollback)
    """An error in a view."""


@contextlib.contextmanager
def rolled_back() -> Iterator[None]:
    """Give a transaction, or a savepoint, that is rolled back at the end."""
    with contextlib.suppress(Undone), transaction.atomic():
        yield
        raise Undone


@pytest.fixture(autouse=True)
def default(sqlite: str) -> Iterator[None]:
    """Make a SQLite database the default one."""
    with default_database(use_django(sqlite)):
        yield


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Give a worker of a Django project, with a broker in memory."""
    nodes = FakeNodes(3)
    with open_app(nodes, task_cls="celery.contrib.django.task:DjangoTask") as app:
        yield Worker(app, nodes)


def shipping(worker: Worker, **options: Any) -> Any:
    """Return a task that is unique while it is queued."""

    @worker.task(name="ship", key="{order}", **{"unique_while": "queued", **options})
    def ship(order: int) -> None: ...

    return ship


def is_claimed(worker: Worker, order: int = 1) -> bool:
    """Tell whether the call has a claim."""
    return Claims(worker.rival).queued(str(order)) is not None


def test_claim_is_released_with_its_transaction(worker: Worker) -> None:
    """After a rollback, the next call is no duplicate."""
    ship = shipping(worker)
    with rolled_back():
        first = ship.delay(1)
        assert ship.delay(1).id == first.id

    assert not is_claimed(worker)
    assert ship.delay(1).id != first.id


def test_claim_is_kept_if_the_transaction_commits(worker: Worker) -> None:
    """After a commit, the next call is a duplicate."""
    ship = shipping(worker)
    with transaction.atomic():
        first = ship.delay(1)

    assert is_claimed(worker)
    assert ship.delay(1).id == first.id


def test_claim_is_released_if_a_function_for_the_commit_fails(worker: Worker) -> None:
    """Django drops the later functions, unless the failing one is robust."""

    def fail() -> None:
        raise ValueError("theirs")

    ship = shipping(worker)
    with transaction.atomic():
        transaction.on_commit(fail, robust=True)
        ship.delay(1)
    assert is_claimed(worker)

    with contextlib.suppress(ValueError), transaction.atomic():
        transaction.on_commit(fail)
        ship.delay(2)
    assert not is_claimed(worker, 2)


def test_claim_is_released_with_its_savepoint(worker: Worker) -> None:
    """A claim from outside of the savepoint is kept."""
    ship = shipping(worker)
    with transaction.atomic():
        ship.delay(1)
        with rolled_back():
            ship.delay(2)
        assert not is_claimed(worker, 2)

    assert is_claimed(worker)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_child_releases_no_claim_of_its_parent(worker: Worker) -> None:
    """It drops the callbacks of a transaction that goes on in its parent."""
    with transaction.atomic():
        shipping(worker).delay(1)
        child = os.fork()
        if not child:
            connection.run_on_commit.clear()
            gc.collect()
            os._exit(0 if is_claimed(worker) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_claim_of_a_savepoint_is_released_with_the_transaction(worker: Worker) -> None:
    """A rollback of the transaction includes its savepoints."""
    ship = shipping(worker)
    with rolled_back():
        with transaction.atomic():
            ship.delay(1)
        assert is_claimed(worker)

    assert not is_claimed(worker)


def test_result_that_cannot_be_read_costs_no_connection(worker: Worker) -> None:
    """The session of the caller keeps its temporary tables, locks and settings."""

    class Unreadable(BaseBackend):
        persistent = True

        def get_task_meta(self, task_id: str, **_: Any) -> Any:
            raise ValueError(task_id)

    ship = shipping(worker)
    first = ship.delay(1)
    ship.backend = Unreadable(app=worker.app)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE ours (number integer)")

    assert ship.delay(1).id == first.id

    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE ours")


def test_claim_of_another_job_is_kept(worker: Worker) -> None:
    """A rollback releases only claims that this transaction took."""
    ship = shipping(worker)
    ship.delay(1)
    with rolled_back():
        ship.delay(1)

    assert is_claimed(worker)


def test_delay_on_commit_claims_when_it_commits(worker: Worker) -> None:
    """There is no claim before the commit, because the call may never be sent."""
    ship = shipping(worker)
    with transaction.atomic():
        ship.delay_on_commit(1)
        ship.apply_async_on_commit((1,), countdown=5)
        assert not is_claimed(worker)
        assert len(worker.messages()) == 0

    assert is_claimed(worker)
    assert len(worker.messages()) == 1


def test_lock_option_is_refused_before_the_commit(worker: Worker) -> None:
    """The caller is told, and not the commit."""
    ship = shipping(worker)
    options: dict[str, Any] = {"ttl": 5}
    with transaction.atomic():
        with pytest.raises(ConfigurationError, match="ttl was given for one call"):
            ship.apply_async_on_commit((1,), **options)
        ship.apply_async_on_commit((2,), priority=3)

    assert len(worker.messages()) == 1


def test_base_class_may_take_an_option_of_a_call_on_commit(worker: Worker) -> None:
    """Its ``apply_async`` is called by the commit."""
    taken = []

    class Tenants(DjangoTask):
        abstract = True

        def apply_async(self, *args: Any, key: str = "", **options: Any) -> Any:
            taken.append(key)
            return super().apply_async(*args, **options)

    with transaction.atomic():
        shipping(worker, base=Tenants).apply_async_on_commit((1,), key="red")

    assert taken == ["red"]


def test_delay_on_commit_does_nothing_after_a_rollback(worker: Worker) -> None:
    """There is neither a job nor a claim."""
    ship = shipping(worker)
    with rolled_back():
        ship.delay_on_commit(1)

    assert not is_claimed(worker)
    assert len(worker.messages()) == 0


class ByHand(SingletonTask, DjangoTask):
    """A base class of a project that composes its base classes itself."""

    abstract = True


@pytest.mark.parametrize("base", [None, ByHand], ids=["by us", "by hand"])
def test_duplicate_on_commit_does_not_stop_other_callbacks(
    worker: Worker, base: Any
) -> None:
    """A duplicate raises no error there: Django would skip the later callbacks."""
    ship = shipping(worker, base=base, on_conflict="raise")
    ship.delay(1)
    with SignalRecorder("publish_deduplicated") as events, transaction.atomic():
        ship.delay_on_commit(1)
        ship.delay_on_commit(2)
        with pytest.raises(DuplicateTask):
            ship.delay(1)

    assert is_claimed(worker, 2)
    assert len(events.seen) == 2
    assert len(worker.messages()) == 2


def test_delay_on_commit_of_a_task_that_is_unique_while_it_runs(worker: Worker) -> None:
    """It is published without a claim."""
    ship = shipping(worker, unique_while="running")
    with transaction.atomic():
        ship.delay_on_commit(1)
        ship.delay_on_commit(order=1)

    assert len(worker.messages()) == 2
