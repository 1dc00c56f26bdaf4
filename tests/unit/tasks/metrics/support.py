"""A task whose key nobody should find among labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock import singleton_task
from celery_redlock.core.lease import Holder

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock

__all__ = ["other_holder", "private_job"]


def private_job(app: Celery, **options: Any) -> Any:
    """Return the task."""

    @singleton_task(app=app, shared=False, name="job", key="private-key", **options)
    def job() -> None: ...

    return job


def other_holder(rival: Redlock) -> None:
    """Let another execution hold the lock of the task."""
    rival.acquire("private-key", facts=Holder.here(task="job", task_id="other-id"))
