"""Take the lock of a call, or end the call as the refusal asks for.

==================================  ==========================================
the nodes say                       then
==================================  ==========================================
granted                             the call runs, unless it is a copy of a call
                                    that has ended, or a copy that has expired
a majority names another call       it is a duplicate: ``on_conflict``
one has succeeded (``unique_for``)  the same
a majority names this very call     another copy of it runs: this copy waits 1 s,
                                    then is republished. The delay doubles, up to
                                    the ttl
the votes are split                 it waits 1 s, then is republished
too few answer                      ``on_backend_error``
==================================  ==========================================

*This very call* is another message with the same task id: a redelivery, or a
retry that overtook its parent. The lock is never a reason to drop such a copy, and
the result belongs to the other copy.

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
waits, or runs without it      ``task-conflict``     that of its run, in the end
=============================  ====================  ============================

Each names the key, the policy and the holder. ``task-conflict`` is an event of this
package: monitors show a task in the state CONFLICT until the next event. Workers send
events where Celery's own are on (``-E``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from celery_redlock.core.backoff import doubled, jittered
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.records.beat_slots import mark_slot
from celery_redlock.errors import (
    DuplicateTask,
    LockContended,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.policies import Conflict, Outage, Successor
from celery_redlock.signals import lock_conflict, lock_outage
from celery_redlock.task.publishing import cooling

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.records.claims import ExistingJob
    from celery_redlock.policies import ConflictDecision, OutageDecision
    from celery_redlock.task.call import Call
    from celery_redlock.task.interrupt import Interrupter

__all__ = ["Admission"]

log = logging.getLogger(__name__)

_PATIENCE = 1.0  # seconds for which a copy waits before it is republished


class Admission:
    """Tries for the lock until the call has it, runs without it, or has ended.

    ``acquire`` gets the seconds for which to try. The interrupter lets time limits in
    during a wait.

    Attributes:
        waited: Seconds for which policies have let the call wait.
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
        self._acquire, self._release = acquire, release
        self._interrupter = interrupter
        self._patience = _PATIENCE
        may_be_registered = call.header.next or call.options.only_newest
        self._successor = Successor(call) if may_be_registered else None

    def enter(self) -> Lease | None:
        """Acquire the lock; it is for the caller to release it.

        Returns:
            The lease; None if the call is to run without the lock.

        Raises:
            celery.exceptions.Ignore, celery.exceptions.Retry: This copy has ended.
            DuplicateTask, QuorumUnreachable: The call ends in this failure.
        """
        call = self.call
        if call.is_redelivered:
            call.drop_if_finished()
        if call.header.slot:
            self._drop_if_sent_twice(call.header.slot)
        wait: float | None = 0.0
        while wait is not None:
            try:
                lease = self._try(wait)
            except LockHeld as held:  # noqa: PERF203  (trying is the point)
                wait = self._when_held(held)
            except LockContended as contended:
                wait = self._wait_or_republish(contended)
            except QuorumUnreachable as unreachable:
                wait = self._when_unreachable(unreachable)
            else:
                if self._may_run():
                    return lease
                wait = 0.0
        return None

    # -- for decisions -----------------------------------------------------------

    @property
    def successor(self) -> Successor:
        """The part of the call in the successor register."""
        if self._successor is None:
            self._successor = Successor(self.call)
        return self._successor

    def withdraw(self) -> None:
        """Withdraw from the successor register, where the call is in it."""
        if self._successor is not None:
            self._successor.withdraw()

    def republish(self, reason: RedlockError, countdown: float, **header: Any) -> None:
        """Publish the call again and end this copy of it; see ``Call.republish``."""
        self.call.republish(reason, countdown, self._interrupter, **header)

    # -- granted -------------------------------------------------------------------

    def _try(self, wait: float) -> Lease:
        if not wait:
            return self._acquire(wait)
        return self._interrupter.interruptible(lambda: self._acquire(wait))

    def _may_run(self) -> bool:
        """Tell whether the call runs under the lock that it has now, or tries again."""
        call = self.call
        if call.is_redelivered:
            call.drop_if_outdated()
        elif call.header.deferred:
            # The process that published this copy may have been killed right then:
            # its own message came back, and may have run before this one.
            call.drop_if_finished()
        if self._successor is not None:
            self._successor.start()
        other = cooling(call) if call.options.unique_for else None
        return other is None or self._may_run_in_cool_down(other)

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
        raise call.skip(error, key=call.key, policy="slot")

    def _may_run_in_cool_down(self, other: ExistingJob) -> bool:
        """Ask the policy about a call that succeeded; if it says so, wait first."""
        wait = self._when_held(other.error(), phase=other.phase)
        if wait is None:
            return True
        self._release()  # no other call has to wait for the lock meanwhile
        pause = min(wait, other.left)
        self._interrupter.interruptible(lambda: SYSTEM_CLOCK.sleep(pause))
        return False

    # -- refused -------------------------------------------------------------------

    def _when_held(self, held: LockHeld, phase: str = "running") -> float | None:
        call, holder = self.call, held.holder
        if holder is not None and holder.task_id and holder.task_id == call.id:
            return self._wait_or_republish(held, redelivered=True)
        conflict = Conflict(
            **call.facts(),
            args=call.args,
            kwargs=call.kwargs,
            holder=holder,
            retry_after=held.retry_after,
            waited=self.waited,
            deferrals=call.header.deferred,
            phase=phase,
        )
        decision = call.options.on_conflict(conflict)
        refused = _RefusedCall(self, conflict, decision, held)
        refused.announce()
        wait: float | None = decision.perform(refused)
        return wait

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
        except Exception:
            # The broker may be away. The decision is performed all the same.
            log.exception("The event task-conflict of %s could not be sent.", call)

    def skip(self) -> NoReturn:
        raise self.admission.call.skip(self._end(), **self._event_fields())

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
        header = {"next": next_} if self.decision.registers else {}
        reason = self.duplicate(what)
        self.admission.republish(reason, countdown, deferred=deferred, **header)
        return 0.0

    def duplicate(self, what: str) -> DuplicateTask:
        """Return the error that says what becomes of the call, and why."""
        waited = self.conflict.waited
        after = f", after {waited:g} s of waiting" if waited else ""
        return DuplicateTask(
            f"{self.admission.call} {what} (on_conflict: {self.decision.name}{after}). "
            f"{self.held}",
            key=self.held.key,
            ballot=self.held.ballot,
            holder=self.held.holder,
            retry_after=self.held.retry_after,
        )

    def _end(self) -> DuplicateTask:
        self.admission.withdraw()
        return self.duplicate("did not run")

    def _event_fields(self) -> dict[str, str]:
        holder = self.held.holder
        return {
            "key": self.admission.call.key,
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
        extra = call.log_fields("outage", decision=decision.name)
        what = decision.describe(self.outage)
        text = "%s will %s (on_backend_error): %s"
        log.warning(text, call, what, self.unreachable, extra=extra)
        facts = {"outage": self.outage, "decision": decision}
        lock_outage.send(sender=call.task, **facts, waited=call.waited)

    def skip(self) -> NoReturn:
        fields = {"key": self.admission.call.key, "policy": self.decision.name}
        raise self.admission.call.skip(self.unreachable, **fields)

    def fail(self) -> NoReturn:
        raise self.unreachable

    def run(self) -> None:
        pass

    def republish(self, countdown: float) -> float:
        """Publish the call again; return 0 if the broker did not take it."""
        outages = self.admission.call.header.outages + 1
        self.admission.republish(self.unreachable, countdown, outages=outages)
        return 0.0
