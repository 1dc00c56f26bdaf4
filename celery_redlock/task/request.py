"""The request in a worker's main process: releases the lock of a dead child.

::

    main process                             child
    ────────────                             ─────
    a message arrives; mint a base ────────► acquires the lock as base.attempt,
                                             renews it, releases it   (as a rule)
    the child is really gone (killed,
    terminated, over its hard limit)
    ──► release the lock, if an attempt of
        this base holds it; requeue the message

The lock of a killed child is released as soon as Celery notices its death, in 0 to
5 s, and not after a ttl. Celery reports a hard time limit while the child still runs,
and stores the result of a revoked call when it has sent the signal. After SIGKILL, and
after a hard time limit, the lock is released when the process has ended, and not
before.

Then it looks on the nodes, in the background, for locks that the body of the child
took (``with other.lock(...)``): their tokens begin as the base does, and name the
process. By this it also finds the lock of the execution, if it cannot compute the key
or computes another one than the child did (a signal of the project may have changed
the arguments there).
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery import states
from celery.exceptions import (
    Ignore,
    InvalidTaskError,
    Reject,
    Retry,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.platforms import signals
from celery.worker.request import Request

from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.forks import forks_wait
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.process import start_thread
from celery_redlock.basics.text import check_id, on_nodes
from celery_redlock.line.backlog import keep_place
from celery_redlock.line.successors import withdraw
from celery_redlock.locks.limits import with_copies
from celery_redlock.options.broker import (
    acks_timeouts,
    marks_redeliveries,
    retries_lost,
)
from celery_redlock.scripts.keys import shown
from celery_redlock.task.ends import EndedAsRevoked, chord_body_is_owed
from celery_redlock.task.header import TaskHeader, fault_of, mint
from celery_redlock.task.message import wanted_by_message
from celery_redlock.task.publishing import end_entries
from celery_redlock.task.results import stored_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.app.early_start import WaitingCall
    from celery_redlock.locks.limits import Limits

log = logging.getLogger(__name__)

_EXITS = (SystemExit, KeyboardInterrupt)
_DIED = (WorkerLostError, Terminated)
# Ends of a call that Celery stores, or that store nothing.
_NO_LOSS = (Ignore, Reject, Retry, MemoryError, TimeLimitExceeded)
_LOOK_EVERY, _LOOK_FOR = 0.05, 60.0  # seconds
_RELEASED_WITHIN = 5.0  # seconds, where the nodes and the result backend answer


class RedlockRequest(Request):
    """A request that can release the lock of its execution: it minted the base."""

    acknowledged: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Read a message.

        Raises:
            celery.exceptions.InvalidTaskError: Its task id cannot be written to the
                nodes. Celery logs that, rejects the message, and goes on.
        """
        super().__init__(*args, **kwargs)
        try:
            check_id(self.id)
        except ValueError as error:
            text = f"{error} The message is rejected, and the call does not run."
            raise InvalidTaskError(text) from None
        if fault := fault_of(self.request_dict):
            name, task_id = self.task.name, self.id
            extra = log_fields("header-ignored", task=name, task_id=task_id)
            log.warning(
                "The header 'redlock' of %s[%s] is ignored: %s. No version of this "
                "package writes that. The call runs as one without this header.",
                name,
                task_id,
                fault,
                extra=extra,
            )
        self._redlock_base = mint(
            self.request_dict, self._content_type, events=self._sends_events()
        )
        self._redlock_header = TaskHeader.read(self.request_dict)
        self.redlock_waits = self._redlock_header.wait
        self._redlock_waiting: WaitingCall | None = None
        self._is_revoking = False

    @property
    def redlock_is_copy(self) -> bool:
        """Whether another copy of the call may run now."""
        is_redelivered = bool(self.delivery_info.get("redelivered"))
        return is_redelivered or self._redlock_header.redelivered

    @property
    def redlock_waiting(self) -> WaitingCall | None:
        """The call as `EarlyStarts` knows it; None if it has not waited here."""
        return self._redlock_waiting

    @redlock_waiting.setter
    def redlock_waiting(self, call: WaitingCall) -> None:
        """Note the wait of this call: `EarlyStarts` is told when the call ends."""
        self._redlock_waiting = call
        # The class that Celery makes of this one has an `on_success` of its own, which
        # does not call that of its base class.
        self.__dict__["on_success"] = self._end_wait_of_success

    def _sends_events(self) -> bool:
        """Tell whether this worker sends events about tasks, not only heartbeats."""
        eventer = self.eventer
        if not (eventer and eventer.enabled and self.task.send_events):
            return False
        groups = getattr(eventer, "groups", None)
        return not groups or "task" in groups

    def on_accepted(self, pid: int, *args: Any, **kwargs: Any) -> Any:
        """Tell `EarlyStarts` that the call tries for its lock now.

        Raises:
            greenlet.GreenletExit, celery.exceptions.Ignore: It must not begin. A
                greenlet ends so without a word, and a pool of threads drops each error.
        """
        call = self.redlock_waiting
        if call is not None and not call.starts.accepted(call, pid):
            is_green = call.starts.in_greenlets
            raise sys.modules["greenlet"].GreenletExit if is_green else Ignore
        return super().on_accepted(pid, *args, **kwargs)

    def _end_wait_of_success(self, *args: Any, **kwargs: Any) -> Any:
        """Tell `EarlyStarts` that this copy has ended."""
        self._end_wait()
        return type(self).on_success(self, *args, **kwargs)

    def _end_wait(self) -> None:
        if (call := self.redlock_waiting) is not None:
            call.starts.ended(call)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Release the lock of a child that is gone, before the message is requeued."""
        self._end_wait()
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, _EXITS):
            # The child ends. Celery before 5.7 takes that for an error of the body: it
            # acknowledges the message, and fails to store the error.
            is_over = self._already_cancelled or self._already_revoked
            kind = Terminated if is_over else WorkerLostError
            error = exc_info.exception = kind(f"The body ended its process: {error!r}")
        comes_back = self._comes_back(error)
        if comes_back:
            self._keep_in_line()
        if isinstance(error, EndedAsRevoked):
            usual = {"terminated": False, "signum": None, "expired": False}
            self.send_event("task-revoked", **{**usual, **error.facts})
        elif isinstance(error, _DIED):
            is_over = self._already_cancelled or self._already_revoked
            is_lost = not is_over and not isinstance(error, Terminated)
            is_retried = is_lost and self._is_retried()
            self._release_lock(ended=not (comes_back or is_retried))
            if is_lost and self._may_have_left_its_chord():
                exc_info.exception = Reject(error, requeue=True)
        elif isinstance(error, TimeLimitExceeded) and self._may_have_left_its_chord():
            exc_info.exception = Reject(error, requeue=True)
        elif self._has_lost_result(exc_info, error, **kwargs):
            log.warning(
                "The result of %s could not be stored (%s: %s). Its message goes back "
                "to its queue: the next copy stores what is recorded of the call.",
                self.humaninfo(),
                type(error).__name__,
                error,
                extra=log_fields("result-lost", task=self.task.name, task_id=self.id),
            )
            exc_info.exception = Reject(error, requeue=True)
        elif not (comes_back or isinstance(error, (Ignore, Reject, Retry))):
            self._end_entries()  # it may have failed before the task was called
        return super().on_failure(exc_info, *args, **kwargs)

    def _comes_back(self, error: BaseException) -> bool:
        """Tell whether the message is delivered again after this end of its child."""
        task = self.task
        if not task.acks_late or self._already_revoked:
            return False
        if isinstance(error, TimeLimitExceeded):
            return not acks_timeouts(task)
        if self._already_cancelled:  # the connection was lost
            return isinstance(error, _DIED)
        is_lost = isinstance(error, WorkerLostError)
        return bool(is_lost and task.reject_on_worker_lost and not retries_lost(task))

    def _is_retried(self) -> bool:
        """Tell whether Celery retries a call whose child was lost."""
        most = self.task.max_retries
        is_left = most is None or self._context.retries < most
        return retries_lost(self.task) and is_left

    def _retry_worker_lost(self, *lost: Any) -> bool:
        """Retry a call whose child was lost, as its body would; Celery 5.7 calls this.

        By its request `SingletonTask` knows the call: it takes its claim again, and
        returns when the broker has the message.
        """
        celerys: Any = super()
        self.task.request_stack.push(self._context)
        try:
            is_sent = bool(celerys._retry_worker_lost(*lost))  # noqa: SLF001
        finally:
            self.task.request_stack.pop()
        if not (is_sent or (self.task.acks_late and self.task.reject_on_worker_lost)):
            self._end_entries()
        return is_sent

    def _has_success(self) -> bool:
        """Tell whether Celery acknowledges the message, for its child stored SUCCESS.

        Versions before 5.7 do not look at the result.
        """
        is_stored = getattr(self, "_success_was_stored", None)
        return bool(is_stored and is_stored())

    def _has_lost_result(
        self, exc_info: Any, error: Any, *, return_ok: bool = False, **_: object
    ) -> bool:
        """Tell whether Celery failed after the body of a call that may be recorded.

        Celery acknowledges such a message, and the result would be lost for ever. An
        error of Celery's tracer is internal; one that it could not store either comes
        from the pool.
        """
        options = self.task.lock_options
        return bool(
            (exc_info.internal or not return_ok)
            and not isinstance(error, _NO_LOSS)
            and self.task.acks_late
            and options.exactly_once_in is not None
        )

    def _may_have_left_its_chord(self) -> bool:
        """Tell whether a child was ended after its result, and before its chord had it.

        Celery 5.7 acknowledges such a message, and the chord would wait for ever.
        Earlier versions do not look at the result, and requeue the message.
        """
        may = bool(
            self.task.reject_on_worker_lost
            and self._is_counted_by_next_copy()
            and (self._has_success() or self._may_owe_its_body())
        )
        if may:
            self._say_that_it_comes_back()
        return may

    def _say_that_it_comes_back(self) -> None:
        log.warning(
            "%s has its result, but its chord may still wait for it. Its message goes "
            "back to its queue: the next copy counts it there.",
            self.humaninfo(),
            extra=log_fields("chord-left", task=self.task.name, task_id=self.id),
        )

    def _is_counted_by_next_copy(self) -> bool:
        """Tell whether the next copy of a member of a chord counts it, if it has ended.

        Such a copy does not run again. Not every broker says which copies are such.
        """
        return bool(
            self._context.chord
            and getattr(self.task.backend, "_chord_zset", False)
            and self.task.acks_late
            and not self.ignore_result
            and marks_redeliveries(self.app)
        )

    def _may_owe_its_body(self) -> bool:
        """Tell whether a process that may be gone alone may send the chord's body.

        Then all members were counted. If it is gone, the chord would wait for ever.
        """
        try:
            return chord_body_is_owed(self.task.backend, self._context.group)
        except Exception:
            # Each backend has errors of its own, and this is the main process.
            log.exception("The chord of %s was not looked at.", self.humaninfo())
            return False

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001  (Celery's)
        """Release the lock after a hard time limit, when the child has ended."""
        super().on_timeout(soft, timeout)
        if not soft:
            error = TimeLimitExceeded(timeout)
            self._release_lock(ended=not self._comes_back(error), limit=error)

    def maybe_expire(self) -> Any:
        """Let the task decide whether a redelivered message has expired.

        The first copy may run at this moment, and the expiry of this one would end
        the result that belongs to both.
        """
        if self.redlock_is_copy:
            return None
        return super().maybe_expire()

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Release the lock of a child that SIGKILL ends as soon as it is gone.

        Celery reports its death in 0 to 5 s. A greenlet releases its lock itself.
        """
        super().terminate(pool, signal)
        kill = Signals.__members__.get("SIGKILL")  # Windows has none
        is_killed = signal and signals.signum(signal) == kill
        if self.time_start and is_killed and not pool.is_green:
            self._release_lock(ended=False)

    def _announce_revoked(self, *args: Any, **kwargs: Any) -> None:
        """Release the claim of a job that was revoked or has expired before it began.

        Its place in the backlog and its entry in the successor register end, too. All
        this happens before the end of the job is known, so that the call can be
        published again at once.
        """
        self._end_wait()
        self._end_entries()
        self._is_revoking = True
        super()._announce_revoked(*args, **kwargs)

    def acknowledge(self) -> None:
        """Acknowledge the message; requeue a revoked one that its chord may still need.

        Its process, or another one, was about to send the body, and may be gone. Celery
        has counted this call by now, and lets no other process send the body for some
        seconds. The next copy looks at the chord again, see `drop_if_finished`.

        Celery logs an error of the broker. After a loss of the connection, it raises
        the prefetch count with acknowledgements, which fails in a greenlet: it may not
        read from the socket at which the consumer waits. The call would end with that,
        and its message is gone, so the error is logged, too, and the call goes on.
        """
        if (
            self._is_revoking
            and not self.acknowledged
            and self._is_counted_by_next_copy()
            and self._may_owe_its_body()
        ):
            self._say_that_it_comes_back()
            self.reject(requeue=True)
        try:
            super().acknowledge()
        except Exception:
            # What Celery does after it has acknowledged may fail with any error.
            self.acknowledged = True
            text = "Celery failed after the acknowledgement of %s, which goes on."
            log.warning(text, self.humaninfo(), exc_info=True)

    def revoked(self) -> Any:
        """Let the task count a copy that has ended, and that its chord may still need.

        Discarded here, it would be counted at once, too early, again and again.
        """
        comes_for_chord = self._redlock_header.ended or (
            self.delivery_info.get("redelivered")
            and self._is_counted_by_next_copy()
            and self._may_owe_its_body()
        )
        return False if comes_for_chord else super().revoked()

    def _keep_in_line(self) -> None:
        """Give a call that comes back its place again, before later ones may run."""
        header = self._redlock_header
        if header.line and not self._has_success():
            (key, margin), since = header.line, header.published
            with self._logged():
                redlock = runtime_of(self.app).redlock
                keep_place(redlock, key, self.id, since=since, seconds=margin)

    def _end_entries(self) -> None:
        """End place, claim and candidate of a call that does not come back."""
        header, context = self._redlock_header, self._context
        try:
            end_entries(self.task, header, context, self.args, self.kwargs)
        except Exception:
            # The key may come from a user's function, and this is the main process.
            log.exception(
                "The claim of %s, or its entry in the successor register, was not "
                "released.",
                self.humaninfo(),
            )

    def _release_lock(
        self, *, ended: bool, limit: TimeLimitExceeded | None = None
    ) -> None:
        """Release the lock of the child as soon as it is gone.

        If the call has ``ended`` and does not come back, its entries end, too. The
        limit is the hard time limit that has ended it, if that is why.
        """
        pid = self.worker_pid
        if pid is None or pid == os.getpid():
            return  # it never started, or has ended in this very process
        release = functools.partial(self._release, ended=ended, limit=limit)
        if _is_gone(pid):
            release()
        else:
            self._in_background(self._release_when_gone, pid, release)

    def _release_when_gone(self, pid: int, release: Callable[[], None]) -> None:
        give_up_at = SYSTEM_CLOCK.monotonic() + _LOOK_FOR
        while not _is_gone(pid):
            if SYSTEM_CLOCK.monotonic() > give_up_at:
                log.warning(
                    "Process %d still runs %g s after Celery killed it. The lock of "
                    "%s is not released.",
                    pid,
                    _LOOK_FOR,
                    self.humaninfo(),
                )
                return
            SYSTEM_CLOCK.sleep(_LOOK_EVERY)
        with forks_wait(_RELEASED_WITHIN):
            release()

    def _release(self, *, ended: bool, limit: TimeLimitExceeded | None) -> None:
        if ended:
            self._end_entries()
        self._release_own_lock()
        # It is rare, and imported here: a fork copies the lock of a module that another
        # thread imports.
        from celery_redlock.operations.scan import locks_of  # noqa: PLC0415

        self._in_background(self._look_and_release, locks_of)
        if limit is not None:
            self._store_again(limit)

    def _in_background(self, do: Callable[..., None], *args: Any) -> None:
        if not start_thread(do, *args):
            log.warning(
                "No further thread can start to look for locks of %s, whose process %s "
                "has ended or was killed. They expire when their ttl has passed.",
                self.humaninfo(),
                self.worker_pid,
            )

    def _release_own_lock(self) -> None:
        try:
            key, limits = self._wanted()
        except Exception:
            # The key may come from a user's function, and this is the main process.
            text = "The key of %s cannot be computed here; its lock is looked for."
            log.debug(text, self.humaninfo(), exc_info=True)
            return
        with self._logged():
            runtime = runtime_of(self.app)
            redlock = runtime.redlock
            limits = with_copies(limits, self.id)
            released = redlock.release_base(key, self._redlock_base, limits)
            if self.task.lock_options.registers_successors:
                withdraw(redlock, key, self.task.name, self.id)
            self._tell_of_release(key, released)

    def _store_again(self, error: TimeLimitExceeded) -> None:
        """Store the end by a hard time limit again, if the child has replaced it.

        Celery stores it before it kills the child, which may be about to republish its
        call. Then the child stores RETRY after that, and dies before it publishes.
        """
        with self._logged():
            backend, stored = self.task.backend, stored_result(self.task, self.id)
            if self.store_errors and stored.get("status") == states.RETRY:
                backend.store_result(
                    self.id, error, states.FAILURE, request=self._context
                )

    def _wanted(self) -> tuple[str, Limits]:
        headers = self._context.headers
        return wanted_by_message(self.task, self.args, self.kwargs, headers)

    def _look_and_release(self, locks_of: Callable[..., Any]) -> None:
        """Release the locks that the nodes have of this execution, and of its body."""
        with self._logged():
            runtime, base = runtime_of(self.app), self._redlock_base
            redlock = runtime.redlock
            for name, holders in locks_of(redlock, base, self.worker_pid).items():
                for holder in holders:
                    permit = holder.permit(name)
                    limits = with_copies((permit[0],) if permit else (), self.id)
                    released = redlock.release_base(name, holder.base, limits)
                    self._tell_of_release(name, released)

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """Log an error in the block: a requeue must not fail with it."""
        try:
            yield
        except Exception:
            log.exception(
                "The lock of %s, whose process %s is gone, could not be released. It "
                "expires when its ttl has passed.",
                self.humaninfo(),
                self.worker_pid,
            )

    def _tell_of_release(self, key: str, released: int) -> None:
        if released:
            where = on_nodes(released, len(runtime_of(self.app).redlock.labels))
            extra = log_fields(
                "lock-released", task=self.task.name, task_id=self.id, key=key
            )
            log.warning(
                "Released the lock %s of %s %s so far: its process %s is gone.",
                shown(key),
                self.humaninfo(),
                where,
                self.worker_pid,
                extra=extra,
            )


def _is_gone(pid: int) -> bool:
    """Tell whether a child has ended, also while its parent has not waited for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return Path("/proc/self").exists() or not _answers(pid)
    except (OSError, IndexError):  # it ended in this moment
        return True
    return state in "ZX"


def _answers(pid: int) -> bool:
    """Tell whether the kernel knows the process, where there is no /proc."""
    if sys.platform == "win32":  # where signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
