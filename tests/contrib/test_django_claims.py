"""Claims and transactions: a rollback releases the claims of its transaction."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from django.db import transaction

from celery_redlock import DuplicateTask, singleton_task
from celery_redlock.app.runtime import runtime_of
from celery_redlock.core.records.claims import Claims
from celery_redlock.testing import FakeNodes, SignalRecorder
from tests.contrib.storages import default_database, use_django

if TYPE_CHECKING:
    from collections.abc import Iterator


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
def app() -> Iterator[Celery]:
    """Give the Celery app of a Django project, with a broker in memory."""
    nodes = FakeNodes(3)
    app = Celery(
        "site", set_as_current=False, task_cls="celery.contrib.django.task:DjangoTask"
    )
    app.conf.update(
        broker_url="memory://",
        result_backend="cache+memory://",
        task_default_queue=f"site-{secrets.token_hex(4)}",
        redlock_nodes=nodes.urls,
    )
    runtime_of(app).use(nodes.redlock())
    yield app
    runtime_of(app).stop()
    app.close()


def shipping(app: Celery, **options: Any) -> Any:
    """Return a task that is unique while it is queued."""

    @singleton_task(
        app=app, shared=False, name="ship", unique_while="queued", **options
    )
    def ship(order: int) -> None: ...

    return ship


def sent(app: Celery) -> int:
    """Return how many messages are in the queue."""
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.conf.task_default_queue)
        count: int = queue.qsize()
        queue.close()
    return count


def is_claimed(app: Celery, task: Any, order: int = 1) -> bool:
    """Tell whether the call has a claim."""
    key = task.lock_key(order)
    return Claims(runtime_of(app).redlock).queued(key) is not None


def test_claim_is_released_with_its_transaction(app: Celery) -> None:
    """After a rollback, the next call is no duplicate."""
    ship = shipping(app)
    with rolled_back():
        first = ship.delay(1)
        assert ship.delay(1).id == first.id

    assert not is_claimed(app, ship)
    assert ship.delay(1).id != first.id


def test_claim_is_kept_if_the_transaction_commits(app: Celery) -> None:
    """After a commit, the next call is a duplicate."""
    ship = shipping(app)
    with transaction.atomic():
        first = ship.delay(1)

    assert is_claimed(app, ship)
    assert ship.delay(1).id == first.id


def test_claim_is_released_with_its_savepoint(app: Celery) -> None:
    """A claim from outside of the savepoint is kept."""
    ship = shipping(app)
    with transaction.atomic():
        ship.delay(1)
        with rolled_back():
            ship.delay(2)
        assert not is_claimed(app, ship, 2)

    assert is_claimed(app, ship, 1)


def test_claim_of_a_savepoint_is_released_with_the_transaction(app: Celery) -> None:
    """A rollback of the transaction includes its savepoints."""
    ship = shipping(app)
    with rolled_back():
        with transaction.atomic():
            ship.delay(1)
        assert is_claimed(app, ship)

    assert not is_claimed(app, ship)


def test_claim_of_another_job_is_kept(app: Celery) -> None:
    """A rollback releases only claims that this transaction took."""
    ship = shipping(app)
    ship.delay(1)
    with rolled_back():
        ship.delay(1)

    assert is_claimed(app, ship)


def test_claim_without_a_transaction_is_kept(app: Celery) -> None:
    """Most calls are made outside of a transaction."""
    ship = shipping(app)

    ship.delay(1)

    assert is_claimed(app, ship)


def test_delay_on_commit_claims_when_it_commits(app: Celery) -> None:
    """There is no claim before the commit, because the call may never be sent."""
    ship = shipping(app)
    with transaction.atomic():
        ship.delay_on_commit(1)
        ship.apply_async_on_commit((1,), countdown=5)
        assert not is_claimed(app, ship)
        assert sent(app) == 0

    assert is_claimed(app, ship)
    assert sent(app) == 1


def test_delay_on_commit_does_nothing_after_a_rollback(app: Celery) -> None:
    """There is neither a job nor a claim."""
    ship = shipping(app)
    with rolled_back():
        ship.delay_on_commit(1)

    assert not is_claimed(app, ship)
    assert sent(app) == 0


def test_duplicate_on_commit_does_not_stop_other_callbacks(app: Celery) -> None:
    """A duplicate raises no error there: Django would skip the later callbacks."""
    ship = shipping(app, on_conflict="raise")
    ship.delay(1)
    with SignalRecorder("publish_deduplicated") as events, transaction.atomic():
        ship.delay_on_commit(1)
        ship.delay_on_commit(2)
        with pytest.raises(DuplicateTask):
            ship.delay(1)

    assert is_claimed(app, ship, 2)
    assert len(events.seen) == 2
    assert sent(app) == 2


def test_delay_on_commit_of_a_task_that_is_unique_while_it_runs(app: Celery) -> None:
    """It is published without a claim."""

    @singleton_task(app=app, shared=False, name="plain")
    def plain(order: int) -> None: ...

    with transaction.atomic():
        plain.delay_on_commit(1)
        plain.delay_on_commit(order=1)

    assert sent(app) == 2
