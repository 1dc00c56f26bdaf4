"""Get a call its lock, or end it in the way that the refusal asks for.

==================================  ==========================================
the nodes say                       then
==================================  ==========================================
granted                             it runs, unless it is a copy of a call that
                                    has ended, or has expired as one
a majority names another call       a duplicate: ``on_conflict``
one has succeeded (``unique_for``)  the same
a majority names this very call     it waits 1 s, then is put back: the other
                                    copy is running. The delay doubles up to ttl
the votes are split                 it waits 1 s, then is put back
too few answer                      ``on_backend_error``
==================================  ==========================================

*This very call* is another message with the same task id: a redelivery, or a
retry that overtook its parent. Such a copy is never dropped for the lock, and
leaves the result to the other one.

*Put back* publishes the same call again with a delay and ends this copy. When
the broker does not take it the copy keeps its slot and tries the lock again, and
so on: nothing is lost as long as one of the two comes back.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from celery.exceptions import TaskRevokedError

from celery_redlock import outcome
from celery_redlock.call import Call, doubled, in_seconds
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.errors import (
    DuplicateTask,
    LockContended,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.following import Following
from celery_redlock.notices import (
    announce_conflict,
    announce_outage,
    duplicate,
    facts_of,
)
from celery_redlock.policies import (
    BufferOne,
    CancelRunning,
    Conflict,
    Outage,
    Raise,
    Retry,
    Run,
    Skip,
    Wait,
)
from celery_redlock.publishing import cooling
from celery_redlock.slots import stand_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager, ExitStack

    from celery_redlock.claims import JobHere
    from celery_redlock.core.lease import Lease
    from celery_redlock.interrupt import Interrupter
    from celery_redlock.policies import ConflictDecision

__all__ = ["Admission"]

log = logging.getLogger("celery_redlock.admission")

_PATIENCE = 1.0  # seconds for which a copy waits before it is put back


class Admission:
    """Tries until the call has its lock, runs without one, or has ended.

    Args:
        call: The call.
        lock: Makes the context manager that takes the lock, given for how many
            seconds it keeps trying.
        interrupter: Lets time limits in while it waits.
    """

    def __init__(
        self,
        call: Call,
        lock: Callable[[float], AbstractContextManager[Lease]],
        interrupter: Interrupter,
    ) -> None:
        self._call = call
        self._lock = lock
        self._interrupter = interrupter
        self._waited = 0.0
        self._patience = _PATIENCE
        self._following = Following(call, interrupter)

    def enter(self, stack: ExitStack) -> Lease | None:
        """Take the lock for as long as the stack lasts.

        Returns:
            The lease; None if the call is to run without the lock.

        Raises:
            celery.exceptions.Ignore, celery.exceptions.Retry: This copy has ended.
            DuplicateTask, QuorumUnreachable: The call ends in this failure.
        """
        self._call.drop_if_finished()
        self._check_slot()
        wait: float | None = 0.0
        while wait is not None:
            try:
                lease = self._try(stack, wait)
            except LockHeld as held:  # noqa: PERF203  (trying is the point)
                wait = self._when_held(held)
            except LockContended as contended:
                wait = self._when_contended(contended)
            except QuorumUnreachable as outage:
                wait = self._when_unreachable(outage)
            else:
                self._check_copy()
                self._following.take_turn()
                here = cooling(self._call)
                if here is None or self._may_run_in_cool_down(here, stack):
                    return lease
                wait = 0.0
        return None

    def _try(self, stack: ExitStack, wait: float) -> Lease:
        enter = functools.partial(stack.enter_context, self._lock(wait))
        return self._interrupter.expose(enter) if wait else enter()

    def _check_copy(self) -> None:
        """End a copy, now that the lock says that no other one is running."""
        call = self._call
        call.drop_if_finished()
        if call.has_twin and outcome.has_expired(call.task, call.request):
            log.info("%s has expired.", call, extra=call.about("expired"))
            error = TaskRevokedError("expired")
            raise outcome.skip(call.task, call.request, error, expired=True)

    def _may_run_in_cool_down(self, here: JobHere, stack: ExitStack) -> bool:
        """Ask what to do so soon after a success; without an answer, wait for one."""
        wait = self._when_held(here.error(), phase=here.phase)
        if wait is None:
            return True
        stack.close()  # nobody has to wait for the lock meanwhile
        pause = min(wait, here.left)
        self._interrupter.expose(lambda: SYSTEM_CLOCK.sleep(pause))
        return False

    def _check_slot(self) -> None:
        """End the second of two messages that beat sent for one slot."""
        call, slot = self._call, self._call.envelope.slot
        first = stand_for(call.runtime.redlock, slot, call.id) if slot else None
        if first is None:
            return
        error = DuplicateTask(
            f"{call} did not run: beat has sent {slot} twice, and it has begun as "
            f"{first}.",
            key=call.key,
        )
        log.info("%s", error, extra=call.about("slot-sent-twice", slot=slot))
        raise outcome.skip(call.task, call.request, error, key=call.key, policy="slot")

    # -- refusals -----------------------------------------------------------

    def _when_held(self, held: LockHeld, phase: str = "running") -> float | None:
        call, holder = self._call, held.holder
        if holder is not None and holder.task_id and holder.task_id == call.id:
            return self._wait_or_put_back(held, twin=True)
        conflict = Conflict(
            key=call.key,
            task=call.task.name,
            task_id=call.id,
            args=call.args,
            kwargs=call.kwargs,
            holder=holder,
            retry_after=held.retry_after,
            waited=self._waited,
            deferrals=call.envelope.deferred,
            retries=call.request.retries,
            phase=phase,
        )
        decision = _meant(call.options.on_conflict(conflict), conflict)
        announce_conflict(call, conflict, decision, held)
        match decision:
            case Wait(timeout):
                if not call.task.lock_options.waits:  # or it was said at the start
                    call.runtime.warn_of_waiting(call.task.name)
                self._waited += in_seconds(timeout)
                return in_seconds(timeout)
            case Retry(countdown):
                deferred = call.envelope.deferred + 1
                reason = duplicate(call, held, "retry", "is put back")
                delay = in_seconds(countdown)
                call.put_back(reason, delay, self._interrupter, deferred=deferred)
                return 0.0
            case BufferOne(keep, countdown):
                return self._following.follow(
                    held, keep or "latest", in_seconds(countdown)
                )
            case CancelRunning(grace):
                return self._following.replace(held, in_seconds(grace))
            case Run():
                self._following.leave()
                return None
            case Raise():
                raise self._ended(held, "raise")
            case Skip():
                raise outcome.skip(
                    call.task,
                    call.request,
                    self._ended(held, "skip"),
                    **facts_of(call, held, "skip"),
                )

    def _ended(self, held: LockHeld, policy: str) -> DuplicateTask:
        self._following.leave()
        waited = f", after {self._waited:g} s of waiting" if self._waited else ""
        return duplicate(self._call, held, f"{policy}{waited}", "did not run")

    def _when_contended(self, contended: LockContended) -> float:
        return self._wait_or_put_back(contended)

    def _wait_or_put_back(self, refusal: LockUnavailable, **envelope: bool) -> float:
        """Wait once; put the call back, with a delay that doubles up to the ttl."""
        patience, self._patience = self._patience, 0.0
        if not patience:
            call, deferred = self._call, self._call.envelope.deferred
            countdown = doubled(deferred, call.options.ttl)
            call.put_back(
                refusal, countdown, self._interrupter, deferred=deferred + 1, **envelope
            )
        return patience

    def _when_unreachable(self, unreachable: QuorumUnreachable) -> float | None:
        call = self._call
        outage = Outage(
            key=call.key,
            task=call.task.name,
            task_id=call.id,
            reason=str(unreachable),
            retry_after=unreachable.retry_after,
            deferrals=call.envelope.outages,
            retries=call.request.retries,
        )
        decision = call.options.on_backend_error(outage)
        announce_outage(call, outage, decision, unreachable)
        match decision:
            case Retry(countdown):
                outages = call.envelope.outages + 1
                delay = in_seconds(countdown)
                call.put_back(unreachable, delay, self._interrupter, outages=outages)
                return 0.0
            case Run():
                return None
            case Raise():
                raise unreachable
            case Skip():
                facts = {"key": call.key, "policy": "skip"}
                raise outcome.skip(call.task, call.request, unreachable, **facts)


def _meant(decision: ConflictDecision, conflict: Conflict) -> ConflictDecision:
    """Return what a decision means where the other one has ended already."""
    if conflict.phase == "succeeded" and isinstance(decision, CancelRunning):
        return Run()
    if conflict.phase == "succeeded" and isinstance(decision, BufferOne):
        return Retry(conflict.retry_after)
    return decision
