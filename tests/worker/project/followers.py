"""Tasks with the policy ``buffer_one`` or ``cancel_running``.

The second argument tells the calls apart; the lock is on the first argument alone.
"""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING, Any

from celery_redlock import LockCancelled, current_lease, singleton_task
from celery_redlock.policies import BufferOne, CancelRunning
from tests.worker.project.body import recorded, stage

if TYPE_CHECKING:
    from celery import Task

    from celery_redlock.policies import Conflict

LATE: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True}


def hold(key: str, number: int) -> int:
    """Run until the gate opens, and return the number of the call."""
    with recorded(key):
        stage().note(key, "arguments", number=number)
        stage().wait(key)
    return number


@singleton_task(name="buffered", key="{key}", on_conflict="buffer_one")
def buffered(key: str, number: int = 0) -> int:
    """Run until the gate opens."""
    return hold(key, number)


@singleton_task(
    name="buffered-first", key="{key}", on_conflict="buffer_one", buffer_keep="first"
)
def buffered_first(key: str, number: int = 0) -> int:
    """Run until the gate opens."""
    return hold(key, number)


@singleton_task(
    name="buffered-late",
    key="{key}",
    on_conflict="buffer_one",
    retry_countdown=0.5,
    ttl=2,
    **LATE,
)
def buffered_late(key: str, number: int = 0) -> int:
    """Run until the gate opens; a job that must not be lost with its worker."""
    return hold(key, number)


@singleton_task(name="buffered-other", key="{key}", on_conflict="buffer_one")
def buffered_other(key: str, number: int = 0) -> int:
    """Run until the gate opens; another task with the same lock."""
    return hold(key, number)


def replays_keep_their_order(conflict: Conflict) -> BufferOne:
    """Keep the first of the replays, and the latest of all other calls."""
    return BufferOne(keep="first" if conflict.kwargs.get("replay") else "latest")


@singleton_task(
    name="buffered-callable", key="{key}", on_conflict=replays_keep_their_order
)
def buffered_callable(key: str, number: int = 0, *, replay: bool = False) -> int:
    """Run until the gate opens."""
    return hold(key, number)


@singleton_task(name="replacing", key="{key}", on_conflict="cancel_running")
def replacing(key: str, number: int = 0) -> int:
    """Run until the gate opens, or until it is cancelled."""
    return hold(key, number)


@singleton_task(
    name="replacing-deaf",
    key="{key}",
    on_conflict="cancel_running",
    cancel_grace=0.5,
)
def replacing_deaf(key: str, number: int = 0) -> int:
    """Go on when it is cancelled, until its gate opens."""
    with recorded(key):
        while True:
            try:
                stage().wait(f"{key}-{number}")
            except LockCancelled:  # noqa: PERF203  (the point of this task)
                stage().note(key, "told", number=number)
            else:
                return number


@singleton_task(name="replacing-tidy", key="{key}", on_conflict="cancel_running")
def replacing_tidy(key: str, number: int = 0) -> str:
    """Tidy up when it is cancelled, and tell how far it came."""
    with recorded(key):
        try:
            stage().wait(f"{key}-{number}")
        except LockCancelled:
            stage().wait(f"{key}-tidied")
            return f"half of {number}"
        return f"all of {number}"


@singleton_task(
    name="replacing-late", key="{key}", on_conflict="cancel_running", ttl=2, **LATE
)
def replacing_late(key: str, number: int = 0) -> int:
    """Run until the gate opens; a job that must not be lost with its worker."""
    return hold(key, number)


@singleton_task(name="replacing-polite", key="{key}", on_conflict="cancel_running")
def replacing_polite(key: str, number: int = 0) -> int:
    """Ask the lease repeatedly whether the call may go on."""
    lease = current_lease()
    assert lease is not None
    with recorded(key):
        while not stage().is_open(f"{key}-{number}"):
            lease.ensure()
            stage().pause()
    return number


def forced_ones_replace(conflict: Conflict) -> CancelRunning | str:
    """Let a forced call replace the running call."""
    return CancelRunning(grace=5) if conflict.kwargs.get("force") else "skip"


@singleton_task(name="replacing-callable", key="{key}", on_conflict=forced_ones_replace)
def replacing_callable(key: str, number: int = 0, *, force: bool = False) -> int:
    """Run until the gate opens, or until it is cancelled."""
    return hold(key, number)


@singleton_task(
    name="replacing-retried",
    key="{key}",
    on_conflict="cancel_running",
    bind=True,
    max_retries=5,
)
def replacing_retried(self: Task, key: str, number: int = 0) -> int:
    """Retry after every exception."""
    try:
        return hold(key, number)
    except Exception as error:
        raise self.retry(exc=error, countdown=0) from error


# -- The same call inside of its own run -------------------------------------------


@singleton_task(name="applying", key="{key}", bind=True, on_conflict="raise")
def applying(self: Task, key: str, depth: int) -> list[str]:
    """Apply itself to this depth; return the token of each run's lease."""
    lease = current_lease()
    token = lease.token if lease else ""
    with recorded(key):
        inner = self.apply((key, depth - 1)).result if depth else []
    return [token, *inner]


@singleton_task(name="applying-elsewhere", key="{key}", bind=True, on_conflict="raise")
def applying_elsewhere(self: Task, key: str, depth: int) -> str:
    """Apply itself in a thread; return the type of the outcome."""
    answers: list[Any] = []
    if not depth:
        return "ran"
    here = contextvars.copy_context()  # as frameworks do for the threads they start

    def apply() -> None:
        answers.append(self.apply((key, depth - 1)).result)

    thread = threading.Thread(target=here.run, args=(apply,))
    thread.start()
    thread.join()
    return type(answers[0]).__name__
