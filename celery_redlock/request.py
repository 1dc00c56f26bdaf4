"""The worker's main process: mints the token base, frees the lock of a dead child.

::

    main process                          child
    ────────────                          ─────
    message arrives, base is minted ────► takes the lock as base.attempt
                                          renews it, releases it      (as a rule)
    child is really gone (killed,
    terminated, over its hard limit)
    ──► release whatever attempt of base holds the key, then requeue the message

A killed child frees its lock as soon as Celery notices, in 0 to 5 s, and not
after a ttl. Celery announces a hard time limit while the child still runs: its
lock is freed when the process has ended and not before.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Ignore, Terminated, WorkerLostError
from celery.worker.request import Request

from celery_redlock.buffering import give_up_turn
from celery_redlock.claims import Claims
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.envelope import address
from celery_redlock.logs import about
from celery_redlock.runtime import runtime_of

if TYPE_CHECKING:
    from celery_redlock.options import LockOptions

__all__ = ["RedlockRequest", "Skipped"]

log = logging.getLogger("celery_redlock.request")

_DIED = (WorkerLostError, Terminated, SystemExit)
_LOOK_EVERY, _LOOK_FOR = 0.05, 60.0  # seconds


class Skipped(Ignore):
    """How a task tells its main process that it was skipped.

    Args:
        reason: Why, in words.
        facts: What the event says besides.
    """

    @property
    def facts(self) -> dict[str, Any]:
        """What the event says besides."""
        return self.args[1] if len(self.args) > 1 else {}

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RedlockRequest(Request):
    """A request whose execution has a base, by which its lock can be freed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._redlock_base = address(self.request_dict, events=self._sends_events())

    def _sends_events(self) -> bool:
        """Tell whether monitors hear of this task; heartbeats alone are no sign."""
        eventer = self.eventer
        if not (eventer and eventer.enabled and self.task.send_events):
            return False
        groups = getattr(eventer, "groups", None)
        return not groups or "task" in groups

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Free the lock of a child that is gone, before the message is requeued."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, Skipped):
            usual = {"terminated": False, "signum": None, "expired": False}
            self.send_event("task-revoked", **{**usual, **error.facts})
        elif isinstance(error, _DIED):
            self._free_lock()
        return super().on_failure(exc_info, *args, **kwargs)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001  (Celery's)
        """Free the lock after a hard time limit, when the child has ended."""
        super().on_timeout(soft, timeout)
        if not soft:
            self._free_lock()

    def maybe_expire(self) -> Any:
        """Leave it to the task whether a redelivered message has expired.

        Its first copy may be running at this moment, and this one would end the
        result that belongs to both.
        """
        if self.delivery_info.get("redelivered"):
            return None
        return super().maybe_expire()

    def _announce_revoked(self, *args: Any, **kwargs: Any) -> None:
        """Free what a job had that was revoked, or has expired, before it began.

        That is its claim, and its turn among those that wait: before anybody learns
        of its end, so that whoever does can publish the call again.
        """
        options = self.task.lock_options
        if options.unique_while != "running" or options.lines_up:
            self._free_claim_and_turn(options)
        super()._announce_revoked(*args, **kwargs)

    def _free_claim_and_turn(self, options: LockOptions) -> None:
        try:
            runtime = runtime_of(self.app)
            key = self.task.lock_key(*self.args, **self.kwargs)
            if options.unique_while != "running":
                Claims(runtime.redlock).free(key, self.id)
            if options.lines_up:
                give_up_turn(runtime.redlock, key, self.name, self.id)
            runtime.watchdog.look_after_debts()
        except Exception:
            # The same as with a lock, below.
            log.exception(
                "The claim or turn of %s[%s] was not freed.", self.name, self.id
            )

    def _free_lock(self) -> None:
        pid = self.worker_pid
        if pid is None or pid == os.getpid():
            return  # never started, or ended in this very process
        if _is_gone(pid):
            self._release()
        else:
            threading.Thread(
                target=self._release_when_gone,
                args=(pid,),
                name=f"redlock-wait-for-{pid}",
                daemon=True,
            ).start()

    def _release_when_gone(self, pid: int) -> None:
        give_up_at = SYSTEM_CLOCK.monotonic() + _LOOK_FOR
        while not _is_gone(pid):
            if SYSTEM_CLOCK.monotonic() > give_up_at:
                log.warning(
                    "Process %d still lives %g s after it was told to end; the lock "
                    "of %s[%s] is left to it.",
                    pid,
                    _LOOK_FOR,
                    self.name,
                    self.id,
                )
                return
            SYSTEM_CLOCK.sleep(_LOOK_EVERY)
        self._release()

    def _release(self) -> None:
        try:
            key = self.task.lock_key(*self.args, **self.kwargs)
            runtime = runtime_of(self.app)
            freed = runtime.redlock.release_base(key, self._redlock_base)
            if self.task.lock_options.lines_up:
                give_up_turn(runtime.redlock, key, self.name, self.id)
            runtime.watchdog.look_after_debts()
        except Exception:
            # The key may come from a user's function, and this is the main process.
            log.exception(
                "The lock of %s[%s], whose process %s is gone, could not be freed; it "
                "ends with its ttl.",
                self.name,
                self.id,
                self.worker_pid,
            )
            return
        if freed:
            log.warning(
                "Freed the lock %r of %s[%s], on %d of %d nodes so far: its process %s "
                "is gone.",
                key,
                self.name,
                self.id,
                freed,
                len(runtime.redlock.labels),
                self.worker_pid,
                extra=about("lock-freed", task=self.name, task_id=self.id, key=key),
            )


def _is_gone(pid: int) -> bool:
    """Tell whether a child has ended, also while nobody has waited for it yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return Path("/proc/self").exists() or not _answers(pid)
    except (OSError, IndexError):  # it went away while we looked
        return True
    return state in "ZX"


def _answers(pid: int) -> bool:
    """Ask where there is no /proc: the kernel knows the process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
