"""Publish a call, unless it is a duplicate, and release its claim in the worker.

`claims` describes the protocol. Whether a call has a claim depends on how it is sent:

=============================  ===================================================
sent by                        claim of the call
=============================  ===================================================
``delay``, ``apply_async``     Taken before the message is sent, also with a
                               countdown or an eta. If another job exists,
                               ``on_conflict`` decides whether the call is sent.
``self.retry()``, republish    Taken again if it is free. The call is always sent. So
                               it is by ``retry_on_worker_lost``.
group, chord, chain, links,    None. The call is always sent: another call may
or with a ``task_id``          already wait for the result of this task id. The
                               worker deduplicates the call when it starts.
a base class of the project    As ``delay``, for the id and the arguments that it
                               gives to ``super().apply_async``, and when it does.
name (``app.send_task``)       None. This module is not called.
redelivery by the broker       None, if the body had begun before a crash. The
                               call may then wait beside another job.
=============================  ===================================================

The message names the key that was claimed (see ``header``), and exactly this claim is
released when the body begins; the call holds its lock by then. It is also released if
the body will never begin: sending failed, the call was revoked or has expired,
``on_conflict`` ended it, its arguments do not fit, its worker does not know its task or
cannot decode it, or its process was killed. If it is not released, the next publisher
takes it over when the result of its job says that the job has ended.
"""

from __future__ import annotations

import functools
import logging
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task
from celery import signals as celery_signals
from celery.result import ResultBase
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.uuid import uuid

from celery_redlock.app.confirmed import confirmed
from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.callbacks import call_safely
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.text import is_id
from celery_redlock.errors import (
    DuplicateTask,
    FingerprintError,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.line.backlog import leave_backlog
from celery_redlock.line.claims import Claims, ExistingJob
from celery_redlock.line.successors import withdraw
from celery_redlock.locks.lease import Holder
from celery_redlock.policies import Conflict, PublishDecision, Skip
from celery_redlock.scripts.keys import shown
from celery_redlock.signals import publish_claimed, publish_deduplicated
from celery_redlock.task.header import TaskHeader, with_fields
from celery_redlock.task.message import wanted_by_message
from celery_redlock.task.results import has_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery import Celery
    from celery.app.task import Context

    from celery_redlock.options.lock_options import ResolvedOptions
    from celery_redlock.task.message import SentMessage

log = logging.getLogger(__name__)

_OF_A_CANVAS = (
    *("task_id", "link", "link_error", "retries", "group_id", "chord", "chain"),
    *("parent_id", "root_id"),
)
_LEAST = 1.0  # seconds of a claim, however soon its job expires

_called: ContextVar[tuple[Any, bool]] = ContextVar(
    "celery_redlock_called", default=(None, False)
)


_thread = threading.local()


class Claim:
    """The claim of a job that was sent: its ``task_id``, and the call's ``key``."""

    def __init__(self, claims: Claims, key: str, task_id: str) -> None:
        self._claims = claims
        self.key = key
        self.task_id = task_id

    def keep(self, seconds: float) -> None:
        """Let the claim last for so many seconds from now, unless it was released."""
        self._claims.keep(self.key, self.task_id, seconds)

    def move_to(self, key: str, task_id: str, task: Task, seconds: float) -> None:
        """Move the claim to this key and job, if it was taken for another.

        A job without a key has no claim. If another job has claimed its key, that job
        keeps the claim.
        """
        if (key, task_id) == (self.key, self.task_id):
            return
        self.release()
        self.key, self.task_id = key, task_id
        if key:
            self._claims.retake(key, _job(task, task_id), seconds)

    def release(self) -> None:
        """Release the claim; another job of the call is then no duplicate."""
        if self.key:
            self._claims.release(self.key, self.task_id, follows="")

    def __repr__(self) -> str:
        return f"<Claim {shown(self.key)} of {self.task_id}>"


def publish(
    message: SentMessage,
    options: Mapping[str, Any],
    send: Callable[..., Any],
    *,
    can_raise: bool = True,
) -> Any:
    """Send a call of a task that is unique also before it runs.

    ``options`` are those of ``apply_async`` with which ``send`` sends it. Unless it
    ``can_raise``, a duplicate that would raise an error is skipped.

    Returns:
        The result of the call, or of the existing job. Its ``conflict`` is the
        ``policies.Conflict`` in the second case, else None.

    Raises:
        DuplicateTask: Another job exists, and ``on_conflict`` raises. No message
            was sent.
        Exception: ``send`` failed. The claim is released.
    """
    task, key = message.task, message.key
    if task.app.conf.task_always_eager:
        return send(**options)
    runtime = runtime_of(task.app)
    resolved = runtime.options(task)
    claims = Claims(runtime.redlock)
    if _is_of_a_canvas(task, options):
        if resolved.task.is_claimed:
            options = _with_claim_retaken(task, key, options)
        return send(**options)
    seconds = _seconds_to_wait(task, options)
    job = _job(task, uuid())
    existing, is_taken = _look_or_take(claims, key, job, resolved, task)
    options = {**options, "task_id": options.get("task_id") or job.task_id}
    if is_taken:
        claim = Claim(claims, key, job.task_id)
        return _send_claimed(message, claim, send, options, seconds)
    if existing is None:
        return send(**options)
    args, kwargs = message.arguments
    call = {"task": task.name, "task_id": job.task_id, "args": args, "kwargs": kwargs}
    conflict = conflict_with(
        existing.error(), stage="publish", phase=existing.phase, **call
    )
    decision = resolved.on_publish(conflict)
    if decision.raises and (not can_raise or _is_beat()):
        decision = Skip()
    is_ignored = bool(options.get("ignore_result", task.ignore_result))
    send = functools.partial(send, **options)
    duplicate = _DuplicateCall(task, conflict, existing, decision, send, is_ignored)
    duplicate.announce()
    return decision.perform(duplicate)


def _is_of_a_canvas(task: Task, options: Mapping[str, Any]) -> bool:
    """Tell whether another call may wait for the result of this id already."""
    called, has_no_id = _called.get()
    has_new_id = called is task and has_no_id  # of a base class, and not of a caller
    return any(
        options.get(name)
        for name in _OF_A_CANVAS
        if name != "task_id" or not has_new_id
    )


def _is_beat() -> bool:
    """Tell whether this thread is the one in which a beat publishes its schedule.

    Beat logs each exception of a call as an error, with two tracebacks. A duplicate is
    none, so there it is skipped, with one line, where another caller gets the error.
    """
    return bool(getattr(_thread, "is_beat", False))


def _when_beat_begins(**_: object) -> None:
    _thread.is_beat = True


def send_again(task: Task, args: Any, kwargs: Any, key: str, /, **options: Any) -> None:
    """Send the next copy of a call, as its message was.

    Base classes of the project have seen the call when it was published first. They
    might publish this copy later, or not at all. This returns when the broker has it.
    """
    with confirmed(task.app) as sure:
        options |= sure
        if task.lock_options.is_claimed:
            options = _with_claim_retaken(task, key, options)
        Task.apply_async(task, args, kwargs, **options)


def _send_claimed(
    message: SentMessage,
    claim: Claim,
    send: Callable[..., Any],
    options: dict[str, Any],
    seconds: float,
) -> Any:
    """Send a job. Its claim then lasts for some seconds, or ends if sending fails."""
    task = message.task

    def move_claim() -> None:
        claim.move_to(message.key, message.id or claim.task_id, task, seconds)
        message.headers.update(with_fields(message.headers, claim=claim.key))

    message.when_made.append(move_claim)
    try:
        options["headers"] = with_fields(options.get("headers"), claim=claim.key)
        result = send(**options)
    except BaseException:
        claim.release()
        raise
    # A receiver of a signal can change the call once more, after the claim was moved.
    sent = message.key, message.id or claim.task_id
    if message.was_sent and sent == (claim.key, claim.task_id):
        claim.keep(seconds)
        publish_claimed.send(sender=task, claim=claim)
    else:
        claim.release()
    return result


def with_conflict(result: Any, conflict: Conflict | None = None) -> Any:
    """Return a result that says whether a publisher has met a conflict."""
    if isinstance(result, ResultBase):  # the project may return another thing
        result.conflict = conflict
    return result


@contextmanager
def called_with(task: Task, options: Mapping[str, Any]) -> Iterator[None]:
    """Remember in this block with which options a caller publishes a call.

    Base classes of the project can add others.
    """
    before = _called.set((task, not options.get("task_id")))
    try:
        yield
    finally:
        _called.reset(before)


def _with_claim_retaken(
    task: Task, key: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a message; take its claim again if its call runs here.

    The header may name another key than that of the call. A publisher of another
    version has claimed it, or the header is forged. The nodes know which: a claim that
    the job has there lasts longer, and none is made.
    """
    task_id, headers = options.get("task_id"), options.get("headers")
    header = TaskHeader.read(headers)
    if not task_id or task_id != task.request.id or header.ended:
        return {**options}
    claims = Claims(runtime_of(task.app).redlock)
    seconds = _seconds_to_wait(task, options)
    claimed = header.claim or key
    if claimed == key:
        job = _job(task, task_id)
        claims.retake(key, job, seconds, follows=header.follows)
    else:
        claims.keep(claimed, task_id, seconds)
    return {**options, "headers": with_fields(headers, claim=claimed)}


def _look_or_take(
    claims: Claims, key: str, job: Holder, options: ResolvedOptions, task: Task
) -> tuple[ExistingJob | None, bool]:
    """Return the existing job, if any, and whether the call was claimed."""
    if not options.task.is_claimed:
        return claims.succeeded(key, job.task_id), False
    outage_log = runtime_of(task.app).outage_log
    looks = {
        "at_lock": options.task.unique_while == "queued_or_running",
        "at_cooldown": options.task.unique_for > 0,
    }
    try:
        existing = claims.take(key, job, **looks)
        if existing is not None and _ended_in_queue(task, existing):
            claims.release(key, existing.holder.task_id)
            existing = claims.take(key, job, **looks)
    except LockUnavailable as error:
        # A claim that cannot be taken stops no job.
        call, what = f"{job.task}[{job.task_id}]", "be published without a claim"
        extra = log_fields("unclaimed", task=job.task, task_id=job.task_id, key=key)
        is_outage = isinstance(error, QuorumUnreachable)
        level = logging.DEBUG if is_outage else logging.WARNING
        log.log(level, "%s will %s: %s", call, what, error, extra=extra)
        if is_outage:
            outage_log.add(call, job.task_id, "unclaimed", what, error)
        return None, False
    outage_log.end(granted=existing is None)
    return existing, existing is None


def _ended_in_queue(task: Task, existing: ExistingJob) -> bool:
    """Tell whether a job with the claim has ended before it ran, by its stored result.

    Celery stores REVOKED at once, and discards the job when it is due. Whether a job
    runs is known from the lock alone.
    """
    if existing.phase != "queued" or not has_ended(task, existing.holder.task_id):
        return False
    job, key = existing.holder, existing.key
    extra = log_fields("claim-taken-over", task=task.name, task_id=job.task_id, key=key)
    text = "%s[%s] has ended: the next call takes over its claim of %s."
    log.info(text, job.task, job.task_id, shown(key), extra=extra)
    return True


def _job(task: Task, task_id: str) -> Holder:
    now = SYSTEM_CLOCK.wall()
    return Holder.here(task=task.name, task_id=task_id, started=now)


# -- duplicates ----------------------------------------------------------------------


def conflict_with(held: LockHeld, **call: Any) -> Conflict:
    """Return the conflict of a call that this error refuses."""
    facts: dict[str, Any] = {**vars(held), "held_key": held.held_key or held.key}
    facts.pop("ballot", None)
    return Conflict(**{**facts, **call})


@dataclass(frozen=True, slots=True)
class _DuplicateCall:
    """A call that meets another job when it is published: a `policies.DecidedCall`."""

    task: Task
    conflict: Conflict
    existing: ExistingJob
    decision: PublishDecision
    send: Callable[[], Any]
    is_ignored: bool  # the result, for which `get` then does not wait

    def announce(self) -> None:
        """Log the decision, and send the signal."""
        task, conflict, decision = self.task, self.conflict, self.decision
        extra = log_fields(
            "publish-conflict",
            task=task.name,
            task_id=conflict.task_id,
            key=conflict.key,
            decision=decision.name,
        )
        what = decision.describe(conflict)
        text = "A call of %s will %s (on_conflict): %s"
        log.log(decision.log_level, text, task.name, what, self.existing, extra=extra)
        publish_deduplicated.send(sender=task, conflict=conflict, decision=decision)

    def skip(self) -> Any:
        result = self.task.AsyncResult(self.existing.holder.task_id)
        result.ignored = self.is_ignored
        return with_conflict(result, self.conflict)

    def fail(self) -> NoReturn:
        existing = self.existing
        raise DuplicateTask(
            f"A call of {self.task.name} was not published (on_conflict: "
            f"{self.decision.name}). {existing}",
            **vars(existing.error()),
        )

    def run(self) -> Any:
        return with_conflict(self.send(), self.conflict)


# -- how long a claim lasts ---------------------------------------------------------


def _seconds_to_wait(task: Task, options: Mapping[str, Any]) -> float:
    """Return the seconds of a claim, which ends when its job expires at the latest."""
    delay = seconds_until(task, options.get("countdown") or options.get("eta")) or 0.0
    expires = seconds_until(task, options.get("expires", task.expires))
    seconds: float = max(0.0, delay) + task.lock_options.claim_seconds
    return seconds if expires is None else max(_LEAST, min(seconds, expires))


def seconds_until(task: Task, when: object) -> float | None:
    """Return the seconds until an instant as Celery takes it: a number is seconds."""
    if when is None or isinstance(when, (int, float)):
        return when
    instant = maybe_make_aware(maybe_iso8601(when), task.app.timezone)
    left: float = (instant - datetime.now(timezone.utc)).total_seconds()
    return left


# -- in a worker --------------------------------------------------------------------


def release_claim(
    app: Celery, header: TaskHeader, task_id: str, task: str, key: str = ""
) -> None:
    """Release the claim that a message carries, if it carries one.

    A project may have replaced the headers. Then it is the claim of ``key``, that of
    the call, for whichever run it was taken.
    """
    if claim := header.claim or key:
        follows = header.follows if header.claim else None
        claims = Claims(runtime_of(app).redlock)
        claims.release(claim, task_id, task, follows=follows)


def end_place_and_claim(
    app: Celery, header: TaskHeader, task_id: str, task: str
) -> None:
    """Leave the backlog and release the claim of a message: its call never begins."""
    if header.place:
        redlock, in_order = runtime_of(app).redlock, bool(header.line)
        leave_backlog(redlock, header.place, task_id, in_order=in_order)
    if is_id(task):
        release_claim(app, header, task_id, task)


def end_entries(
    task: Task, header: TaskHeader, request: Context, args: Any, kwargs: Any
) -> None:
    """End the place, the claim and the candidate of a call that will not come back.

    A call without a key has no claim.

    Raises:
        FingerprintError: Its candidate cannot be found, since it has no key.
    """
    task_id = request.id or ""
    end_place_and_claim(task.app, header, task_id, task.name)
    options = task.lock_options
    looks_for_claim = options.is_claimed and not header.claim
    if not (looks_for_claim or options.registers_successors):
        return
    try:
        key, _ = wanted_by_message(task, args or (), kwargs or {}, request.headers)
    except FingerprintError:
        if options.registers_successors:
            raise
        return
    if looks_for_claim:
        release_claim(task.app, header, task_id, task.name, key)
    if options.registers_successors:
        withdraw(runtime_of(task.app).redlock, key, task.name, task_id)


def _end_entries_of_message(sender: Any, message: Any, **_: object) -> None:
    """End the entries of a message that no task takes: its call will never begin."""
    headers = message.headers or {}
    task_id, task = headers.get("id"), headers.get("task")
    if is_id(task_id):
        header = TaskHeader.read(headers)
        end_place_and_claim(sender.app, header, str(task_id), str(task or ""))


def _when_worker_is_ready(sender: Any, **_: object) -> None:
    """Let a consumer end the entries of a message that it cannot decode, too.

    Celery discards such a message, and sends no signal.
    """
    discard = sender.on_decode_error

    def on_decode_error(message: Any, error: Any) -> None:
        discard(message, error)
        call_safely(_end_entries_of_message, sender, message)

    sender.on_decode_error = on_decode_error


celery_signals.beat_init.connect(_when_beat_begins, weak=False)
celery_signals.worker_ready.connect(_when_worker_is_ready, weak=False)
for _signal in (celery_signals.task_unknown, celery_signals.task_rejected):
    _signal.connect(_end_entries_of_message, weak=False)
