"""Policies at publishing: what the caller gets for a duplicate."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from celery import states

from celery_redlock import DuplicateTask
from celery_redlock.policies import Conflict, Raise, Skip
from celery_redlock.testing import SignalRecorder
from tests.unit.tasks.support import HOUR, held, messages, unique_job

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from tests.unit.tasks.support import Worker


def test_raise_names_the_job_that_is_here(app: Celery) -> None:
    """The caller gets an error with the holder's id."""
    task = unique_job(app, on_conflict="raise")
    first = task.delay(0)

    with pytest.raises(DuplicateTask, match=first.id) as refusal:
        task.delay(0)

    assert refusal.value.holder is not None
    assert refusal.value.holder.task_id == first.id
    assert refusal.value.key == "k:0"
    assert refusal.value.retry_after == pytest.approx(HOUR)
    assert "waits in the queue" in str(refusal.value)
    assert messages(app) == [first.id]


def test_allow_publishes_and_signals_the_duplicate(app: Celery) -> None:
    """The first call keeps the claim."""
    task = unique_job(app, on_conflict="allow")
    first = task.delay(0)

    with SignalRecorder("publish_deduplicated") as events:
        second = task.delay(0)

    assert messages(app) == [first.id, second.id]
    assert second.conflict.holder.task_id == first.id
    assert second.conflict.task_id == second.id
    assert events.names == ["publish_deduplicated"]


def test_each_stage_has_its_policy(app: Celery, worker: Worker, rival: Redlock) -> None:
    """``{"publish": "raise", "execute": "retry"}`` raises here and retries there."""
    task = unique_job(app, on_conflict={"publish": "raise", "execute": "retry"})
    first = task.delay(0)
    with pytest.raises(DuplicateTask):
        task.delay(0)

    with held(rival, key="k:0"):
        run = worker.run(task, 0, id=first.id)

    assert run.stored == states.RETRY


def test_callable_is_asked_with_the_conflict(app: Celery) -> None:
    """It gets the arguments and the holder, and its decision is performed."""
    asked_with: list[Conflict] = []

    def decide(conflict: Conflict) -> Skip | Raise:
        asked_with.append(conflict)
        return Raise()

    task = unique_job(app, on_conflict={"publish": decide})
    first = task.delay(0)

    with pytest.raises(DuplicateTask):
        task.delay(0)

    (conflict,) = asked_with
    assert conflict.holder is not None
    assert (conflict.args, conflict.holder.task_id) == ((0,), first.id)


def test_duplicate_is_logged_and_signalled(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the key and the existing job, but no arguments."""
    task = unique_job(app)
    first = task.delay(0)

    with caplog.at_level(logging.INFO), SignalRecorder() as events:
        task.delay(0)

    (event,) = events.of("publish_deduplicated")
    assert (event.conflict.holder.task_id, event.decision) == (first.id, Skip())
    assert event.sender.name == task.name
    assert f"job[{first.id}], the same call 'k:0', waits in the queue" in caplog.text
