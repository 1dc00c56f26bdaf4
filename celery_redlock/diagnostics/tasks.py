"""What in an app's tasks and settings does not go with its locks.

Celery is not imported here: an app and its tasks are asked for what they have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_redlock.diagnostics.finding import Finding, Severity
from celery_redlock.options import LockOptions
from celery_redlock.policies import Raise, Run, Skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.lease import Holder
    from celery_redlock.diagnostics.case import Case

__all__ = [
    "acks_late",
    "result_backend",
    "runtimes",
    "time_limits",
    "timing",
    "visibility",
]

_TRIES_A_TTL = 12  # a renewal that failed is tried again after a 12th of the ttl
# Seconds after which these brokers deliver a message again that is not acknowledged.
_VISIBILITY = {"redis": 3600.0, "rediss": 3600.0, "sqs": 1800.0}


def timing(case: Case) -> Iterator[Finding]:
    """Find a ttl in which a renewal that failed cannot be repeated in time."""
    times = case.redlock.timing
    least = round(2 * _TRIES_A_TTL * times.node_timeout, 6)
    if times.ttl < least:
        yield Finding(
            "ttl",
            Severity.WARNING,
            f"redlock_ttl is {times.ttl:g} s, so that a renewal which failed is tried "
            f"again after {times.ttl / _TRIES_A_TTL:.2g} s; a node may take "
            f"{times.node_timeout:g} s to answer.",
            f"Raise it to at least {least:g} s, or lower redlock_node_timeout.",
        )


def time_limits(case: Case) -> Iterator[Finding]:
    """Find tasks that may run for longer than their lock lasts."""
    for task, options in _lock_tasks(case):
        if options.renew:
            continue
        ttl, limit = _ttl(case, options), _hard_limit(case, task)
        if limit is None or limit > ttl:
            may = "for ever" if limit is None else f"for {limit:g} s (its time_limit)"
            yield Finding(
                "ttl",
                Severity.WARNING if limit is None else Severity.ERROR,
                f"Task {task.name} does not renew its lock of {ttl:g} s, and may run "
                f"{may}.",
                "Leave renew at True, or give the task a time_limit below its ttl.",
                task.name,
            )


def runtimes(case: Case) -> Iterator[Finding]:
    """Find tasks that run at this moment, and for longer than goes with a setting."""
    tasks = {task.name: (task, options) for task, options in _lock_tasks(case)}
    visible = _visibility(case)
    oldest: dict[str, Holder] = {}
    for holder in (holder for chart in case.charts for holder in chart.holders):
        known = oldest.setdefault(holder.task, holder)
        if holder.started < known.started:
            oldest[holder.task] = holder
    for name, holder in oldest.items():
        if name not in tasks or not holder.started:
            continue
        task, options = tasks[name]
        ttl = _ttl(case, options)
        age = case.redlock.clock.wall_us() / 1e6 - holder.started
        if not options.renew and age > ttl / 2:
            yield Finding(
                "runtime",
                Severity.WARNING,
                f"Task {name} has been running for {age:.0f} s, and its lock of "
                f"{ttl:g} s is not renewed.",
                "Leave renew at True, or raise its ttl.",
                name,
            )
        if task.acks_late and age > visible:
            yield Finding(
                "runtime",
                Severity.WARNING,
                f"Task {name} has been running for {age:.0f} s: after {visible:g} s "
                "(visibility_timeout) the broker delivers its message again.",
                _RAISE_VISIBILITY,
                name,
            )


_RAISE_VISIBILITY = (
    'Raise broker_transport_options["visibility_timeout"] above it. The copies are '
    "kept from running, but go round in the queue until the first has finished."
)


def visibility(case: Case) -> Iterator[Finding]:
    """Find tasks whose messages are delivered again while they run or wait."""
    visible = _visibility(case)
    for task, options in _lock_tasks(case):
        limit = _hard_limit(case, task)
        countdown: Any = options.retry_countdown or 0.0  # in seconds by now
        reasons = []
        if task.acks_late and limit is not None and limit > visible:
            reasons.append(f"may run for {limit:g} s (its time_limit)")
        if countdown > visible:
            reasons.append(f"waits for {countdown:g} s to be retried")
        if task.acks_late and _ttl(case, options) > visible:
            reasons.append(f"is locked for {_ttl(case, options):g} s (its ttl)")
        if reasons:
            yield Finding(
                "visibility-timeout",
                Severity.WARNING,
                f"Task {task.name} {' and '.join(reasons)}: after {visible:g} s "
                "(visibility_timeout) the broker delivers its message again.",
                _RAISE_VISIBILITY,
                task.name,
            )


def acks_late(case: Case) -> Iterator[Finding]:
    """Find tasks that are lost with the process that runs them."""
    for task, _ in _lock_tasks(case):
        if task.acks_late and not task.reject_on_worker_lost:
            yield Finding(
                "acks-late",
                Severity.WARNING,
                f"Task {task.name} has acks_late without reject_on_worker_lost: when "
                "its process is killed, Celery acknowledges it, and it is not run.",
                "Set reject_on_worker_lost=True: its lock is freed, and it runs again.",
                task.name,
            )


def result_backend(case: Case) -> Iterator[Finding]:
    """Find tasks of which nobody will know whether they have finished."""
    url = str(case.app.conf.result_backend or "disabled") if case.app else ""
    for task, options in _lock_tasks(case):
        absent = url.startswith("disabled")
        if not absent and not task.ignore_result:
            continue
        why = "there is no result_backend" if absent else "it has ignore_result"
        if task.acks_late:
            yield Finding(
                "result-backend",
                Severity.WARNING,
                f"Task {task.name} has acks_late and {why}: a copy of its message that "
                "comes after it has finished is run again.",
                "Keep its results, which tell that it has finished.",
                task.name,
            )
        elif options.unique_while != "running" and _skips(options, "publish"):
            yield Finding(
                "result-backend",
                Severity.WARNING,
                f"Task {task.name} gives whoever sends a duplicate the result of the "
                f"call that is here already, and {why}: it never comes.",
                'Keep its results, or use on_conflict={"publish": "raise"}.',
                task.name,
            )
        elif _skips(options, "execute"):
            yield Finding(
                "result-backend",
                Severity.NOTE,
                f"Task {task.name} skips duplicates and {why}: whoever sent one does "
                "not learn that it was skipped, nor for the sake of which call.",
                "Keep its results if anybody asks for them.",
                task.name,
            )


def _skips(options: LockOptions, stage: str) -> bool:
    """Tell whether a duplicate is skipped at this stage, be it for want of a worker."""
    policy = options.on_conflict
    if isinstance(policy, Mapping):
        policy = policy.get(stage, "skip")
    if stage == "publish":
        others = ("raise", "allow", Raise(), Run())
        return not callable(policy) and policy not in others
    return policy in ("skip", Skip())


def _lock_tasks(case: Case) -> Iterator[tuple[Any, LockOptions]]:
    tasks = case.app.tasks.values() if case.app else ()
    for task in sorted(tasks, key=lambda task: str(task.name)):
        options = getattr(task, "lock_options", None)
        if isinstance(options, LockOptions):
            yield task, options


def _ttl(case: Case, options: LockOptions) -> float:
    ttl: Any = options.ttl  # in seconds by now
    return case.redlock.timing.ttl if ttl is None else float(ttl)


def _hard_limit(case: Case, task: Any) -> float | None:
    limit = task.time_limit or case.app.conf.task_time_limit
    return None if limit is None else float(limit)


def _visibility(case: Case) -> float:
    """Return after how many seconds the broker gives up on an acknowledgement."""
    if not case.app:
        return math.inf
    conf = case.app.conf
    url = str(conf.broker_read_url or conf.broker_url or "")
    usual = _VISIBILITY.get(url.partition("://")[0].partition("+")[0])
    if usual is None:
        return math.inf
    return float((conf.broker_transport_options or {}).get("visibility_timeout", usual))
