"""``retry``: a call returns to its queue, and tries for its lock later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from celery_redlock.core.backoff import doubled, jittered
from celery_redlock.core.timing import seconds_of
from celery_redlock.policies.base import (
    ConflictDecision,
    DecidedCall,
    Duration,
    LossDecision,
    OptionChecks,
    Outage,
    OutageDecision,
    Situation,
    in_seconds,
    policy,
)

__all__ = ["Retry"]

_SHORTEST, _FIRST, _LONGEST = 0.001, 15.0, 300.0  # seconds of an outage


@policy
@dataclass(frozen=True, slots=True)
class Retry(ConflictDecision, LossDecision, OutageDecision):
    """Republish the call; ``max_retries`` does not count it.

    It may run after ``countdown`` seconds; ``None``: the task's ``retry_countdown``.
    """

    name: ClassVar[str] = "retry"
    reads: ClassVar[OptionChecks] = {"retry_countdown": seconds_of}
    needs_arguments: ClassVar[bool] = True

    countdown: Duration = None

    def __post_init__(self) -> None:
        self._read_seconds("countdown")

    @classmethod
    def answer(cls, situation: Any) -> Retry:
        """Return a retry; after an outage with a countdown of its own.

        Nodes that said when they vote again are not asked before. Else the countdown
        is random: up to 15 s, doubled with each republishing, at most 300 s. Calls
        that fail together in an outage of an hour must not return together.
        """
        if not isinstance(situation, Outage):
            return cls()
        if situation.retry_after:
            return cls(jittered(situation.retry_after, 1.0, 1.2))
        longest = doubled(_FIRST, situation.deferrals, _LONGEST)
        return cls(jittered(longest, least=_SHORTEST / longest))

    def fill(self, situation: Situation, options: Any) -> Retry:
        """Return the retry with a countdown, drawn anew for each answer.

        In a cool-down the call runs after its end; else after half a ttl on average.
        """
        if self.countdown is not None:
            return self
        if options.retry_countdown is not None:
            return Retry(options.retry_countdown)
        return Retry.after_cool_down(situation) or Retry(
            jittered(options.ttl, 0.25, 0.75)
        )

    @classmethod
    def after_cool_down(cls, situation: Any) -> Retry | None:
        """Return a retry for the end of the cool-down; ``None`` if there is none.

        Calls that met the same cool-down do not all return at its very end.
        """
        if getattr(situation, "phase", "") == "succeeded" and situation.retry_after:
            return cls(jittered(situation.retry_after, 1.0, 1.1))
        return None

    def describe(self, situation: Situation) -> str:  # noqa: ARG002  (its base's)
        """Return what happens to the call."""
        return f"be republished, to run after {in_seconds(self.countdown):.1f} s"

    def perform(self, call: DecidedCall) -> Any:
        """Publish the call again, and end this copy of it."""
        return call.republish(in_seconds(self.countdown))
