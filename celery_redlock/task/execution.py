"""One run of a call: take the lock, run the body, release the lock.

::

    tries ──► runs ──────────────────────────► ended
      │ ▲      │ lock lost                       ▲
      │ └─ it waits in its process               │
      ▼        └► on_lock_lost: abort, retry, warn
    refused: skipped, failed, republished, or a copy that is dropped

What a call that *tries* does next:

==================================  ==========================================
the nodes say                       then
==================================  ==========================================
granted                             the call runs, unless it is a copy of a call
                                    that has ended, or has expired
a majority names another call       it is a duplicate: ``on_conflict``
one has succeeded (``unique_for``)  the same
a majority names this very call     another copy of it runs: this copy is
                                    republished for about 1 s later. The delay
                                    doubles, up to the ttl
a majority names the call that has  it waits 1 s, then is republished in this way
replaced itself with this one
the votes are split                 the same
too few answer                      ``on_backend_error``
==================================  ==========================================

With ``in_order`` a call first asks for its place in the line of its key. One that has
another call before it is refused, as if that call had the lock.

*This very call* is another message with the same task id: a redelivery. The lock is
never a reason to drop such a copy, and the result belongs to the other copy. A retry
that overtook its parent, or a call that replaced itself, is no copy: it waits in the
same way and runs then, and the result of its parent says nothing of it.

To *republish* is to publish the same call again with a delay, and to end this copy of
it. If the broker does not accept the message, this copy keeps its worker process and
tries for the lock again. So the call is not lost as long as either of them succeeds.

What a call that *runs* does when its lock is lost::

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
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from celery import signals as celery_signals
from celery import states
from celery.exceptions import Ignore
from celery.exceptions import Retry as RetriesItself

from celery_redlock import signals
from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.basics.callbacks import log_safely
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.process import start_thread
from celery_redlock.errors import (
    LockCancelled,
    LockHeld,
    LockLost,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.line.backlog import note_run
from celery_redlock.locking import Hold
from celery_redlock.locks.lease import Holder, Lease, family_of, note_body
from celery_redlock.locks.limits import with_copies
from celery_redlock.options.lock_options import takes_lock
from celery_redlock.policies import (
    Abort,
    CancelRunning,
    Loss,
    LossDecision,
    Outage,
)
from celery_redlock.scripts.keys import shown
from celery_redlock.task.awaitables import PLAIN, is_lazy, refuse_awaitable
from celery_redlock.task.decided import (
    DecidedConflict,
    DecidedLoss,
    DecidedOutage,
    send_event,
)
from celery_redlock.task.ends import (
    CopyDropped,
    comes_back,
    drop_if_finished,
    end_as_revoked,
    mark_as_begun,
    revoke_if_expired,
    revoke_if_sent_twice,
    wait_for_result,
)
from celery_redlock.task.header import HEADER, extract
from celery_redlock.task.interrupt import interrupter
from celery_redlock.task.line_entry import LineEntry
from celery_redlock.task.publishing import (
    conflict_with,
    end_entries,
    end_place_and_claim,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task
    from celery.app.task import Context
    from celery.utils.dispatch import Signal

    from celery_redlock.app.runtime import Runtime
    from celery_redlock.line.claims import ExistingJob
    from celery_redlock.locks.limits import Limits
    from celery_redlock.options.lock_options import ResolvedOptions
    from celery_redlock.task.call import Call

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_PATIENCE = 1.0  # seconds to try in this process before a call is republished
_INTERRUPT_EVERY = 5.0  # seconds in which a body may tidy up before the next interrupt
_LOOK_EVERY = 0.05  # seconds, where no body can be interrupted yet
_OVER = (states.SUCCESS, states.IGNORED)

_running: contextvars.ContextVar[Execution | None] = contextvars.ContextVar(
    "celery_redlock_running", default=None
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
        since: Instant at which the call began to want the lock; now by default.
        published: Microseconds since 1970 when the call was published; 0: not known.
    """

    def __init__(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        task: Task,
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


class State(Enum):
    """The state of an execution. Only the thread that runs the call changes it."""

    TRIES = "it tries for its lock, or waits for it"
    REFUSED = "it has ended, and its body was not called"
    RUNS = "its body runs, with the lock or, if it may, without"
    ENDED = "its body has ended"


class Execution(TaskLock):
    """Runs the body of one call under its lock, or without: then ``lease`` is None."""

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
        self.state = State.TRIES
        self.lease: Lease | None = None
        self._interrupter = interrupter(within_task=bool(call.request.is_eager))
        self._line = LineEntry(call, self._interrupter)
        self._waited = 0.0  # seconds for which policies have let the call wait
        self._patience = _PATIENCE
        self._has_waited = False  # in this process, while others could have the lock
        self._met_outage = False  # in its last try
        self._is_shown_as_refused = False  # to monitors, by an event
        self._deciding = threading.Lock()
        self._decision: LossDecision | None = None  # the lock is lost
        self._is_kept = False  # until Celery has stored RETRY
        self._dead: str | None = None  # the token of a killed process before this one

    @property
    def has_ended(self) -> bool:
        """Whether the call is over, but for the release of its lock."""
        return self.state in (State.REFUSED, State.ENDED)

    @property
    def in_backlog(self) -> float | None:
        """Seconds since the call joined the backlog of its key; None: it did not."""
        return self._line.in_backlog

    @property
    def family(self) -> str:
        """Common prefix of the tokens of its locks."""
        return family_of(self._base)

    def is_of(self, task: Task, request: Context) -> bool:
        """Tell whether this is the execution of that request, or of a copy of it.

        Celery copies it for each call of the body. A step that is applied under the
        same id has another message.
        """
        own = self.call.request
        is_same = own.id == request.id and own.delivery_info is request.delivery_info
        return bool(self.call.task == task and is_same)  # it may be a proxy

    def run(self, body: Callable[[], _T]) -> _T:
        """Run the body of the call under its lock, and return its result.

        Raises:
            celery.exceptions.Ignore, celery.exceptions.Retry: This copy of the call
                has ended: its result is stored (REVOKED, RETRY), or belongs to another
                copy.
            DuplicateTask, QuorumUnreachable: The call was refused, and fails.
            LockLost: The lock was lost while the body ran.
            Exception: What the body raised.
        """
        before = _running.set(self)
        minted = self.call.header.base
        try:
            if minted:
                note_body(minted)
            with self._interrupter:
                return self._run(body)
        finally:
            if minted:
                note_body("")
            if self.state is State.TRIES:
                self.state = State.REFUSED
                if not self._met_outage:  # the log has a line about it
                    self._runtime.refusal_log.refused(self.call, self.call.waited)
            else:
                self.state = State.ENDED
            if not self._is_kept:
                _running.reset(before)

    def _run(self, body: Callable[[], _T]) -> _T:
        returned: list[_T] = []
        try:
            try:
                self.lease = self._admit()
                self.state = State.RUNS
                if not self._runtime.refusal_log.is_idle:
                    self._runtime.refusal_log.ran()
                returned.append(self._run_admitted(body))
                if self.call.options.records is None:
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
        return returned[0]

    # -- it tries -------------------------------------------------------------------

    def _admit(self) -> Lease | None:
        """Return the lease for the body; None: it runs without the lock."""
        try:
            lease = self._try_until_decided()
        except BaseException as error:
            if not comes_back(error):
                if not isinstance(error, CopyDropped):
                    self._line.withdraw()
                self._line.end()
            raise
        self._line.end()
        if self._is_shown_as_refused:
            send_event(self.call, "task-started")
        return lease

    def _try_until_decided(self) -> Lease | None:
        """Return the lease; None: run without a lock. What ends the copy is raised.

        What decides about a refusal returns for how many seconds to try again in this
        process; 0: once; None: to run without the lock.
        """
        if self.call.is_redelivered:
            drop_if_finished(self.call)
        if self.call.header.slot:
            revoke_if_sent_twice(self.call)
        wait: float | None = 0.0
        while wait is not None:
            before = self._line.call_before()
            if isinstance(before, LockHeld):
                wait = self._when_held(before, phase="queued")
                continue
            tried = before or self._try(wait)
            if not isinstance(tried, LockUnavailable):
                self._end_outage()
                if self._check_after_grant() and self._holds(tried):
                    return tried
                wait = 0.0
            elif isinstance(tried, LockHeld):
                self._end_outage(granted=False)
                wait = self._when_held(tried)
            elif isinstance(tried, QuorumUnreachable):
                wait = self._when_unreachable(tried)
            else:
                wait = self._wait_or_republish(tried)
        if self.call.header.deferred:  # as in `_check_after_grant`
            drop_if_finished(self.call)
        revoke_if_expired(self.call)
        return None

    def _try(self, wait: float) -> Lease | LockUnavailable:
        """Try for the lock: return the lease, or the refusal."""
        try:
            if not wait:
                return self.acquire(wait)
            self._has_waited = True
            return self._wait(lambda: self.acquire(wait))
        except LockUnavailable as refusal:
            return refusal.with_traceback(None)

    def _wait(self, wait: Callable[[], _T]) -> _T:
        """Wait in this process, which runs no other call meanwhile."""
        refusal_log = self._runtime.refusal_log
        refusal_log.waits(self.call)
        try:
            return self._interrupter.with_soft_limits(wait)
        finally:
            refusal_log.waits_no_more(self.call)

    def _end_outage(self, *, granted: bool = True) -> None:
        """Log the end of an outage: the nodes have voted on this call."""
        if (outage_log := self._runtime.outage_log).is_on:
            outage_log.end(granted=granted)

    def _wait_or_republish(self, refusal: LockUnavailable, **header: bool) -> float:
        """Return the seconds of one wait in this process; the next time, republish.

        The delay of the republished call doubles, up to the ttl.
        """
        patience, self._patience = self._patience, 0.0
        if not patience:
            deferred = self.call.header.deferred
            countdown = jittered(doubled(1.0, deferred, self.call.options.ttl))
            self._line.republish(refusal, countdown, deferred=deferred + 1, **header)
        return patience

    # -- it was granted its lock ------------------------------------------------------

    def _check_after_grant(self) -> bool:
        """Do what is due once the lock is granted; False: try again.

        Raises:
            celery.exceptions.Ignore, celery.exceptions.Retry: The call has expired, is
                superseded, or was run by another copy.
        """
        call = self.call
        if call.is_redelivered and (call.header.met_copy or self._has_waited):
            self._wait(lambda: wait_for_result(call))
        if call.is_redelivered or call.header.deferred:
            # The process that published a deferred copy may have been killed right
            # then: its own message came back, and may have run before this one.
            drop_if_finished(call)
        if call.request.expires:
            revoke_if_expired(call)
        self._line.start()
        if call.header.slot and call.options.task.keeps == "latest":
            mark_as_begun(call)
        other = self._line.cooling() if call.options.task.unique_for else None
        return other is None or self._may_run_in_cool_down(other)

    def _may_run_in_cool_down(self, other: ExistingJob) -> bool:
        """Tell whether a call may run in a cool-down, as its policy decides."""
        wait = self._when_held(other.error(), phase=other.phase)
        if wait is None:
            return True
        self.release()  # no other call has to wait for the lock meanwhile
        pause = min(wait, other.left)
        self._wait(lambda: SYSTEM_CLOCK.sleep(pause))
        return False

    def _holds(self, lease: Lease) -> bool:
        """Tell whether the call still has its lock; if not, it tries again.

        A copy of a call waits under its lock for the result of the other one. No policy
        has to decide about a lock that it lost meanwhile: the body has not begun.
        """
        if lease.is_valid():
            return True
        fields = self.call.log_fields("lost-before-body", fence=lease.fence)
        text = "%s lost its lock before it began; it tries again."
        log.warning(text, self.call, extra=fields)
        self.release()
        return False

    # -- it was refused: a policy decides ----------------------------------------------

    def _when_held(self, held: LockHeld, phase: str = "running") -> float | None:
        """Ask ``on_conflict``: seconds to try again, or None to run unlocked."""
        call, self._met_outage = self.call, False
        if _is_copy(call, held):
            if self._takes_over(held.holder):
                return 0.0
            # Not waited for here: Celery stores the result after the lock is released,
            # and this copy would be woken, and run, between the two.
            self._patience = 0.0
            if call.follows(held.holder):
                return self._wait_or_republish(held, again=True)
            return self._wait_or_republish(held, redelivered=True, met_copy=True)
        if call.replaces(held.holder):
            return self._wait_or_republish(held)
        conflict = conflict_with(
            held,
            **call.facts(),
            args=call.args,
            kwargs=call.kwargs,
            place=None if phase == "succeeded" else self._line.place_behind(held),
            waited=self._waited,
            deferrals=call.header.deferred,
            phase=phase,
        )
        decision = call.options.on_conflict(conflict)
        decided = DecidedConflict(self._line, conflict, decision, held)
        self._is_shown_as_refused |= decided.announce()
        wait: float | None = decision.perform(decided)
        self._waited += wait or 0.0
        return wait

    def _takes_over(self, holder: Holder | None) -> bool:
        """Release the lock of a killed process that had this very message before.

        billiard sends a message to another process if the first one was killed before
        the pool has read that it began (`Pool.on_partial_read`): at two deaths at once.
        The worker's main process learns nothing of that, and it minted their one base.
        """
        minted = self.call.header.base
        if holder is None or minted is None or holder.base != minted:
            return False
        if holder.pid == os.getpid():  # an earlier attempt of this process
            return False
        if holder.token == self._dead:  # it was released, and nodes still have it
            return False
        drop_if_finished(self.call)
        self._dead = holder.token
        at_once = tuple(limit for limit in self._limits if not limit.period)
        release = self.redlock.release_request(self.key, holder.token, at_once)
        self.redlock.carry_out(self.redlock.sending(release))
        log.warning(
            "%s was given to another process, and begins again there. Released its "
            "lock: process %d is gone.",
            self.call,
            holder.pid,
            extra=self.call.log_fields("lock-released"),
        )
        return True

    def _when_unreachable(self, unreachable: QuorumUnreachable) -> float | None:
        """Ask ``on_backend_error``: seconds to try again, or None to run unlocked."""
        call, self._met_outage = self.call, True
        outage = Outage(
            **call.facts(),
            reason=str(unreachable),
            retry_after=unreachable.retry_after,
            deferrals=call.header.outages,
        )
        decision = call.options.on_backend_error(outage)
        decided = DecidedOutage(self._line, outage, decision, unreachable)
        decided.announce()
        wait: float | None = decision.perform(decided)
        return wait

    # -- it runs ----------------------------------------------------------------------

    def _run_admitted(self, body: Callable[[], _T]) -> _T:
        call, lease = self.call, self.lease
        if lease is not None:
            lease.ensure()
            if call.options.task.needs_arguments:
                self.call = self._line.call = call.with_own_message()
            lease.begin()
        self._note_started()
        try:
            returned = self._run_body(body)
        except RetriesItself:
            self._is_kept = not call.request.is_eager
            raise
        finally:
            self.state = State.ENDED
        if call.options.task.unique_for:
            self._line.cool_down()
        return returned

    def _note_started(self) -> None:
        """Store STARTED, where the task tracks that.

        Celery would store it before the task is called, over the result of another copy
        that has ended.
        """
        call = self.call
        is_tracked = call.task.tracks_start and not call.request.is_eager
        if not (is_tracked and call.keeps_result()):
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
        if self.call.options.records is None:
            return self._work_of(body)
        from celery_redlock.effects.exactly_once import run_once  # noqa: PLC0415

        returned: _T = run_once(self, functools.partial(self._work_of, body))
        return returned

    def _work_of(self, body: Callable[[], _T]) -> _T:
        """Run the body, which interrupts reach, and return its result.

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

    def on_released(self, lease: Lease) -> None:
        """Send ``lock_released``, and note how long the run took."""
        super().on_released(lease)
        has_run = self.lease is not None  # an expired call, for one, has not
        if has_run and self.call.options.task.has_backlog:
            note_run(self.redlock, self.call.key, lease.age())

    # -- in the background: stop the body --------------------------------------

    def on_lost(self, lease: Lease) -> None:
        """Let ``on_lock_lost`` decide about the body, unless there is none yet."""
        self._tell_of_operator(lease)
        if self.lease is None:
            return  # `_holds` looks at the lease, and `_run_admitted` once more
        self._in_background(self._stop_body, lease)

    def on_cancelled(self, lease: Lease) -> None:
        """Send ``lock_cancelled``, and interrupt the body until it has ended."""
        super().on_cancelled(lease)
        self._in_background(self._cancel_body, lease)

    def _in_background(self, do: Callable[..., None], lease: Lease) -> None:
        if not start_thread(do, lease):  # and the watchdog, which is here, has to go on
            do(lease, once=True)

    def _stop_body(self, lease: Lease, *, once: bool = False) -> None:
        if not self._decide(lease).goes_on:
            self._interrupt(lease.lost_error(), _INTERRUPT_EVERY, once=once)

    def _cancel_body(self, lease: Lease, *, once: bool = False) -> None:
        error, by = lease.cancelled_error(), lease.cancelled_by
        fields = self.call.log_fields("cancelled", fence=lease.fence, by=by)
        text = "%s is stopped: %s"
        log_safely(log, logging.WARNING, text, self.call, error, extra=fields)
        grace = self.call.options.task.grace_of_cancelled
        self._interrupt(error, grace, once=once)

    def _interrupt(self, error: LockLost, every: float, *, once: bool) -> None:
        while not self.has_ended:
            has_body = self._interrupter.interrupt(error)
            if once:
                return
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
                what = decision.describe(loss)
                log_safely(log, logging.WARNING, text, call, what, extra=extra)
                self._dispatch(signals.lock_lost, lease=lease, decision=decision)
                if call.header.events:
                    start_thread(self._send_event, lease)
        return self._decision

    def _send_event(self, lease: Lease) -> None:
        """Send the event ``task-lock-lost``. The broker may take a while."""
        call, decision = self.call, self._decision
        facts = {"fence": lease.fence, "released_by": lease.released_by}
        facts |= {"decision": decision.name if decision else ""}
        send_event(call, "task-lock-lost", key=call.key, **facts)

    def _ask(self, loss: Loss) -> LossDecision:
        try:
            return self.call.options.on_lock_lost(loss)
        except Exception:  # noqa: BLE001  (it is logged)
            text = "%s: on_lock_lost failed; the body is stopped."
            log_safely(log, logging.ERROR, text, self.call, exc_info=True)
            return Abort()

    # -- after the body --------------------------------------------------------

    def _after_loss(self, error: LockLost, returned: list[_T]) -> _T:
        lease = self.lease
        if lease is not None and _is_cancellation(error, lease):
            raise self._cancelled(lease) from None
        if lease is not None and self._decision is not None and error.key is None:
            # An asynchronous exception has neither a text nor a key.
            error = lease.lost_error().with_traceback(error.__traceback__)
        if lease is None or error.key != lease.key:
            raise error  # about a lock that the body took itself, or one around it
        decision = self._decide(lease)
        decided = DecidedLoss(self._line, error, returned, decision.name)
        result: _T = decision.perform(decided)
        return result

    def _cancelled(self, lease: Lease) -> Ignore:
        """Store the result of a call whose body was cancelled."""
        call, by = self.call, lease.cancelled_by
        log.info("%s has ended, cancelled by %s.", call, by)
        facts = {"key": call.key, "policy": CancelRunning.name, "cancelled_by": by}
        return end_as_revoked(call, lease.cancelled_error(), **facts)

    def release_late(self) -> None:
        """Release a lock that was kept for RETRY, or that an interrupt left held."""
        if (lease := self.own) and not self._is_kept:
            fields = self.call.log_fields("lock-left", fence=lease.fence)
            text = "%s ended and left its lock %s; it is released now."
            log.error(text, self.call, shown(lease.key), extra=fields)
        with self._interrupter:
            self.release()


def _is_copy(call: Call, held: LockHeld) -> bool:
    """Tell whether the holder is another copy of the same call."""
    if held.limit is not None and held.limit.is_call:
        return True
    holder = held.holder
    return holder is not None and bool(call.id) and holder.task_id == call.id


def _is_cancellation(error: LockLost, lease: Lease) -> bool:
    """Tell whether the body ended in the interrupt that cancelled it."""
    ours = error.key in (None, lease.key)  # an asynchronous exception has no key
    return isinstance(error, LockCancelled) and bool(lease.cancelled_by) and ours


def _renew_now(**_: object) -> None:
    """Renew the lock of the execution that sends ``lock_heartbeat``."""
    execution = running()
    if execution and execution.lease:
        execution.call.runtime.watchdog.renew_now(execution.lease)


def _when_task_has_ended(
    sender: Task, task_id: str = "", state: str = "", retval: Any = None, **_: object
) -> None:
    """Release the lock that was kept for a retry, or one that was left held.

    A call whose header is still there has never asked for its lock, and ends its
    entries here.
    """
    execution = _running.get()
    if execution and execution.is_of(sender, sender.request):
        _running.set(None)
        execution.release_late()
    is_over = state in _OVER or (state == states.REJECTED and not retval.requeue)
    has_begun = HEADER not in vars(sender.request)
    if has_begun or not takes_lock(sender):
        return
    request = sender.request
    if is_over:
        end_entries(sender, extract(request), request, request.args, request.kwargs)
    elif state == states.RETRY:  # it has the claim, and joins the backlog again
        header = extract(request)._replace(claim="")
        end_place_and_claim(sender.app, header, task_id, sender.name)


signals.lock_heartbeat.connect(_renew_now, weak=False)
celery_signals.task_postrun.connect(_when_task_has_ended, weak=False)
