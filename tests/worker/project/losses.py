"""Tasks that lose their lock while they run, and react in different ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from billiard.exceptions import SoftTimeLimitExceeded

from celery_redlock import LockLost, current_lease, singleton_task
from tests.worker.project.body import TTL, hold, recorded, stage

if TYPE_CHECKING:
    from celery_redlock.policies import Loss


@singleton_task(
    name="lost-retry",
    key="{key}",
    ttl=TTL,
    on_lock_lost="retry",
    on_conflict="retry",
    retry_countdown=0.3,
)
def lost_retry(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(name="lost-warn", key="{key}", ttl=TTL, on_lock_lost="warn")
def lost_warn(key: str) -> bool:
    """Run until the gate opens; tell whether the lease is still valid then."""
    lease = current_lease()
    assert lease is not None
    hold(key)
    return lease.is_valid()


def note_lost(loss: Loss) -> str:
    """Note the loss, and let the body go on."""
    stage().note(loss.key, "lost", fence=loss.fence)
    return "warn"


@singleton_task(name="lost-callable", key="{key}", ttl=TTL, on_lock_lost=note_lost)
def lost_callable(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(
    name="lost-autoretry",
    key="{key}",
    ttl=TTL,
    on_conflict="retry",
    retry_countdown=0.3,
    autoretry_for=(LockLost,),
    default_retry_delay=0,
    max_retries=20,
)
def lost_autoretry(key: str) -> str:
    """Run until the gate opens; a lost lock is one of the errors to retry."""
    return hold(key)


@singleton_task(
    name="lost-other-autoretry", key="{key}", ttl=TTL, autoretry_for=(Exception,)
)
def lost_other_autoretry(key: str) -> str:
    """Run until the gate opens; ``autoretry_for`` does not name LockLost."""
    return hold(key)


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


@singleton_task(name="lost-deaf", key="{key}", ttl=TTL)
def lost_deaf(key: str) -> str:
    """Catch the first LockLost, and go on."""
    with recorded(key) as task_id:
        try:
            stage().wait(key)
        except LockLost:
            stage().note(key, "caught")
            stage().wait(key)
        return task_id


@singleton_task(
    name="lost-mutating",
    key="{key}",
    ttl=TTL,
    on_lock_lost="retry",
    on_conflict="retry",
    retry_countdown=0.3,
)
def lost_mutating(key: str, numbers: list[int]) -> list[int]:
    """Clear the list of numbers; return the numbers that it had."""
    given = [*numbers]
    numbers.clear()
    hold(key)
    return given
