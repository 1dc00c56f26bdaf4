"""Tasks whose bodies look at their own lock, end in special ways, or run again."""

from __future__ import annotations

import os
import signal
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Task, chain, group
from celery.exceptions import Ignore, Reject

from celery_redlock import current_lease, singleton_task
from tests.worker.project.body import hold, own_lease, recorded, stage
from tests.worker.project.jobs import TTL

# -- Their own lock ----------------------------------------------------------------


@singleton_task(name="whoami", key="{key}")
def whoami(key: str) -> int:
    """Return the id of the process that runs it."""
    with recorded(key):
        return os.getpid()


@singleton_task(name="informed", key="{key}")
def informed(key: str) -> dict[str, Any]:
    """Return the key, the fence and the remaining time of the lease."""
    lease = own_lease()
    with recorded(key):
        lease.ensure()
        lease.ensure(network=True)
        return {"key": lease.key, "fence": lease.fence, "remaining": lease.remaining()}


@singleton_task(name="applying", key="{key}", bind=True, on_conflict="raise")
def applying(self: Task, key: str, depth: int) -> list[str]:
    """Apply itself to this depth; return the token of each run's lease."""
    lease = current_lease()
    token = lease.token if lease else ""
    with recorded(key):
        inner = self.apply((key, depth - 1)).result if depth else []
    return [token, *inner]


# -- Their end ---------------------------------------------------------------------


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


# -- The loss of their lock --------------------------------------------------------


@singleton_task(name="lost-warn", key="{key}", ttl=TTL, on_lock_lost="warn")
def lost_warn(key: str) -> bool:
    """Run until the gate opens; tell whether the lease is still valid then."""
    lease = own_lease()
    hold(key)
    return lease.is_valid()


@singleton_task(name="lost-stubborn", key="{key}", ttl=TTL)
def lost_stubborn(key: str) -> None:
    """Ignore soft limits; only LockLost ends the body."""
    with recorded(key):
        while True:
            try:
                stage().wait(key)
            except SoftTimeLimitExceeded:  # noqa: PERF203  (the point of this task)
                stage().note(key, "caught")
            else:
                return


@singleton_task(name="lost-swallowed", key="{key}", ttl=TTL)
def lost_swallowed(key: str) -> str:
    """Swallow the error that stops the body, and return a result."""
    try:
        return hold(key)
    except Exception:  # noqa: BLE001  (users do this)
        return "all is well"


# -- Their retries -----------------------------------------------------------------


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


@singleton_task(name="replaced", key="{key}", bind=True)
def replaced(self: Task, key: str, how: str) -> str:
    """Replace itself with a canvas of the same key, and run on beside that."""
    with recorded(key) as task_id:
        if how != "member":
            member = self.si(key, "member").set(task_id=f"{key}-member")
            other = self.app.tasks["quick"].si(f"{key}-other")
            try:
                self.replace({"chain": chain, "group": group}[how]([member, other]))
            finally:
                stage().wait(key)
        return task_id


# -- Their arguments ---------------------------------------------------------------


@singleton_task(name="canonical")
def canonical(key: str, value: Any = 1) -> str:
    """Run until the gate opens; the lock is named by all arguments."""
    return hold(key)


@singleton_task(name="mutating")
def mutating(key: str, numbers: list[int], options: dict[str, Any]) -> str:
    """Change its arguments before it runs and before it ends."""
    numbers.append(4)
    options["more"] = True
    task_id = hold(key)
    numbers.clear()
    return task_id
