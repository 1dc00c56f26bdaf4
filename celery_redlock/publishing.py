"""Send a call, unless it is a duplicate; look after its claim while it waits.

The protocol is in ``claims``. Here is who takes part in it, and when:

===============================  =================================================
a call                           its claim
===============================  =================================================
``delay``, ``apply_async``,      is taken before it is sent, and decides with
also with countdown or eta       ``on_conflict`` whether it is
``self.retry()``, or put back    is taken again if it is free; it is sent anyway
in a group, chord, chain, with   none: it is sent, and is deduplicated when it is
links, with an id of its own     to run. Its id has been given to somebody who
                                 would wait for another one in vain
by name, by others               none: they do not ask us
given back by the broker         none, after a crash: it may wait beside another
===============================  =================================================

It is given back when the body begins (its lock is there by then), and when it never
will: sending failed, it was revoked or has expired, or ``on_conflict`` ended it.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Retry
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.uuid import uuid

from celery_redlock.claims import Claims, JobHere
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import Holder
from celery_redlock.errors import DuplicateTask, LockUnavailable
from celery_redlock.logs import about
from celery_redlock.policies import Conflict, Raise, Run, Skip
from celery_redlock.runtime import runtime_of
from celery_redlock.signals import publish_claimed, publish_deduplicated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_redlock.options import ResolvedOptions
    from celery_redlock.policies import PublishDecision

__all__ = ["Claim", "claimed_until_it_begins", "cool_down", "cooling", "publish"]

log = logging.getLogger("celery_redlock.publishing")

_OF_A_CANVAS = (
    *("task_id", "link", "link_error", "retries", "group_id", "chord", "chain"),
    *("parent_id", "root_id"),
)
_LEAST = 1.0  # seconds of a claim, however soon its job expires
_WORDS = {Skip: "is not published", Raise: "is refused", Run: "is published"}


class Claim:
    """The claim of a job that has been sent.

    Attributes:
        key: The call.
        task_id: The job.
    """

    def __init__(self, claims: Claims, key: str, task_id: str) -> None:
        self._claims = claims
        self.key = key
        self.task_id = task_id

    def free(self) -> None:
        """Give it back: from now on another job of the call is no duplicate."""
        self._claims.free(self.key, self.task_id)

    def __repr__(self) -> str:
        return f"<Claim {self.key!r} of {self.task_id}>"


def publish(  # noqa: PLR0913  (called in one place)
    task: Any,
    key: str,
    arguments: tuple[Any, Any],
    options: Mapping[str, Any],
    send: Callable[..., Any],
    *,
    can_raise: bool = True,
) -> Any:
    """Send a call of a task that is unique also before it runs.

    Args:
        task: The task.
        key: What the call is reduced to.
        arguments: Its ``args`` and ``kwargs``.
        options: What else ``apply_async`` was given, by name.
        send: Sends it, given the options.
        can_raise: Whether a duplicate may be told by an error; else it is skipped.

    Returns:
        The result of what was sent, or of the job that is here already. Its
        ``conflict`` is the ``policies.Conflict`` in the second case, else None.

    Raises:
        DuplicateTask: There is one, and ``on_conflict`` says so. Nothing was sent.
        Exception: What ``send`` raises. Nothing is claimed.
    """
    if task.app.conf.task_always_eager:
        return send(**options)
    runtime = runtime_of(task.app)
    resolved = runtime.options(task.name, task.lock_options)
    claims = Claims(runtime.redlock)
    seconds = _seconds_to_wait(task, options, resolved.claim_ttl)
    if any(options.get(name) for name in _OF_A_CANVAS):
        if resolved.is_claimed and _goes_back(task, options):
            claims.retake(key, _job(task, options["task_id"]), seconds)
        return send(**options)
    job = _job(task, uuid())
    here, is_taken = _look_or_take(claims, key, job, resolved)
    conflict = None
    if here is not None:
        conflict = _conflict(task, job.task_id, arguments, here)
        decision = _decide(task, conflict, here, resolved, can_raise=can_raise)
        if isinstance(decision, Skip):
            result = task.AsyncResult(here.holder.task_id)
            result.conflict = conflict
            return result
    with _given_back_on_error(claims, key, job, is_taken=is_taken):
        result = send(**{**options, "task_id": job.task_id})
    if is_taken:
        claims.keep(key, job.task_id, seconds)
        publish_claimed.send(sender=task, claim=Claim(claims, key, job.task_id))
    result.conflict = conflict
    return result


@contextmanager
def _given_back_on_error(
    claims: Claims, key: str, job: Holder, *, is_taken: bool
) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if is_taken:
            claims.free(key, job.task_id)
        raise


def _look_or_take(
    claims: Claims, key: str, job: Holder, options: ResolvedOptions
) -> tuple[JobHere | None, bool]:
    """Return the job that is here already, and whether the call was claimed."""
    if not options.is_claimed:
        return claims.cooling(key, job.task_id), False
    try:
        here = claims.take(
            key,
            job,
            at_lock=options.unique_while == "queued_or_running",
            at_cooldown=options.unique_for > 0,
        )
    except LockUnavailable as error:
        # It is not for a claim to stop a job.
        log.warning(
            "%s[%s] is published without a claim: %s", job.task, job.task_id, error
        )
        return None, False
    return here, here is None


def _job(task: Any, task_id: str) -> Holder:
    now = SYSTEM_CLOCK.wall_us() / 1e6
    return Holder.here(task=task.name, task_id=task_id, started=now)


def _goes_back(task: Any, options: Mapping[str, Any]) -> bool:
    """Tell whether this is the call that the task is just executing."""
    request = task.request
    return bool(options.get("task_id")) and request.id == options["task_id"]


# -- what is said of a duplicate ----------------------------------------------------


def _conflict(
    task: Any, task_id: str, arguments: tuple[Any, Any], here: JobHere
) -> Conflict:
    args, kwargs = arguments
    return Conflict(
        key=here.key,
        task=task.name,
        task_id=task_id,
        args=tuple(args or ()),
        kwargs=dict(kwargs or {}),
        holder=here.holder,
        retry_after=here.left,
        stage="publish",
        phase=here.phase,
    )


def _decide(
    task: Any,
    conflict: Conflict,
    here: JobHere,
    options: ResolvedOptions,
    *,
    can_raise: bool,
) -> PublishDecision:
    """Ask ``on_conflict``, tell everybody, and raise if that is the answer."""
    decision = options.on_publish(conflict)
    if isinstance(decision, Raise) and not can_raise:
        decision = Skip()
    level = logging.WARNING if isinstance(decision, Run) else logging.INFO
    what = _WORDS[type(decision)]
    log.log(
        level,
        "A call of %s %s (on_conflict): %s",
        task.name,
        what,
        here,
        extra=about(
            "publish-conflict",
            task=task.name,
            task_id=conflict.task_id,
            key=conflict.key,
            decision=type(decision).__name__.lower(),
        ),
    )
    publish_deduplicated.send(sender=task, conflict=conflict, decision=decision)
    if isinstance(decision, Raise):
        raise DuplicateTask(
            f"A call of {task.name} was not published (on_conflict: raise). {here}",
            key=here.key,
            ballot=here.ballot,
            holder=here.holder,
            retry_after=here.left,
        )
    return decision


# -- how long a claim lasts ---------------------------------------------------------


def _seconds_to_wait(task: Any, options: Mapping[str, Any], claim_ttl: float) -> float:
    """Return for how long a job may wait: it is not claimed after it has expired."""
    delay = _seconds_until(task, options.get("countdown") or options.get("eta")) or 0.0
    expires = _seconds_until(task, options.get("expires", task.expires))
    seconds = max(0.0, delay) + claim_ttl
    return seconds if expires is None else max(_LEAST, min(seconds, expires))


def _seconds_until(task: Any, when: Any) -> float | None:
    """Return the seconds until what Celery takes for an instant: a number is that."""
    if when is None or isinstance(when, (int, float)):
        return when
    instant = maybe_make_aware(maybe_iso8601(when), task.app.timezone)
    left: float = (instant - datetime.now(timezone.utc)).total_seconds()
    return left


# -- in a worker --------------------------------------------------------------------


@contextmanager
def claimed_until_it_begins(call: Any) -> Iterator[None]:
    """Give back the claim of a call that begins in this block, or ends in it.

    One that was put back, or of which another copy runs, keeps it.
    """
    try:
        yield
    except Retry:
        raise
    except Ignore as ignored:
        if type(ignored) is not Ignore:  # it was skipped, and has its result
            _give_back(call)
        raise
    except BaseException:
        _give_back(call)
        raise
    _give_back(call)


def _give_back(call: Any) -> None:
    if call.options.is_claimed and not call.request.is_eager:
        Claims(call.runtime.redlock).free(call.key, call.id)
        call.runtime.watchdog.look_after_debts()


def cooling(call: Any) -> JobHere | None:
    """Return the job whose success keeps this call from running, if there is one."""
    if not call.options.unique_for:
        return None
    return Claims(call.runtime.redlock).cooling(call.key, call.id)


def cool_down(call: Any) -> None:
    """Begin the cool-down after a call that has succeeded and still has its lock."""
    seconds = call.options.unique_for
    if seconds:
        job = _job(call.task, call.id)
        Claims(call.runtime.redlock).cool_down(call.key, job, seconds)
