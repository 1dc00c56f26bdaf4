"""Ends one copy of a call in Celery's terms, and reads how other copies ended.

=============  =================================================================
end            how, and why not otherwise
=============  =================================================================
``skip``       The result is stored as REVOKED, with the chain after it and the
               chord around it. After a bare ``Ignore`` clients would wait for
               these results for ever; ``Reject`` looks like a failure.
drop           ``Ignore``: the result belongs to another copy with the same id.
``republish``  The same call is sent again, without ``Task.retry``: that turns an
               error of the broker into a ``Reject``, and the job is lost.
=============  =================================================================
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, TimeLimitExceeded
from celery.utils.time import maybe_iso8601, maybe_make_aware

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redlock.task.header import TaskHeader

__all__ = [
    "count_in_chord",
    "expiry_of",
    "has_ended",
    "has_expired",
    "has_finished",
    "note_retry",
    "republish",
    "skip",
]

log = logging.getLogger(__name__)


def skip(task: Any, request: Any, error: Exception, **facts: Any) -> Ignore:
    """Store the result of a call that does not run: REVOKED, with the error in it.

    Args:
        task: The task.
        request: Its request.
        error: The reason, which ``result.get()`` raises.
        **facts: Further fields of the event ``task-revoked``.

    Returns:
        The exception to raise: after it Celery leaves the result alone.
    """
    if request.is_eager:
        return Ignore(str(error))
    stored = _keeps_result(task, request) or task.store_errors_even_if_ignored
    task.backend.mark_as_failure(
        request.id,
        error,
        request=request,
        store_result=stored,
        call_errbacks=False,
        state=states.REVOKED,
    )
    # Only here, in a worker, is Celery's own request class a cheap import.
    from celery_redlock.task.request import Skipped  # noqa: PLC0415

    return Skipped(str(error), facts)


def republish(
    task: Any,
    request: Any,
    arguments: tuple[Any, Any],
    *,
    countdown: float,
    header: TaskHeader,
) -> None:
    """Publish the same call again: same id, same retries, same place in a canvas.

    Args:
        task: The task.
        request: Its request.
        arguments: The call's ``args`` and ``kwargs``, as they came.
        countdown: Seconds until the copy may run.
        header: The header of this copy, for the next one. A redelivered call does not
            expire: its expiry would end the result of the copy that runs.

    Raises:
        Exception: An error of the broker's transport. Nothing was sent.
    """
    args, kwargs = arguments
    signature = task.signature_from_request(request, args, kwargs, countdown=countdown)
    options = signature.options
    options["headers"] = {**(options.get("headers") or {}), **header.for_next_copy()}
    if header.redelivered:
        options["expires"] = None
    signature.apply_async(add_to_parent=False)


def note_retry(task: Any, request: Any, error: Exception) -> None:
    """Store RETRY before the call is published again; Celery stores it afterwards.

    A process can be paused between the two steps. The next copy may have ended by
    then, and RETRY would overwrite its result for ever.
    """
    if not (_keeps_result(task, request) or task.store_errors_even_if_ignored):
        return
    try:
        task.backend.mark_as_retry(request.id, error, request=request)
    except Exception:
        # The call must return to its queue, also when its state is not known.
        log.exception("RETRY could not be stored for %s.", request.id)


def has_finished(task: Any, request: Any) -> bool:
    """Tell whether a stored result says that this task id has finished.

    Where no result is kept, or it cannot be read, the answer is no. The call then
    runs again, after the other copy, as it would without this package.
    """
    meta = _stored(task, request, request.id)
    if isinstance(meta.get("result"), TimeLimitExceeded) and task.acks_late:
        # Celery stores FAILURE and, where told so, redelivers the message all the same.
        return bool(getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout))
    return meta.get("status") in states.READY_STATES


def has_ended(task: Any, request: Any, task_id: str) -> bool:
    """Tell whether a stored result says that another call of the task has ended.

    Args:
        task: The task.
        request: The request of the call that asks. Where it keeps no result, the
            answer is no.
        task_id: The other call.
    """
    return _stored(task, request, task_id).get("status") in states.READY_STATES


def _stored(task: Any, request: Any, task_id: str) -> Mapping[str, Any]:
    """Return the stored result; an empty mapping where it is not known."""
    backend = task.backend
    if isinstance(backend, DisabledBackend) or not backend.persistent:
        return {}
    if not _keeps_result(task, request):
        return {}
    try:
        meta: Mapping[str, Any] = backend.get_task_meta(task_id, cache=False)
    except Exception:
        # Each backend has errors of its own, and none of them may end the call.
        log.exception("The result of %s could not be read.", task_id)
        return {}
    return meta


def count_in_chord(task: Any, request: Any) -> None:
    """Count a call that succeeded in its chord, in case that was not done.

    Celery stores a result first and counts it afterwards. A process can be killed
    between the two steps, and the chord would wait for ever. The Redis backend counts
    a call only once. Other backends do not, so there the chord is left alone.
    """
    if not request.chord or not getattr(task.backend, "_chord_zset", False):
        return
    meta = task.backend.get_task_meta(request.id, cache=False)
    if meta["status"] == states.SUCCESS:
        task.backend.on_chord_part_return(request, meta["status"], meta["result"])


def has_expired(task: Any, request: Any) -> bool:
    """Tell whether the call must not start any more."""
    expires = expiry_of(task, request)
    return bool(expires) and datetime.now(timezone.utc).timestamp() > expires


def expiry_of(task: Any, request: Any) -> float:
    """Return when a call expires, in seconds since 1970; 0 for never."""
    if not request.expires:
        return 0.0
    expires = maybe_make_aware(maybe_iso8601(request.expires), task.app.conf.timezone)
    return float(expires.timestamp())


def _keeps_result(task: Any, request: Any) -> bool:
    """Tell whether the result is stored: the call can override the task."""
    ignored = vars(request).get("ignore_result")
    return not (task.ignore_result if ignored is None else ignored)
