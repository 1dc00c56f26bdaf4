"""``unique_for``: duplicates within the cool-down after a success."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import states

from celery_redlock import DuplicateTask
from celery_redlock.app.runtime import runtime_of
from celery_redlock.policies import BufferOne, CancelRunning, Conflict, Wait
from celery_redlock.testing import SignalRecorder
from tests.unit.tasks.support import JUST_NOW

if TYPE_CHECKING:
    from tests.unit.tasks.support import Worker

# -- at publish --------------------------------------------------------------------


def test_publisher_gets_the_job_that_succeeded_in_a_cool_down(worker: Worker) -> None:
    """For these seconds its result is the answer to the same call."""
    task = worker.unique_job("running", unique_for=60)
    first = task.delay(0)
    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS

    second = task.delay(0)

    assert second.id == first.id
    assert second.get(timeout=1) == 0
    assert second.conflict.phase == "succeeded"
    assert second.conflict.retry_after == pytest.approx(60)
    worker.nodes.clock.sleep(60.01)
    assert task.delay(0).id != first.id
    assert worker.claims() == {}


# -- in a worker -------------------------------------------------------------------


def test_call_that_comes_to_a_worker_in_the_cool_down_is_skipped(
    worker: Worker,
) -> None:
    """A call that was published without a check is refused when it is executed."""
    task = worker.unique_job("running", unique_for=60)
    first = worker.run(task, 0)

    run = worker.run(task, 0)

    assert (run.state, run.stored) == (states.IGNORED, states.REVOKED)
    assert isinstance(run.result, DuplicateTask)
    assert first.id in str(run.result)
    assert worker.claims(kind="lock") == {}
    worker.nodes.clock.sleep(60.01)
    assert worker.run(task, 0).stored == states.SUCCESS


def test_cool_down_begins_with_success_only(worker: Worker) -> None:
    """A call that failed may run again at once."""

    @worker.task(key="k:0", unique_for=60)
    def failing() -> None:
        raise ValueError

    for _ in range(2):
        assert worker.run(failing).stored == states.FAILURE
    assert worker.claims(kind="cooldown") == {}


def test_retry_in_the_cool_down_is_republished_for_its_end(worker: Worker) -> None:
    """Each call runs, and no two within a cool-down."""
    task = worker.unique_job("running", unique_for=60, on_conflict="retry")
    worker.run(task, 0)
    began = datetime.now(timezone.utc)

    run = worker.run(task, 0)

    assert run.stored == states.RETRY
    headers, _ = worker.published[-1]
    delay = (datetime.fromisoformat(headers["eta"]) - began).total_seconds()
    assert 59 < delay < 66 + JUST_NOW


def test_allow_in_the_cool_down_runs_under_the_lock(worker: Worker) -> None:
    """No other call runs, so the lock is free to run under."""
    task = worker.unique_job("running", unique_for=60, on_conflict="allow")
    worker.run(task, 0)

    with SignalRecorder("lock_conflict", "lock_acquired") as events:
        run = worker.run(task, 0)

    assert run.stored == states.SUCCESS
    assert events.names == ["lock_acquired", "lock_conflict"]
    assert events.of("lock_conflict")[0].conflict.phase == "succeeded"
    assert list(worker.claims(kind="cooldown")) == [run.id]


@pytest.mark.parametrize(
    ("decision", "state"),
    [(CancelRunning(), states.SUCCESS), (BufferOne(), states.RETRY)],
)
def test_no_call_is_replaced_or_followed_in_the_cool_down(
    worker: Worker, decision: Any, state: str
) -> None:
    """There is no running call: the call runs, or runs when the cool-down is over."""
    task = worker.unique_job("running", unique_for=60, on_conflict=lambda _: decision)
    worker.run(task, 0)

    assert worker.run(task, 0).stored == state


def test_callable_that_waits_in_the_cool_down_waits_without_the_lock(
    worker: Worker,
) -> None:
    """The policy is asked again after each timeout, until the cool-down is over."""
    waited = []

    def wait(conflict: Conflict) -> Wait:
        waited.append(conflict.waited)
        worker.nodes.clock.sleep(5)  # the time that is slept is the machine's
        return Wait(0.01)

    task = worker.unique_job("running", unique_for=12, on_conflict=wait)
    worker.run(task, 0)

    assert worker.run(task, 0).stored == states.SUCCESS
    assert len(waited) == 3
    assert runtime_of(worker.app).redlock.inspect("k:0").holder is None


def test_own_cool_down_is_no_reason_to_skip(worker: Worker) -> None:
    """A redelivered message of a task without results runs again."""
    task = worker.unique_job("running", unique_for=60, ignore_result=True)

    for _ in range(2):
        assert worker.run(task, 0, id=worker.call_id).state == states.SUCCESS
