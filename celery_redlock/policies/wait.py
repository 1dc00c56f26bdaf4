"""``wait``: a duplicate waits for the lock in its worker process, then fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from celery_redlock.basics.timing import seconds_of, seconds_text
from celery_redlock.policies.base import (
    Conflict,
    ConflictDecision,
    Duration,
    OptionChecks,
    RefusedCall,
    Situation,
    TaskOptions,
    in_seconds,
    policy,
)
from celery_redlock.policies.raise_ import Raise

_TIMEOUT = 10.0  # seconds


@policy
@dataclass(frozen=True, slots=True)
class Wait(ConflictDecision):
    """Wait for the lock in the worker process; if the wait times out, fail.

    The timeout is ``timeout`` seconds; ``None``: the task's ``wait_timeout``, or 10 s.
    It is the word that fails then: a callable that returned ``Wait()`` is asked again.
    """

    name: ClassVar[str] = "wait"
    reads: ClassVar[OptionChecks] = {"wait_timeout": seconds_of}
    occupies_process: ClassVar[bool] = True

    timeout: Duration = None

    def __post_init__(self) -> None:
        self._read_seconds("timeout")

    @classmethod
    def answer(cls, situation: Any) -> Wait | Raise:
        """Wait for the lock once; fail if the wait has timed out."""
        return Raise() if situation.waited else cls()

    @classmethod
    def check(cls, options: TaskOptions) -> None:
        """Refuse it for a task with a cool-down."""
        reason = "it would keep a worker process busy until that is over"
        cls._refuse_with_cool_down(options, reason)

    def fill(self, situation: Situation, options: TaskOptions) -> Wait:  # noqa: ARG002  (its base's)
        """Return the wait with a timeout."""
        return Wait(self.timeout or options.wait_timeout or _TIMEOUT)

    def keeps_trying(self, situation: Conflict) -> bool:  # noqa: ARG002  (its base's)
        """Tell that the call stays in its worker process and tries again."""
        return True

    def describe(self, situation: Situation) -> str:  # noqa: ARG002  (its base's)
        """Return what happens to the call."""
        return f"wait for at most {seconds_text(in_seconds(self.timeout))}"

    def perform(self, call: RefusedCall) -> float:
        """Try for the lock until the timeout."""
        return call.wait(in_seconds(self.timeout))
