"""A project whose broker is a Redis that a Sentinel knows."""

from __future__ import annotations

from celery_redlock import singleton_task
from tests.projects.app import new_app, note

app = new_app("sentinel", task_acks_late=True)


@singleton_task(app=app, name="sync", key="sync", on_conflict="retry")
def sync(number: int) -> int:
    """Work, one call after the other."""
    note("sync", number=number, step="began")
    note("sync", number=number, step="ended")
    return number
