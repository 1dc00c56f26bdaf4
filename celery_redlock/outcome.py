"""Turn decisions into Celery's verbs: end one copy of a call, and lose nothing.

=============  =================================================================
end            how, and why not otherwise
=============  =================================================================
``skip``       the result is finished as REVOKED, with the chain after it and the
               chord around it. A bare ``Ignore`` would leave whoever waits for
               any of them waiting for ever; ``Reject`` looks like a failure.
``drop``       ``Ignore``: the result belongs to another copy with the same id.
``republish``  the same call again, by our own hand: ``Task.retry`` makes a publish
               error a ``Reject``, and the job is gone.
=============  =================================================================
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Ignore, TimeLimitExceeded
from celery.utils.time import maybe_iso8601, maybe_make_aware

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redlock.envelope import Envelope

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

log = logging.getLogger("celery_redlock.outcome")


def skip(task: Any, request: Any, error: Exception, **facts: Any) -> Ignore:
    """Finish the result of a call that does not run: REVOKED, with the error in it.

    Args:
        task: The task.
        request: Its request.
        error: Why it does not run: what ``result.get()`` raises.
        **facts: What the task-revoked event says besides.

    Returns:
        What to raise: it tells Celery that the result has been seen to.
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
    from celery_redlock.request import Skipped  # noqa: PLC0415

    return Skipped(str(error), facts)


def republish(
    task: Any,
    request: Any,
    arguments: tuple[Any, Any],
    *,
    countdown: float,
    envelope: Envelope,
) -> None:
    """Publish the same call again: same id, same retries, same place in a canvas.

    Args:
        task: The task.
        request: Its request.
        arguments: The call's ``args`` and ``kwargs``, as they came.
        countdown: Seconds until the copy may run.
        envelope: What the copy says to us. A copy that may have a twin does not
            expire: its expiry would end the result of the one that runs.

    Raises:
        Exception: Whatever the broker's transport raises. Nothing was sent.
    """
    args, kwargs = arguments
    signature = task.signature_from_request(request, args, kwargs, countdown=countdown)
    options = signature.options
    options["headers"] = {**(options.get("headers") or {}), **envelope.header()}
    if envelope.twin:
        options["expires"] = None
    signature.apply_async(add_to_parent=False)


def note_retry(task: Any, request: Any, error: Exception) -> None:
    """Store RETRY before the call is published again, and not after it as Celery does.

    A process can be frozen between the two: then the copy may have ended, and what it
    has come to would be overwritten, for ever.
    """
    if not (_keeps_result(task, request) or task.store_errors_even_if_ignored):
        return
    try:
        task.backend.mark_as_retry(request.id, error, request=request)
    except Exception:
        # The call must go back into its queue, whatever is known of it.
        log.exception("RETRY could not be stored for %s.", request.id)


def has_finished(task: Any, request: Any) -> bool:
    """Tell whether a stored result says that this task id has ended.

    Where no result is kept, or it cannot be read, the answer is no: the call then
    runs again, after the other copy, as it would without us.
    """
    meta = _stored(task, request, request.id)
    if isinstance(meta.get("result"), TimeLimitExceeded) and task.acks_late:
        # Celery says FAILURE and gives the message back all the same, where told to.
        return bool(getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout))
    return meta.get("status") in states.READY_STATES


def has_ended(task: Any, request: Any, task_id: str) -> bool:
    """Tell whether a stored result says that another call of the task has ended.

    Args:
        task: The task.
        request: Of the call that asks: where it keeps no result, the answer is no.
        task_id: The other call.
    """
    return _stored(task, request, task_id).get("status") in states.READY_STATES


def _stored(task: Any, request: Any, task_id: str) -> Mapping[str, Any]:
    """Return what is stored of a result; nothing where that cannot be told."""
    if not _keeps_result(task, request) or not task.backend.persistent:
        return {}
    try:
        meta: Mapping[str, Any] = task.backend.get_task_meta(task_id, cache=False)
    except NotImplementedError:  # there is no result backend
        return {}
    except Exception:
        # Each backend has errors of its own, and none of them may end the call.
        log.exception("The result of %s could not be read.", task_id)
        return {}
    return meta


def count_in_chord(task: Any, request: Any) -> None:
    """Count a call that succeeded in its chord, in case that was not done.

    Celery stores a result first and counts it after: a process can be killed in
    between, and the chord would wait for ever. Redis counts a call only once; the
    other backends do not, so there the chord is left as it is.
    """
    if not request.chord or not getattr(task.backend, "_chord_zset", False):
        return
    meta = task.backend.get_task_meta(request.id, cache=False)
    if meta["status"] == states.SUCCESS:
        task.backend.on_chord_part_return(request, meta["status"], meta["result"])


def has_expired(task: Any, request: Any) -> bool:
    """Tell whether the time after which a call must not start has passed."""
    expires = expiry_of(task, request)
    return bool(expires) and datetime.now(timezone.utc).timestamp() > expires


def expiry_of(task: Any, request: Any) -> float:
    """Return after when a call must not start, in seconds since 1970; 0 for never."""
    if not request.expires:
        return 0.0
    expires = maybe_make_aware(maybe_iso8601(request.expires), task.app.conf.timezone)
    return float(expires.timestamp())


def _keeps_result(task: Any, request: Any) -> bool:
    """Tell whether the result is stored: the call may say otherwise than the task."""
    ignored = vars(request).get("ignore_result")
    return not (task.ignore_result if ignored is None else ignored)
