"""Say what would happen to a call, and why: ``task.explain(42)``.

Nodes are asked who holds the lock, who has the claim, who has just succeeded, and
whether they vote; the task's policies are asked for their decision. Nothing is taken,
sent or changed. A policy that is a callable is called, with an empty ``task_id``.

It is how things stand now. A moment later they may be different: to act on it, take
the lock instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.call import in_seconds
from celery_redlock.claims import Claims, JobHere
from celery_redlock.core.failure import unreachable
from celery_redlock.core.question import Question, by_everyone
from celery_redlock.core.scripts import COUNTERS
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
from celery_redlock.runtime import runtime_of

if TYPE_CHECKING:
    from celery_redlock.core.lease import Holder
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.errors import QuorumUnreachable
    from celery_redlock.options import ResolvedOptions
    from celery_redlock.policies import (
        ConflictDecision,
        OutageDecision,
        PublishDecision,
    )

__all__ = ["Explanation", "Step", "explain"]


@dataclass(frozen=True, slots=True)
class Step:
    """What would become of the call at one stage.

    Attributes:
        decision: ``"publish"`` or ``"run"`` where nothing is in the way; else the
            word for what the policy decides, as ``on_conflict`` and
            ``on_backend_error`` have it.
        goes_on: Whether it would be sent, or run, now.
        words: The same for people: what comes after "It would".
        reason: What is in the way; ``""`` for nothing.
    """

    decision: str
    goes_on: bool
    words: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.words}{': ' if self.reason else ''}{self.reason or '.'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What would happen to a call of a task.

    Attributes:
        task: The task's name.
        key: What the call is reduced to. Calls with the same key are one call.
        publish: What ``delay`` and ``apply_async`` would do.
        execute: What a worker would do that got it now.
        running: Who holds the lock, as a majority names it; or None.
        waiting: The job that has the claim in the queue; or None.
        succeeded: The job whose cool-down lasts; or None.
        is_known: Whether enough nodes answered to tell.
    """

    task: str
    key: str
    publish: Step
    execute: Step
    running: JobHere | None
    waiting: JobHere | None
    succeeded: JobHere | None
    is_known: bool

    @property
    def would_run(self) -> bool:
        """Whether a worker that got it now would run its body at once."""
        return self.execute.goes_on

    @property
    def holder(self) -> Holder | None:
        """Who holds the lock."""
        return self.running.holder if self.running else None

    def __str__(self) -> str:
        return (
            f"A call of {self.task} with the key {self.key!r}.\n"
            f"Published now, it would {self.publish}\n"
            f"Executed now, it would {self.execute}"
        )


def explain(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    """Say what would happen to this call of a task, changing nothing.

    Raises:
        ConfigurationError: A setting or an option is wrong.
        FingerprintError: The arguments cannot be reduced to a key.
    """
    runtime = runtime_of(task.app)
    redlock, options = runtime.redlock, runtime.options(task.name, task.lock_options)
    key = task.lock_key(*args, **kwargs)
    seen, claims = redlock.inspect(key), Claims(redlock)
    running = JobHere.named_in(key, seen.ballot) if seen.holder else None
    waiting = claims.waiting(key) if options.is_claimed else None
    succeeded = claims.cooling(key, "") if options.unique_for else None
    outage = None
    if running is None:
        if seen.ballot.answered < redlock.quorum:
            timeout = redlock.timing.node_timeout
            outage = unreachable(key, seen.ballot, node_timeout=timeout)
        elif redlock.guard.enabled:
            outage = _outage_of_votes(redlock, key)
    case = _Case(task.name, key, args, kwargs, options)
    return Explanation(
        task=task.name,
        key=key,
        publish=case.publish(_in_the_way(options, waiting, running, succeeded)),
        execute=case.execute(running or succeeded, outage),
        running=running,
        waiting=waiting,
        succeeded=succeeded,
        is_known=outage is None,
    )


def _in_the_way(
    options: ResolvedOptions,
    waiting: JobHere | None,
    running: JobHere | None,
    succeeded: JobHere | None,
) -> JobHere | None:
    """Return what is met at publishing, in the order in which nodes look."""
    both = options.unique_while == "queued_or_running"
    return waiting or (running if both else None) or succeeded


def _outage_of_votes(redlock: Redlock, key: str) -> QuorumUnreachable | None:
    """Return why no lock could be granted: nodes that answer may not vote."""
    guard = redlock.guard
    question = Question(
        COUNTERS,
        [guard.fence_key, guard.meta_key, guard.quarantine_key],
        [guard.config],
        labels=redlock.labels,
        settle=by_everyone,
    )
    redlock.transport.ask(question)
    if question.ballot.granted >= redlock.quorum:
        return None
    return unreachable(key, question.ballot, node_timeout=redlock.timing.node_timeout)


@dataclass(frozen=True, slots=True)
class _Case:
    """A call and the options by which it is judged."""

    task: str
    key: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: ResolvedOptions

    def publish(self, here: JobHere | None) -> Step:
        if here is None:
            return Step("publish", goes_on=True, words="be published")
        decision = self.options.on_publish(self._conflict(here, "publish"))
        word, goes_on, words = _of_publishing(decision, here)
        return Step(word, goes_on, words, str(here))

    def execute(self, here: JobHere | None, outage: QuorumUnreachable | None) -> Step:
        if outage is not None:
            situation = Outage(
                key=self.key,
                task=self.task,
                reason=str(outage),
                retry_after=outage.retry_after,
            )
            decided = self.options.on_backend_error(situation)
            return Step(*_of_execution(decided), reason=str(outage))
        if here is None:
            return Step("run", goes_on=True, words="run")
        decision = self.options.on_conflict(self._conflict(here, "execute"))
        return Step(*_of_execution(decision), reason=str(here))

    def _conflict(self, here: JobHere, stage: str) -> Conflict:
        return Conflict(
            key=self.key,
            task=self.task,
            args=self.args,
            kwargs=self.kwargs,
            holder=here.holder,
            retry_after=here.left,
            stage=stage,
            phase=here.phase,
        )


def _of_publishing(decision: PublishDecision, here: JobHere) -> tuple[str, bool, str]:
    match decision:
        case Skip():
            job = here.holder.task_id
            return "skip", False, f"not be sent, and give the result of {job}"
        case Raise():
            return "raise", False, "not be sent, and raise DuplicateTask"
        case Run():
            return "allow", True, "be published all the same"


def _of_execution(  # noqa: PLR0911  (one for each decision)
    decision: ConflictDecision | OutageDecision,
) -> tuple[str, bool, str]:
    match decision:
        case Skip():
            return "skip", False, "be skipped"
        case Raise():
            return "raise", False, "fail"
        case Run():
            return "allow", True, "run without the lock"
        case Wait(timeout):
            return "wait", False, f"wait for at most {in_seconds(timeout):.1f} s"
        case Retry(countdown):
            return "retry", False, f"be put back for {in_seconds(countdown):.1f} s"
        case BufferOne(keep):
            return "buffer_one", False, f"wait in its queue, as the {keep} of those"
        case CancelRunning(grace):
            wait = f"wait for at most {in_seconds(grace):.1f} s"
            return (
                "cancel_running",
                False,
                f"have the one that runs told to end, and {wait}",
            )
