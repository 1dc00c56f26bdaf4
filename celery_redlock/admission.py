"""Get a call its lock, or end it in the way that the refusal asks for.

==================================  ==========================================
the nodes say                       then
==================================  ==========================================
granted                             it runs, unless it is a copy of a call that
                                    has ended, or has expired as one
a majority names another call       a duplicate: ``on_conflict``
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
import random
from typing import TYPE_CHECKING

from celery.exceptions import TaskRevokedError

from celery_redlock import outcome
from celery_redlock.call import Call, in_seconds
from celery_redlock.errors import (
    DuplicateTask,
    LockContended,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.policies import Conflict, Outage, Raise, Retry, Run, Skip, Wait
from celery_redlock.signals import lock_conflict
from celery_redlock.slots import stand_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager, ExitStack

    from celery_redlock.core.lease import Lease
    from celery_redlock.interrupt import Interrupter
    from celery_redlock.policies import ConflictDecision, OutageDecision

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
                return lease
        return None

    def _try(self, stack: ExitStack, wait: float) -> Lease:
        enter = functools.partial(stack.enter_context, self._lock(wait))
        return self._interrupter.expose(enter) if wait else enter()

    def _check_copy(self) -> None:
        """End a copy, now that the lock says that no other one is running."""
        call = self._call
        call.drop_if_finished()
        if call.has_twin and outcome.has_expired(call.task, call.request):
            log.info("%s has expired.", call)
            error = TaskRevokedError("expired")
            raise outcome.skip(call.task, call.request, error, expired=True)

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
        log.info("%s", error)
        raise outcome.skip(call.task, call.request, error, key=call.key, policy="slot")

    # -- refusals -----------------------------------------------------------

    def _when_held(self, held: LockHeld) -> float | None:
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
        )
        decision = call.options.on_conflict(conflict)
        self._announce(conflict, decision, held)
        match decision:
            case Wait(timeout):
                self._waited += in_seconds(timeout)
                return in_seconds(timeout)
            case Retry(countdown):
                deferred = call.envelope.deferred + 1
                delay = in_seconds(countdown)
                call.put_back(held, delay, self._interrupter, deferred=deferred)
                return 0.0
            case Run():
                return None
            case Raise():
                raise self._duplicate(held, "raise")
            case Skip():
                raise outcome.skip(
                    call.task,
                    call.request,
                    self._duplicate(held, "skip"),
                    key=call.key,
                    holder=str(holder),
                    policy="skip",
                )

    def _when_contended(self, contended: LockContended) -> float:
        return self._wait_or_put_back(contended)

    def _wait_or_put_back(self, refusal: LockUnavailable, **envelope: bool) -> float:
        """Wait once; put the call back, with a delay that doubles up to the ttl."""
        patience, self._patience = self._patience, 0.0
        if not patience:
            call, deferred = self._call, self._call.envelope.deferred
            longest = min(call.options.ttl, 2.0**deferred)
            countdown = longest * random.uniform(0.5, 1.0)  # noqa: S311  (jitter)
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
        what = _words(decision)
        log.warning("%s %s (on_backend_error): %s", call, what, unreachable)
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

    # -- seen and heard -------------------------------------------------------

    def _announce(
        self, conflict: Conflict, decision: ConflictDecision, held: LockHeld
    ) -> None:
        level = logging.WARNING if isinstance(decision, Run) else logging.INFO
        what = _words(decision)
        log.log(level, "%s %s (on_conflict): %s", self._call, what, held)
        lock_conflict.send(sender=self._call.task, conflict=conflict, decision=decision)

    def _duplicate(self, held: LockHeld, policy: str) -> DuplicateTask:
        waited = f", after {self._waited:g} s of waiting" if self._waited else ""
        return DuplicateTask(
            f"{self._call} did not run (on_conflict: {policy}{waited}). {held}",
            key=held.key,
            ballot=held.ballot,
            holder=held.holder,
            retry_after=held.retry_after,
        )


def _words(decision: ConflictDecision | OutageDecision) -> str:
    match decision:
        case Skip():
            return "is skipped"
        case Raise():
            return "fails"
        case Run():
            return "runs without the lock"
        case Wait(timeout):
            return f"waits for at most {in_seconds(timeout):.1f} s"
        case Retry(countdown):
            return f"is to be put back for {in_seconds(countdown):.1f} s"
