"""The ends of one copy of a call that does not run.

=============  =================================================================
end            how, and why not otherwise
=============  =================================================================
as revoked     The result is stored as REVOKED, with the chain after it and the
               chord around it. After a bare ``Ignore`` clients would wait for
               these results for ever; ``Reject`` looks like a failure.
dropped        ``Ignore``: the result belongs to another copy with the same id.
republished    The same call is sent again, without ``Task.retry``: that turns an
               error of the broker into a ``Reject``, and the job is lost.
=============  =================================================================
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from logging import DEBUG, INFO
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Ignore, Retry, TaskRevokedError, TimeLimitExceeded

from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.timing import seconds_text
from celery_redlock.errors import DuplicateTask, QuorumUnreachable, RedlockError
from celery_redlock.options.broker import (
    accepted_countdown,
    acks_timeouts,
    broker_errors,
    way_back,
)
from celery_redlock.records.beat_slots import mark_slot
from celery_redlock.task.publishing import send_again
from celery_redlock.task.results import can_be_read, stored_result

if TYPE_CHECKING:
    from celery_redlock.task.call import Call
    from celery_redlock.task.header import TaskHeader

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds
_STORED_WITHIN, _LOOK_EVERY = 5.0, 0.05  # seconds after the release of the lock
_MAY_BE_STORED_WITHIN = 1.0  # where nothing but a wait says that there is another copy
_COUNT_AGAIN, _LONGEST_COUNT = 5.0, 300.0  # seconds

_refusal: ContextVar[BaseException | None] = ContextVar(
    "celery_redlock_refusal", default=None
)


class Republished(Retry):  # type: ignore[misc]
    """Ends this copy of a call: the next one is published, and RETRY is stored."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.args = self.exc, self.when  # Celery adds itself: a cycle for each call


class RepublishedUnseen(Ignore):  # type: ignore[misc]
    """Ends this copy of a call: the next one is published, and no result is stored."""


class CopyDropped(Ignore):  # type: ignore[misc]
    """Ends this copy of a call, whose result and entries belong to another copy."""


class EndedAsRevoked(Ignore):  # type: ignore[misc]
    """Ends a call whose result is stored as REVOKED: its main process sends the event.

    Its facts are further fields of the event ``task-revoked``.
    """

    def __init__(self, reason: str, facts: dict[str, Any]) -> None:
        super().__init__(reason, facts)  # with which it is pickled
        self.facts = facts

    def __str__(self) -> str:
        return str(self.args[0])


class EndedEagerly(Ignore):  # type: ignore[misc]
    """Ends an eager call as revoked: `SingletonTask.apply` makes its result."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def comes_back(error: BaseException) -> bool:
    """Tell whether a call whose copy ends in this error comes back."""
    return isinstance(error, (Retry, RepublishedUnseen))


def logged_pause(call: Call, error: BaseException, number: int) -> float:
    """Log an error of the broker; return the seconds to pause, longer each time."""
    pause = jittered(doubled(_FIRST_PAUSE, number, _LONGEST_PAUSE))
    log.warning(
        "%s could not be republished (%s: %s). It keeps its worker process and "
        "tries again in %s.",
        call,
        type(error).__name__,
        error,
        seconds_text(pause),
        extra=call.log_fields("republish-failed"),
    )
    return pause


def end_refused(error: BaseException) -> BaseException:
    """Return an exception without its traceback; `was_refused` then knows it."""
    error = error.with_traceback(None)
    error.__context__ = None
    _refusal.set(error)
    return error


def forget_refusal() -> None:
    """Note that a body has run: an error in which it ends is its own."""
    _refusal.set(None)


def was_refused(error: object) -> bool:
    """Tell whether a call has just ended in this exception, before its body began."""
    return error is not None and error is _refusal.get()


# -- revoked, dropped ---------------------------------------------------------------


def end_as_revoked(call: Call, error: Exception, **facts: Any) -> Ignore:
    """End a call as REVOKED, with the error, which ``result.get()`` raises.

    Returns the exception to raise: after it Celery leaves the result alone. The facts
    are further fields of the event ``task-revoked``.
    """
    if call.request.is_eager:
        return EndedEagerly(error)
    call.task.backend.mark_as_failure(
        call.id,
        error,
        request=call.request,
        store_result=_stores_errors(call),
        call_errbacks=False,
        state=states.REVOKED,
    )
    return EndedAsRevoked(str(error), facts)


def drop_if_finished(call: Call) -> None:
    """End this copy if another copy with the same id has finished.

    It is dropped, or republished while another process may send the body of its chord:
    if that process was killed, the copy sends it. A copy that comes back does not run.
    """
    if not (call.header.ended or _has_finished(call)):
        return
    if call.header.again and not (call.header.ended or call.is_redelivered):
        return
    while left := _try_to_count(call):
        reason = RedlockError("it has ended, and its chord may not know it yet")
        header = {"redelivered": True, "ended": True}
        deferred = call.header.deferred + 1
        error = republish(call, reason, left, deferred=deferred, **header)
        SYSTEM_CLOCK.sleep(logged_pause(call, error, 0))
    extra = call.log_fields("copy-dropped")
    log.info("%s has finished already; this copy of it is dropped.", call, extra=extra)
    raise CopyDropped(f"{call} has finished already")


def revoke_if_expired(call: Call) -> None:
    """End a call that has expired while it waited, or a copy that has.

    The worker's main process looks before a call begins, and leaves copies to this.
    """
    if 0 < call.expires() < SYSTEM_CLOCK.wall():
        log.info("%s has expired.", call, extra=call.log_fields("expired"))
        raise end_as_revoked(call, TaskRevokedError("expired"), expired=True)


def revoke_if_sent_twice(call: Call) -> None:
    """End the second of two messages that beat has sent for one slot.

    Where the latest call runs, the first message may end in favour of this one while
    it waits. So it marks the slot only when it begins (`mark_as_begun`).
    """
    slot, only_looks = call.header.slot, call.options.task.keeps == "latest"
    first = mark_slot(call.runtime.redlock, slot, call.id, only_looks=only_looks)
    if first is None:
        return
    error = DuplicateTask(
        f"{call} did not run: beat has sent {slot} twice, and the first message "
        f"runs as {first}.",
        key=call.key,
    )
    log.info("%s", error, extra=call.log_fields("slot-sent-twice", slot=slot))
    raise end_as_revoked(call, error, key=call.key, policy="slot")


def mark_as_begun(call: Call) -> None:
    """Have another message for the slot of this call dropped from now on."""
    mark_slot(call.runtime.redlock, call.header.slot, call.id)


def wait_for_result(call: Call) -> None:
    """Wait until the other copy, which had the lock before, has stored its result.

    Celery stores a result after the lock is released. If the other copy was killed,
    there is none, and this call returns after some seconds. A lock of this copy
    that is not renewed has at least half of its time left then.

    A copy that has waited in its process may not have met the other one, which waited
    in another process and ran first. Mostly there is none, so it waits for less.
    """
    if not (call.keeps_result() and can_be_read(call.task)):
        return
    clock = call.runtime.redlock.clock
    patience = _STORED_WITHIN if call.header.met_copy else _MAY_BE_STORED_WITHIN
    if not call.options.task.renew:
        patience = min(patience, call.options.ttl / 2)
    give_up_at = clock.monotonic() + patience
    while stored_result(call.task, call.id).get("status") not in states.READY_STATES:
        if clock.monotonic() > give_up_at:
            return
        clock.sleep(_LOOK_EVERY)


def _has_finished(call: Call) -> bool:
    """Tell whether a stored result says that this task id has finished.

    If the answer is no by mistake, the call runs again, after the other copy, as
    it would without this package.
    """
    if not call.keeps_result():
        return False
    task, meta = call.task, stored_result(call.task, call.id)
    if isinstance(meta.get("result"), TimeLimitExceeded) and not acks_timeouts(task):
        return False
    if call.options.records is not None and meta.get("status") == states.FAILURE:
        from celery_redlock.effects.call_records import has_succeeded  # noqa: PLC0415

        return not has_succeeded(call)
    return meta.get("status") in states.READY_STATES


def _stores_errors(call: Call) -> bool:
    return call.keeps_result() or call.task.store_errors_even_if_ignored


def _try_to_count(call: Call) -> float:
    """Count a call in its chord; return after how many seconds to try again, or 0.

    See `_count_in_chord`. An error is logged, and means to try again.
    """
    try:
        return _count_in_chord(call)
    except Exception:
        # Each backend has errors of its own, and none may be the result of a call
        # that has one already.
        log.exception("%s could not be counted in its chord.", call)
        return jittered(doubled(_COUNT_AGAIN, call.header.deferred, _LONGEST_COUNT))


def _count_in_chord(call: Call) -> float:
    """Count an ended call in its chord, if its process was killed before it did.

    Celery stores a result first and counts it afterwards. A process can be killed
    between the two steps. And a revocation stores REVOKED at once, but leaves it to
    the worker that discards the call to count it: a worker that was started since
    discards nothing. Then the chord would wait for ever. The Redis backend counts
    a call only once. Other backends do not: there the chord is left alone.

    Returns the seconds after which it must be counted once more: for so long another
    process alone may send the body of the chord. 0 if none may, or the body was sent.
    """
    backend, group = call.task.backend, call.request.group
    is_member = bool(call.request.chord and group)
    if not is_member or not getattr(backend, "_chord_zset", False):
        return 0.0
    meta = backend.get_task_meta(call.id, cache=False)
    if meta["status"] not in states.READY_STATES:
        return 0.0
    # A process may end between the two looks, and then none has looked at the chord.
    before = _sender_of_body(backend, group)
    backend.on_chord_part_return(call.request, meta["status"], meta["result"])
    after = _sender_of_body(backend, group)
    if before == after == b"" or _is_over(backend, group):
        return 0.0
    claim = backend.get_key_for_group(group, ".c")
    return float(max(0, backend.client.ttl(claim)) + 1)


def chord_body_is_owed(backend: Any, group: str) -> bool:
    """Tell whether a process has reserved the body of a chord, and has not sent it.

    That process may be gone. No other one sends the body while the reservation lasts.
    """
    return bool(_sender_of_body(backend, group)) and not _is_over(backend, group)


def _sender_of_body(backend: Any, group: str) -> Any:
    """Return the token of the process that has reserved it, as Celery 5.7 does."""
    return backend.client.get(backend.get_key_for_group(group, ".c")) or b""


def _is_over(backend: Any, group: str) -> bool:
    """Tell whether the body of a chord was sent, or has failed with a member."""
    return not backend.client.exists(backend.get_key_for_group(group, ".s"))


# -- republish -------------------------------------------------------------------


def republish(
    call: Call, reason: RedlockError, countdown: float, **header: Any
) -> BaseException:
    """Publish the call again and end this copy of it.

    The next copy has the same id, the same retries and the same place in a canvas.

    A task that runs eagerly has no queue, and ends with the reason. ``header`` has the
    fields of the header that change.

    Returns:
        The error by which the broker does not accept it. Pause, and try the lock, or
        this function, again.

    Raises:
        EndedAsRevoked: It has expired, and was not published.
        Republished: It was published; the result is RETRY.
        RepublishedUnseen: It was published; the result is left alone, since another
            copy of the call may own it.
        Exception: It cannot be published, and the broker is not the reason: for
            example a router or a receiver of a signal failed. The call ends in
            this error, because it would come again.
    """
    if call.request.is_eager:
        raise reason
    fields = {"redelivered": call.is_redelivered, "met_copy": False, **header}
    fresh = call.header._replace(base=None, **{"waits": (), **fields})
    if not fresh.redelivered:
        if call.header.deferred:
            drop_if_finished(call)
        elif _has_finished(call):  # its id was used before
            fresh = fresh._replace(again=True)
        revoke_if_expired(call)  # RabbitMQ would discard it, and no process see that
        _note_retry(call, reason)
    app = call.task.app
    countdown = accepted_countdown(app, countdown)
    try:
        _publish(call, countdown, fresh)
    except broker_errors(app) as error:
        return error
    except Exception:
        extra = call.log_fields("republish-failed")
        text = "%s cannot be republished, and fails: the broker is not the reason."
        log.exception(text, call, extra=extra)
        raise
    # An outage is logged as a whole (`OutageLog`), and a duplicate was announced.
    is_known = isinstance(reason, (QuorumUnreachable, DuplicateTask))
    level = DEBUG if is_known else INFO
    when = seconds_text(countdown)
    text = "%s is republished, to run after %s: %s"
    extra = call.log_fields("republished", countdown=countdown)
    log.log(level, text, call, when, reason, extra=extra)
    if fresh.redelivered:
        text = f"{call} is republished, to run after {when}"
        raise RepublishedUnseen(text)
    # RETRY is stored, and may be outdated by now: Celery must not store it again.
    # `RefusalInfo` sees to it, and this line where the tracer is not Celery's.
    call.request.ignore_result = True
    text = f"Retry in {when}: {type(reason).__name__}"  # Celery logs it
    raise Republished(text, exc=reason, when=countdown)


def _note_retry(call: Call, error: Exception) -> None:
    """Store RETRY before the call is published again; Celery stores it afterwards.

    A process can be paused between the two steps. The next copy may have ended by
    then, and RETRY would overwrite its result for ever.
    """
    if not _stores_errors(call):
        return
    try:
        call.task.backend.mark_as_retry(call.id, error, request=call.request)
    except Exception:
        # The call must return to its queue, also when its state is not known.
        log.exception("RETRY could not be stored for %s.", call.id)


def _publish(call: Call, countdown: float, header: TaskHeader) -> None:
    """Publish the next copy, with this header."""
    args, kwargs = call.sent
    signature = call.task.signature_from_request(
        call.request,
        args,
        kwargs,
        countdown=countdown,
        ignore_result=not call.keeps_result(),  # Celery leaves it out before 5.7
    )
    options = signature.options
    # Celery would take the call that runs here, which is this one, for its parent.
    parent = {"parent_id": options["parent_id"]}
    given = options.get("headers") or {}
    options["headers"] = given | parent | header.for_next_copy()
    options |= way_back(call.task.app, call.request.delivery_info or {})
    if header.serializer:
        options["serializer"] = header.serializer
    if compression := vars(call.request).get("compression"):
        options["compression"] = compression
    # As they are shown: the publisher may have masked a secret in them.
    shown = vars(call.request)
    options |= {n: shown[n] for n in ("argsrepr", "kwargsrepr") if shown.get(n)}
    if header.redelivered:
        # Another copy may run, so this one expires under the lock alone: no process
        # would see that RabbitMQ discards it.
        options["headers"]["expires"] = options.pop("expires")
        options["expires"] = None
    send_again(call.task, args, kwargs, call.key, **options, add_to_parent=False)
