"""Tasks that use their own lock: read its lease, take its key again, renew it."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING, Any

from celery_redlock import LockHeld, current_lease, singleton_task
from celery_redlock.signals import lock_heartbeat
from tests.harness.waiting import until
from tests.worker.project.body import recorded, stage

if TYPE_CHECKING:
    from celery import Task


@singleton_task(name="informed", key="{key}")
def informed(key: str) -> dict[str, Any]:
    """Return the key, the fence and the remaining time of the lease."""
    lease = current_lease()
    assert lease is not None
    with recorded(key):
        lease.ensure()
        lease.ensure(network=True)
        return {"key": lease.key, "fence": lease.fence, "remaining": lease.remaining()}


@singleton_task(name="nested", key="{key}", bind=True)
def nested(self: Task, key: str) -> bool:
    """Take its own lock again; tell whether that was the same lease."""
    with recorded(key), self.lock(key) as inner:
        stage().wait(key)
        outer_fence = inner.fence
    lease = current_lease()
    assert lease is not None
    lease.ensure(network=True)  # the inner block has not released it
    return bool(lease.fence == outer_fence)


@singleton_task(name="recursive", key="{key}", bind=True)
def recursive(self: Task, key: str, depth: int) -> int:
    """Call itself to this depth."""
    return 1 + self(key, depth - 1) if depth else 0


@singleton_task(name="spawning", key="{key}", bind=True)
def spawning(self: Task, key: str) -> str:
    """Try to take its own lock from a thread; return the outcome."""
    answers = []

    def take() -> None:
        try:
            with self.lock(key):
                answers.append("taken")
        except LockHeld:
            answers.append("held")

    here = contextvars.copy_context()  # as frameworks do for the threads they start
    thread = threading.Thread(target=here.run, args=(take,))
    thread.start()
    thread.join()
    return answers[0]


@singleton_task(name="beating", key="{key}", bind=True)
def beating(self: Task, key: str) -> bool:
    """Ask for a renewal; tell whether it came long before it was due."""
    lease = current_lease()
    assert lease is not None
    before = lease.until
    lock_heartbeat.send(sender=self)
    with recorded(key):
        return until(lambda: lease.until > before, 5)
