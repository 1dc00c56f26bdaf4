"""Tasks that differ in their decisions on a held lock and on an outage."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from celery_redlock import current_lease, singleton_task
from celery_redlock.policies import Retry, Wait
from tests.worker.project.body import hold, recorded, stage

if TYPE_CHECKING:
    from celery_redlock.policies import Conflict


@singleton_task(name="job-raise", key="{key}", on_conflict="raise")
def job_raise(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(
    name="job-retry",
    key="{key}",
    on_conflict="retry",
    retry_countdown=0.3,
    max_retries=0,
)
def job_retry(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(name="job-wait", key="{key}", on_conflict="wait", wait_timeout=30)
def job_wait(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(
    name="job-wait-briefly", key="{key}", on_conflict="wait", wait_timeout=0.3
)
def job_wait_briefly(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(name="job-allow", key="{key}", on_conflict="allow")
def job_allow(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


def note_and_raise(conflict: Conflict) -> str:
    """Note the holder of the lock, then decide."""
    assert conflict.holder is not None
    stage().note(conflict.key, "conflict", holder=conflict.holder.task_id)
    return "raise"


@singleton_task(name="job-callable", key="{key}", on_conflict=note_and_raise)
def job_callable(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


def wait_then_retry(conflict: Conflict) -> Wait | Retry:
    """Wait for a second, then ask to be republished."""
    stage().note(conflict.key, "conflict")
    return Retry(0.3) if conflict.waited else Wait(1.0)


@singleton_task(name="job-wait-then-retry", key="{key}", on_conflict=wait_then_retry)
def job_wait_then_retry(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(
    name="storm",
    key="{key}",
    on_conflict="retry",
    retry_countdown=0.3,
    acks_late=True,
    reject_on_worker_lost=True,
)
def storm(key: str, seconds: float) -> str:
    """Run for this many seconds, as one of many calls."""
    with recorded(key) as task_id:
        threading.Event().wait(seconds)
        return task_id


# -- When the nodes cannot be reached  ---------------------------------------------


@singleton_task(name="unreachable-raise", key="{key}", on_backend_error="raise")
def unreachable_raise(key: str) -> str:
    """Run and end."""
    with recorded(key) as task_id:
        return task_id


@singleton_task(name="unreachable-run", key="{key}", on_backend_error="run")
def unreachable_run(key: str) -> bool:
    """Run and end; tell whether there is a lease."""
    with recorded(key):
        return current_lease() is not None


@singleton_task(name="unreachable-skip", key="{key}", on_backend_error="skip")
def unreachable_skip(key: str) -> str:
    """Run and end."""
    with recorded(key) as task_id:
        return task_id
