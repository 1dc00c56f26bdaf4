"""One execution of a call: take the lock, run the body, release the lock.

::

    admission ──► body ──► release ──► result
                   │ lock lost
                   ▼
              on_lock_lost
                   ├─ abort: LockLost interrupts the body until it ends ─► FAILURE
                   ├─ retry: the same, then the call is republished ─────► RETRY
                   └─ warn:  the body runs on ───────────────────────────► its result

A body that raises an error of its own after the loss ends in that error. A body
that retries itself keeps the lock until Celery has stored RETRY. Otherwise Celery
could overwrite the result of the retry, which may run already.

When a newer call wants the lock (``cancel_running``), LockCancelled interrupts the
body in the same way. The body keeps its lock until it has ended, and the call ends
as REVOKED. If the body tidies up and returns a value, that is its result: it held
the lock to its end.

Interrupts and, in a pool's process, soft time limits reach only the body; see
``interrupt``.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from celery import signals as celery_signals
from celery import states
from celery.exceptions import Ignore, Reject
from celery.exceptions import Retry as RetriesItself

from celery_redlock import signals
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import LockCancelled, LockLost
from celery_redlock.line.backlog import note_run
from celery_redlock.locking import Hold
from celery_redlock.locks.lease import Holder, Lease
from celery_redlock.locks.limits import with_copies
from celery_redlock.policies import Abort, CancelRunning, Loss, LossDecision
from celery_redlock.scripts.keys import shown
from celery_redlock.task.admission import Admission
from celery_redlock.task.awaitables import PLAIN, is_lazy, refuse_awaitable
from celery_redlock.task.ends import Pauses, drop_if_finished, republish, skip
from celery_redlock.task.interrupt import interrupter
from celery_redlock.task.publishing import claimed_until_it_begins, cool_down

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.utils.dispatch import Signal

    from celery_redlock.app.runtime import Runtime
    from celery_redlock.locks.limits import Limits
    from celery_redlock.options.lock_options import ResolvedOptions
    from celery_redlock.task.call import Call

__all__ = ["Execution", "TaskLock", "running"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_INTERRUPT_EVERY = 5.0  # seconds in which a body may tidy up before the next interrupt
_LOOK_EVERY = 0.05  # seconds, where no body can be interrupted yet

_running: contextvars.ContextVar[Execution | None] = contextvars.ContextVar(
    "celery_redlock_running", default=None
)
_retried: contextvars.ContextVar[Execution | None] = contextvars.ContextVar(
    "celery_redlock_retried", default=None
)


def running() -> Execution | None:
    """Return the innermost execution around this code, or None.

    Threads and asyncio tasks copy the context, and may outlive it.
    """
    execution = _running.get()
    return None if execution is None or execution.has_ended else execution


class TaskLock(Hold):
    """The lock of a task, with the task's options; sends the signals of its lifetime.

    Args:
        task_id: The execution; ``""`` outside of a task.
        base: First part of the token.
        since: Instant at which the call began to want the lock; now by default.
        published: Microseconds since 1970 when the call was published; 0: not known.
        limits: The limits of the permits that the call needs; empty for a plain lock.
    """

    def __init__(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        task: Any,
        key: str,
        *,
        task_id: str,
        runtime: Runtime,
        options: ResolvedOptions,
        base: str | None = None,
        since: float | None = None,
        published: int = 0,
        limits: Limits = (),
    ) -> None:
        super().__init__(
            runtime.redlock,
            key,
            ttl=options.ttl,
            renew=options.task.renew,
            renew_every=options.task.renew_every,
            hold_at_least=options.task.hold_at_least,
            base=base,
            limits=limits,
        )
        self._task = task
        self._task_id = task_id
        self._runtime = runtime
        self._since = self.redlock.clock.monotonic() if since is None else since
        self._published = published

    def holder(self) -> Holder:
        """Return what other clients see of the execution."""
        return Holder.here(
            task=self._task.name,
            task_id=self._task_id,
            started=SYSTEM_CLOCK.wall(),
            published=self._published,
        )

    @property
    def in_backlog(self) -> float | None:
        """Seconds in the backlog of the key; None: a lock by itself is in none."""
        return None

    def on_acquired(self, lease: Lease) -> None:
        """Send ``lock_acquired``."""
        if signals.lock_acquired.receivers:
            facts: dict[str, float | None] = {
                "waited": self.redlock.clock.monotonic() - self._since,
                "in_backlog": self.in_backlog,
            }
            self._send(signals.lock_acquired, lease=lease, **facts)

    def on_renewed(self, lease: Lease, lateness: float) -> None:
        """Send ``lock_renewed``."""
        self._dispatch(signals.lock_renewed, lease=lease, lateness=lateness)

    def on_lost(self, lease: Lease) -> None:
        """Send ``lock_lost``."""
        self._tell_of_operator(lease)
        self._dispatch(signals.lock_lost, lease=lease, decision=None)

    def on_cancelled(self, lease: Lease) -> None:
        """Send ``lock_cancelled``."""
        by = lease.cancelled_by
        self._dispatch(signals.lock_cancelled, lease=lease, cancelled_by=by)

    def on_released(self, lease: Lease) -> None:
        """Send ``lock_released``."""
        if signals.lock_released.receivers:
            self._send(signals.lock_released, lease=lease)

    def _tell_of_operator(self, lease: Lease) -> None:
        """Send ``lock_force_released``, if an operator released the lock."""
        if by := lease.released_by:
            self._dispatch(signals.lock_force_released, lease=lease, released_by=by)

    def _send(self, signal: Signal, **facts: Any) -> None:
        signal.send(sender=self._task, task_id=self._task_id, **facts)

    def _dispatch(self, signal: Signal, **facts: Any) -> None:
        """Send a signal from the thread that is for receivers."""
        self._runtime.dispatcher.dispatch(
            signal=signal, sender=self._task, task_id=self._task_id, **facts
        )


class Execution(TaskLock):
    """Runs the body of one call under its lock.

    Attributes:
        lease: The lease under which the body runs; None: without the lock.
        is_admitted: Whether the call was let in, and its body has been called.
        has_ended: Whether the body has ended.
    """

    def __init__(self, call: Call) -> None:
        header = call.header
        super().__init__(
            call.task,
            call.key,
            task_id=call.id,
            runtime=call.runtime,
            options=call.options,
            base=header.base,
            since=call.began_at,
            published=header.published,
            limits=call.limits and with_copies(call.limits, call.id),
        )
        self.call = call
        self.lease: Lease | None = None
        self.is_admitted = False
        self._interrupter = interrupter(within_task=bool(call.request.is_eager))
        self._deciding = threading.Lock()
        self._decision: LossDecision | None = None
        self._is_lost = False
        self.has_ended = False
        self._is_kept = False  # until Celery has stored RETRY
        self._admission = Admission(call, self.acquire, self.release, self._interrupter)

    @property
    def in_backlog(self) -> float | None:
        """Seconds since the call joined the backlog of its key; None: it did not."""
        return self._admission.in_backlog

    def is_of(self, task: Any, request: Any) -> bool:
        """Tell whether this is the execution of that request."""
        return self.call.task is task and bool(self.call.id == request.id)

    def run(self, body: Callable[[], _T]) -> _T:
        """Return what the body returns.

        Raises:
            celery.exceptions.Ignore, celery.exceptions.Retry: This copy of the call
                has ended without a result of its own; see ``admission``.
            LockLost: The lock was lost while the body ran.
            Exception: What the body raised.
        """
        before = _running.set(self)
        try:
            with self._interrupter:
                return self._run(body)
        finally:
            self.has_ended = True
            # An outage has a line of its own.
            if not self.is_admitted and not self._runtime.outage_log.is_on:
                self._runtime.refusal_log.refused(self.call, self.call.waited)
            _running.reset(before)

    def _run(self, body: Callable[[], _T]) -> _T:
        returned: list[_T] = []
        try:
            try:
                self.lease = self._admit()
                self.is_admitted = True
                if not self._runtime.refusal_log.is_idle:
                    self._runtime.refusal_log.ran()
                returned.append(self._run_admitted(body))
                if self.call.options.exactly_once is None:
                    self.check()
            finally:
                if not self._is_kept:
                    try:
                        self.release()
                    except BaseException:  # an interrupt may have come before it began
                        self.release()
                        raise
        except LockLost as error:
            return self._after_loss(error, returned)
        except Reject as rejected:
            # ``self.retry()`` turns any error that interrupts its publishing into one.
            if isinstance(rejected.reason, LockLost):
                return self._after_loss(rejected.reason, returned)
            raise
        return returned[0]

    def _run_admitted(self, body: Callable[[], _T]) -> _T:
        call, lease = self.call, self.lease
        if lease is not None:
            lease.ensure()
            if call.options.task.needs_arguments:
                self.call = call.with_own_arguments()
            lease.begin()
        self._note_started()
        try:
            returned = self._run_body(body)
        except RetriesItself:
            if not call.request.is_eager:
                _retried.set(self)
                self._is_kept = True
            raise
        finally:
            self.has_ended = True
        if call.options.task.unique_for:
            cool_down(call)
        return returned

    def _note_started(self) -> None:
        """Store STARTED, where the task tracks that.

        Celery would store it before the task is called, over the result of another copy
        that has ended.
        """
        call = self.call
        if not call.task.tracks_start or call.request.is_eager:
            return
        if not call.keeps_result():
            return
        meta = {"pid": os.getpid(), "hostname": call.request.hostname}
        try:
            call.task.backend.store_result(
                call.id, meta, states.STARTED, request=call.request
            )
        except Exception:
            # The call can run. Its end is stored, or fails, as Celery does it.
            log.exception("STARTED could not be stored for %s.", call.id)

    def drop_if_finished(self) -> None:
        """End this copy if another copy with the same id has finished."""
        drop_if_finished(self.call)

    def _run_body(self, body: Callable[[], _T]) -> _T:
        """Run the body; with ``exactly_once_in``, in a transaction with its record."""
        once = self.call.options.exactly_once
        if once is None:
            return self._work_of(body)
        from celery_redlock.effects.exactly_once import run_once  # noqa: PLC0415

        returned: _T = run_once(self, once, functools.partial(self._work_of, body))
        return returned

    def _work_of(self, body: Callable[[], _T]) -> _T:
        """Return what the body returns; interrupts reach it.

        Raises:
            ConfigurationError: The body has returned a coroutine or a generator.
        """
        returned = self._interrupter.interruptible(body)
        if not isinstance(returned, PLAIN) and is_lazy(returned):
            refuse_awaitable(self.call.task.name, returned)
        return returned

    def check_or_go_on(self) -> None:
        """Raise if the lock was lost, unless ``on_lock_lost`` lets the body run on."""
        try:
            self.check()
        except LockLost:
            if self.lease is None or not self._decide(self.lease).goes_on:
                raise

    def _admit(self) -> Lease | None:
        if not self.call.header.claim:
            return self._admission.enter()
        with claimed_until_it_begins(self.call):
            return self._admission.enter()

    def on_released(self, lease: Lease) -> None:
        """Send ``lock_released``, and note how long the run took."""
        super().on_released(lease)
        if self.call.options.task.has_backlog:
            note_run(self.redlock, self.call.key, lease.age())

    # -- in the background: stop the body --------------------------------------

    def on_lost(self, lease: Lease) -> None:
        """Let ``on_lock_lost`` decide about the body, unless there is none yet."""
        self._tell_of_operator(lease)
        if self.lease is None:
            return  # the admission looks at the lease, and `_run_admitted` once more
        self._is_lost = True
        self._in_background(self._stop_body, lease)

    def on_cancelled(self, lease: Lease) -> None:
        """Interrupt the body until it has ended."""
        self._in_background(self._cancel_body, lease)

    def _in_background(self, do: Callable[[Lease], None], lease: Lease) -> None:
        name = f"redlock-stop-{self.call.id}"
        threading.Thread(target=do, args=(lease,), name=name, daemon=True).start()

    def _stop_body(self, lease: Lease) -> None:
        if not self._decide(lease).goes_on:
            self._interrupt(lease.lost_error(), every=_INTERRUPT_EVERY)

    def _cancel_body(self, lease: Lease) -> None:
        error, by = lease.cancelled_error(), lease.cancelled_by
        fields = self.call.log_fields("cancelled", fence=lease.fence, by=by)
        log.warning("%s is stopped: %s", self.call, error, extra=fields)
        self._dispatch(signals.lock_cancelled, lease=lease, cancelled_by=by)
        self._interrupt(error, every=self.call.options.task.grace_of_cancelled)

    def _interrupt(self, error: LockLost, *, every: float) -> None:
        while not self.has_ended:
            has_body = self._interrupter.interrupt(error)
            SYSTEM_CLOCK.sleep(every if has_body else _LOOK_EVERY)

    def _decide(self, lease: Lease) -> LossDecision:
        """Ask ``on_lock_lost`` once; log the decision and send ``lock_lost``."""
        with self._deciding:
            if self._decision is None:
                call = self.call
                loss = Loss(**call.facts(), fence=lease.fence, ran=lease.age())
                decision = self._decision = self._ask(loss)
                fence, name = lease.fence, decision.name
                extra = call.log_fields("loss", fence=fence, decision=name)
                text = "%s lost its lock and will %s (on_lock_lost)."
                log.warning(text, call, decision.describe(loss), extra=extra)
                self._dispatch(signals.lock_lost, lease=lease, decision=decision)
                if call.header.events:
                    self._in_background(self._send_event, lease)
        return self._decision

    def _send_event(self, lease: Lease) -> None:
        """Send the event ``task-lock-lost``. The broker may take a while."""
        call, decision = self.call, self._decision
        facts = {"key": call.key, "fence": lease.fence}
        facts |= {"decision": decision.name if decision else ""}
        facts |= {"released_by": lease.released_by}
        # Not `Task.send_event`, which asks for the request of this thread.
        events, host = call.task.app.events, call.request.hostname
        try:
            with events.default_dispatcher(hostname=host) as dispatcher:
                dispatcher.send("task-lock-lost", uuid=call.id, retry=False, **facts)
        except Exception:
            log.exception("The event task-lock-lost of %s could not be sent.", call)

    def _ask(self, loss: Loss) -> LossDecision:
        try:
            return self.call.options.on_lock_lost(loss)
        except Exception:
            log.exception("%s: on_lock_lost failed; the body is stopped.", self.call)
            return Abort()

    # -- after the body --------------------------------------------------------

    def _after_loss(self, error: LockLost, returned: list[_T]) -> _T:
        lease = self.lease
        if lease is not None and _is_cancellation(error, lease):
            raise self._cancelled(lease) from None
        if lease is not None and self._is_lost and error.key is None:
            # An asynchronous exception has neither a text nor a key.
            error = lease.lost_error().with_traceback(error.__traceback__)
        if lease is None or error.key != lease.key:
            raise error  # about a lock that the body took itself, or one around it
        result: _T = self._decide(lease).perform(_LostCall(self, error, returned))
        return result

    def _cancelled(self, lease: Lease) -> Ignore:
        """Store the result of a call whose body was cancelled."""
        call, by = self.call, lease.cancelled_by
        log.info("%s has ended, cancelled by %s.", call, by)
        facts = {"key": call.key, "policy": CancelRunning.name, "cancelled_by": by}
        return skip(call, lease.cancelled_error(), **facts)

    def republish(self, reason: LockLost, countdown: float) -> None:
        """Publish the call again; see ``ends.republish``."""
        since = self._admission.refused
        republish(self.call, reason, countdown, self._pauses, refused=since)

    @functools.cached_property
    def _pauses(self) -> Pauses:
        return Pauses(self._interrupter)

    def release_kept(self) -> None:
        """Release the lock that was kept until RETRY is stored. Twice is harmless."""
        with self._interrupter:
            self.release()

    def release_left(self) -> None:
        """Release the lock if an interrupt at a bad moment left it held."""
        if lease := self.own:
            fields = self.call.log_fields("lock-left", fence=lease.fence)
            text = "%s ended and left its lock %s; it is released now."
            log.error(text, self.call, shown(lease.key), extra=fields)
            self.release()


@dataclass(frozen=True)
class _LostCall(Generic[_T]):
    """A call whose body has ended after the loss of its lock: a `DecidedCall`."""

    execution: Execution
    error: LockLost
    returned: list[_T]

    def run(self) -> _T:
        return self.returned[0] if self.returned else self.fail()

    def fail(self) -> NoReturn:
        raise self.error from None

    def republish(self, countdown: float) -> NoReturn:
        while True:  # as often as the broker refuses it
            self.execution.republish(self.error, countdown)


def _is_cancellation(error: LockLost, lease: Lease) -> bool:
    """Tell whether the body ended in the interrupt that cancelled it."""
    ours = error.key in (None, lease.key)  # an asynchronous exception has no key
    return isinstance(error, LockCancelled) and bool(lease.cancelled_by) and ours


def _renew_now(**_: Any) -> None:
    """Renew the lock of the execution that sends ``lock_heartbeat``."""
    execution = running()
    if execution and execution.lease:
        execution.call.runtime.watchdog.renew_now(execution.lease)


def _when_task_has_ended(task_id: str = "", **_: Any) -> None:
    """Release the lock that was kept for a retry, and one that was left held."""
    retried = _retried.get()
    if retried and retried.call.id == task_id:
        _retried.set(None)
        retried.release_kept()
    execution = _running.get()
    if execution and execution.call.id == task_id:
        _running.set(None)
        execution.release_left()


signals.lock_heartbeat.connect(_renew_now, weak=False)
celery_signals.task_postrun.connect(_when_task_has_ended, weak=False)
