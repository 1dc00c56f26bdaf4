"""Tasks that run once at a time.

The tests give each call a key of its own, and most of the tasks lock just that:
two tasks that use the same text share the lock.
"""

from __future__ import annotations

import contextvars
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore, Reject

from celery_redlock import LockHeld, LockLost, current_lease, singleton_task
from celery_redlock.policies import Retry, Wait
from celery_redlock.signals import lock_heartbeat
from tests.worker.harness.waiting import until
from tests.worker.project.body import hold, recorded, stage

if TYPE_CHECKING:
    from celery import Task

    from celery_redlock.policies import Conflict, Loss

TTL = 1.5  # seconds, where a test waits until a lock is renewed or lost


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


# -- What a loser does -----------------------------------------------------------


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
    """Note who holds the lock, then decide."""
    assert conflict.holder is not None
    stage().note(conflict.key, "conflict", holder=conflict.holder.task_id)
    return "raise"


def wait_then_retry(conflict: Conflict) -> Wait | Retry:
    """Wait for a second, then go back into the queue."""
    stage().note(conflict.key, "conflict")
    return Retry(0.3) if conflict.waited else Wait(1.0)


@singleton_task(name="job-wait-then-retry", key="{key}", on_conflict=wait_then_retry)
def job_wait_then_retry(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(name="job-callable", key="{key}", on_conflict=note_and_raise)
def job_callable(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


@singleton_task(name="job-unstored", key="{key}", ignore_result=True)
def job_unstored(key: str) -> str:
    """Run until the gate opens, and leave no result."""
    return hold(key)


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


# -- When the lock is lost -------------------------------------------------------


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
    """Run until the gate opens; a lost lock is not named among what is retried."""
    return hold(key)


@singleton_task(name="lost-stubborn", key="{key}", ttl=TTL)
def lost_stubborn(key: str) -> None:
    """Run on whatever soft limit comes: only LockLost stops this one."""
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
    """Swallow what stops it, and end as if all were well."""
    try:
        return hold(key)
    except Exception:  # noqa: BLE001  (users do this)
        return "all is well"


@singleton_task(name="lost-deaf", key="{key}", ttl=TTL)
def lost_deaf(key: str) -> str:
    """Go on after the first LockLost, as if nothing had been."""
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
    """Tell the numbers that it was given, and change them."""
    given = [*numbers]
    numbers.clear()
    hold(key)
    return given


# -- How a body ends -------------------------------------------------------------


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
    """Retry itself with no delay, so often."""
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
    threading.Event().wait(seconds)


@singleton_task(name="late", key="{key}", acks_late=True, reject_on_worker_lost=True)
def late(key: str) -> str:
    """Run until the gate opens; a job that must not be lost with its worker."""
    return hold(key)


@singleton_task(
    name="late-short", key="{key}", ttl=2, acks_late=True, reject_on_worker_lost=True
)
def late_short(key: str) -> str:
    """Run until the gate opens; when its worker dies unseen, the ttl ends it."""
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
    """Run so long, one of many."""
    with recorded(key) as task_id:
        threading.Event().wait(seconds)
        return task_id


# -- What is the same call -------------------------------------------------------


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


# -- Inside the body -------------------------------------------------------------


@singleton_task(name="informed", key="{key}")
def informed(key: str) -> dict[str, Any]:
    """Tell what the lease says."""
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
    lease.ensure(network=True)  # the inner block has not let go of it
    return bool(lease.fence == outer_fence)


@singleton_task(name="recursive", key="{key}", bind=True)
def recursive(self: Task, key: str, depth: int) -> int:
    """Call itself, so deep."""
    return 1 + self(key, depth - 1) if depth else 0


@singleton_task(name="spawning", key="{key}", bind=True)
def spawning(self: Task, key: str) -> str:
    """Try to take its own lock from a thread; tell what came of it."""
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
    """Ask for a renewal; tell whether it came long before its time."""
    lease = current_lease()
    assert lease is not None
    before = lease.until
    lock_heartbeat.send(sender=self)
    with recorded(key):
        return until(lambda: lease.until > before, 5)


@singleton_task(name="keeping", key="{key}", hold_at_least=2.0)
def keeping(key: str) -> str:
    """End at once, and keep the lock."""
    with recorded(key) as task_id:
        return task_id


@singleton_task(name="whoami", key="{key}")
def whoami(key: str) -> int:
    """Tell in which process it runs."""
    with recorded(key):
        return os.getpid()
