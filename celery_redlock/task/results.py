"""Stored results of calls: whether a call has ended."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import states
from celery.backends.base import DisabledBackend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Task

log = logging.getLogger(__name__)


def has_ended(task: Task, task_id: str) -> bool:
    """Tell whether a stored result says that a call of the task has ended.

    Where no result is kept, or it cannot be read, the answer is no.
    """
    return stored_result(task, task_id).get("status") in states.READY_STATES


def can_be_read(task: Task) -> bool:
    """Tell whether the task has a result backend from which any process may read."""
    backend = task.backend
    if isinstance(backend, DisabledBackend) or not backend.persistent:
        return False
    # With `result_persistent`, too, these are in a queue of their caller.
    return bool(backend.as_uri() != "rpc://")


def stored_result(task: Task, task_id: str) -> Mapping[str, Any]:
    """Return the stored result of a call; an empty mapping where it is not known."""
    if not can_be_read(task):
        return {}
    try:
        return _read(task, task_id)
    except Exception:
        # Each backend has errors of its own, and none of them may end a call.
        log.exception("The result of %s could not be read.", task_id)
        return {}


def _read(task: Task, task_id: str) -> Mapping[str, Any]:
    meta: Mapping[str, Any]
    try:
        meta = task.backend.get_task_meta(task_id, cache=False)
    except Exception:
        if not _close_dead_connections():
            raise
        meta = task.backend.get_task_meta(task_id, cache=False)
    return meta


def _close_dead_connections() -> bool:
    """Close connections of this thread to Django's databases that have died.

    Django does it around requests, and Celery around tasks. Where results are in a
    database, other threads would not read one any more when it has restarted.

    Returns:
        Whether there was one.
    """
    database = sys.modules.get("django.db")
    has_closed = False
    with suppress(Exception):  # of settings, of drivers, of an event loop
        for one in database.connections.all(initialized_only=True) if database else ():
            is_failed = one.connection is not None and one.errors_occurred
            if is_failed and not one.in_atomic_block and not one.is_usable():
                one.close()
                has_closed = True
    return has_closed


def close_old_connections() -> None:
    """Let Django close the connections that this thread does not need any more."""
    if database := sys.modules.get("django.db"):
        with suppress(Exception):  # of settings, of drivers
            database.close_old_connections()
