"""One run of a task, from taking the lock to giving it back.

::

    admission ──► body ──► give it back ──► result
                   │ lost
                   ▼
              on_lock_lost
                   ├─ abort: struck with LockLost until it has ended ──► FAILURE
                   ├─ retry: the same, then the call is put back ──────► RETRY
                   └─ warn:  it runs on ───────────────────────────────► its result

A body that ends in an error of its own after the loss ends in that error.

Everything but the body is out of reach of what strikes the body, and of soft
time limits where they come by our hand; see ``interrupt``.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from celery import signals as celery_signals
from celery.exceptions import Reject

from celery_redlock.admission import Admission
from celery_redlock.call import Call, in_seconds
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import LeaseState
from celery_redlock.errors import LockLost
from celery_redlock.interrupt import interrupter
from celery_redlock.policies import Abort, Loss, Retry, Warn
from celery_redlock.signals import lock_heartbeat, lock_lost
from celery_redlock.tasklock import task_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from celery_redlock.core.lease import Lease
    from celery_redlock.policies import LossDecision

__all__ = ["Execution", "running"]

log = logging.getLogger("celery_redlock.execution")

_T = TypeVar("_T")
_STRIKE_EVERY = 5.0  # seconds in which a body may tidy up before it is struck again

_running: contextvars.ContextVar[Execution | None] = contextvars.ContextVar(
    "celery_redlock_running", default=None
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
                self.lease = admission.enter(stack)
                if self.lease is not None:
                    self.lease.ensure()
                    self.call.preserve_arguments()
                try:
                    returned.append(self._interrupter.expose(body))
                finally:
                    self._has_ended = True
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
            on_lost=self._on_lost,
        )

    def _on_lost(self, lease: Lease) -> None:
        self._is_lost = True
        threading.Thread(
            target=self._stop_body,
            args=(lease,),
            name=f"redlock-stop-{self.call.id}",
            daemon=True,
        ).start()

    def _stop_body(self, lease: Lease) -> None:
        if isinstance(self._decide(lease), Warn):
            return
        error = lease.lost_error()
        while not self._has_ended:
            self._interrupter.strike(error)
            SYSTEM_CLOCK.sleep(_STRIKE_EVERY)

    def _decide(self, lease: Lease) -> LossDecision:
        """Ask ``on_lock_lost``, once, and tell everybody."""
        with self._deciding:
            if self._decision is None:
                self._decision = self._ask(lease)
                what = "runs on" if isinstance(self._decision, Warn) else "is stopped"
                log.warning("%s lost its lock and %s (on_lock_lost).", self.call, what)
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

    def abandon(self) -> None:
        """Give back a lock that was left behind. As a rule there is none."""
        lease = self.lease
        if lease is not None and lease.state is LeaseState.HELD:
            log.error("%s ended and left its lock %r; freed.", self.call, lease.key)
            self.call.runtime.watchdog.forget(lease)
            self.call.runtime.redlock.release(lease)


def _renew_now(**_: Any) -> None:
    """Renew the lock of whoever sends ``lock_heartbeat``."""
    execution = running()
    if execution and execution.lease:
        execution.call.runtime.watchdog.renew_now(execution.lease)


def _look_after(task_id: str = "", **_: Any) -> None:
    """Free what an exception that struck in a bad moment may have left locked."""
    execution = running()
    if execution and execution.call.id == task_id:
        _running.set(None)
        execution.abandon()


lock_heartbeat.connect(_renew_now, weak=False)
celery_signals.task_postrun.connect(_look_after, weak=False)
