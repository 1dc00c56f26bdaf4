"""Tasks that run once at a time.

The tests give each call its own key, and most of the tasks lock just this key.
Two tasks that use the same text share the lock.
"""

from __future__ import annotations

import os
from typing import Any

from celery_redlock import singleton_task
from tests.worker.project.body import TTL, hold, recorded


@singleton_task(name="job", key="{key}")
def job(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(name="short", key="{key}", ttl=TTL)
def short(key: str) -> str:
    """Run until the gate opens, with a lock that needs to be renewed soon."""
    return hold(key)


@singleton_task(name="quick", key="{key}")
def quick(key: str) -> str:
    """Run and end."""
    with recorded(key) as task_id:
        return task_id


@singleton_task(name="job-unstored", key="{key}", ignore_result=True)
def job_unstored(key: str) -> str:
    """Run until the gate opens, and leave no result."""
    return hold(key)


@singleton_task(name="late", key="{key}", acks_late=True, reject_on_worker_lost=True)
def late(key: str) -> str:
    """Run until the gate opens; a job that must not be lost with its worker."""
    return hold(key)


@singleton_task(
    name="late-short", key="{key}", ttl=2, acks_late=True, reject_on_worker_lost=True
)
def late_short(key: str) -> str:
    """Run until the gate opens; the ttl ends the lock of a killed worker."""
    return hold(key)


@singleton_task(name="keeping", key="{key}", hold_at_least=2.0)
def keeping(key: str) -> str:
    """End at once, and keep the lock."""
    with recorded(key) as task_id:
        return task_id


@singleton_task(name="whoami", key="{key}")
def whoami(key: str) -> int:
    """Return the id of the process that runs it."""
    with recorded(key):
        return os.getpid()


# -- Equal calls -----------------------------------------------------------------


@singleton_task(name="canonical")
def canonical(key: str, value: Any = 1) -> str:
    """Run until the gate opens; the lock is named by all arguments."""
    return hold(key)


@singleton_task(name="chosen", unique_on=["key"])
def chosen(key: str, value: Any = 1) -> str:
    """Run until the gate opens; the lock is named by one argument."""
    return hold(key)


@singleton_task(name="mutating")
def mutating(key: str, numbers: list[int], options: dict[str, Any]) -> str:
    """Change its arguments before it runs and before it ends."""
    numbers.append(4)
    options["more"] = True
    task_id = hold(key)
    numbers.clear()
    return task_id
