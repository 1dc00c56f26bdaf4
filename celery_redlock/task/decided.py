"""A call about which a policy has decided: the decision performs itself on it.

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
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.errors import DuplicateTask
from celery_redlock.line.cancel_requests import ask_to_end
from celery_redlock.locks.limits import Wanted
from celery_redlock.signals import lock_conflict, lock_outage
from celery_redlock.task.ends import end_as_revoked
from celery_redlock.task.header import waits_of

if TYPE_CHECKING:
    from celery_redlock.errors import LockHeld, LockLost, QuorumUnreachable
    from celery_redlock.policies import (
        Conflict,
        ConflictDecision,
        Decision,
        Outage,
        OutageDecision,
    )
    from celery_redlock.task.call import Call
    from celery_redlock.task.line_entry import LineEntry

log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DecidedConflict:
    """A call whose lock another call has: a `policies.RefusedCall`."""

    line: LineEntry
    conflict: Conflict
    decision: ConflictDecision
    held: LockHeld

    @property
    def call(self) -> Call:
        """The call."""
        return self.line.call

    def announce(self) -> bool:
        """Log the decision, send the signal, and the event where one is needed.

        Returns whether the event was sent, and monitors show the call as refused.
        """
        call, decision = self.call, self.decision
        what = _words_of(decision, self.conflict, call)
        holder = self.held.holder.task_id if self.held.holder else ""
        extra = call.log_fields("conflict", decision=decision.name, holder=holder)
        text = "%s will %s (on_conflict): %s"
        log.log(decision.log_level, text, call, what, self.held, extra=extra)
        facts = {"conflict": self.conflict, "decision": decision}
        lock_conflict.send(sender=call.task, **facts, waited=call.waited)
        if not (decision.sends_event and call.header.events):
            return False
        fields = {**self._event_fields(), "decision": f"will {what}"}
        return send_event(call, "task-conflict", **fields)

    def skip(self) -> NoReturn:
        """End the call as REVOKED."""
        error = self.duplicate()
        raise end_as_revoked(self.call, error, **self._event_fields())

    def fail(self) -> NoReturn:
        """End the call as FAILURE."""
        raise self.duplicate()

    def run(self) -> None:
        """Go on without the lock."""
        self.line.withdraw()

    def wait(self, timeout: float) -> float:
        """Return the seconds for which to try for the lock, in this process."""
        call = self.call
        is_known = call.task.lock_options.waits  # then the worker warned at its start
        if self.decision.occupies_process and not is_known:
            call.runtime.warn_of_waiting(call.task.name)
        return timeout

    def wait_in_queue(self, keep: str, countdown: float) -> float:
        """Enter the register and republish the call, or end as superseded."""
        delay = countdown or self._usual_countdown()
        self._check_queue()
        self.line.enter(self.held, keep, delay)
        return self.republish(delay, "waits in its queue")

    def replace_holder(self, grace: float) -> float:
        """Ask the running call to end, unless it is the newer; wait for the grace."""
        call, holder = self.call, self.held.holder
        delay = grace or self._usual_countdown()
        if not call.request.is_eager:
            self.line.enter(self.held, "latest", delay, replaces=True)
        elif not grace:
            self._check_queue()
        if holder is not None:
            ask_to_end(call.runtime.redlock, call.key, holder, str(call))
        if grace:
            return self.wait(grace)
        return self.republish(delay, "waits in its queue")

    def republish(self, countdown: float, what: str = "is republished") -> float:
        """Publish the call again; return 0 if the broker did not take it."""
        self._check_queue()
        header: dict[str, Any] = {"deferred": self.call.header.deferred + 1}
        if self.decision.registers:
            header["next"] = self.line.successor
        if self.conflict.phase != "succeeded":
            header["waits"] = self._waits(countdown)
        return self.line.republish(self.duplicate(what), countdown, **header)

    def duplicate(self, what: str = "did not run") -> DuplicateTask:
        """Return the error that says what becomes of the call, and why."""
        waited, held = self.conflict.waited, self.held
        after = f", after {waited:g} s of waiting" if waited else ""
        return DuplicateTask(
            f"{self.call} {what} (on_conflict: {self.decision.name}{after}). {held}",
            **vars(held),
        )

    def _check_queue(self) -> None:
        """Fail a call that runs eagerly: it came from no queue, and cannot go back."""
        if self.call.request.is_eager:
            raise self.duplicate("did not run: it has no queue")

    def _usual_countdown(self) -> float:
        """Return a countdown that is longer each time, up to half a ttl."""
        longest = self.call.options.ttl / 2
        return jittered(doubled(1.0, self.call.header.deferred, longest))

    def _waits(self, countdown: float) -> tuple[Any, ...]:
        """Keep the place of the call in its backlog, and return what it waits for."""
        call, task, backlog = self.call, self.call.options.task, ""
        if task.in_order:  # it has its place there since it was published
            backlog = call.key
        elif task.has_backlog:
            backlog = self.conflict.held_key
            self.line.keep_place(backlog, countdown)
        wanted = Wanted(call.key, call.limits)
        return waits_of(
            wanted, stays_after_countdown=task.stays_after_countdown, backlog=backlog
        )

    def _event_fields(self) -> dict[str, str]:
        holder = self.held.holder
        return {
            "key": self.call.key,
            "held_key": self.conflict.held_key,
            "policy": self.decision.name,
            "holder": str(holder),
            "holder_id": holder.task_id if holder else "",
        }


def _words_of(decision: Decision, situation: Conflict | Outage, call: Call) -> str:
    """Return what happens to a call, as it follows after "will"."""
    returns = decision.needs_queue and not decision.keeps_trying(situation)
    if call.request.is_eager and returns:
        return "fail, as it runs eagerly and has no queue"
    return decision.describe(situation)


@dataclass(frozen=True, slots=True)
class DecidedOutage:
    """A call for which too few nodes voted: a `policies.WorkerCall`."""

    line: LineEntry
    outage: Outage
    decision: OutageDecision
    unreachable: QuorumUnreachable

    def announce(self) -> None:
        """Log the decision, and send the signal."""
        call, decision, error = self.line.call, self.decision, self.unreachable
        extra = call.log_fields("outage-call", decision=decision.name)
        what = f"{_words_of(decision, self.outage, call)} (on_backend_error)"
        log.debug("%s will %s: %s", call, what, error, extra=extra)
        call.runtime.outage_log.add(call, call.id, decision.name, what, error)
        facts = {"outage": self.outage, "decision": decision}
        lock_outage.send(sender=call.task, **facts, waited=call.waited)

    def skip(self) -> NoReturn:
        """End the call as REVOKED."""
        call, policy = self.line.call, self.decision.name
        raise end_as_revoked(call, self.unreachable, key=call.key, policy=policy)

    def fail(self) -> NoReturn:
        """End the call as FAILURE."""
        raise self.unreachable

    def run(self) -> None:
        """Go on without the lock."""
        self.line.withdraw()

    def republish(self, countdown: float) -> float:
        """Publish the call again; return 0 if the broker did not take it."""
        outages = self.line.call.header.outages + 1
        return self.line.republish(self.unreachable, countdown, outages=outages)


@dataclass(frozen=True)
class DecidedLoss(Generic[_T]):
    """A call whose body has ended after the loss of its lock: a `policies.WorkerCall`.

    ``returned`` has what the body has returned; it is empty if the body has not.
    """

    line: LineEntry
    error: LockLost
    returned: list[_T]
    policy: str

    def skip(self) -> NoReturn:
        """End the call as REVOKED."""
        call = self.line.call
        raise end_as_revoked(call, self.error, key=call.key, policy=self.policy)

    def run(self) -> _T:
        """Return what the body has returned."""
        return self.returned[0] if self.returned else self.fail()

    def fail(self) -> NoReturn:
        """End the call in the error."""
        raise self.error from None

    def republish(self, countdown: float) -> NoReturn:
        """Publish the call again, and try until the broker accepts it."""
        while True:
            self.line.republish(self.error, countdown)


def send_event(call: Call, kind: str, **fields: object) -> bool:
    """Send an event about a call to monitors; tell whether it was sent.

    Any thread may call it, unlike `Task.send_event`.
    """
    events, host = call.task.app.events, call.request.hostname
    try:
        with events.default_dispatcher(hostname=host) as dispatcher:
            dispatcher.send(kind, uuid=call.id, retry=False, **fields)
    except Exception:
        # The broker may be away. The decision is performed all the same.
        log.exception("The event %s of %s could not be sent.", kind, call)
        return False
    return True
