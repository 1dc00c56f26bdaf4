"""Publishers tell the nodes of a call, where the policy orders the calls."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery, states

from celery_redlock import ConfigurationError, singleton_task
from tests.unit.tasks.support import Worker


@pytest.mark.parametrize("policy", ["buffer_one", "cancel_running", lambda _: "skip"])
def test_published_calls_are_announced_in_their_order(
    worker: Worker, policy: Any
) -> None:
    """Also where a callable may decide for such a policy."""
    task = worker.buffered(on_conflict=policy)

    results = [task.delay(number) for number in range(3)]

    assert worker.announced() == [result.id for result in results]


@pytest.mark.parametrize("policy", ["skip", "raise", "retry", "wait", "allow"])
def test_calls_of_other_policies_are_not_announced(worker: Worker, policy: str) -> None:
    """It would be a request for nothing."""
    worker.buffered(on_conflict=policy).delay(1)

    assert worker.announced() == []


def test_call_that_does_not_run_now_is_not_announced(worker: Worker) -> None:
    """It would end calls that may run now."""
    worker.buffered().apply_async((1,), countdown=60)

    assert worker.announced() == []


def test_republished_call_keeps_its_place(worker: Worker) -> None:
    """A refused call waits in its queue, and is no newer than before."""
    task = worker.buffered()
    first, second = task.delay(1), task.delay(2)

    run = worker.refuse(task, 2, id=second.id)

    assert run.stored == states.RETRY
    assert worker.announced() == [first.id, second.id]


def test_call_that_starts_or_ends_is_no_longer_waiting(worker: Worker) -> None:
    """However it ends: it runs, is superseded, fails, or finds too few nodes."""
    task = worker.buffered(on_backend_error="raise")
    older, newer = task.delay(1), task.delay(2)

    assert worker.run(task, 1, id=older.id).stored == states.REVOKED
    assert worker.announced() == [newer.id]
    assert worker.run(task, 2, id=newer.id).stored == states.SUCCESS
    assert worker.announced() == []

    decided = worker.buffered(on_conflict=lambda _: "raise", name="decided")
    failing, running = decided.delay(3), decided.delay(4)
    assert worker.refuse(decided, 3, id=failing.id).stored == states.FAILURE
    assert worker.announced(task="decided") == [running.id]
    assert worker.run(decided, 4, id=running.id).stored == states.SUCCESS
    assert worker.announced(task="decided") == []


def test_publisher_without_nodes_publishes_what_needs_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An order needs nodes and is left out. A claim is refused, and nothing is sent."""
    app = Celery("unit", broker="memory://", set_as_current=False)

    def job() -> None:
        pass

    plain = singleton_task(app=app, name="plain")(job)
    ordered = singleton_task(app=app, name="ordered", on_conflict="buffer_one")(job)
    claimed = singleton_task(app=app, name="claimed", unique_while="queued")(job)

    with caplog.at_level(logging.WARNING):
        assert plain.delay().id
        assert ordered.delay().id
    assert "is published without an order: redlock_nodes is not set" in caplog.text
    with pytest.raises(ConfigurationError, match="redlock_nodes is not set"):
        claimed.delay()
    app.close()
