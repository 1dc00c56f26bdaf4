"""Checks of a worker with lock tasks at its start.

::

    worker starts ──► settings and options are checked; a mistake ends the worker
    worker is ready ─► every node is asked for a vote: a quarantine begins now and not
                       with the first task, and the log says which nodes do not vote;
                       then the findings of ``doctor`` are logged
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_redlock.app.runtime import runtime_of
from celery_redlock.core.log_fields import log_fields
from celery_redlock.errors import ConfigurationError
from celery_redlock.options.lock_options import LockOptions

if TYPE_CHECKING:
    from celery_redlock.core.deployment import NodesReport

__all__ = ["connect"]

log = logging.getLogger(__name__)


def connect() -> None:
    """Check each worker that starts from now on. Twice is harmless."""
    signals.worker_init.connect(_check_configuration, weak=False)
    signals.worker_ready.connect(_check_nodes, weak=False)


def _locking_tasks(app: Any) -> list[Any]:
    tasks = app.tasks.values()
    return [
        t for t in tasks if isinstance(getattr(t, "lock_options", None), LockOptions)
    ]


def _check_configuration(sender: Any, **_: Any) -> None:
    """End a worker that could run none of its tasks, with the reason."""
    tasks = _locking_tasks(sender.app)
    try:
        for task in tasks:
            runtime = runtime_of(sender.app)
            runtime.options(task.name, task.lock_options)
            runtime.redlock  # noqa: B018  (building it checks the nodes)
    except ConfigurationError as error:
        # Signal.send catches all other exceptions.
        raise SystemExit(f"celery-redlock: {error}") from error


def _check_nodes(sender: Any, **_: Any) -> None:
    """Let restarted nodes begin their quarantine now, and log the problems once."""
    tasks = _locking_tasks(sender.app)
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
    _log_report(redlock.check())
    log_diagnosis(redlock, sender.app)


def _log_report(report: NodesReport) -> None:
    ballot = report.ballot
    nodes, problems = len(ballot.labels), "; ".join(report.problems)
    fields = log_fields(
        "votes", votes=ballot.granted, nodes=nodes, quorum=ballot.quorum
    )
    if not problems:
        text = "All %d nodes vote (%d are a quorum)."
        log.info(text, nodes, ballot.quorum, extra=fields)
    elif report.has_quorum:
        log.warning(
            "%d of %d nodes vote (%d are a quorum): %s.",
            ballot.granted,
            nodes,
            ballot.quorum,
            problems,
            extra=fields,
        )
    else:
        when = (
            "until this has changed"
            if report.retry_after is None
            else f"for {report.retry_after:.0f} s more"
        )
        log.error(
            "Only %d of %d nodes vote (%d are a quorum): %s. Tasks that need a lock do "
            "not run %s. (For a brand-new deployment, `celery -A proj redlock init`.)",
            ballot.granted,
            nodes,
            ballot.quorum,
            problems,
            when,
            extra=fields,
        )
