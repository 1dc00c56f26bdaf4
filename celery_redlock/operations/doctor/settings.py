"""Settings and options of tasks that weaken the lock, or conflict with it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.command import COMMAND
from celery_redlock.errors import ConfigurationError
from celery_redlock.locks.limits import rate_of
from celery_redlock.members.view import steps_by_hand
from celery_redlock.operations.doctor.rule import (
    ERROR,
    NOTE,
    WARNING,
    Case,
    Finding,
    LockTask,
    rule,
)
from celery_redlock.options.broker import (
    longest_wait,
    loses_publications,
    retries_lost,
)
from celery_redlock.options.lock_options import (
    lock_options_in_schedule,
    lock_task_inside,
)
from celery_redlock.policies import Retry, Skip, given_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_redlock.locks.lease import Holder
    from celery_redlock.options.lock_options import LockOptions

_TRIES_PER_TTL = 12  # a failed renewal is repeated after a 12th of the ttl
_SHOWN = 3  # names
_SOON = 300.0  # seconds after which a call comes back without a remark
_RAISE_VISIBILITY = (
    'Raise broker_transport_options["visibility_timeout"] above it. The lock keeps the '
    "copies from running, but they are redelivered until the first has finished."
)


@rule(offline=True, skipped_at_start=True)
def guard(case: Case) -> Iterator[Finding]:
    """Find that the restart guard is off."""
    if not case.redlock.guard.enabled:
        yield Finding(
            "guard-off",
            WARNING,
            "The restart guard is off: a node that restarts empty votes at once. A "
            "second client can get a lock that is held, and fences can repeat.",
            f"To set redlock_restart_guard = True, {steps_by_hand(is_guarded=True)}.",
        )


@rule(offline=True)
def timing(case: Case) -> Iterator[Finding]:
    """Find a ttl that is too short to repeat a failed renewal in time."""
    times = case.redlock.timing
    least = round(2 * _TRIES_PER_TTL * times.node_timeout, 6)
    if times.ttl < least:
        yield Finding(
            "ttl",
            WARNING,
            f"redlock_ttl is {times.ttl:g} s, so a failed renewal is repeated after "
            f"{times.ttl / _TRIES_PER_TTL:.2g} s; a node may take "
            f"{times.node_timeout:g} s to answer.",
            f"Raise it to at least {least:g} s, or lower redlock_node_timeout.",
        )


@rule("Task")
def durations(it: LockTask, case: Case) -> Iterator[Finding]:
    """Find options with which workers do not start; publishers do not look at them."""
    try:
        it.options.ttl_in(case.redlock.timing)
    except ConfigurationError as error:
        reason, _, remedy = str(error).partition(". ")
        reason = f"{reason[0].lower()}{reason[1:]}".rstrip(".")
        yield Finding(
            "option",
            ERROR,
            f"is published, but no worker starts with it: {reason}",
            remedy,
        )


@rule(offline=True)
def schedule(case: Case) -> Iterator[Finding]:
    """Find entries of beat whose calls would be refused: no beat starts with them."""
    found = lock_options_in_schedule(case.app) if case.app else ()
    for entry, task, name, remedy in found:
        yield Finding(
            "option",
            ERROR,
            f"gets {name} in the entry {entry!r} of beat_schedule, and no beat starts "
            "with it: lock options are for all calls of a task",
            remedy,
        ).of("Task", task)


@rule("Task")
def time_limits(it: LockTask, _: Case) -> Iterator[Finding]:
    """Find tasks that may run longer than their lock lasts."""
    if not it.options.renew and (it.limit is None or it.limit > it.ttl):
        may = "for ever" if it.limit is None else f"for {it.limit:g} s (its time_limit)"
        yield Finding(
            "ttl",
            WARNING if it.limit is None else ERROR,
            f"does not renew its lock of {it.ttl:g} s, and may run {may}",
            "Leave renew at True, or give the task a time_limit below its ttl.",
        )


@rule()
def runtimes(case: Case) -> Iterator[Finding]:
    """Find running tasks that have run longer than a setting allows."""
    visible = case.visibility_timeout
    oldest: dict[str, Holder] = {}
    holders = (holder for report in case.reports for holder in report.holders)
    for holder in holders:
        if holder.is_kept:  # a permit for a start: the run may have ended
            continue
        known = oldest.setdefault(holder.task, holder)
        if holder.started < known.started:
            oldest[holder.task] = holder
    for it in case.lock_tasks:
        name = it.task.name
        if name not in oldest or not oldest[name].started:
            continue
        age = case.redlock.clock.wall() - oldest[name].started
        if age < it.options.hold_at_least:  # the run may have ended
            continue
        running = f"has been running for {age:.0f} s"
        if not it.options.renew and age > it.ttl / 2:
            yield Finding(
                "runtime",
                WARNING,
                f"{running}, and its lock of {it.ttl:g} s is not renewed",
                "Leave renew at True, or raise its ttl.",
            ).of("Task", name)
        if it.task.acks_late and age > visible:
            yield Finding(
                "runtime",
                WARNING,
                f"{running}: after {visible:g} s (visibility_timeout) the broker "
                "delivers its message again",
                _RAISE_VISIBILITY,
            ).of("Task", name)


@rule()
def other_apps(case: Case) -> Iterator[Finding]:
    """Find locks of tasks that this app does not have."""
    known = set(case.app.tasks) if case.app else set()
    holders = (holder for report in case.reports for holder in report.holders)
    # A leader that was elected has no task id, and its name is no task.
    unknown = sorted({it.task for it in holders if it.task_id} - known)
    if known and unknown:
        more = len(unknown) - _SHOWN
        names = ", ".join(unknown[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        yield Finding(
            "other-app",
            NOTE,
            f"Tasks that this app does not have hold locks on these nodes: {names}.",
            "If they are of another project, give each project a redlock_prefix of its "
            "own: with one prefix, equal key texts are one lock. If they are of this "
            "one, import them in the app that you name here.",
        )


@rule("Task")
def visibility(it: LockTask, case: Case) -> Iterator[Finding]:
    """Find tasks whose messages are redelivered while they run."""
    visible, late = case.visibility_timeout, it.task.acks_late
    reasons = []
    if late and it.limit is not None and it.limit > visible:
        reasons.append(f"may run for {it.limit:g} s (its time_limit)")
    if late and it.ttl > visible:
        reasons.append(f"is locked for {it.ttl:g} s (its ttl)")
    if reasons:
        yield Finding(
            "visibility-timeout",
            WARNING,
            f"{' and '.join(reasons)}: after {visible:g} s (visibility_timeout) the "
            "broker delivers its message again",
            _RAISE_VISIBILITY,
        )


@rule(offline=True)
def confirms(case: Case) -> Iterator[Finding]:
    """Find calls that the broker may lose after they are published."""
    if case.lock_tasks and loses_publications(case.app):
        yield Finding(
            "unconfirmed",
            NOTE,
            "RabbitMQ does not confirm what the app publishes. A call is lost after "
            "delay() has returned if RabbitMQ is killed, if its queue is full, or if "
            "the publisher ends while a memory alarm blocks it. Messages of an outbox "
            "and calls that are published again are confirmed.",
            'Set broker_transport_options["confirm_publish"] = True.',
        )


@rule("Task")
def acks_late(it: LockTask, _: Case) -> Iterator[Finding]:
    """Find tasks whose calls are lost with a killed process."""
    comes_back = it.task.reject_on_worker_lost or retries_lost(it.task)
    if it.task.acks_late and not comes_back:
        yield Finding(
            "acks-late",
            WARNING,
            "has acks_late without reject_on_worker_lost: if its process is killed, "
            "Celery acknowledges the message, and the call is lost",
            "Set reject_on_worker_lost=True: its lock is released, and the call runs "
            "again.",
        )


@rule("Task")
def result_backend(it: LockTask, case: Case) -> Iterator[Finding]:
    """Find tasks whose results are needed and not kept."""
    app: Celery = case.app
    absent = str(app.conf.result_backend or "disabled").startswith("disabled")
    if not absent and not it.task.ignore_result:
        return
    why = "there is no result_backend" if absent else "it has ignore_result"
    if it.task.acks_late:
        yield Finding(
            "result-backend",
            WARNING,
            f"has acks_late and {why}: a copy of its message that is delivered after "
            "its end runs again",
            "Keep its results: they show that it has finished.",
        )
    elif it.options.unique_while != "running" and _skips(it.options, "publish"):
        yield Finding(
            "result-backend",
            WARNING,
            f"gives the publisher of a duplicate the result of the first call, and "
            f"{why}: that result never comes",
            'Keep its results, or use on_conflict={"publish": "raise"}.',
        )
    elif _skips(it.options, "execute"):
        yield Finding(
            "result-backend",
            NOTE,
            f"skips duplicates and {why}: their publisher cannot see that they were "
            "skipped, and which call ran instead",
            "Keep its results if a publisher reads them.",
        )


def _skips(options: LockOptions, stage: str) -> bool:
    """Tell whether a duplicate is skipped at this stage."""
    return given_at(options.on_conflict, stage) is Skip


@rule(offline=True, skipped_at_start=True)
def tasks_above(case: Case) -> Iterator[Finding]:
    """Find tasks whose function is a lock task, as `@app.task` above one makes them."""
    for name, task in sorted(case.app.tasks.items()) if case.app else ():
        if (inner := lock_task_inside(task)) is not None:
            yield Finding(
                "without-lock",
                ERROR,
                f"runs the body of the task {inner.name} without its lock, and no "
                "worker starts with it",
                "Apply @singleton_task alone, and no @app.task or @shared_task above "
                "it.",
            ).of("Task", name)


@rule("Task")
def rates(it: LockTask, case: Case) -> Iterator[Finding]:
    """Find rates that count for longer than a node that restarts stays out of the vote.

    A node that has forgotten a start votes again after its quarantine.
    """
    if it.options.rate is None or not case.redlock.guard.enabled:
        return
    timing, (_, period) = case.redlock.timing, rate_of(it.options.rate)
    if period > timing.max_ttl:
        yield Finding(
            "rate",
            NOTE,
            f"counts starts for {period:g} s (its rate), and a node that "
            f"restarts without its memory votes again after {timing.quarantine:.0f} s "
            "(redlock_max_ttl). If so many nodes restart within the period of a start "
            "that no majority remembers it, one more start is possible",
            f"Nothing is to be done if nodes rarely restart. Otherwise raise "
            f"redlock_max_ttl to {period:g} s with "
            f"`{COMMAND} reconfigure`, or shorten the period: 60/h is 1/m.",
        )


@rule(offline=True)
def kills(case: Case) -> Iterator[Finding]:
    """Find calls that come back late if the worker in which they wait is killed."""
    visible = case.visibility_timeout
    names = [it.task.name for it in case.lock_tasks if _waits_with_a_countdown(it)]
    if names and _SOON < visible < math.inf:
        yield Finding(
            "killed-while-waiting",
            NOTE,
            f"Duplicates of {', '.join(names)} wait with a countdown in a worker. If "
            f"it is killed, they come back after {visible:g} s (visibility_timeout).",
            "Stop workers with TERM: then these calls go back to the queue at once. A "
            'shorter broker_transport_options["visibility_timeout"] must be above the '
            "longest countdown, and with acks_late above the longest run. RabbitMQ "
            "delivers the calls again at once.",
        )


def _waits_with_a_countdown(it: LockTask) -> bool:
    kind: Any = given_at(it.options.on_conflict, "execute")
    return kind is not None and (kind is Retry or kind.registers)


@rule("Task")
def countdowns(it: LockTask, case: Case) -> Iterator[Finding]:
    """Find a countdown of calls that come back that is too long for the broker."""
    countdown = it.options.longest_countdown
    longest = longest_wait(case.app)
    if countdown <= longest:
        return
    why = (
        "the visibility timeout: the broker would deliver a call that waits for longer "
        "once more"
    )
    remedy = (
        "Lower it, or raise "
        'broker_transport_options["visibility_timeout"] to more than twice of it.'
    )
    if case.visibility_timeout == math.inf:
        why = (
            "RabbitMQ's consumer_timeout: it would close the channel of a worker in "
            "which a call waits for longer, and the worker would end"
        )
        remedy = "Lower it."
    yield Finding(
        "countdown",
        NOTE,
        f"has a countdown of {countdown:g} s, and its calls come back after "
        f"{longest:g} s, half of {why}",
        remedy,
    )
