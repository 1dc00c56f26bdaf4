"""Kills the process in which the holder of a lock runs, and waits for its end.

::

    which worker runs the task? ──► its pool is prefork ──► revoke(terminate): SIGTERM
              │                           │                        │ still runs: SIGKILL
              └─ none says so             └─ threads, greenlets    ▼
                 HolderLives                 HolderLives      it has ended

Only a process can be killed. A thread or a greenlet of another process cannot: it ends
when its body ends, or when `LockLost` interrupts it after the loss of its lock.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.operations.words import plural
from celery_redlock.options.broker import (
    answer_of,
    ask_workers,
    broker_errors,
    silence_of,
)

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.locks.lease import Holder

_PATIENCE = 2.0  # seconds that workers have to answer
_BROKER_WITHIN = 10.0  # seconds for the broker, and for their answers
_ENDS_WITHIN = 5.0  # seconds, after each signal
_LOOK_EVERY = 0.2  # seconds
_SIGNALS = ("SIGTERM", "SIGKILL")
_told = partial(ask_workers, patience=_PATIENCE, within=_BROKER_WITHIN)


class HolderLives(Exception):  # noqa: N818  (a result, shown to operators)
    """The holder was not killed, or may still run. The text says why."""


def kill_holder(app: Celery, holder: Holder) -> str:
    """Kill the process of this holder, and wait until its task has ended.

    The task is revoked, so that a redelivered copy does not run.

    Returns:
        A sentence about the end.

    Raises:
        HolderLives: It could not be killed, or may still run.
    """
    if not holder.task_id:
        raise HolderLives(
            f"No worker can kill {holder}: it is no task. End the process yourself."
        )
    fact = "was not killed: the workers could not be asked"
    try:
        worker = _worker_of(app, holder)
        pool = _pool_of(app, worker, holder)
        if pool != "prefork":
            raise HolderLives(
                f"{holder} cannot be killed: worker {worker} has the pool "
                f"{pool or '?'}, and only the processes of a prefork pool can. Without "
                "--kill, the release interrupts the task at its next renewal, unless "
                "its on_lock_lost is 'warn'."
            )
        fact = "may still run: the worker could not be told or asked"
        for name in _SIGNALS:
            revoke = partial(
                app.control.revoke,
                holder.task_id,
                destination=[worker],
                terminate=True,
                signal=name,
            )
            answer_of(revoke, within=_BROKER_WITHIN)
            if _has_ended(app, worker, holder):
                return f"{holder} was killed with {name} by worker {worker}."
    except broker_errors(app) as error:
        why = silence_of(error)
        raise HolderLives(f"{holder} {fact}, because {why}.") from error
    raise HolderLives(f"{holder} still runs in worker {worker} after {_SIGNALS[-1]}.")


def _worker_of(app: Celery, holder: Holder) -> str:
    """Return the name of the worker whose process the holder is.

    A broker may deliver one message twice. So it is the process that counts, and not
    only the id: Celery kills the request that came last under an id.
    """
    active = _told(app, "active", safe=True)
    found = [worker for worker, tasks in active.items() if _runs_in(tasks, holder)]
    if found[1:]:  # processes of two machines may have one number
        found = [worker for worker in found if worker.endswith(f"@{holder.host}")]
    if len(found) != 1:
        raise HolderLives(
            f"{holder} was not killed: no worker says that it runs this task in this "
            f"process ({plural(len(active), 'worker')} answered). If you know that its "
            "process is gone, release the lock without --kill."
        )
    (worker,) = found
    latest = _told_by(app, worker, holder, "query_task", [holder.task_id])
    if not _runs_in([info for _, info in latest.values()], holder):
        raise HolderLives(
            f"{holder} was not killed: worker {worker} has got a copy of its job "
            f"since, and cannot kill this run any more. End process {holder.pid} on "
            f"{holder.host or 'its machine'} yourself."
        )
    return str(worker)


def _runs_in(tasks: Any, holder: Holder) -> bool:
    """Tell whether one of these tasks of a worker runs in the holder's process."""
    return any(
        (task.get("id"), task.get("worker_pid")) == (holder.task_id, holder.pid)
        for task in tasks or ()
    )


def _told_by(
    app: Celery, worker: str, holder: Holder, what: str, *arguments: Any
) -> Any:
    """Return the answer of one worker, without which its holder is not killed."""
    told = _told(app, what, *arguments, workers=[worker])
    if worker not in told:
        raise HolderLives(
            f"{holder} was not killed: worker {worker} did not answer. Try again."
        )
    return told[worker]


def _pool_of(app: Celery, worker: str, holder: Holder) -> str:
    """Return the name of the worker's pool, such as prefork or threads."""
    stats = _told_by(app, worker, holder, "stats")
    pool = stats.get("pool", {}).get("implementation", "")
    if "concurrency.thread" in pool:
        return "threads"
    return str(pool.partition("concurrency.")[2].partition(":")[0])


def _has_ended(app: Celery, worker: str, holder: Holder) -> bool:
    """Wait until the worker says that it does not run the task any more."""
    give_up_at = SYSTEM_CLOCK.monotonic() + _ENDS_WITHIN
    while SYSTEM_CLOCK.monotonic() < give_up_at:
        found = _told(app, "active", workers=[worker], safe=True)
        if worker in found and not _runs_in(found[worker], holder):
            return True
        SYSTEM_CLOCK.sleep(_LOOK_EVERY)
    return False
