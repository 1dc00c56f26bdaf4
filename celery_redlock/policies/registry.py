"""Task options that take a policy: what may be given, and what it decides.

An option takes the words of all decisions with its base class: ``on_conflict`` those of
every `ConflictDecision`, and so on; see ``ON_CONFLICT`` and the others below. A word
that a callable returns is asked in its turn: ``"wait"`` waits once and then fails,
while ``Wait()`` returned every time waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from celery_redlock.basics.signature import signature_of
from celery_redlock.basics.spelling import check_word, did_you_mean
from celery_redlock.errors import ConfigurationError
from celery_redlock.policies.allow import Run
from celery_redlock.policies.base import (
    POLICIES,
    Conflict,
    ConflictDecision,
    Decision,
    Loss,
    LossDecision,
    Outage,
    OutageDecision,
    PublishDecision,
    Situation,
)
from celery_redlock.policies.skip import Skip

_SituationT = TypeVar("_SituationT", bound=Situation)
_DecisionT = TypeVar("_DecisionT", bound=Decision)

Policy = Callable[[_SituationT], _DecisionT]


@dataclass(frozen=True, slots=True)
class PolicyOption(Generic[_SituationT, _DecisionT]):
    """A task option that takes a policy: by stage, where it has stages.

    Attributes:
        base: Base class of the decisions that it takes.
    """

    name: str
    base: type[_DecisionT]
    stages: frozenset[str] = frozenset()

    @property
    def words(self) -> dict[str, type[_DecisionT]]:
        """The words that it takes, each with its decision class."""
        kinds = [kind for kind in POLICIES.values() if issubclass(kind, self.base)]
        words = {kind.other_words.get(self.name, kind.name): kind for kind in kinds}
        return dict(sorted(words.items()))

    def policy(self, value: object) -> Policy[_SituationT, _DecisionT]:
        """Return the policy for a word, a decision or a callable.

        Raises:
            ConfigurationError: It is none of them. The error names all words.
        """
        value, words = self._at_execution(value), self.words
        if isinstance(value, str):
            check_word(self.name, value, words)
            return cast("Policy[_SituationT, _DecisionT]", words[value].answer)
        if isinstance(value, self.base):
            return lambda _: value
        if not callable(value) or isinstance(value, type) or not _takes_one(value):
            wrong = value.keys() - self.stages if isinstance(value, Mapping) else ()
            if self.stages and wrong:
                stage = min(wrong, key=str)
                raise ConfigurationError(
                    f"{self.name}={value!r} is not a policy, because there is no "
                    f"stage {stage!r}. {did_you_mean(str(stage), self.stages)}"
                )
            raise ConfigurationError(
                f"{self.name}={value!r} is not a policy. Give {self.choices()}, or a "
                "callable that takes the situation and returns one of these."
            )

        def ask(situation: _SituationT) -> _DecisionT:
            answer, words = value(situation), self.words
            if isinstance(answer, self.base):
                return answer
            if isinstance(answer, str) and answer in words:
                return cast("_DecisionT", words[answer].answer(situation))
            raise ConfigurationError(
                f"The callable for {self.name} returned {answer!r:.60}. Let it return "
                f"{self.choices()}."
            )

        return ask

    def given(self, value: object) -> type[_DecisionT] | None:
        """Return the decision class that a value names; ``None`` for a callable."""
        value = self._at_execution(value)
        if isinstance(value, str):
            return self.words[value]
        return type(value) if isinstance(value, self.base) else None

    def possible(self, value: object) -> tuple[type[_DecisionT], ...]:
        """Return the classes of all decisions that a value may lead to."""
        given = self.given(value)
        return tuple(self.words.values()) if given is None else (given,)

    def choices(self) -> str:
        """Return a text that names all words and decisions."""
        decisions = [f"{kind.__name__}()" for kind in self.words.values()]
        return f"one of {', '.join([*map(repr, self.words), *decisions])}"

    def _at_execution(self, value: object) -> object:
        if isinstance(value, Mapping) and value and value.keys() <= self.stages:
            return at_stage(value, "execute")
        return value


def _takes_one(value: Callable[..., object]) -> bool:
    try:
        return bool(signature_of(value).bind(None))
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # a builtin without a signature


ON_CONFLICT: PolicyOption[Conflict, ConflictDecision] = PolicyOption(
    "on_conflict", ConflictDecision, stages=frozenset({"publish", "execute"})
)
ON_PUBLISH: PolicyOption[Conflict, PublishDecision] = PolicyOption(
    "on_conflict['publish']", PublishDecision
)
ON_LOCK_LOST: PolicyOption[Loss, LossDecision] = PolicyOption(
    "on_lock_lost", LossDecision
)
ON_BACKEND_ERROR: PolicyOption[Outage, OutageDecision] = PolicyOption(
    "on_backend_error", OutageDecision
)


def at_stage(on_conflict: object, stage: str) -> Any:
    """Return the part of an ``on_conflict`` for ``"publish"`` or ``"execute"``."""
    if isinstance(on_conflict, Mapping):
        return on_conflict.get(stage, "skip")
    return on_conflict


def given_at(on_conflict: object, stage: str) -> type[Decision] | None:
    """Return the decision class that an ``on_conflict`` names at a stage.

    It is ``None`` for a callable. A word or a decision that only a worker can perform
    is `Skip` for publishers.
    """
    if stage != "publish":
        return ON_CONFLICT.given(on_conflict)
    if isinstance(on_conflict, Mapping):
        return ON_PUBLISH.given(at_stage(on_conflict, stage))
    given = ON_CONFLICT.given(on_conflict)
    return given if given is None or issubclass(given, PublishDecision) else Skip


def publish_policy(on_conflict: object) -> Policy[Conflict, PublishDecision]:
    """Return the policy for a duplicate that is not yet published.

    Of ``{"publish": ..., "execute": ...}`` it is the first, ``"skip"`` by default.
    A value for both stages means the same at both, if a publisher can perform it; else
    it is ``"skip"`` here. A callable is asked each time; if only a worker can perform
    its answer, the call is published.

    Raises:
        ConfigurationError: It is no policy, or none for this stage.
    """
    if isinstance(on_conflict, Mapping):
        return ON_PUBLISH.policy(at_stage(on_conflict, "publish"))
    ask = ON_CONFLICT.policy(on_conflict)
    if ON_CONFLICT.given(on_conflict) is not None:
        at_both = given_at(on_conflict, "publish") is given_at(on_conflict, "execute")
        return ON_PUBLISH.policy(on_conflict if at_both else "skip")

    def answer(conflict: Conflict) -> PublishDecision:
        decision = ask(conflict)
        return decision if isinstance(decision, PublishDecision) else Run()

    return answer


def label_of(on_conflict: object, stage: str) -> str:
    """Return the policy at a stage in a word; all callables are ``"callable"``."""
    value = at_stage(on_conflict, stage)
    if isinstance(value, Decision):
        return value.name
    return value if isinstance(value, str) else "callable"
