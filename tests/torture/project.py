"""The app of the torture and its jobs; workers and producers import it.

Every job may run more than once. It records each step, with the state of its lease.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from celery import Celery, Task
from celery import signals as celery_signals
from celery.exceptions import Reject
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_redlock import Lease, current_lease, signals, singleton_task
from celery_redlock.contrib.sqlalchemy import current_session
from celery_redlock.errors import LockLost, StaleFence
from celery_redlock.locks.limits import Limit
from celery_redlock.policies import Conflict, Outage, Retry, Wait
from tests.torture import FOLDER, PLANT, SETTINGS, journal_in
from tests.torture.effects import add_one, engine_of_workers
from tests.torture.ledger import Ledger

_STEP = 0.05  # seconds
_WIDTH = 12  # digits of a counter
_AT_ONCE = 10  # permits

app = Celery("torture", set_as_current=False)
app.conf.update(json.loads(os.environ[SETTINGS]))
folder = Path(os.environ[FOLDER])
journal = journal_in(folder)
ledger = Ledger(folder)
engine = engine_of_workers()


# -- A run -----------------------------------------------------------------------


class Run:
    """One run of a body in the journal."""

    def __init__(self, task: Task, lease: Lease) -> None:
        self.id = secrets.token_hex(8)  # a later process may have this one's number
        self.lease = lease
        self._facts = {"run": self.id, "key": lease.key, "task_id": task.request.id}
        self._limits = lease.choice.limits if lease.choice else ()

    def note(self, event: str, **facts: Any) -> None:
        """Record an event, and the state of the lease after it."""
        at = time.monotonic()
        lease = self.lease
        state = {"valid": lease.is_valid(), "until": lease.until, "votes": lease.votes}
        journal.note(event, at=at, **self._facts, **state, **facts)

    @property
    def limits(self) -> dict[str, int]:
        """The number of holders that each of its keys may have."""
        return {one.key: one.most for one in self._limits if not one.is_call}

    def work(self, seconds: float) -> None:
        """Work for a time, and record steps."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(_STEP)
            self.note("step")


@contextmanager
def running(task: Task) -> Iterator[Run]:
    """Record a run of a body, and its end."""
    lease = current_lease()
    if lease is None:
        message = f"{task.name} runs without a lock"
        raise RuntimeError(message)
    run = Run(task, lease)
    facts = {"name": task.name, "thread": threading.get_ident()}
    asked = {"asked": lease.started_at, "limits": run.limits}
    run.note("began", fence=lease.fence, **asked, **facts)
    outcome = "done"
    try:
        yield run
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        run.note("ended", outcome=outcome)


# -- Jobs ------------------------------------------------------------------------


def soon(_: Outage) -> Retry:
    """Retry soon: outages are short here."""
    return Retry(1.5)


def wait_first(conflict: Conflict) -> Wait | Retry:
    """Wait a moment in the worker, then republish the call."""
    return Retry(0.5) if conflict.waited else Wait(0.7)


JOB: dict[str, Any] = {
    "app": app,
    "bind": True,
    "acks_late": True,
    "reject_on_worker_lost": True,
    "max_retries": None,
    "on_lock_lost": "retry",
    "on_backend_error": soon,
}
ONE: dict[str, Any] = {**JOB, "key": "{name}"}
AGAIN: dict[str, Any] = {"on_conflict": "retry", "retry_countdown": 0.5}
WRITING: dict[str, Any] = {
    **JOB,
    **AGAIN,
    "autoretry_for": (DBAPIError,),  # the database is away
    "retry_kwargs": {"countdown": 0.5},
}


def again(task: Task, error: Exception | None = None) -> NoReturn:
    """Retry in a moment, also while the broker does not answer.

    Celery ends a job for good (Reject) if the broker does not accept its retry.
    """
    while True:
        try:
            raise task.retry(countdown=0.3, exc=error)
        except Reject:  # noqa: PERF203  (trying is the point)
            time.sleep(0.5)


def increment(task: Task, name: str, seconds: float, retries: int) -> str:
    """Add one to a counter without any protection: read, wait, write."""
    with running(task) as run:
        if task.request.retries < retries:
            again(task)
        with opened(name) as handle:
            value = read(run, handle, name)
            run.work(seconds)
            run.lease.ensure()
            write_number(run, handle, name, value + 1)
    return str(task.request.id)


@contextmanager
def opened(name: str) -> Iterator[int]:
    """Open a counter."""
    handle = os.open(folder / name, os.O_RDWR)
    try:
        yield handle
    finally:
        os.close(handle)


def read(run: Run, handle: int, name: str) -> int:
    """Read a counter, and record that."""
    value = int(os.pread(handle, _WIDTH, 0))
    run.note("read", counter=name, value=value)
    return value


def write_number(run: Run, handle: int, name: str, value: int) -> None:
    """Write a counter, and record that."""
    os.pwrite(handle, f"{value:{_WIDTH}d}".encode(), 0)
    run.note("wrote", counter=name, value=value)


@singleton_task(name="transfer", **JOB, **AGAIN, keys=["{source}", "{target}"])
def transfer(self: Task, source: str, target: str, seconds: float) -> str:
    """Move one from a counter to another one, while it holds both of them."""
    with running(self) as run, opened(source) as one, opened(target) as other:
        less, more = read(run, one, source), read(run, other, target)
        run.work(seconds)
        run.lease.ensure()
        write_number(run, one, source, less - 1)
        write_number(run, other, target, more + 1)
    return str(self.request.id)


@singleton_task(name="count", **ONE, **AGAIN)
def count(self: Task, name: str, seconds: float, retries: int = 0) -> str:
    """Increment; a refused call comes back later."""
    return increment(self, name, seconds, retries)


@singleton_task(name="count-wait", **ONE, on_conflict=wait_first)
def count_wait(self: Task, name: str, seconds: float) -> str:
    """Increment; a refused call waits, then comes back later."""
    return increment(self, name, seconds, 0)


@singleton_task(
    name="count-skip", **{**ONE, "on_lock_lost": "abort"}, on_conflict="skip"
)
def count_skip(self: Task, name: str, seconds: float) -> str:
    """Increment; a refused call is skipped, and a loss ends the body."""
    return increment(self, name, seconds, 0)


@singleton_task(name="write", **ONE, **AGAIN)
def write(self: Task, name: str, seconds: float) -> str:
    """Write with the fence after a while, even after the loss of the lock.

    The body ignores its lease and the notification of the loss. Only the fence can keep
    it from writing late.
    """
    with running(self) as run:
        try:
            asked = time.monotonic()
            fence, found = ledger.read(name)
            run.note("found", asked=asked, fence=fence, value=found)
            run.work(seconds)
        except LockLost:
            run.note("went on")
        try:
            run.note("writing")
            ledger.write(name, run.lease.fence, run.id, [run.id])
        except StaleFence as error:
            run.note("refused")
            again(self, error)
        run.note("stored")
    return str(self.request.id)


@singleton_task(name="add", **ONE, **AGAIN)
def add(self: Task, name: str, seconds: float) -> str:
    """Add the job's id to a set: read the list, wait, write the longer list."""
    element, fence = str(self.request.id), None
    with running(self) as run:
        fence = run.lease.fence
        try:
            elements = ledger.claim(name, fence)
            run.work(seconds)
            ledger.write(name, fence, run.id, [*elements, element])
        except StaleFence as error:
            run.note("refused")
            again(self, error)
        run.note("added", element=element)
    return element


@singleton_task(name="limited", **JOB, key="permits", limit=_AT_ONCE)
def limited(self: Task, seconds: float, retries: int = 0) -> str:
    """Work under one of ten permits."""
    with running(self) as run:
        run.work(seconds)
        if self.request.retries < retries:
            again(self)
    return str(self.request.id)


@singleton_task(
    name="once", **WRITING, key="{job}", exactly_once_in=lambda: Session(engine)
)
def once(self: Task, job: str, seconds: float) -> str:
    """Add one to the row of the job, in the transaction with the record of the call."""
    with running(self) as run:
        add_one(current_session(), job)
        run.work(seconds)
    return str(self.request.id)


@singleton_task(name="often", **WRITING, key="{job}")
def often(self: Task, job: str, seconds: float) -> str:
    """Add one to the row of the job, in a transaction of its own."""
    with running(self) as run:
        with Session(engine) as session, session.begin():
            add_one(session, job)
        run.work(4 * seconds)  # most kills find a job here
    return str(self.request.id)


@app.task(name="tail", acks_late=True, reject_on_worker_lost=True, bind=True)
def tail(self: Task, results: list[str]) -> int:
    """End a chord; no lock."""
    journal.note("tail", task_id=self.request.id)
    return len(results)


# -- Signals -----------------------------------------------------------------------


@signals.lock_lost.connect
def on_lost(lease: Lease, task_id: str, **_: Any) -> None:
    """Record that a body is notified of the loss of its lock."""
    journal.note("lost", key=lease.key, task_id=task_id, fence=lease.fence)


@signals.lock_renewed.connect
def on_renewed(lease: Lease, task_id: str, lateness: float, **_: Any) -> None:
    """Record the lateness of a renewal."""
    journal.note("renewed", key=lease.key, task_id=task_id, late=round(lateness, 3))


@signals.lock_conflict.connect
def on_conflict(conflict: Conflict, decision: object, **_: Any) -> None:
    """Record the decision on a refused call."""
    journal.note("conflict", task_id=conflict.task_id, decision=type(decision).__name__)


@celery_signals.after_task_publish.connect(weak=False)
def on_publish(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """Record that the broker has accepted a message."""
    journal.note("published", task_id=(headers or {}).get("id"))


@celery_signals.task_received.connect(weak=False)
def on_received(request: Any = None, **_: Any) -> None:
    """Record that a worker has received a message."""
    journal.note("received", task_id=request.id)


# -- A planted bug -------------------------------------------------------------------


def _own_name(self: Limit, number: int) -> str:
    """Return a name of a permit that no other process uses."""
    return f"{self.head}{number}-{os.getpid()}"


if os.environ.get(PLANT) == "own permits":
    Limit.name = _own_name  # type: ignore[method-assign]
