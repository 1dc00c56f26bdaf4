"""Helpers that the bodies of all tasks share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from celery import current_task

from celery_redlock import Lease, current_lease
from tests.harness.stage import Stage

STAGE = "PROJECT_STAGE"


@cache
def stage() -> Stage:
    """Return the stage that the tests watch."""
    return Stage(os.environ[STAGE])


@contextmanager
def recorded(key: str) -> Iterator[str]:
    """Record a run of the current task, and give its id."""
    task_id = str(current_task.request.id)
    with stage().run(key, task_id):
        yield task_id


def hold(key: str) -> str:
    """Run until the test opens the gate of this key; return the task's id."""
    with recorded(key) as task_id:
        stage().wait(key)
    return task_id


def own_lease() -> Lease:
    """Return the lease of the current run."""
    lease = current_lease()
    assert lease is not None
    return lease
