"""``task.explain(42)``: the fate of a call, and the reasons, without running it.

Nodes are asked for the holder of the lock, or of each permit of its limits, for the
claim, for the last success, and for a lock that no call wants, which is released: so
they vote, and take writes. The task's policies are asked for their decision. No lock of
a call is taken; nothing is sent or changed. A policy that is a
callable is called, with an empty ``task_id``.

The explanation holds at this moment. To act on it, take the lock instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.app.runtime import runtime_of
from celery_redlock.errors import LockHeld
from celery_redlock.line.backlog import place_of_newcomer
from celery_redlock.line.claims import Claims, ExistingJob
from celery_redlock.locks.failure import unreachable
from celery_redlock.operations.inspect import node_status
from celery_redlock.operations.scan import LimitInUse, inspect_limits
from celery_redlock.policies import Decision, Outage, Situation
from celery_redlock.scripts.keys import shown
from celery_redlock.task.publishing import conflict_with

if TYPE_CHECKING:
    from celery import Task

    from celery_redlock.errors import QuorumUnreachable
    from celery_redlock.locks.lease import Holder
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.options.lock_options import ResolvedOptions
    from celery_redlock.wire.quorum import Ballot


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of an explanation: what would happen to the call there.

    Attributes:
        decision: ``"publish"`` or ``"run"`` where no other call is in the way; else
            the name of the policy's decision.
        goes_on: Whether the call would be sent, or run, now.
        words: The same as text: it follows after "it would".
        reason: The other call, or the outage; ``""`` for neither.
    """

    decision: str
    goes_on: bool
    words: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.words}{': ' if self.reason else ''}{self.reason or '.'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of one call of a task.

    Attributes:
        task: The task's name.
        key: The key of the call. Calls with the same key are the same call.
        publish: What ``delay`` and ``apply_async`` would do.
        execute: What a worker would do that received the call now.
        running: The job that holds the lock, as a majority names it; or None.
        waiting: The job that has the claim in the queue; or None.
        succeeded: The job whose cool-down lasts; or None.
        is_known: Whether enough nodes answered.
        limits: The limits of its keys, with the permits that have a holder; empty for
            a plain lock, and where it cannot be told. Where there are several permits,
            ``running`` is None.
    """

    task: str
    key: str
    publish: Step
    execute: Step
    running: ExistingJob | None
    waiting: ExistingJob | None
    succeeded: ExistingJob | None
    is_known: bool
    limits: tuple[LimitInUse, ...] = ()

    @property
    def would_run(self) -> bool:
        """Whether a worker that received the call now would run its body at once."""
        return self.execute.goes_on

    @property
    def holder(self) -> Holder | None:
        """The holder of the lock, if there is one."""
        return self.running.holder if self.running else None

    def __str__(self) -> str:
        keys = "keys" if "\n" in self.key else "key"
        lines = [
            f"A call of {self.task} with the {keys} {shown(self.key)}.",
            f"Published now, it would {self.publish}",
            f"Executed now, it would {self.execute}",
            *map(str, self.limits),
        ]
        return "\n".join(lines)


def explain(task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    """Return the fate of this call of a task; see ``SingletonTask.explain``."""
    runtime = runtime_of(task.app)
    redlock, options = runtime.redlock, runtime.options(task)
    key, limits = task.lock_wanted(*args, **kwargs)
    seen, claims = redlock.inspect(key), Claims(redlock)
    in_use = inspect_limits(redlock, limits, node_status(redlock)) if limits else []
    has_one_holder = all(limit.most == 1 or limit.period for limit in limits)
    running = None
    if seen.holder and has_one_holder:
        running = ExistingJob.named_in(key, seen.ballot)
    waiting = claims.queued(key) if options.task.is_claimed else None
    succeeded = claims.succeeded(key, "") if options.task.unique_for else None
    outage = None
    if running is None and (too_few := _too_few(redlock, seen.ballot, in_use)):
        outage = unreachable(key, too_few, config=redlock.guard.config)
        in_use = None  # nodes that do not vote may have forgotten holders
    call = {"task": task.name, "args": args, "kwargs": kwargs}
    full = next((_full(key, one) for one in in_use or () if one.is_full), None)
    met = running or succeeded
    # In the order in which a publisher's nodes look.
    both = options.task.unique_while == "queued_or_running"
    existing = waiting or (running if both else None) or succeeded
    return Explanation(
        task=task.name,
        key=key,
        publish=_published(options, existing, call),
        execute=_executed(
            redlock,
            options,
            met.error() if met else full,
            outage,
            call={"key": key, "phase": met.phase if met else "running", **call},
        ),
        running=running,
        waiting=waiting,
        succeeded=succeeded,
        is_known=outage is None,
        limits=tuple(in_use or ()),
    )


def _too_few(
    redlock: Redlock, seen: Ballot, in_use: list[LimitInUse] | None
) -> Ballot | None:
    """Return the ballot in which too few nodes have answered, or vote; None: enough."""
    if seen.answered < redlock.quorum or in_use is None:
        return seen
    votes = (
        redlock.check().ballot
        if redlock.asks_for_votes
        else redlock.guard.votes(brings_back=False)
    )
    return votes if votes.granted < redlock.quorum else None


def _published(
    options: ResolvedOptions, existing: ExistingJob | None, call: dict[str, Any]
) -> Step:
    if existing is None:
        return Step("publish", goes_on=True, words="be published")
    conflict = conflict_with(
        existing.error(), stage="publish", phase=existing.phase, **call
    )
    return _step(options.on_publish(conflict), conflict, str(existing))


def _executed(
    redlock: Redlock,
    options: ResolvedOptions,
    held: LockHeld | None,
    outage: QuorumUnreachable | None,
    call: dict[str, Any],
) -> Step:
    if outage is not None:
        situation = Outage(
            key=call["key"],
            task=call["task"],
            reason=str(outage),
            retry_after=outage.retry_after,
        )
        return _step(options.on_backend_error(situation), situation, str(outage))
    if held is None:
        place = (
            place_of_newcomer(redlock, call["key"]) if options.task.in_order else None
        )
        if place is None or not place.before:
            return Step("run", goes_on=True, words="run")
        call["phase"] = "queued"
        text = "In order, other calls of the key are before it."
        held = LockHeld(text, key=call["key"])
    elif options.task.has_backlog and call["phase"] == "running":
        place = place_of_newcomer(redlock, held.held_key or call["key"])
    else:
        place = None
    conflict = conflict_with(held, place=place, **call)
    return _step(options.on_conflict(conflict), conflict, str(held))


def _full(key: str, in_use: LimitInUse) -> LockHeld:
    """Return the refusal by a limit of which all permits have a holder."""
    limit, permits = in_use.limit, in_use.permits
    holder = permits[0].holder
    text = f"All {limit.most} permits of {limit.key!r} are in use"
    text = f"{text}, one of them by {holder}."
    if limit.period:
        text = str(in_use)
    elif limit.most == 1:
        text = f"The key {limit.key!r} is held by {holder}."
    return LockHeld(
        text,
        key=key,
        held_key=limit.key,
        limit=limit,
        holder=holder,
        retry_after=in_use.free_in,
        due=tuple(sorted(one.ttl_left for one in permits) if limit.period else ()),
    )


def _step(decision: Decision, situation: Situation, reason: str) -> Step:
    words = decision.describe(situation)
    return Step(decision.name, decision.goes_on, words, reason)
