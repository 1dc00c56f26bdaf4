"""Tasks that are unique before they run, or for a while after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock import singleton_task
from celery_redlock.policies import Raise, Skip
from tests.worker.project.body import hold, recorded

if TYPE_CHECKING:
    from celery import Task

    from celery_redlock.policies import Conflict

COOL_DOWN = 4.0  # seconds


@singleton_task(
    name="one-queued",
    key="{key}",
    unique_while="queued",
    on_conflict={"publish": "skip", "execute": "wait"},
    wait_timeout=30,
)
def one_queued(key: str) -> str:
    """Run until the gate opens; one more may wait meanwhile."""
    return hold(key)


@singleton_task(name="one-at-all", key="{key}", unique_while="queued_or_running")
def one_at_all(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(name="one-in-a-while", key="{key}", unique_for=COOL_DOWN)
def one_in_a_while(key: str) -> str:
    """Run and end."""
    with recorded(key) as task_id:
        return task_id


@singleton_task(
    name="one-queued-raise",
    key="{key}",
    unique_while="queued_or_running",
    on_conflict="raise",
)
def one_queued_raise(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(
    name="one-queued-allow",
    key="{key}",
    unique_while="queued_or_running",
    on_conflict={"publish": "allow", "execute": "skip"},
)
def one_queued_allow(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


def strict_before_it_runs(conflict: Conflict) -> Skip | Raise:
    """Raise at the publisher; skip in a worker."""
    return Raise() if conflict.stage == "publish" else Skip()


@singleton_task(
    name="one-queued-callable",
    key="{key}",
    unique_while="queued_or_running",
    on_conflict=strict_before_it_runs,
)
def one_queued_callable(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(
    name="one-queued-again",
    key="{key}",
    unique_while="queued_or_running",
    bind=True,
    max_retries=1,
)
def one_queued_again(self: Task, key: str) -> str:
    """Wait for its retry, and run until the gate opens."""
    if not self.request.retries:
        raise self.retry(countdown=3)
    return hold(key)
