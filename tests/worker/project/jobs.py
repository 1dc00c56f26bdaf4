"""Tasks that differ in nothing but their lock options.

The tests give each call its own key, and these tasks lock just this key. Two tasks that
use the same text share the lock.
"""

from __future__ import annotations

import threading
from typing import Any

from celery import shared_task
from celery.exceptions import Reject

from celery_redlock import LockLost, current_lease, lock, singleton_task
from celery_redlock.app.runtime import runtime_of
from celery_redlock.policies import Conflict, Retry, Wait
from tests.worker.project.body import hold, recorded, stage

TTL = 1.5  # seconds, where a test waits until a lock is renewed or lost
COOL_DOWN = 600.0  # seconds
HOLD = 2.0  # seconds of `hold_at_least`, at most the shortest max_ttl of a test
LATE: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True}
SOON_AGAIN: dict[str, Any] = {"on_conflict": "retry", "retry_countdown": 0.3}


def gated(name: str, **options: Any) -> None:
    """Define a task that runs until the gate of its key opens."""

    @singleton_task(name=name, key="{key}", **options)
    def run(key: str) -> str:
        return hold(key)


def quick(name: str, **options: Any) -> None:
    """Define a task that runs and ends."""

    @singleton_task(name=name, **{"key": "{key}", **options})
    def run(key: str) -> str:
        with recorded(key) as task_id:
            return task_id


def timed(name: str, **options: Any) -> None:
    """Define a task that runs for a number of seconds."""

    @singleton_task(name=name, key="{key}", **options)
    def run(key: str, seconds: float) -> str:
        with recorded(key) as task_id:
            threading.Event().wait(seconds)
            return task_id


gated("job")
gated("short", ttl=TTL)  # its lock is renewed soon
gated("job-unstored", ignore_result=True)
gated("late", **LATE)  # must not be lost with its worker


@singleton_task(name="nesting", key="{key}")
def nesting(key: str) -> str:
    """Run with a lock, a permit and a pair besides, until the gate of its key opens."""
    redlock = runtime_of(nesting.app).redlock
    with (
        lock(redlock, f"{key}-inner"),
        lock(redlock, f"{key}-permit", limit=3),
        lock(redlock, [f"{key}-left", f"{key}-right"]),
    ):
        return hold(key)


gated("late-short", ttl=2, **LATE)  # the ttl ends the lock of a killed worker
quick("quick")
quick("quick-buffered", on_conflict="buffer_one")
quick("quick-limited", limit=3)
quick("quick-unique", unique_while="queued_or_running")
quick("keeping", hold_at_least=HOLD)
timed("sleeper")
timed("sleeper-retry", on_conflict="retry")


# -- Several keys ------------------------------------------------------------------

PAIR: dict[str, Any] = {"keys": ["{key}-{one}", "{key}-{other}"]}


def gated_pair(name: str, **options: Any) -> None:
    """Define a task with two keys, which runs until the gate of its key opens."""

    @singleton_task(name=name, **PAIR, **options)
    def run(key: str, one: str, other: str) -> str:
        return hold(key)


gated_pair("pair", ttl=TTL)
gated_pair("pair-wait", on_conflict="wait", wait_timeout=30)
gated_pair(
    "pair-queued",
    unique_while="queued",
    on_conflict={"publish": "skip", "execute": "wait"},
    wait_timeout=30,
)


@singleton_task(name="pair-storm", **PAIR, **SOON_AGAIN)
def pair_storm(key: str, one: str, other: str) -> str:
    """Run for a moment with both keys."""
    with recorded(f"{key}-{one}"), recorded(f"{key}-{other}") as task_id:
        threading.Event().wait(0.02)
        return task_id


# -- Several at once, or so many starts in a period ----------------------------------

AT_ONCE = 2
STARTS, PERIOD = 3, 2.0  # seconds
AGAIN: dict[str, Any] = {"retry_countdown": 0.3}  # `retry` is the default here

timed("limited-storm", limit=AT_ONCE, **AGAIN, **LATE)
timed("backlog-storm", limit=AT_ONCE, **LATE)


@singleton_task(name="limited", key="{key}", limit=AT_ONCE, **AGAIN)
def limited(key: str, part: str) -> str:
    """Run until the gate of this part opens, with a permit of the key."""
    return hold(f"{key}-{part}")


@singleton_task(name="limited-late", key="{key}", limit=3, **LATE)
def limited_late(key: str) -> str:
    """Run until the gate of its key opens; must not be lost with its worker."""
    return hold(key)


@singleton_task(
    name="tenant-storm", keys={"{key}-{tenant}": 1, "{key}-all": AT_ONCE}, **AGAIN
)
def tenant_storm(key: str, tenant: str) -> str:
    """Run for a moment: one of each tenant, and so many of all."""
    with recorded(f"{key}-{tenant}"), recorded(f"{key}-all") as task_id:
        threading.Event().wait(0.02)
        return task_id


@singleton_task(name="rated", key="{key}", rate=(STARTS, PERIOD), **AGAIN)
def rated(key: str) -> str:
    """Note when the run has started."""
    lease = current_lease()
    assert lease is not None
    stage().note(key, "start", began_at=lease.began_at)
    with recorded(key) as task_id:
        return task_id


# -- Calls that wait in a worker until their lock is free ------------------------------

LONG = {"on_conflict": "retry", "retry_countdown": 3600}  # only a release starts them
OFTEN = {"on_conflict": "retry", "retry_countdown": 0.2}

timed("waiting", **LONG, **LATE)
timed("waiting-early", **LONG)  # acknowledged when it begins
timed("waiting-often", **OFTEN, **LATE)
gated("placed", limit=1, ttl=TTL)  # calls that are refused join a backlog
gated("ordered", on_conflict="retry", in_order=True, ttl=TTL)
gated("ordered-late", on_conflict="retry", in_order=True, **LATE)
timed("ordered-storm", on_conflict="retry", in_order=True, **LATE)
quick("plain-clock", key="clock:{key}")

# -- Calls that have entries on the nodes before they run ------------------------------

ENTERED: dict[str, Any] = {  # a claim, and a place in the line
    "unique_while": "queued",
    "on_conflict": {"publish": "skip", "execute": "retry"},
    "retry_countdown": 0.5,
    "in_order": True,
}


def not_ready(*_: object) -> None:
    """Fail, as a hook of the task that Celery calls before the body."""
    raise LookupError


def ending(name: str, **options: Any) -> None:
    """Define a task whose body ends as its second argument says."""

    @singleton_task(name=name, key="{key}", **options)
    def run(key: str, how: str = "") -> str:
        with recorded(key) as task_id:
            if how == "fail":
                raise LookupError
            if how == "reject":
                raise Reject(requeue=False)
            return task_id


ending("entered", **ENTERED)
ending("entered-briefly", **ENTERED, claim_ttl=2)
ending("entered-unready", **ENTERED, before_start=not_ready)
quick("skipped", unique_while="queued")
ending("followed", on_conflict="buffer_one", retry_countdown=0.5)
ending("followed-unready", on_conflict="buffer_one", before_start=not_ready)

# -- When the lock is taken --------------------------------------------------------


def wait_then_retry(conflict: Conflict) -> Wait | Retry:
    """Wait for a second, then ask to be republished."""
    stage().note(conflict.key, "conflict")
    return Retry(0.3) if conflict.waited else Wait(1.0)


gated("job-raise", on_conflict="raise")
gated("job-retry", max_retries=0, **SOON_AGAIN)
gated("job-wait", on_conflict="wait", wait_timeout=30)
gated("job-wait-briefly", on_conflict="wait", wait_timeout=0.3)
gated("job-allow", on_conflict="allow")
gated("job-wait-then-retry", on_conflict=wait_then_retry)


# -- Unique before it runs, or for a while after -----------------------------------


gated(
    "one-queued",
    unique_while="queued",
    on_conflict={"publish": "skip", "execute": "wait"},
    wait_timeout=30,
)
gated(
    "one-queued-retried",
    unique_while="queued",
    retry_on_worker_lost=True,
    default_retry_delay=3,
)
gated("one-at-all", unique_while="queued_or_running")
quick("one-in-a-while", unique_for=COOL_DOWN)


# -- When the lock is lost ---------------------------------------------------------


gated("lost-retry", ttl=TTL, on_lock_lost="retry", **SOON_AGAIN)
gated(
    "lost-autoretry",
    ttl=TTL,
    autoretry_for=(LockLost,),
    default_retry_delay=0,
    max_retries=20,
    **SOON_AGAIN,
)


# -- When the nodes cannot be reached ----------------------------------------------

quick("unreachable-raise", on_backend_error="raise")


# -- Without a lock, to compare with -----------------------------------------------


@shared_task(name="tail")
def tail(results: object, key: str) -> object:
    """Return the earlier results, as the end of a chain or the body of a chord."""
    with recorded(f"{key}-tail"):
        return results
