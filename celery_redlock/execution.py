"""One run of a task, from taking the lock to giving it back.

::

    admission ──► body ──► give it back ──► result
                   │ lost
                   ▼
              on_lock_lost
                   ├─ abort: struck with LockLost until it has ended ──► FAILURE
                   ├─ retry: the same, then the call is put back ──────► RETRY
                   └─ warn:  it runs on ───────────────────────────────► its result

A body that ends in an error of its own after the loss ends in that error. One that
retries itself keeps the lock until Celery has stored RETRY: the retry, which may be
here already, would otherwise have its result overwritten with that.

A body whose lock a newcomer wants (``cancel_running``) is struck in the same way, with
LockCancelled, keeps its lock until it has ended, and ends as REVOKED. One that tidies
up and returns something has its result: it had the lock to its end.

Everything but the body is out of reach of what strikes the body, and of soft
time limits where they come by our hand; see ``interrupt``.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from celery import signals as celery_signals
from celery.exceptions import Reject
from celery.exceptions import Retry as RetriesItself

from celery_redlock import outcome
from celery_redlock.admission import Admission
from celery_redlock.call import Call, in_seconds
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import LeaseState
from celery_redlock.errors import LockCancelled, LockLost
from celery_redlock.interrupt import interrupter
from celery_redlock.policies import Abort, Loss, Retry, Warn
from celery_redlock.publishing import claimed_until_it_begins, cool_down
from celery_redlock.signals import lock_cancelled, lock_heartbeat, lock_lost
from celery_redlock.tasklock import task_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from celery.exceptions import Ignore

    from celery_redlock.core.lease import Lease
    from celery_redlock.policies import LossDecision

__all__ = ["Execution", "running"]

log = logging.getLogger("celery_redlock.execution")

_T = TypeVar("_T")
_STRIKE_EVERY = 5.0  # seconds in which a body may tidy up before it is struck again

_running: contextvars.ContextVar[Execution | None] = contextvars.ContextVar(
    "celery_redlock_running", default=None
)
_retried: contextvars.ContextVar[Execution | None] = contextvars.ContextVar(
    "celery_redlock_retried", default=None
)


def running() -> Execution | None:
    """Return the innermost execution of this thread or greenlet, or None."""
    return _running.get()


class Execution:
    """Runs the body of one call under its lock."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.lease: Lease | None = None
        self._interrupter = interrupter()
        self._deciding = threading.Lock()
        self._decision: LossDecision | None = None
        self._is_lost = False
        self._has_ended = False
        self._kept = ExitStack()  # the lock, from the end of a body that is retried

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
            self._has_ended = True
            _running.reset(before)

    def _run(self, body: Callable[[], _T]) -> _T:
        returned: list[_T] = []
        try:
            with ExitStack() as stack:
                admission = Admission(self.call, self._lock, self._interrupter)
                with claimed_until_it_begins(self.call):
                    self.lease = admission.enter(stack)
                if self.lease is not None:
                    self.lease.ensure()
                    self.call.preserve_arguments()
                try:
                    returned.append(self._interrupter.expose(body))
                except RetriesItself:
                    if not self.call.request.is_eager:
                        _retried.set(self)
                        self._kept = stack.pop_all()
                    raise
                finally:
                    self._has_ended = True
                cool_down(self.call)
        except LockLost as error:
            return self._after_loss(error, returned)
        except Reject as rejected:
            # ``self.retry()`` makes one of whatever strikes while it publishes.
            if isinstance(rejected.reason, LockLost):
                return self._after_loss(rejected.reason, returned)
            raise
        return returned[0]

    # -- loss ---------------------------------------------------------------

    def _lock(self, wait: float) -> AbstractContextManager[Lease]:
        call = self.call
        return task_lock(
            call.task,
            call.key,
            task_id=call.id,
            runtime=call.runtime,
            options=call.options,
            wait=wait,
            base=call.envelope.base,
            since=call.began_at,
            on_lost=self._on_lost,
            on_cancelled=self._on_cancelled,
            published=call.envelope.published,
        )

    def _on_lost(self, lease: Lease) -> None:
        self._is_lost = True
        self._in_background(self._stop_body, lease)

    def _on_cancelled(self, lease: Lease) -> None:
        self._in_background(self._cancel_body, lease)

    def _in_background(self, do: Callable[[Lease], None], lease: Lease) -> None:
        name = f"redlock-stop-{self.call.id}"
        threading.Thread(target=do, args=(lease,), name=name, daemon=True).start()

    def _stop_body(self, lease: Lease) -> None:
        if not isinstance(self._decide(lease), Warn):
            self._strike(lease.lost_error(), every=_STRIKE_EVERY)

    def _cancel_body(self, lease: Lease) -> None:
        error = lease.cancelled_error()
        about = self.call.about("cancelled", fence=lease.fence, by=lease.cancelled_by)
        log.warning("%s is stopped: %s", self.call, error, extra=about)
        self.call.runtime.announcer.announce(
            signal=lock_cancelled,
            sender=self.call.task,
            lease=lease,
            task_id=self.call.id,
            cancelled_by=lease.cancelled_by,
        )
        self._strike(error, every=self.call.options.cancel_grace)

    def _strike(self, error: LockLost, *, every: float) -> None:
        while not self._has_ended:
            self._interrupter.strike(error)
            SYSTEM_CLOCK.sleep(every)

    def _decide(self, lease: Lease) -> LossDecision:
        """Ask ``on_lock_lost``, once, and tell everybody."""
        with self._deciding:
            if self._decision is None:
                self._decision = self._ask(lease)
                what = "runs on" if isinstance(self._decision, Warn) else "is stopped"
                log.warning(
                    "%s lost its lock and %s (on_lock_lost).",
                    self.call,
                    what,
                    extra=self.call.about("loss", fence=lease.fence),
                )
                self.call.runtime.announcer.announce(
                    signal=lock_lost,
                    sender=self.call.task,
                    lease=lease,
                    task_id=self.call.id,
                    decision=self._decision,
                )
        return self._decision

    def _ask(self, lease: Lease) -> LossDecision:
        call = self.call
        loss = Loss(
            key=call.key,
            task=call.task.name,
            task_id=call.id,
            retries=call.request.retries,
            fence=lease.fence,
            ran=lease.age(),
        )
        try:
            return call.options.on_lock_lost(loss)
        except Exception:
            log.exception("%s: on_lock_lost failed; the body is stopped.", call)
            return Abort()

    def _after_loss(self, error: LockLost, returned: list[_T]) -> _T:
        lease = self.lease
        if lease is not None and _is_cancellation(error, lease):
            raise self._cancelled(lease) from None
        if lease is not None and self._is_lost and error.key is None:
            # An asynchronous exception comes bare.
            error = lease.lost_error().with_traceback(error.__traceback__)
        if lease is None or error.key != lease.key:
            raise error  # about a lock that the body took itself, or one around it
        decision = self._decide(lease)
        if isinstance(decision, Warn) and returned:
            return returned[0]
        while isinstance(decision, Retry):
            delay = in_seconds(decision.countdown)
            self.call.put_back(error, delay, self._interrupter)
        raise error from None

    def _cancelled(self, lease: Lease) -> Ignore:
        """Finish the result of a body that has ended because it was told to."""
        call, by = self.call, lease.cancelled_by
        log.info("%s has ended, cancelled by %s.", call, by)
        facts = {"key": call.key, "policy": "cancel_running", "cancelled_by": by}
        return outcome.skip(call.task, call.request, lease.cancelled_error(), **facts)

    def give_back(self) -> None:
        """Give back what was kept until RETRY is stored. Twice is harmless."""
        with self._interrupter, suppress(LockLost):
            self._kept.close()

    def abandon(self) -> None:
        """Give back a lock that was left behind. As a rule there is none."""
        lease = self.lease
        if lease is not None and lease.state is LeaseState.HELD:
            about = self.call.about("lock-left", fence=lease.fence)
            text = "%s ended and left its lock %r; freed."
            log.error(text, self.call, lease.key, extra=about)
            self.call.runtime.watchdog.forget(lease)
            self.call.runtime.redlock.release(lease)


def _is_cancellation(error: LockLost, lease: Lease) -> bool:
    """Tell whether the body ended in what it was told to end with."""
    ours = error.key in (None, lease.key)  # an asynchronous exception comes bare
    return isinstance(error, LockCancelled) and bool(lease.cancelled_by) and ours


def _renew_now(**_: Any) -> None:
    """Renew the lock of whoever sends ``lock_heartbeat``."""
    execution = running()
    if execution and execution.lease:
        execution.call.runtime.watchdog.renew_now(execution.lease)


def _look_after(task_id: str = "", **_: Any) -> None:
    """Free what was kept, and what a strike in a bad moment may have left locked."""
    retried = _retried.get()
    if retried and retried.call.id == task_id:
        _retried.set(None)
        retried.give_back()
    execution = running()
    if execution and execution.call.id == task_id:
        _running.set(None)
        execution.abandon()


lock_heartbeat.connect(_renew_now, weak=False)
celery_signals.task_postrun.connect(_look_after, weak=False)
