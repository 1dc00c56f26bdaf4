"""Checks of a worker with lock tasks at its start, and of a beat.

::

    beat starts ────► an entry that gives a lock option for its calls ends beat, and a
                       worker that would start a beat (-B)

    worker starts ──► settings and options are checked; a mistake ends the worker;
                       then it watches its processes: see ``refusal_log``
    worker is ready ─► every node is asked for a vote: a quarantine begins now and not
                       with the first task, and the log says which nodes do not vote;
                       then the findings of ``doctor`` are logged
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.timing import seconds_text
from celery_redlock.errors import ConfigurationError
from celery_redlock.members.view import differences, may_be_new, other_views
from celery_redlock.options.broker import broadcast_of
from celery_redlock.options.lock_options import (
    lock_options_in_schedule,
    lock_task_inside,
    lock_tasks,
)
from celery_redlock.wire.quorum import VoteKind

if TYPE_CHECKING:
    from celery import Celery, Task

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.members.deployment import NodesReport

log = logging.getLogger(__name__)


def connect() -> None:
    """Check each worker and beat that starts from now on. Twice is harmless."""
    signals.worker_init.connect(_check_configuration, weak=False)
    signals.worker_ready.connect(_check_nodes, weak=False)
    signals.beat_init.connect(_check_schedule, weak=False)


def _check_configuration(sender: Any, **_: object) -> None:
    """End a worker, with the reason, if a setting or an option of a task is wrong."""
    tasks = lock_tasks(sender.app)
    try:
        for task in sender.app.tasks.values():
            _refuse_task_above(task)
        if tasks:
            _refuse_messages_without_headers(sender.app)
        for task in tasks:
            runtime = runtime_of(sender.app)
            runtime.options(task)
            _refuse_broadcast(sender.app, task.name)
            runtime.redlock  # noqa: B018  (building it checks the nodes)
    except ConfigurationError as error:
        # Signal.send catches all other exceptions.
        raise SystemExit(f"celery-redlock: {error}") from error
    if sender.options.get("beat"):  # it would end alone, and the worker would run on
        _check_schedule(sender)
    if tasks:
        # Only a worker pays for this import.
        from celery_redlock.app.early_start import EarlyStartStep  # noqa: PLC0415
        from celery_redlock.app.refusal_step import RefusalStep  # noqa: PLC0415

        runtime_of(sender.app).refusal_log.share()  # before the pool forks
        sender.app.steps["consumer"] |= {RefusalStep, EarlyStartStep}


def _check_schedule(sender: Any, **_: object) -> None:
    """End a beat, or a worker that has one, if an entry gives a lock option."""
    for entry, task, name, remedy in lock_options_in_schedule(sender.app):
        raise SystemExit(
            f"celery-redlock: The entry {entry!r} of beat_schedule gives {name} to the "
            f"task {task}. Lock options are for all calls of a task, so each call of "
            f"the entry would be refused. {remedy}"
        )


def _refuse_task_above(task: Task) -> None:
    if (inner := lock_task_inside(task)) is not None:
        raise ConfigurationError(
            f"The function of the task {task.name} is the task {inner.name}, and would "
            "run without its lock. Apply @singleton_task alone, and no @app.task or "
            "@shared_task above it."
        )


def _refuse_messages_without_headers(app: Celery) -> None:
    if app.conf.task_protocol == 1:
        raise ConfigurationError(
            "task_protocol is 1, and workers do not see the headers of such messages, "
            "in which a call carries its claim and its place in the line. Leave it at "
            "2, the default since Celery 4."
        )


def _refuse_broadcast(app: Celery, task: str) -> None:
    if exchange := broadcast_of(app, task):
        raise ConfigurationError(
            f"The task {task} is routed to the Broadcast (fanout) exchange "
            f"{exchange!r}: each worker gets a copy of a call, with the same id and "
            "key, and a lock lets one of them run. Route it to a queue, or make it a "
            "plain task; it can take a lock with a key of its worker in its body."
        )


def _check_nodes(sender: Any, **_: object) -> None:
    """Let restarted nodes begin their quarantine now, and log the problems once."""
    tasks = lock_tasks(sender.app)
    if not tasks:
        return
    for task in tasks:
        if task.lock_options.waits:
            runtime_of(sender.app).warn_of_waiting(task.name)
    # Only a worker pays for this import.
    from celery_redlock.operations.doctor import log_diagnosis  # noqa: PLC0415

    redlock = runtime_of(sender.app).redlock
    if not redlock.guard.enabled:
        log.warning(
            "redlock_restart_guard is off: a node that restarts empty votes at once. "
            "It can grant a lock to a second holder, with an old fence.",
            extra=log_fields("guard-off"),
        )
    _log_report(redlock.check(), redlock)
    log_diagnosis(redlock, sender.app)


def _log_report(report: NodesReport, redlock: Redlock) -> None:
    ballot, problems = report.ballot, report.ballot.reasons()
    config = redlock.guard.config
    differ = differences(other_views(ballot), config)
    advice = f" {differ}." if differ else ""
    nodes, quorum = len(ballot.labels), ballot.quorum
    is_store = redlock.addresses[0].is_store
    fields = log_fields("votes", votes=ballot.granted, nodes=nodes, quorum=quorum)
    votes = f"{ballot.granted} of {nodes} nodes vote (quorum: {quorum})"
    if not problems:
        text = f"All nodes vote: {nodes} (quorum: {quorum})."
        if nodes == 1:
            text = f"The {'store' if is_store else 'node'} votes."
        log.info(text, extra=fields)
    elif report.has_quorum:
        log.warning("%s: %s.%s", votes, problems, advice, extra=fields)
    else:
        left = report.retry_after
        votes, when = f"Only {votes}", "until more nodes vote"
        if nodes == 1:
            node = "store" if is_store else "only node"
            votes, when = f"The {node} does not vote", "until it votes"
        if left is not None:
            at_least = "at least " if ballot.indexes(VoteKind.SILENT) else ""
            when = f"for {at_least}{seconds_text(left)} more"
            if may_be_new(config):
                advice = f" (For a brand-new deployment, run `{COMMAND} init`.)"
        text = "%s: %s. Tasks that need a lock do not run %s.%s"
        log.error(text, votes, problems, when, advice, extra=fields)
