"""A slot that beat has sent twice runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import states

from celery_redlock import DuplicateTask, current_lease, singleton_task
from celery_redlock.core.lease import Holder

if TYPE_CHECKING:
    from celery import Celery, Task

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker

SLOT = {"slot": "nightly@2026-11-21T04:00:00+00:00"}


def singleton(app: Celery, **options: Any) -> Any:
    """Return a task whose result tells whether it has a lease."""

    @singleton_task(app=app, shared=False, name="job", key="k", **options)
    def job() -> bool:
        return current_lease() is not None

    return job


def test_second_message_for_a_slot_is_skipped(app: Celery, worker: Worker) -> None:
    """The first message has ended, and the lock is free."""
    task = singleton(app)
    first = worker.run(task, redlock=SLOT)

    second = worker.run(task, redlock=SLOT)

    assert first.result is True
    assert (second.state, second.stored) == (states.IGNORED, states.REVOKED)
    assert isinstance(second.result, DuplicateTask)
    assert f"sent {SLOT['slot']} twice" in str(second.result)
    assert f"the first message runs as {first.id}" in str(second.result)


def test_second_message_is_no_conflict(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """The policy is not asked, so a slot that runs is not republished."""
    task = singleton(app, on_conflict="retry")
    first = worker.run(task, redlock=SLOT)
    rival.acquire("k", holder=Holder.here(task="job", task_id=first.id))

    second = worker.run(task, redlock=SLOT)

    assert second.stored == states.REVOKED
    assert worker.published == []


def test_slots_are_different_by_entry_and_time(app: Celery, worker: Worker) -> None:
    """The next night is another slot; a call without a slot is never skipped."""
    task = singleton(app)
    worker.run(task, redlock=SLOT)

    another = {"slot": SLOT["slot"].replace("-21T", "-22T")}
    assert worker.run(task, redlock=another).result is True
    assert worker.run(task).result is True
    assert worker.run(task).result is True


def test_redelivery_of_the_first_message_runs(app: Celery, worker: Worker) -> None:
    """It has the same task id, and no stored result shows that it has run."""
    task = singleton(app, ignore_result=True)
    first = worker.run(task, redlock=SLOT)

    again = worker.redeliver(task, id=first.id, redlock=SLOT)

    assert again.state == states.SUCCESS


def test_slot_stays_on_a_call_that_is_republished(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """The republished call keeps its slot; a second message is still skipped."""
    task = singleton(app, on_conflict="retry")
    lease = rival.acquire("k", holder=Holder.here(task="job", task_id="other"))
    first = worker.run(task, redlock=SLOT)
    ((headers, _),) = worker.published
    assert headers["redlock"]["slot"] == SLOT["slot"]
    rival.release(lease)

    assert worker.run(task, redlock=SLOT).stored == states.REVOKED
    again = worker.run(task, id=first.id, redlock=headers["redlock"])
    assert again.result is True


def test_retry_of_a_body_is_not_for_the_slot(app: Celery, worker: Worker) -> None:
    """The slot has run, so a retry by the body is a call without a slot."""

    @singleton_task(app=app, shared=False, name="failing", key="k", bind=True)
    def failing(self: Task) -> None:
        raise self.retry(countdown=1)

    worker.run(failing, redlock=SLOT)

    ((headers, _),) = worker.published
    assert "slot" not in (headers.get("redlock") or {})


def test_slot_runs_where_nodes_cannot_tell(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """If too few nodes answer, ``on_backend_error`` decides."""
    task = singleton(app, on_backend_error="run")
    worker.run(task, redlock=SLOT)
    nodes.freeze()

    assert worker.run(task, redlock=SLOT).result is False
