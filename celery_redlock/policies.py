"""Answer a conflict with a decision; perform nothing.

Three things can happen to a call of a task that takes a lock. Each has an option
that says what then: by a *word*, by a *decision*, or by a callable that is told
the situation and answers with either. The task performs the answer.

===========  ================  ======================================
situation    option            words
===========  ================  ======================================
`Conflict`   on_conflict       ``skip raise retry wait allow``
                               ``buffer_one cancel_running``
`Loss`       on_lock_lost      ``abort retry warn``
`Outage`     on_backend_error  ``retry raise run skip``
===========  ================  ======================================

::

    def urgent_ones_wait(conflict: Conflict) -> ConflictDecision | str:
        return Wait(timeout=60) if conflict.kwargs.get("urgent") else "skip"

    def replays_in_order(conflict: Conflict) -> ConflictDecision | str:
        return BufferOne(keep="first" if conflict.kwargs.get("replay") else "latest")

    def forced_ones_replace(conflict: Conflict) -> ConflictDecision | str:
        return CancelRunning(grace=5) if conflict.kwargs.get("force") else "skip"

A conflict can be met twice: when a call is published, where it is claimed
(``unique_while``), and when it is executed. ``{"publish": ..., "execute": ...}``
answers each in its own way; see ``publish_policy``.

A word that a callable answers is itself asked: ``"wait"`` waits once and then
raises, while ``Wait()`` answered every time waits for ever.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from celery_redlock.errors import ConfigurationError
from celery_redlock.fingerprint import did_you_mean
from celery_redlock.situations import (
    Abort,
    BufferOne,
    CancelRunning,
    Conflict,
    ConflictDecision,
    Loss,
    LossDecision,
    Outage,
    OutageDecision,
    Raise,
    Retry,
    Run,
    Situation,
    Skip,
    Wait,
    Warn,
)

__all__ = [
    "ON_BACKEND_ERROR",
    "ON_CONFLICT",
    "ON_LOCK_LOST",
    "ON_PUBLISH",
    "Abort",
    "BufferOne",
    "CancelRunning",
    "Conflict",
    "ConflictDecision",
    "Loss",
    "LossDecision",
    "Outage",
    "OutageDecision",
    "Policy",
    "PolicyOption",
    "PublishDecision",
    "Raise",
    "Retry",
    "Run",
    "Situation",
    "Skip",
    "Wait",
    "Warn",
    "policy_from",
    "publish_policy",
]

_FIRST_SIT_OUT, _LONGEST_SIT_OUT, _MOST_DOUBLINGS = 15.0, 300.0, 5  # seconds

PublishDecision = Skip | Raise | Run

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
        if isinstance(value, Mapping) and value and value.keys() <= self.stages:
            return self.policy(value.get("execute", "skip"))
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
        "buffer_one": _Always(BufferOne()),
        "cancel_running": _Always(CancelRunning()),
    },
    (Skip, Raise, Retry, Wait, Run, BufferOne, CancelRunning),
    stages=frozenset({"publish", "execute"}),
)
ON_PUBLISH: PolicyOption[Conflict, PublishDecision] = PolicyOption(
    "on_conflict['publish']",
    {
        "skip": _Always(Skip()),
        "raise": _Always(Raise()),
        "allow": _Always(Run()),
    },
    (Skip, Raise, Run),
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


def publish_policy(on_conflict: object) -> Policy[Conflict, PublishDecision]:
    """Return what an ``on_conflict`` says of a duplicate that is not yet published.

    Of ``{"publish": ..., "execute": ...}`` the first, which is ``"skip"`` by default.
    What is given for both stages means the same at both, where it can: a word or a
    decision that only a worker can carry out is ``"skip"`` here. A callable is asked
    each time; an answer that only a worker can carry out lets the call be published.

    Raises:
        ConfigurationError: It is no policy, or none for this stage.
    """
    if isinstance(on_conflict, Mapping):
        return ON_PUBLISH.policy(on_conflict.get("publish", "skip"))
    if isinstance(on_conflict, (str, *ON_CONFLICT.decisions)):
        at_both = (*ON_PUBLISH.words, Skip(), Raise(), Run())
        return ON_PUBLISH.policy(on_conflict if on_conflict in at_both else "skip")
    ask = ON_CONFLICT.policy(on_conflict)

    def answer(conflict: Conflict) -> PublishDecision:
        decision = ask(conflict)
        return decision if isinstance(decision, (Skip, Raise)) else Run()

    return answer
