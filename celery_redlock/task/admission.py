"""Take the lock of a call, or end the call as the refusal asks for.

==================================  ==========================================
the nodes say                       then
==================================  ==========================================
granted                             the call runs, unless it is a copy of a call
                                    that has ended, or a copy that has expired
a majority names another call       it is a duplicate: ``on_conflict``
one has succeeded (``unique_for``)  the same
a majority names this very call     another copy of it runs: this copy is
                                    republished for about 1 s later. The delay
                                    doubles, up to the ttl
the votes are split                 it waits 1 s, then is republished in this way
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

A decision about a refusal is logged and signalled, and performs itself on a
`_RefusedCall` or an `_UnreachableCall`:

=============================  ====================  ============================
the decision                   Celery's events       the result
=============================  ====================  ============================
skips the call                 ``task-revoked``      REVOKED, `DuplicateTask`
fails the call                 ``task-failed``       FAILURE, `DuplicateTask`
republishes the call           ``task-conflict``,    RETRY, `DuplicateTask`
                               ``task-retried``
waits, or runs without it      ``task-conflict``,    that of its run, in the end
                               ``task-started``
=============================  ====================  ============================

Each names the key, the policy and the holder. ``task-conflict`` is an event of this
package: monitors show a task in the state CONFLICT until the next event, which is
``task-started`` when its body begins. Workers send events where Celery's own are on
(``-E``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from celery.exceptions import Ignore, Retry

from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import (
    DuplicateTask,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.line.backlog import (
    MARGIN,
    join_backlog,
    keep_place,
    leave_backlog,
)
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.limits import Wanted
from celery_redlock.policies import Conflict, Outage
from celery_redlock.records.beat_slots import mark_slot
from celery_redlock.scripts.keys import shown
from celery_redlock.signals import lock_conflict, lock_outage
from celery_redlock.task.ends import (
    Pauses,
    drop_if_finished,
    drop_if_outdated,
    republish,
    skip,
    wait_for_result,
)
from celery_redlock.task.header import waits_of
from celery_redlock.task.publishing import cooling
from celery_redlock.task.successor import Successor

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.line.backlog import Place
    from celery_redlock.line.claims import ExistingJob
    from celery_redlock.locks.lease import Lease
    from celery_redlock.policies import ConflictDecision, OutageDecision
    from celery_redlock.task.call import Call
    from celery_redlock.task.interrupt import Interrupter

__all__ = ["Admission"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_MOST_ENDED = 20  # calls before it that have ended, and kept their places
_PATIENCE = 1.0  # seconds for which a call with split votes waits in its process


class Admission:
    """Tries for the lock until the call has it, runs without it, or has ended.

    ``acquire`` gets the seconds for which to try. The interrupter lets time limits in
    during a wait.

    Attributes:
        waited: Seconds for which policies have let the call wait.
        refused: µs since 1970 when the call joined a backlog, in this copy or an
            earlier one; 0 if it was in none.
    """

    def __init__(
        self,
        call: Call,
        acquire: Callable[[float], Lease],
        release: Callable[[], None],
        interrupter: Interrupter,
    ) -> None:
        self.call = call
        self.waited = 0.0
        self.refused = call.header.refused
        self._acquire, self._release = acquire, release
        self._interrupter = interrupter
        self._patience = _PATIENCE
        may_be_registered = call.header.next or call.options.task.keeps
        self._successor = Successor(call) if may_be_registered else None
        self._is_in_backlog = call.options.task.has_backlog and bool(
            call.header.deferred or call.header.line
        )
        self._is_in_order = call.options.task.in_order and not call.request.is_eager
        self._place: Place | None = None  # of a call in order
        self.is_shown_as_refused = False  # to monitors, by an event

    def enter(self) -> Lease | None:
        """Acquire the lock; it is for the caller to release it.

        Returns:
            The lease; None if the call is to run without the lock.

        Raises:
            celery.exceptions.Ignore, celery.exceptions.Retry: This copy has ended.
            DuplicateTask, QuorumUnreachable: The call ends in this failure.
        """
        try:
            return self._enter()
        except Retry:
            raise
        except Ignore as ignored:
            if type(ignored) is not Ignore:  # the call was skipped and has its result
                self._leave_backlog()
            raise
        except BaseException:
            self._leave_backlog()
            raise

    def _enter(self) -> Lease | None:
        call = self.call
        if call.is_redelivered:
            drop_if_finished(call)
        if call.header.slot:
            self._drop_if_sent_twice(call.header.slot)
        wait: float | None = 0.0
        while wait is not None:
            if self._is_in_order and (before := self._one_before()) is not None:
                wait = self._when_held(before, phase="queued")
                continue
            tried = self._try(wait)
            if not isinstance(tried, LockUnavailable):
                self._end_outage()
                if self._may_run() and self._holds(tried):
                    self._leave_backlog()
                    self._show_start()
                    return tried
                wait = 0.0
            elif isinstance(tried, LockHeld):
                self._end_outage()
                wait = self._when_held(tried)
            elif isinstance(tried, QuorumUnreachable):
                wait = self._when_unreachable(tried)
            else:
                wait = self._wait_or_republish(tried)
        self._show_start()
        return None

    def _show_start(self) -> None:
        """Send ``task-started`` for a call that monitors show in the state CONFLICT."""
        if not self.is_shown_as_refused:
            return
        try:
            self.call.task.send_event("task-started", retry=False)
        except Exception:
            # The broker may be away. The body runs all the same.
            log.exception("The event task-started of %s could not be sent.", self.call)

    @property
    def in_backlog(self) -> float | None:
        """Seconds since the call joined a backlog; None if it was in none.

        The clocks of two machines may differ, so it is an estimate.
        """
        if not self.refused:
            return None
        now: float = self.call.runtime.redlock.clock.wall()
        return max(0.0, now - self.refused / 1e6)

    @cached_property
    def _pauses(self) -> Pauses:
        return Pauses(self._interrupter)

    # -- for decisions -----------------------------------------------------------

    @property
    def successor(self) -> Successor:
        """The part of the call in the successor register."""
        if self._successor is None:
            self._successor = Successor(self.call)
        return self._successor

    def withdraw(self) -> None:
        """Withdraw from the successor register and the backlog, where it may be."""
        self._leave_backlog()
        if self.call.task.lock_options.registers_successors:
            self.successor.withdraw()

    def republish(self, reason: RedlockError, countdown: float, **header: Any) -> None:
        """Publish the call again and end this copy of it; see ``ends.republish``."""
        if self.call.options.task.in_order:
            margin = self.call.options.task.claim_seconds
            header["line"] = (self.call.key, margin)
            keep_place(
                self.call.runtime.redlock,
                self.call.key,
                self.call.id,
                since=self.call.header.published,
                seconds=countdown,
                margin=margin,
            )
        header = {"refused": self.refused, **header}
        republish(self.call, reason, countdown, self._pauses, **header)

    # -- granted -------------------------------------------------------------------

    def _try(self, wait: float) -> Lease | LockUnavailable:
        """Return the refusal as it is: what follows is no handling of an exception."""
        try:
            if not wait:
                return self._acquire(wait)
            return self._wait(lambda: self._acquire(wait))
        except LockUnavailable as refusal:
            return refusal.with_traceback(None)

    def _wait(self, wait: Callable[[], _T]) -> _T:
        """Wait in this process, which runs no other call meanwhile."""
        refusal_log = self.call.runtime.refusal_log
        refusal_log.waits(self.call)
        try:
            return self._interrupter.time_limited(wait)
        finally:
            refusal_log.waits_no_more(self.call)

    def _end_outage(self) -> None:
        """Log the end of an outage: the nodes have voted on this call."""
        if (outage_log := self.call.runtime.outage_log).is_on:
            outage_log.end()

    def _may_run(self) -> bool:
        """Tell whether the call runs under the lock that it has now, or tries again."""
        call = self.call
        if call.is_redelivered:
            if call.header.met_copy:
                self._wait(lambda: wait_for_result(call))
            drop_if_outdated(call)
        elif call.header.deferred:
            # The process that published this copy may have been killed right then:
            # its own message came back, and may have run before this one.
            drop_if_finished(call)
        if self._successor is not None:
            self._successor.start()
        else:
            self.withdraw()
        other = cooling(call) if call.options.task.unique_for else None
        return other is None or self._may_run_in_cool_down(other)

    def _holds(self, lease: Lease) -> bool:
        """Tell whether the call still has its lock; if not, it tries again.

        A copy of a call waits under its lock for the result of the other one. No policy
        has to decide about a lock that it lost meanwhile: the body has not begun.
        """
        if lease.is_valid():
            return True
        call = self.call
        fields = call.log_fields("lost-before-body", fence=lease.fence)
        log.warning(
            "%s lost its lock before it began; it tries again.", call, extra=fields
        )
        self._release()
        return False

    def _drop_if_sent_twice(self, slot: str) -> None:
        """End the second of two messages that beat has sent for one slot."""
        call = self.call
        first = mark_slot(call.runtime.redlock, slot, call.id)
        if first is None:
            return
        error = DuplicateTask(
            f"{call} did not run: beat has sent {slot} twice, and the first message "
            f"runs as {first}.",
            key=call.key,
        )
        log.info("%s", error, extra=call.log_fields("slot-sent-twice", slot=slot))
        raise skip(call, error, key=call.key, policy="slot")

    def _may_run_in_cool_down(self, other: ExistingJob) -> bool:
        """Tell whether a call may run in a cool-down, as its policy decides."""
        wait = self._when_held(other.error(), phase=other.phase)
        if wait is None:
            return True
        self._release()  # no other call has to wait for the lock meanwhile
        pause = min(wait, other.left)
        self._wait(lambda: SYSTEM_CLOCK.sleep(pause))
        return False

    # -- refused -------------------------------------------------------------------

    def _when_held(self, held: LockHeld, phase: str = "running") -> float | None:
        call, holder = self.call, held.holder
        if _is_copy(call, held):
            # Not waited for here: Celery stores the result after the lock is released,
            # and this copy would be woken, and run, between the two.
            self._patience = 0.0
            if call.follows_its_holder:
                return self._wait_or_republish(held, again=True)
            return self._wait_or_republish(held, redelivered=True, met_copy=True)
        conflict = Conflict(
            **call.facts(),
            held_key=held.held_key or call.key,
            limit=held.limit,
            args=call.args,
            kwargs=call.kwargs,
            holder=holder,
            retry_after=held.retry_after,
            due=held.due,
            place=self._place_behind(held, phase),
            waited=self.waited,
            deferrals=call.header.deferred,
            phase=phase,
        )
        decision = call.options.on_conflict(conflict)
        refused = _RefusedCall(self, conflict, decision, held)
        refused.announce()
        wait: float | None = decision.perform(refused)
        return wait

    def _place_behind(self, held: LockHeld, phase: str) -> Place | None:
        """Return the place in the backlog of the key that is held, if there is one."""
        call = self.call
        if phase == "succeeded" or not call.options.task.has_backlog:
            return None
        if not self.refused:
            self.refused = round(call.runtime.redlock.clock.wall() * 1e6)
        if call.options.task.in_order:
            return self._place
        return self._join_backlog(held.held_key or call.key)

    def _join_backlog(self, key: str) -> Place | None:
        call, options = self.call, self.call.options
        self._is_in_backlog = True
        return join_backlog(
            call.runtime.redlock,
            key,
            call.id,
            since=call.header.published,
            margin=options.task.claim_seconds if options.task.in_order else MARGIN,
            in_order=options.task.in_order,
        )

    def _one_before(self) -> LockHeld | None:
        """Return a refusal by the first call of the line; None if this call is first.

        A call that has ended in another way, says its result, loses its place here. A
        call that is first stays first, so it is not asked about again.
        """
        call = self.call
        for left in reversed(range(_MOST_ENDED)):
            place = self._place = self._join_backlog(call.key)
            if place is None or not place.before:
                break
            if left and call.has_ended(place.first):
                leave_backlog(
                    call.runtime.redlock, call.key, place.first, in_order=True
                )
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

    def _leave_backlog(self) -> None:
        if self._is_in_backlog:
            self._is_in_backlog = False
            call = self.call
            in_order = call.options.task.in_order
            leave_backlog(call.runtime.redlock, call.key, call.id, in_order=in_order)

    def _when_unreachable(self, unreachable: QuorumUnreachable) -> float | None:
        call = self.call
        outage = Outage(
            **call.facts(),
            reason=str(unreachable),
            retry_after=unreachable.retry_after,
            deferrals=call.header.outages,
        )
        decision = call.options.on_backend_error(outage)
        refused = _UnreachableCall(self, outage, decision, unreachable)
        refused.announce()
        wait: float | None = decision.perform(refused)
        return wait

    def _wait_or_republish(self, refusal: LockUnavailable, **header: bool) -> float:
        """Wait once; then republish, with a delay that doubles up to the ttl."""
        patience, self._patience = self._patience, 0.0
        if not patience:
            deferred = self.call.header.deferred
            countdown = jittered(doubled(1.0, deferred, self.call.options.ttl))
            self.republish(refusal, countdown, deferred=deferred + 1, **header)
        return patience


def _is_copy(call: Call, held: LockHeld) -> bool:
    """Tell whether the holder is another copy of the same call."""
    if held.limit is not None and held.limit.is_call:
        return True
    holder = held.holder
    return holder is not None and bool(call.id) and holder.task_id == call.id


@dataclass(frozen=True, slots=True)
class _RefusedCall:
    """A call whose lock another call has: a `policies.RefusedCall`."""

    admission: Admission
    conflict: Conflict
    decision: ConflictDecision
    held: LockHeld

    @property
    def successor(self) -> Successor:
        return self.admission.successor

    def announce(self) -> None:
        """Log the decision, send the signal, and the event where one is needed."""
        call, decision = self.admission.call, self.decision
        what = decision.describe(self.conflict)
        holder = self.held.holder.task_id if self.held.holder else ""
        extra = call.log_fields("conflict", decision=decision.name, holder=holder)
        text = "%s will %s (on_conflict): %s"
        log.log(decision.log_level, text, call, what, self.held, extra=extra)
        facts = {"conflict": self.conflict, "decision": decision}
        lock_conflict.send(sender=call.task, **facts, waited=call.waited)
        if not (decision.sends_event and call.header.events):
            return
        fields = {**self._event_fields(), "decision": f"will {what}"}
        try:
            call.task.send_event("task-conflict", retry=False, **fields)
            self.admission.is_shown_as_refused = True
        except Exception:
            # The broker may be away. The decision is performed all the same.
            log.exception("The event task-conflict of %s could not be sent.", call)

    def skip(self) -> NoReturn:
        raise skip(self.admission.call, self._end(), **self._event_fields())

    def fail(self) -> NoReturn:
        raise self._end()

    def run(self) -> None:
        self.admission.withdraw()

    def wait(self, timeout: float) -> float:
        """Return the seconds for which to try for the lock, in this process."""
        call = self.admission.call
        is_known = call.task.lock_options.waits  # then the worker warned at its start
        if self.decision.occupies_process and not is_known:
            call.runtime.warn_of_waiting(call.task.name)
        self.admission.waited += timeout
        return timeout

    def republish(
        self, countdown: float, what: str = "is republished", *, next_: str = ""
    ) -> float:
        """Publish the call again; return 0 if the broker did not take it."""
        deferred = self.admission.call.header.deferred + 1
        header: dict[str, Any] = {"next": next_} if self.decision.registers else {}
        if self.conflict.phase != "succeeded":
            header["waits"] = self._waits(countdown)
        reason = self.duplicate(what)
        self.admission.republish(reason, countdown, deferred=deferred, **header)
        return 0.0

    def _waits(self, countdown: float) -> tuple[Any, ...]:
        """Keep the place of the call in its backlog, and return what it waits for."""
        call, backlog = self.admission.call, ""
        if call.options.task.in_order:  # it has its place there since it was published
            backlog = call.key
        elif call.options.task.has_backlog:
            backlog = self.conflict.held_key
            keep_place(
                call.runtime.redlock,
                backlog,
                call.id,
                since=call.header.published,
                seconds=countdown,
            )
        wanted = Wanted(call.key, call.limits)
        return waits_of(wanted, waits_on=call.options.task.waits_on, backlog=backlog)

    def duplicate(self, what: str) -> DuplicateTask:
        """Return the error that says what becomes of the call, and why."""
        waited = self.conflict.waited
        after = f", after {waited:g} s of waiting" if waited else ""
        return DuplicateTask(
            f"{self.admission.call} {what} (on_conflict: {self.decision.name}{after}). "
            f"{self.held}",
            key=self.held.key,
            held_key=self.held.held_key,
            ballot=self.held.ballot,
            holder=self.held.holder,
            retry_after=self.held.retry_after,
            limit=self.held.limit,
            due=self.held.due,
        )

    def _end(self) -> DuplicateTask:
        self.admission.withdraw()
        return self.duplicate("did not run")

    def _event_fields(self) -> dict[str, str]:
        holder = self.held.holder
        return {
            "key": self.admission.call.key,
            "held_key": self.conflict.held_key,
            "policy": self.decision.name,
            "holder": str(holder),
            "holder_id": holder.task_id if holder else "",
        }


@dataclass(frozen=True, slots=True)
class _UnreachableCall:
    """A call for which too few nodes answered: a `policies.DecidedCall`."""

    admission: Admission
    outage: Outage
    decision: OutageDecision
    unreachable: QuorumUnreachable

    def announce(self) -> None:
        """Log the decision, and send the signal."""
        call, decision = self.admission.call, self.decision
        extra = call.log_fields("outage-call", decision=decision.name)
        what = f"{decision.describe(self.outage)} (on_backend_error)"
        log.debug("%s will %s: %s", call, what, self.unreachable, extra=extra)
        outage_log, error = call.runtime.outage_log, self.unreachable
        outage_log.add(call, call.id, decision.name, what, error)
        facts = {"outage": self.outage, "decision": decision}
        lock_outage.send(sender=call.task, **facts, waited=call.waited)

    def skip(self) -> NoReturn:
        self.admission.withdraw()
        fields = {"key": self.admission.call.key, "policy": self.decision.name}
        raise skip(self.admission.call, self.unreachable, **fields)

    def fail(self) -> NoReturn:
        self.admission.withdraw()
        raise self.unreachable

    def run(self) -> None:
        self.admission.withdraw()

    def republish(self, countdown: float) -> float:
        """Publish the call again; return 0 if the broker did not take it."""
        outages = self.admission.call.header.outages + 1
        self.admission.republish(self.unreachable, countdown, outages=outages)
        return 0.0
