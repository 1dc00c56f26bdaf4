"""``cancel_running``: only the newest call counts, and replaces the running one.

The running call is asked to end. Its body is interrupted with ``LockCancelled``, and
the newcomer runs when the body has really ended, never beside it. Older calls that
wait or arrive late end as superseded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from celery_redlock.basics.timing import seconds_of, seconds_text
from celery_redlock.errors import ConfigurationError
from celery_redlock.policies.allow import Run
from celery_redlock.policies.base import (
    Conflict,
    ConflictDecision,
    Duration,
    OptionChecks,
    RefusedCall,
    TaskOptions,
    in_seconds,
    policy,
)

_GRACE = 10.0  # seconds


@policy
@dataclass(frozen=True, slots=True)
class CancelRunning(ConflictDecision):
    """Cancel the running call, and run when it has really ended.

    Its body gets ``LockCancelled`` and has ``grace`` seconds to tidy up before it is
    interrupted again; ``None``: the task's ``cancel_grace``, or 10 s. For so long the
    newcomer waits in its worker process, and after that in its queue.
    """

    name: ClassVar[str] = "cancel_running"
    reads: ClassVar[OptionChecks] = {"cancel_grace": seconds_of}
    needs_queue: ClassVar[bool] = True
    registers: ClassVar[bool] = True
    replaces: ClassVar[bool] = True
    renew_every: ClassVar[float | None] = 1.0  # a renewal reads the request to end

    grace: Duration = None

    def __post_init__(self) -> None:
        self._read_seconds("grace")

    @classmethod
    def check(cls, options: TaskOptions) -> None:
        """Refuse it without renewals, without duplicates, and in a cool-down."""
        if not options.renew:
            raise ConfigurationError(
                "on_conflict='cancel_running' needs renew=True: the running call reads "
                "the request to end when it renews its lock."
            )
        if options.unique_while == "queued_or_running":
            remedy = f"{{'publish': 'allow', 'execute': {cls.name!r}}}"
            cls._refuse_without_queue(
                options, f"Leave unique_while out, or write on_conflict={remedy}."
            )
        reason = "there is nothing left to cancel in it"
        cls._refuse_with_cool_down(options, reason)

    @classmethod
    def keeps(cls, given: Any, options: TaskOptions) -> str:  # noqa: ARG003  (its base's)
        """Return that only the newest call counts."""
        return "latest"

    def fill(self, situation: Conflict, options: TaskOptions) -> CancelRunning | Run:
        """Return the decision in full; in a cool-down, where no call runs, `Run`."""
        if situation.phase == "succeeded":
            return Run()
        return CancelRunning(self.grace_of(self, options))

    @classmethod
    def grace_of(cls, given: Any, options: TaskOptions) -> float:
        """Return the grace of a word or a decision, in seconds."""
        grace = given.grace if isinstance(given, cls) else None
        return in_seconds(grace or options.cancel_grace or _GRACE)

    def keeps_trying(self, situation: Conflict) -> bool:
        """Tell whether the call waits in its worker process, as it does once."""
        return not (situation.waited or situation.deferrals)

    def describe(self, situation: Conflict) -> str:
        """Return what happens to the call."""
        if not self.keeps_trying(situation):
            return "cancel the running call, and wait for it in its queue"
        grace = seconds_text(in_seconds(self.grace))
        return f"cancel the running call, and wait for it for at most {grace}"

    def perform(self, call: RefusedCall) -> float:
        """Ask the running call to end, unless it is the newer of the two."""
        grace = in_seconds(self.grace) if self.keeps_trying(call.conflict) else 0.0
        return call.replace_holder(grace)
