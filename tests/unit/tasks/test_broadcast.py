"""Broadcast (fanout) queues: each worker has a copy of a call, with the same id."""

from __future__ import annotations

from typing import Any

import pytest
from celery import signals, states
from kombu.common import Broadcast

from celery_redlock import ConfigurationError
from tests.unit.tasks.support import Worker


@pytest.fixture(autouse=True)
def _queue(worker: Worker) -> None:
    """Let the app have a Broadcast queue."""
    library: Any = Broadcast  # has no types
    worker.app.conf.task_queues = [library("all-workers")]


def test_call_from_a_broadcast_queue_is_refused(worker: Worker) -> None:
    """It was published again and again, to all workers each time."""
    task = worker.leased_job(on_conflict="retry")

    run = worker.run(task, delivery_info={"exchange": "all-workers", "routing_key": ""})

    assert run.stored == states.FAILURE
    assert isinstance(run.result, ConfigurationError)
    assert worker.published == []


def test_worker_with_a_task_for_a_broadcast_queue_does_not_start(
    worker: Worker,
) -> None:
    """The error says which task, and what to do."""
    worker.leased_job()
    worker.app.conf.task_routes = {"job": {"queue": "all-workers"}}

    with pytest.raises(SystemExit, match="job is routed to the Broadcast"):
        signals.worker_init.send(sender=worker)  # it has an app, as a real one
