"""Make a duplicate seen and heard: a log line, a signal, an event, an error with facts.

============================  ====================  ============================
``on_conflict`` decides       Celery's events       the result
============================  ====================  ============================
skip; another one runs in     ``task-revoked``      REVOKED, `DuplicateTask`
its stead
raise                         ``task-failed``       FAILURE, `DuplicateTask`
retry, buffer_one,            ``task-conflict``,    RETRY, `DuplicateTask`
cancel_running                ``task-retried``
wait                          ``task-conflict``     that of its run, in the end
allow                         ``task-conflict``     that of its run
============================  ====================  ============================

What is told names the key, the policy and the holder. ``task-conflict`` is ours: it
says what was decided, and monitors show a task in the state CONFLICT until the next
event. Workers send events where Celery's own are on (``-E``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_redlock.call import in_seconds
from celery_redlock.errors import DuplicateTask
from celery_redlock.policies import (
    BufferOne,
    CancelRunning,
    Raise,
    Retry,
    Run,
    Skip,
    Wait,
)
from celery_redlock.signals import lock_conflict, lock_outage

if TYPE_CHECKING:
    from celery_redlock.call import Call
    from celery_redlock.errors import LockHeld, QuorumUnreachable
    from celery_redlock.policies import (
        Conflict,
        ConflictDecision,
        Outage,
        OutageDecision,
    )

__all__ = ["announce_conflict", "announce_outage", "duplicate", "facts_of", "policy_of"]

# What Celery's users know as the place of these lines.
log = logging.getLogger("celery_redlock.admission")


def announce_conflict(
    call: Call, conflict: Conflict, decision: ConflictDecision, held: LockHeld
) -> None:
    """Tell everybody that a call has met a holder, and what was decided."""
    level = logging.WARNING if isinstance(decision, Run) else logging.INFO
    holder = held.holder.task_id if held.holder else ""
    about = call.about("conflict", decision=policy_of(decision), holder=holder)
    log.log(level, "%s %s (on_conflict): %s", call, _words(decision), held, extra=about)
    lock_conflict.send(
        sender=call.task, conflict=conflict, decision=decision, waited=call.waited
    )
    if isinstance(decision, (Skip, Raise)) or not call.envelope.events:
        return
    try:
        call.task.send_event(
            "task-conflict",
            retry=False,
            **facts_of(call, held, policy_of(decision)),
            decision=_words(decision),
        )
    except Exception:
        # The broker may be away; the call goes its way all the same.
        log.exception("The conflict of %s could not be told to monitors.", call)


def announce_outage(
    call: Call, outage: Outage, decision: OutageDecision, reason: QuorumUnreachable
) -> None:
    """Tell everybody that too few nodes answered, and what was decided."""
    log.warning(
        "%s %s (on_backend_error): %s",
        call,
        _words(decision),
        reason,
        extra=call.about("outage", decision=type(decision).__name__.lower()),
    )
    lock_outage.send(
        sender=call.task, outage=outage, decision=decision, waited=call.waited
    )


def duplicate(call: Call, held: LockHeld, policy: str, what: str) -> DuplicateTask:
    """Return the error that says what became of a duplicate, and why.

    Args:
        call: The call.
        held: Who holds the lock.
        policy: The word for what was decided.
        what: What became of the call, in words.
    """
    return DuplicateTask(
        f"{call} {what} (on_conflict: {policy}). {held}",
        key=held.key,
        ballot=held.ballot,
        holder=held.holder,
        retry_after=held.retry_after,
    )


def facts_of(call: Call, held: LockHeld, policy: str) -> dict[str, Any]:
    """Return what an event says of a duplicate."""
    holder = held.holder
    holder_id = holder.task_id if holder else ""
    return {
        "key": call.key,
        "policy": policy,
        "holder": str(holder),
        "holder_id": holder_id,
    }


def policy_of(decision: ConflictDecision) -> str:
    """Return the word for a decision."""
    words = {
        BufferOne: "buffer_one",
        CancelRunning: "cancel_running",
        Run: "allow",
    }
    return words.get(type(decision), type(decision).__name__.lower())


def _words(  # noqa: PLR0911  (one for each decision)
    decision: ConflictDecision | OutageDecision,
) -> str:
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
        case BufferOne(keep):
            return f"waits in its queue, as {keep} of those that do"
        case CancelRunning():
            return "has the one that runs told to end"
