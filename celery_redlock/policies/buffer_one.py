"""``buffer_one``: one more run follows, however many calls are refused meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from celery_redlock.basics.spelling import check_word
from celery_redlock.basics.timing import seconds_of
from celery_redlock.policies.base import (
    ConflictDecision,
    Duration,
    OptionChecks,
    RefusedCall,
    Situation,
    TaskOptions,
    in_seconds,
    policy,
)
from celery_redlock.policies.retry import Retry

_KEEPS = ("latest", "first")


def _keep(name: str, value: Any) -> Any:
    check_word(name, value, _KEEPS)
    return value


@policy
@dataclass(frozen=True, slots=True)
class BufferOne(ConflictDecision):
    """Wait in the queue; of all waiting calls one runs, by default the newest.

    ``keep`` is ``"latest"`` or ``"first"``, in the order of publication; ``None``: the
    task's ``buffer_keep``. A call that is not kept is skipped. A call that waits tries
    again after ``countdown`` seconds; ``None``: the task's ``retry_countdown``, or
    else after a second, then less and less often, up to half a ttl.
    """

    name: ClassVar[str] = "buffer_one"
    reads: ClassVar[OptionChecks] = {
        "buffer_keep": _keep,
        "retry_countdown": seconds_of,
    }
    needs_queue: ClassVar[bool] = True
    registers: ClassVar[bool] = True

    keep: Literal["latest", "first"] | None = None
    countdown: Duration = None

    def __post_init__(self) -> None:
        if self.keep is not None:
            _keep("keep", self.keep)
        self._read_seconds("countdown")

    @classmethod
    def check(cls, options: TaskOptions) -> None:
        """Refuse it where duplicates are not in the queue, or no call runs."""
        cls._refuse_without_queue(
            options,
            "Leave unique_while out: 'queued' with on_conflict='retry' lets one more "
            "run follow, with the first arguments.",
        )
        reason = "the run that follows would come within it"
        cls._refuse_with_cool_down(options, reason)

    @classmethod
    def keeps(cls, given: Any, options: TaskOptions) -> str:
        """Return which of the calls that wait runs."""
        keep = given.keep if isinstance(given, cls) else None
        return keep or options.buffer_keep or "latest"

    def fill(self, situation: Situation, options: TaskOptions) -> BufferOne | Retry:
        """Return the decision in full; in a cool-down, where no call runs, a retry."""
        return Retry.after_cool_down(situation) or BufferOne(
            self.keep or options.buffer_keep or "latest",
            self.countdown or options.retry_countdown,
        )

    def describe(self, situation: Situation) -> str:  # noqa: ARG002  (its base's)
        """Return what happens to the call."""
        return f"wait in its queue, and run if it is the {self.keep} that waits"

    def perform(self, call: RefusedCall) -> float:
        """Become the successor of the running call, or end as superseded."""
        countdown = in_seconds(self.countdown)
        return call.wait_in_queue(self.keep or "latest", countdown)
