"""One call of a task in a worker: what is known of it, and how one copy of it ends.

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

import copy
import logging
import os
from dataclasses import dataclass
from datetime import datetime, timezone
from logging import DEBUG, INFO
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Ignore, Retry, TaskRevokedError, TimeLimitExceeded
from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_redlock.app.runtime import Runtime, runtime_of
from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.text import check_id
from celery_redlock.errors import (
    ConfigurationError,
    DuplicateTask,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.line.backlog import leave_backlog
from celery_redlock.line.successors import SuccessorRegister
from celery_redlock.options.broker import (
    accepted_countdown,
    broker_errors,
    is_broadcast,
    is_in_memory,
    marks_redeliveries,
    way_back,
)
from celery_redlock.task.header import TaskHeader, extract
from celery_redlock.task.interrupt import Interrupter
from celery_redlock.task.message import as_received
from celery_redlock.task.publishing import release_claim, send_again
from celery_redlock.task.results import can_be_read, has_ended, stored_result

if TYPE_CHECKING:
    from celery_redlock.locks.limits import Limits
    from celery_redlock.options.lock_options import ResolvedOptions

__all__ = ["Call", "Republished"]

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds
_STORED_WITHIN, _LOOK_EVERY = 5.0, 0.05  # seconds after the release of the lock
_COUNT_AGAIN, _LONGEST_COUNT = 5.0, 300.0  # seconds


class Republished(Retry):  # type: ignore[misc]
    """Ends this copy of a call: the next one is published, and RETRY is stored."""


@dataclass(slots=True)
class Call:
    """A call before its body runs.

    Attributes:
        request: Celery's context of this execution.
        id: Celery's id of the call, ``""`` without one.
        key: The name that it locks.
        limits: The limits of the permits that it needs; empty for a plain lock.
        sent: The arguments in its message. A base class of the project can remove some
            of them before the task gets the call.
        is_redelivered: Whether another copy with this task id may run or have run.
        began_at: Instant at which it began to want its lock.
        refused: µs since 1970 when it joined a backlog, in this copy or an earlier
            one; 0 if it was in none.
    """

    task: Any
    request: Any
    id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: str
    limits: Limits
    header: TaskHeader
    is_redelivered: bool
    runtime: Runtime
    options: ResolvedOptions
    began_at: float
    sent: tuple[Any, Any]
    refused: int = 0
    _refusals: int = 0

    @classmethod
    def of(
        cls, task: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """Return the call that the task executes now.

        Its key is computed here, once, before the body can change its arguments.

        Raises:
            ConfigurationError: A setting or an option is wrong.
            FingerprintError: The arguments cannot be reduced to a key.
            ValueError: Nodes cannot store its task id. A worker rejects such a
                message before this.
        """
        runtime, header = runtime_of(task.app), extract(request)
        if request.is_eager and request.id:
            check_id(request.id)
        delivery, given = request.delivery_info or {}, (args, kwargs)
        try:
            _refuse_broadcast(task, delivery.get("exchange") or "")
            received = as_received(task, *given) if request.is_eager else given
            key, limits = task.key_rule.wanted_by(
                *received, headers=request.headers, may_have_more=True
            )
            options = runtime.options(task.name, task.lock_options)
        except BaseException:
            # It will never begin.
            release_claim(runtime, header.claim, request.id, task.name)
            if header.line:
                leave_backlog(
                    runtime.redlock, header.line[0], request.id, in_order=True
                )
            raise
        if options.task.is_claimed and not header.claim:
            header = header._replace(claim=key)  # the project has replaced the headers
        has_order = task.lock_options.registers_successors or options.task.has_backlog
        if has_order and not header.published:
            now = round(SYSTEM_CLOCK.wall() * 1e6)
            header = header._replace(published=now)
        return cls(
            task=task,
            request=request,
            id=request.id or "",
            args=args,
            kwargs=kwargs,
            key=key,
            limits=limits,
            header=header,
            is_redelivered=header.redelivered or bool(delivery.get("redelivered")),
            runtime=runtime,
            options=options,
            began_at=runtime.redlock.clock.monotonic(),
            sent=_arguments_in(request, args, kwargs),
            refused=header.refused,
        )

    @property
    def waited(self) -> float:
        """Seconds for which the call has wanted its lock."""
        return self.runtime.redlock.clock.monotonic() - self.began_at

    @property
    def in_backlog(self) -> float | None:
        """Seconds since it joined a backlog; None if it was in none.

        The clocks of two machines may differ, so it is an estimate.
        """
        if not self.refused:
            return None
        return max(0.0, self.runtime.redlock.clock.wall() - self.refused / 1e6)

    def facts(self) -> dict[str, Any]:
        """Return what each `policies.Situation` of the call has in common."""
        names = {"key": self.key, "task": self.task.name, "task_id": self.id}
        return {**names, "retries": self.request.retries}

    @property
    def follows_its_holder(self) -> bool:
        """Whether it is no copy of a call with its id that has the lock.

        It is a retry, or what a call has replaced itself with, and comes for the first
        time: the holder is the run that has published it. (Some brokers do not say that
        a message comes again.)
        """
        request, app = self.request, self.task.app
        is_next = request.retries or getattr(request, "replaced_task_nesting", 0)
        is_first = not self.is_redelivered and (
            marks_redeliveries(app) or is_in_memory(app)
        )
        return bool(is_next and is_first)

    def note_started(self) -> None:
        """Store STARTED, where the task tracks that.

        Celery would store it before the task is called, over the result of another copy
        that has ended.
        """
        if not self.task.tracks_start or self.request.is_eager:
            return
        if not self.keeps_result():
            return
        meta = {"pid": os.getpid(), "hostname": self.request.hostname}
        try:
            self.task.backend.store_result(
                self.id, meta, states.STARTED, request=self.request
            )
        except Exception:
            # The call can run. Its end is stored, or fails, as Celery does it.
            log.exception("STARTED could not be stored for %s.", self.id)

    def register(self, keep: str) -> SuccessorRegister:
        """Return the successor register of its key, entered for this call."""
        return SuccessorRegister(
            redlock=self.runtime.redlock,
            key=self.key,
            task=self.task.name,
            task_id=self.id,
            published=self.header.published,
            expires=self._expires(),
            keep=keep,
        )

    def preserve_arguments(self) -> None:
        """Copy the arguments, which may be republished after the body."""
        if not self.request.is_eager:
            own = self.args, self.kwargs, self.sent
            self.args, self.kwargs, self.sent = copy.deepcopy(own)

    # -- skip, drop ------------------------------------------------------------

    def skip(self, error: Exception, **facts: Any) -> Ignore:
        """Store the result of a call that does not run: REVOKED, with the error in it.

        Args:
            error: The reason, which ``result.get()`` raises.
            **facts: Further fields of the event ``task-revoked``.

        Returns:
            The exception to raise: after it Celery leaves the result alone.
        """
        if self.request.is_eager:
            return Ignore(str(error))
        self.task.backend.mark_as_failure(
            self.id,
            error,
            request=self.request,
            store_result=self._stores_errors(),
            call_errbacks=False,
            state=states.REVOKED,
        )
        # Only here, in a worker, is Celery's own request class a cheap import.
        from celery_redlock.task.request import Skipped  # noqa: PLC0415

        return Skipped(str(error), facts)

    def drop_if_finished(self) -> None:
        """End this copy if another copy with the same id has finished.

        While another process may send the body of its chord, the copy comes back later:
        if that process was killed, the copy sends it. A copy that comes back does not
        run.
        """
        if not (self.header.ended or self._has_finished()):
            return
        if self.header.again and not (self.header.ended or self.is_redelivered):
            return
        while left := self._try_to_count():
            reason = RedlockError("it has ended, and its chord may not know it yet")
            header = {"redelivered": True, "ended": True}
            deferred = self.header.deferred + 1
            self.republish(reason, left, Interrupter(), deferred=deferred, **header)
        extra = self.log_fields("copy-dropped")
        if self.header.line:
            leave_backlog(self.runtime.redlock, self.key, self.id, in_order=True)
        log.info(
            "%s has finished already; this copy of it is dropped.", self, extra=extra
        )
        raise Ignore(f"{self} has finished already")

    def drop_if_outdated(self) -> None:
        """End a copy that has nothing left to do: no other copy runs, says the lock."""
        self.drop_if_finished()
        expires = self._expires()
        if expires and datetime.now(timezone.utc).timestamp() > expires:
            log.info("%s has expired.", self, extra=self.log_fields("expired"))
            raise self.skip(TaskRevokedError("expired"), expired=True)

    def wait_for_result(self) -> None:
        """Wait until the other copy, which had the lock before, has stored its result.

        Celery stores a result after the lock is released. If the other copy was killed,
        there is none, and this call returns after some seconds. A lock of this copy
        that is not renewed has at least half of its time left then.
        """
        if not (self.keeps_result() and can_be_read(self.task)):
            return
        awaited = states.READY_STATES
        if self.request.retries:  # its parent has ended with RETRY
            awaited |= {states.RETRY}
        clock, patience = self.runtime.redlock.clock, _STORED_WITHIN
        if not self.options.task.renew:
            patience = min(patience, self.options.ttl / 2)
        give_up_at = clock.monotonic() + patience
        while stored_result(self.task, self.id).get("status") not in awaited:
            if clock.monotonic() > give_up_at:
                return
            clock.sleep(_LOOK_EVERY)

    def has_ended(self, task_id: str) -> bool:
        """Tell whether a stored result says that another call of the task has ended.

        Where this call keeps no result, or it cannot be read, the answer is no.
        """
        return self.keeps_result() and has_ended(self.task, task_id)

    def _has_finished(self) -> bool:
        """Tell whether a stored result says that this task id has finished.

        If the answer is no by mistake, the call runs again, after the other copy, as
        it would without this package.
        """
        if not self.keeps_result():
            return False
        task, meta = self.task, stored_result(self.task, self.id)
        if isinstance(meta.get("result"), TimeLimitExceeded) and task.acks_late:
            # Celery stores FAILURE and, where told so, redelivers the message as well.
            usual = task.acks_on_failure_or_timeout
            return bool(getattr(task, "acks_on_timeout", usual))
        once = self.options.exactly_once
        if once is not None and meta.get("status") == states.FAILURE:
            from celery_redlock.effects.call_records import has_succeeded  # noqa: PLC0415

            return not has_succeeded(self, once)
        return meta.get("status") in states.READY_STATES

    def keeps_result(self) -> bool:
        """Tell whether the result is stored: the call can override the task."""
        ignored = vars(self.request).get("ignore_result")
        return not (self.task.ignore_result if ignored is None else ignored)

    def _stores_errors(self) -> bool:
        return self.keeps_result() or self.task.store_errors_even_if_ignored

    def _try_to_count(self) -> float:
        """Count a call that has ended in its chord.

        Returns:
            Seconds after which it must be counted once more; 0 if that is not needed.
        """
        try:
            return self._count_in_chord()
        except Exception:
            # Each backend has errors of its own, and none may be the result of a call
            # that has one already.
            log.exception("%s could not be counted in its chord.", self)
            return jittered(doubled(_COUNT_AGAIN, self.header.deferred, _LONGEST_COUNT))

    def _count_in_chord(self) -> float:
        """Count a call that has ended in its chord, in case that was not done.

        Celery stores a result first and counts it afterwards. A process can be killed
        between the two steps. And a revocation stores REVOKED at once, but leaves it to
        the worker that discards the call to count it: a worker that was started since
        discards nothing. Then the chord would wait for ever. The Redis backend counts
        a call only once. Other backends do not: there the chord is left alone.

        Returns:
            Seconds for which another process alone may send the body of the chord; 0 if
            none may, or the body was sent.
        """
        backend, group = self.task.backend, self.request.group
        is_member = bool(self.request.chord and group)
        if not is_member or not getattr(backend, "_chord_zset", False):
            return 0.0
        meta = backend.get_task_meta(self.id, cache=False)
        if meta["status"] not in states.READY_STATES:
            return 0.0
        # Since Celery 5.7: the token of that process, and "done" afterwards. It may end
        # between the two looks, and then no process has looked at the chord since.
        claim, done = backend.get_key_for_group(group, ".c"), (b"done", "done")
        before = backend.client.get(claim)
        backend.on_chord_part_return(self.request, meta["status"], meta["result"])
        after = backend.client.get(claim)
        if after in done or (after is None and before in (None, *done)):
            return 0.0
        return float(max(0, backend.client.ttl(claim)) + 1)

    def _expires(self) -> float:
        """Return when the call expires, in seconds since 1970; 0 for never."""
        if not self.request.expires:
            return 0.0
        zone = self.task.app.conf.timezone
        expires = maybe_make_aware(maybe_iso8601(self.request.expires), zone)
        return float(expires.timestamp())

    # -- republish ---------------------------------------------------------------

    def republish(
        self,
        reason: RedlockError,
        countdown: float,
        interrupter: Interrupter,
        **header: Any,
    ) -> None:
        """Publish the call again and end this copy of it.

        The next copy has the same id, the same retries and the same place in a canvas.

        Args:
            reason: Why it cannot run now. A task that runs eagerly has no queue and
                ends with this error.
            countdown: Seconds until it may run.
            interrupter: Lets time limits in during a pause.
            **header: Fields of the header that change.

        Raises:
            Republished: It was published; the result is RETRY.
            celery.exceptions.Ignore: It was published; the result is left alone,
                since another copy of the call may own it.
            Exception: It cannot be published, and the broker is not the reason: for
                example a router or a receiver of a signal failed. The call ends in
                this error, because it would come again.

        Returns:
            The broker did not accept it. The call has paused, longer each time: try
            the lock, or this method, again.
        """
        if self.request.is_eager:
            raise reason
        fields = {"redelivered": self.is_redelivered, "met_copy": False, **header}
        changes = {"refused": self.refused, "waits": (), **fields}
        fresh = self.header._replace(base=None, **changes)
        if not fresh.redelivered:
            if self.header.deferred:
                self.drop_if_finished()
            elif self._has_finished():  # its id was used before
                fresh = fresh._replace(again=True)
            self._note_retry(reason)
        app = self.task.app
        countdown = accepted_countdown(app, countdown)
        try:
            self._publish(countdown, fresh)
        except broker_errors(app) as error:
            self._pause_after(error, interrupter)
            return
        except Exception:
            extra = self.log_fields("republish-failed")
            text = "%s cannot be republished, and fails: the broker is not the reason."
            log.exception(text, self, extra=extra)
            raise
        # An outage is logged as a whole (`OutageLog`), and a duplicate was announced.
        is_known = isinstance(reason, (QuorumUnreachable, DuplicateTask))
        level = DEBUG if is_known else INFO
        text = "%s is republished, to run after %.1f s: %s"
        extra = self.log_fields("republished", countdown=countdown)
        log.log(level, text, self, countdown, reason, extra=extra)
        if fresh.redelivered:
            raise Ignore(f"{self} is republished, to run after {countdown:.1f} s")
        # RETRY is stored, and may be outdated by now: Celery must not store it again.
        # `RefusalInfo` sees to it, and this line where the tracer is not Celery's.
        self.request.ignore_result = True
        text = f"Retry in {countdown:.1f} s: {type(reason).__name__}"  # Celery logs it
        raise Republished(text, exc=reason, when=countdown)

    def _note_retry(self, error: Exception) -> None:
        """Store RETRY before the call is published again; Celery stores it afterwards.

        A process can be paused between the two steps. The next copy may have ended by
        then, and RETRY would overwrite its result for ever.
        """
        if not self._stores_errors():
            return
        try:
            self.task.backend.mark_as_retry(self.id, error, request=self.request)
        except Exception:
            # The call must return to its queue, also when its state is not known.
            log.exception("RETRY could not be stored for %s.", self.id)

    def _publish(self, countdown: float, header: TaskHeader) -> None:
        """Publish the next copy, with this header."""
        args, kwargs = self.sent
        signature = self.task.signature_from_request(
            self.request, args, kwargs, countdown=countdown
        )
        options = signature.options
        options["headers"] = (options.get("headers") or {}) | header.for_next_copy()
        options |= way_back(self.task.app, self.request.delivery_info or {})
        if header.serializer:
            options["serializer"] = header.serializer
        if compression := vars(self.request).get("compression"):
            options["compression"] = compression
        # As they are shown: the publisher may have masked a secret in them.
        shown = vars(self.request)
        options |= {n: shown[n] for n in ("argsrepr", "kwargsrepr") if shown.get(n)}
        if header.redelivered:  # its expiry would end the result of the copy that runs
            options["expires"] = None
        send_again(self.task, args, kwargs, self.key, **options, add_to_parent=False)

    def _pause_after(self, error: BaseException, interrupter: Interrupter) -> None:
        pause = jittered(doubled(_FIRST_PAUSE, self._refusals, _LONGEST_PAUSE))
        self._refusals += 1
        log.warning(
            "%s could not be republished (%s: %s). It keeps its worker process and "
            "tries again in %.1f s.",
            self,
            type(error).__name__,
            error,
            pause,
            extra=self.log_fields("republish-failed"),
        )
        interrupter.time_limited(lambda: SYSTEM_CLOCK.sleep(pause))

    def log_fields(self, event: str, **facts: object) -> dict[str, object]:
        """Return the fields of a log line about this call."""
        return log_fields(
            event, task=self.task.name, task_id=self.id, key=self.key, **facts
        )

    def __str__(self) -> str:
        return f"{self.task.name}[{self.id}]"


def _arguments_in(request: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments of the message of a request; by default these."""
    sent_args = args if request.args is None else request.args
    return sent_args, kwargs if request.kwargs is None else request.kwargs


def _refuse_broadcast(task: Any, exchange: str) -> None:
    """Refuse a call of which each worker gets a copy.

    Raises:
        ConfigurationError: The call came from a fanout exchange.
    """
    if exchange and is_broadcast(task.app, exchange):
        raise ConfigurationError(
            f"{task.name} came from the Broadcast (fanout) exchange {exchange!r}, and "
            "did not run: each worker has a copy of this call, with the same id and "
            "key, and a lock would let one of them run. Publish it to a queue, or make "
            "it a plain task."
        )
