"""Stored results of calls: whether a call has ended."""

from __future__ import annotations

import logging
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
    return not isinstance(backend, DisabledBackend) and bool(backend.persistent)


def stored_result(task: Task, task_id: str) -> Mapping[str, Any]:
    """Return the stored result of a call; an empty mapping where it is not known."""
    if not can_be_read(task):
        return {}
    try:
        meta: Mapping[str, Any] = task.backend.get_task_meta(task_id, cache=False)
    except Exception:
        # Each backend has errors of its own, and none of them may end a call.
        log.exception("The result of %s could not be read.", task_id)
        return {}
    return meta
