"""The entries of one call on the nodes, besides its lock, in three records.

* The claim, by which publishers keep duplicates out, and the cool-down after a run;
  see ``line.claims``.
* The place in the backlog, among the refused calls that come back; see
  ``line.backlog``. With ``in_order`` a call has it since it was published.
* The candidate in the successor register, for ``buffer_one`` and ``cancel_running``.
  Of the calls that are refused while one runs, the register names the one that runs
  next; see ``line.successors``. All others end as *superseded*: REVOKED, with the id
  of the call that runs instead. The named call is always in its queue or in here, so
  it is never lost.

::

    received ──► call_before ─┬─► none: try for the lock
                              └─► another call is before it: it is refused
    refused ───► enter ───────┬─► named: wait in the queue, or in the worker process
                              └─► another call is named: end as superseded
    granted ───► start ───────┬─► named, or no call waits: run
                              └─► another call is named: end as superseded
    comes back ──► republish: the claim and the place are kept
    begins ──► end; ends before it begins, or runs without the lock ──► withdraw, end
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import DuplicateTask, LockHeld, QuorumUnreachable
from celery_redlock.line.backlog import (
    MARGIN,
    join_backlog,
    keep_place,
    leave_backlog,
)
from celery_redlock.line.claims import Claims, ExistingJob
from celery_redlock.line.successors import RegisterReply, withdraw
from celery_redlock.locks.lease import Holder
from celery_redlock.policies import BufferOne, CancelRunning
from celery_redlock.scripts.keys import shown
from celery_redlock.task.ends import end_as_revoked, logged_pause, republish
from celery_redlock.task.publishing import release_claim

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.exceptions import Ignore

    from celery_redlock.errors import LockUnavailable, RedlockError
    from celery_redlock.line.backlog import Place
    from celery_redlock.task.call import Call
    from celery_redlock.task.interrupt import Interrupter

log = logging.getLogger(__name__)

_MOST_BEFORE = 20  # calls before it that have ended, and kept their places
_MOST_NAMED = 5  # named calls in a row that have ended before they ran
_RETURN_WITHIN = 300.0  # seconds in which superseded calls return to a worker


class LineEntry:
    """The entries of one call on the nodes, besides its lock.

    The interrupter lets time limits in while the broker does not accept the call.
    """

    def __init__(self, call: Call, interrupter: Interrupter) -> None:
        self.call, self._interrupter = call, interrupter
        task, header = call.options.task, call.header
        self._redlock = call.runtime.redlock
        # µs since 1970 when it joined a backlog, in this copy or an earlier one.
        self._refused = header.refused
        self._is_in_backlog = task.has_backlog and bool(header.deferred or header.line)
        self._is_in_order = task.in_order and not call.request.is_eager
        self._place: Place | None = None  # of a call in order
        # Which candidate runs: "latest", "first"; "" from its end on; None: not known.
        self._keep: str | None = header.next or task.keeps or None
        self._is_entered = bool(header.next)  # by a majority of the nodes
        self._replaces = task.replaces
        self._refusals = 0  # by the broker

    # -- its ends ------------------------------------------------------------------

    def end(self) -> None:
        """Leave the backlog and release the claim: the call begins, or has ended."""
        self.leave_backlog()
        call = self.call
        key = call.key if call.options.task.is_claimed else ""
        if call.header.claim or key:
            release_claim(call.task.app, call.header, call.id, call.task.name, key)

    def withdraw(self) -> None:
        """Leave the register: the call ends unrun, or runs without the lock."""
        call, self._keep = self.call, ""
        is_known = call.id and not call.request.is_eager
        if is_known and call.task.lock_options.registers_successors:
            withdraw(self._redlock, call.key, call.task.name, call.id)

    def republish(self, reason: RedlockError, countdown: float, **header: Any) -> float:
        """Send the call again, in its place; see ``ends.republish``.

        Returns 0.0, the seconds for which to try for the lock, if the broker did not
        take it.
        """
        call = self.call
        if call.options.task.in_order:
            header["line"] = (call.key, self._margin)
            self.keep_place(call.key, countdown)
        header = {"refused": self._refused, **header}
        error = republish(call, reason, countdown, **header)
        pause = logged_pause(call, error, self._refusals)
        self._refusals += 1
        self._interrupter.with_soft_limits(lambda: SYSTEM_CLOCK.sleep(pause))
        return 0.0

    # -- the backlog ---------------------------------------------------------------

    @property
    def in_backlog(self) -> float | None:
        """Seconds since the call joined a backlog; None if it was in none.

        The clocks of two machines may differ, so it is an estimate.
        """
        if not self._refused:
            return None
        return max(0.0, self._redlock.clock.wall() - self._refused / 1e6)

    def call_before(self) -> LockUnavailable | None:
        """Return a refusal by the first call of the line; None if this call is first.

        The first call loses its place here if its stored result says that it has ended:
        it did not leave the line itself. A call that was first once stays first, and
        asks no more. If too few nodes answer, the refusal is their outage.
        """
        if not self._is_in_order:
            return None
        call = self.call
        for left in reversed(range(_MOST_BEFORE)):
            try:
                place = self._place = self._join_backlog(call.key)
            except QuorumUnreachable as outage:
                return outage.with_traceback(None)
            if place is None or not place.before:
                break
            if left and call.other_has_ended(place.first):
                leave_backlog(self._redlock, call.key, place.first, in_order=True)
                continue
            return LockHeld(
                f"{place.first} was published before it with the key "
                f"{shown(call.key)}, and has not run yet.",
                key=call.key,
                held_key=call.key,
                holder=Holder("", task_id=place.first),
            )
        self._is_in_order = False
        return None

    def place_behind(self, held: LockHeld) -> Place | None:
        """Return the place in the backlog of the key that is held, if there is one."""
        task = self.call.options.task
        if not task.has_backlog:
            return None
        if not self._refused:
            self._refused = round(self._redlock.clock.wall() * 1e6)
        if task.in_order:
            return self._place
        return self._join_backlog(held.held_key or self.call.key)

    def keep_place(self, key: str, seconds: float) -> None:
        """Keep the place in the backlog of a key for a countdown of some seconds."""
        call, within = self.call, seconds + self._margin
        since = call.header.published
        keep_place(self._redlock, key, call.id, since=since, seconds=within)

    @property
    def _margin(self) -> float:
        """Seconds for which a place lives if its call does not look again.

        RabbitMQ discards an expired message itself, and no process sees that.
        """
        call, task = self.call, self.call.options.task
        if not task.in_order:
            return MARGIN
        if call.is_redelivered or not call.expires():  # RabbitMQ discards no copy
            return task.claim_seconds
        left = max(0.0, call.expires() - SYSTEM_CLOCK.wall())
        return min(task.claim_seconds, left + MARGIN)

    def _join_backlog(self, key: str) -> Place | None:
        self._is_in_backlog = True
        return join_backlog(
            self._redlock,
            key,
            self.call.id,
            since=self.call.header.published,
            margin=self._margin,
            in_order=self.call.options.task.in_order,
        )

    def leave_backlog(self) -> None:
        """Leave the backlog, if the call is in one."""
        if self._is_in_backlog:
            self._is_in_backlog = False
            call, in_order = self.call, self.call.options.task.in_order
            leave_backlog(self._redlock, call.key, call.id, in_order=in_order)

    # -- the cool-down -------------------------------------------------------------

    def cooling(self) -> ExistingJob | None:
        """Return the job whose success keeps the call from running, if there is one."""
        return Claims(self._redlock).succeeded(self.call.key, self.call.id)

    def cool_down(self) -> None:
        """Begin the cool-down: the call has succeeded, and still has its lock."""
        call, now = self.call, SYSTEM_CLOCK.wall()
        job = Holder.here(task=call.task.name, task_id=call.id, started=now)
        seconds = call.options.task.unique_for
        Claims(self._redlock).cool_down(call.key, job, seconds)

    # -- the successor register ------------------------------------------------------

    def enter(
        self, held: LockHeld, keep: str, seconds: float, *, replaces: bool = False
    ) -> None:
        """Enter the register until it tries again, and for a ttl.

        ``replaces``: it asks the running call to end. Raises the exception that ends
        it, if it is superseded.
        """
        call, holder = self.call, held.holder
        self._replaces |= replaces
        enter = functools.partial(
            call.register(keep).enter,
            ttl=seconds + call.options.ttl,
            entered=self._is_entered or self._replaces,
            holder_id=holder.task_id if holder is not None else "",
        )
        reply = self._asked(enter)
        self._keep, self._is_entered = keep, reply.entered
        if reply.by is not None:
            raise self._superseded(reply.by, held)

    @property
    def successor(self) -> str:
        """Which candidate runs, if a majority has entered this one; else ``""``."""
        return self._keep or "" if self._is_entered else ""

    def start(self) -> None:
        """Note that the call runs, now that it has its lock; or end as superseded."""
        if self._keep is None:
            self.withdraw()
        elif keep := self._keep:
            self._keep = ""
            ttl = self.call.options.ttl + _RETURN_WITHIN
            start = self.call.register(keep).start
            reply = self._asked(lambda: start(ttl=ttl, entered=self._is_entered))
            if reply.by is not None:
                raise self._superseded(reply.by)

    def _asked(self, ask: Callable[[], RegisterReply]) -> RegisterReply:
        """Return the reply of the nodes; withdraw named calls that never run.

        A call notes its start before it runs. So the nodes are asked once more when
        the end is known: the first reply may be of the time before the start.
        """
        call, ended = self.call, None
        for _ in range(2 * _MOST_NAMED):
            reply = ask()
            if reply.by is None or not reply.waits:
                return reply
            if reply.by != ended:
                if not call.other_has_ended(reply.by):
                    return reply
                ended = reply.by
                continue
            log.info("%s has ended before it ran; %s asks again.", reply.by, call)
            withdraw(self._redlock, call.key, call.task.name, reply.by)
        return RegisterReply(by=None, entered=False)

    def _superseded(self, by: str, held: LockHeld | None = None) -> Ignore:
        """Return the exception that ends a call, because another one runs instead."""
        call, holder = self.call, held.holder if held is not None else None
        policy = CancelRunning.name if self._replaces else BufferOne.name
        error = DuplicateTask(
            f"{call} did not run (on_conflict: {policy}): {by} runs instead. Of the "
            f"calls that wait for the lock {call.key!r} only one runs.",
            key=call.key,
            holder=holder,
        )
        log.info("%s", error, extra=call.log_fields("superseded", by=by))
        return end_as_revoked(
            call,
            error,
            key=call.key,
            policy=policy,
            holder=by if held is None else str(holder),
            superseded_by=by,
        )
