"""Tasks whose bodies end in different ways, or run again."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore, Reject

from celery_redlock import singleton_task
from tests.worker.project.body import recorded, stage

if TYPE_CHECKING:
    from celery import Task


@singleton_task(name="ending", key="{key}", bind=True, max_retries=1)
def ending(self: Task, key: str, how: str) -> str:
    """Run until the gate opens, then end in one of many ways."""
    with recorded(key):
        if how == "soft limit, tidied":
            try:
                stage().wait(f"{key}-never")
            except SoftTimeLimitExceeded:
                return "tidied"
        if how == "deaf":  # like a long call in C: only SIGKILL ends it
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            stage().wait(f"{key}-never")
        stage().wait(key)
        if how == "exception":
            raise ValueError(key)
        if how == "ignore":
            raise Ignore
        if how == "reject":
            raise Reject(key, requeue=False)
        if how == "retry" and not self.request.retries:
            raise self.retry(countdown=0.2)
        if how == "exit":
            raise SystemExit(0)
        return how


@singleton_task(
    name="autoretried",
    key="{key}",
    bind=True,
    autoretry_for=(ValueError,),
    retry_backoff=True,
    max_retries=2,
)
def autoretried(self: Task, key: str) -> int:
    """Fail twice, then tell which attempt this was."""
    with recorded(key):
        if self.request.retries < 2:
            raise ValueError(key)
        return int(self.request.retries)


@singleton_task(name="retried-at-once", key="{key}", bind=True, max_retries=None)
def retried_at_once(self: Task, key: str, times: int) -> int:
    """Retry itself without delay, this many times."""
    with recorded(key):
        if self.request.retries < times:
            raise self.retry(countdown=0)
        return int(self.request.retries)


@singleton_task(name="overtaken", key="{key}", bind=True)
def overtaken(self: Task, key: str) -> str:
    """Publish a retry, and go on running beside it until the gate opens."""
    with recorded(key) as task_id:
        if not self.request.retries:
            try:
                self.retry(countdown=0)
            finally:
                stage().wait(key)
        return task_id


@singleton_task(name="sleeper", key="{key}")
def sleeper(key: str, seconds: float) -> None:
    """Run about as long as its soft limit allows."""
    with recorded(key):
        threading.Event().wait(seconds)
