"""Answer a conflict with a decision; perform nothing.

Three things can happen to a call of a task that takes a lock. Each has an option
that says what then: by a *word*, by a *decision*, or by a callable that is told
the situation and answers with either. The task performs the answer.

===========  ================  ======================================
situation    option            words
===========  ================  ======================================
`Conflict`   on_conflict       ``skip raise retry wait allow``
`Loss`       on_lock_lost      ``abort retry warn``
`Outage`     on_backend_error  ``retry raise run skip``
===========  ================  ======================================

::

    def urgent_ones_wait(conflict: Conflict) -> ConflictDecision | str:
        return Wait(timeout=60) if conflict.kwargs.get("urgent") else "skip"

A word that a callable answers is itself asked: ``"wait"`` waits once and then
raises, while ``Wait()`` answered every time waits for ever.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from celery_redlock.core.timing import seconds_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.fingerprint import did_you_mean

if TYPE_CHECKING:
    from datetime import timedelta

    from celery_redlock.core.lease import Holder

__all__ = [
    "ON_BACKEND_ERROR",
    "ON_CONFLICT",
    "ON_LOCK_LOST",
    "Abort",
    "Conflict",
    "ConflictDecision",
    "Loss",
    "LossDecision",
    "Outage",
    "OutageDecision",
    "Policy",
    "PolicyOption",
    "Raise",
    "Retry",
    "Run",
    "Situation",
    "Skip",
    "Wait",
    "Warn",
    "policy_from",
]

_FIRST_SIT_OUT, _LONGEST_SIT_OUT, _MOST_DOUBLINGS = 15.0, 300.0, 5  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a policy is told of in any case.

    Attributes:
        key: The name that is locked, or was or should be.
        task: Name of the task.
        task_id: Its execution.
        retries: Celery's count of retries. Deferrals by a policy do not touch it.
    """

    key: str
    task: str
    task_id: str = ""
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict(Situation):
    """A majority of the nodes names another holder of this call's key.

    Attributes:
        args: The call's positional arguments. May be private: do not log them.
        kwargs: Its keyword arguments; the same.
        holder: Who has the lock.
        retry_after: Seconds until the lock ends by itself if nobody renews it.
        waited: Seconds for which this execution has waited for it; 0 when the
            policy is asked for the first time.
        deferrals: How often this call was put back because of a conflict.
    """

    args: tuple[Any, ...] = field(default=(), repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    holder: Holder | None = None
    retry_after: float | None = None
    waited: float = 0.0
    deferrals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Situation):
    """The lock of a running body can no longer be proven.

    _Asked in the thread that keeps the locks alive: answer at once.

    Attributes:
        fence: The fence of the lease that was lost.
        ran: Seconds since the lock was taken.
    """

    fence: int = 0
    ran: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage(Situation):
    """Too few nodes answered to tell whether the key is free.

    Attributes:
        reason: What the nodes said, for people.
        retry_after: Seconds after which the nodes said they will vote again;
            ``None`` when none of them said so.
        deferrals: How often this call was put back because of an outage.
    """

    reason: str = ""
    retry_after: float | None = None
    deferrals: int = 0


@dataclass(frozen=True, slots=True)
class Skip:
    """Do not run; the result is REVOKED and names the holder."""


@dataclass(frozen=True, slots=True)
class Raise:
    """Do not run; the result is FAILURE with the error that says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run without the lock, beside whoever has it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Put the call back into its queue; ``max_retries`` does not count it.

    It may run after ``countdown`` seconds; ``None``: the task's ``retry_countdown``.
    """

    countdown: float | timedelta | None = None

    def __post_init__(self) -> None:
        _read_seconds(self, "countdown")


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the lock in the worker's slot, then ask the policy again.

    It waits ``timeout`` seconds; ``None``: the task's ``wait_timeout``.
    """

    timeout: float | timedelta | None = None

    def __post_init__(self) -> None:
        _read_seconds(self, "timeout")


@dataclass(frozen=True, slots=True)
class Abort:
    """Interrupt the body with ``LockLost``."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Send the signal, log a warning, and let the body run on."""


ConflictDecision = Skip | Raise | Retry | Wait | Run
LossDecision = Abort | Retry | Warn
OutageDecision = Retry | Raise | Run | Skip

_SituationT = TypeVar("_SituationT", bound=Situation)
_DecisionT = TypeVar("_DecisionT")

Policy = Callable[[_SituationT], _DecisionT]


@dataclass(frozen=True, slots=True)
class _Always(Generic[_DecisionT]):
    """Answer everything with one decision."""

    decision: _DecisionT

    def __call__(self, _: Situation) -> _DecisionT:
        return self.decision


def _wait_once(conflict: Conflict) -> Wait | Raise:
    """Wait for the lock, and raise if that was in vain."""
    return Raise() if conflict.waited else Wait()


def _sit_out(outage: Outage) -> Retry:
    """Come back when the nodes said, else after an exponential, random time.

    The time is anything up to 15 s, doubled with each deferral, at most 300 s:
    an outage of an hour must not melt the broker when it ends.
    """
    if outage.retry_after:
        return Retry(outage.retry_after * random.uniform(1.0, 1.2))  # noqa: S311  (jitter)
    doublings = min(outage.deferrals, _MOST_DOUBLINGS)
    longest = min(_LONGEST_SIT_OUT, _FIRST_SIT_OUT * 2**doublings)
    return Retry(longest * (1.0 - random.random()))  # noqa: S311  (jitter)


@dataclass(frozen=True, slots=True)
class _Asked(Generic[_SituationT, _DecisionT]):
    """Ask the user's callable, and take no nonsense for an answer."""

    option: PolicyOption[_SituationT, _DecisionT]
    ask: Callable[[_SituationT], object]

    def __call__(self, situation: _SituationT) -> _DecisionT:
        answer = self.ask(situation)
        if isinstance(answer, self.option.decisions):
            return cast("_DecisionT", answer)
        if isinstance(answer, str) and answer in self.option.words:
            return self.option.words[answer](situation)
        raise ConfigurationError(
            f"The callable for {self.option.name} answered {answer!r:.60}. Let it "
            f"return {self.option.choices()}."
        )


@dataclass(frozen=True, slots=True)
class PolicyOption(Generic[_SituationT, _DecisionT]):
    """An option that takes a policy: the words for it, and what they decide.

    Attributes:
        name: Of the option.
        words: The policy behind each word.
        decisions: What a policy may answer.
        stages: When it can be asked, where a policy can be given for each.
    """

    name: str
    words: Mapping[str, Policy[_SituationT, _DecisionT]]
    decisions: tuple[type, ...]
    stages: frozenset[str] = frozenset()

    def policy(self, value: object) -> Policy[_SituationT, _DecisionT]:
        """Return the policy for a word, a decision or a callable.

        Raises:
            ConfigurationError: It is none of them. Says what there is.
        """
        if isinstance(value, str) and value not in self.words:
            hint = did_you_mean(value, self.words)
            raise ConfigurationError(f"{self.name}={value!r} does not exist. {hint}")
        if isinstance(value, str):
            return self.words[value]
        if isinstance(value, self.decisions):
            return _Always(cast("_DecisionT", value))
        if isinstance(value, Mapping) and value and value.keys() == self.stages:
            return self.policy(value["execute"])
        if not callable(value) or isinstance(value, type) or not _takes_one(value):
            raise ConfigurationError(
                f"{self.name}={value!r} is no policy. Give {self.choices()}, or a "
                "callable that takes the situation and returns one of these."
            )
        return _Asked(self, value)

    def choices(self) -> str:
        """Say in words what there is to choose from."""
        decisions = [f"{kind.__name__}()" for kind in self.decisions]
        return f"one of {', '.join([*map(repr, self.words), *decisions])}"


def _read_seconds(decision: Retry | Wait, name: str) -> None:
    if (value := getattr(decision, name)) is not None:
        object.__setattr__(decision, name, seconds_of(name, value))


def _takes_one(value: Callable[..., object]) -> bool:
    try:
        return bool(inspect.signature(value).bind(None))
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # a builtin that does not say


ON_CONFLICT: PolicyOption[Conflict, ConflictDecision] = PolicyOption(
    "on_conflict",
    {
        "skip": _Always(Skip()),
        "raise": _Always(Raise()),
        "retry": _Always(Retry()),
        "wait": _wait_once,
        "allow": _Always(Run()),
    },
    (Skip, Raise, Retry, Wait, Run),
    stages=frozenset({"execute"}),
)
ON_LOCK_LOST: PolicyOption[Loss, LossDecision] = PolicyOption(
    "on_lock_lost",
    {"abort": _Always(Abort()), "retry": _Always(Retry()), "warn": _Always(Warn())},
    (Abort, Retry, Warn),
)
ON_BACKEND_ERROR: PolicyOption[Outage, OutageDecision] = PolicyOption(
    "on_backend_error",
    {
        "retry": _sit_out,
        "raise": _Always(Raise()),
        "run": _Always(Run()),
        "skip": _Always(Skip()),
    },
    (Retry, Raise, Run, Skip),
)

policy_from = ON_CONFLICT.policy
