"""The step of a worker that looks whether its processes only refuse calls."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.prefork import TaskPool
from kombu.asynchronous.timer import Timer

from celery_redlock.app.refusal_step import RefusalStep
from tests.unit.tasks.support import Worker


def test_pool_that_a_cold_shutdown_has_stopped_is_no_error(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """Celery stops the pool in the handler of the signal, and may run a timer then."""
    app = worker.app
    pool = TaskPool(1, app=app, initargs=(app, ""))
    timer: Any = Timer()  # type: ignore[no-untyped-call]
    step = RefusalStep(SimpleNamespace(app=app))
    step.start(SimpleNamespace(timer=timer, pool=pool))
    pool.start()
    pool.stop()

    (entry,) = [one.entry for one in timer.queue]
    with caplog.at_level(logging.ERROR):
        timer.apply_entry(entry)
    assert [one.getMessage() for one in caplog.records] == []
