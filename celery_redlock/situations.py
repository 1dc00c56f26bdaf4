"""What can happen to a call that takes a lock, and what can be done about it.

A *situation* is what a policy is told of, a *decision* is what it answers. Both
are plain values; whoever asked performs the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from celery_redlock.core.timing import seconds_of
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from celery_redlock.core.lease import Holder

__all__ = [
    "KEEPS",
    "Abort",
    "BufferOne",
    "CancelRunning",
    "Conflict",
    "ConflictDecision",
    "Loss",
    "LossDecision",
    "Outage",
    "OutageDecision",
    "Raise",
    "Retry",
    "Run",
    "Situation",
    "Skip",
    "Wait",
    "Warn",
]

KEEPS = ("latest", "first")


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
        stage: ``"publish"`` before it is sent (then ``task_id`` is the id that it
            would have), ``"execute"`` when a worker is to run it.
        phase: What the other one does: it is ``"queued"``, it is ``"running"``, or
            it has ``"succeeded"`` and the cool-down lasts.
    """

    args: tuple[Any, ...] = field(default=(), repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    holder: Holder | None = None
    retry_after: float | None = None
    waited: float = 0.0
    deferrals: int = 0
    stage: str = "execute"
    phase: str = "running"


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
class BufferOne:
    """Let one more run follow the one that runs, however many calls ask for it.

    Of those that wait the ``"latest"`` to be published runs, or the ``"first"``;
    ``keep=None``: the task's ``buffer_keep``. It waits in its queue, and tries again
    after ``countdown`` seconds; ``None``: the task's ``retry_countdown``, or else
    after a second, and then less and less often.
    """

    keep: Literal["latest", "first"] | None = None
    countdown: float | timedelta | None = None

    def __post_init__(self) -> None:
        if self.keep not in (None, *KEEPS):
            raise ConfigurationError(
                f'keep is {self.keep!r}; it must be "latest" or "first".'
            )
        _read_seconds(self, "countdown")


@dataclass(frozen=True, slots=True)
class CancelRunning:
    """Stop the one that runs, and run when it has really ended.

    It is told with ``LockCancelled``, and has ``grace`` seconds to tidy up before it
    is told again; ``None``: the task's ``cancel_grace``. For so long the newcomer
    waits in the worker's slot, and after that in its queue.
    """

    grace: float | timedelta | None = None

    def __post_init__(self) -> None:
        _read_seconds(self, "grace")


@dataclass(frozen=True, slots=True)
class Abort:
    """Interrupt the body with ``LockLost``."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Send the signal, log a warning, and let the body run on."""


ConflictDecision = Skip | Raise | Retry | Wait | Run | BufferOne | CancelRunning
LossDecision = Abort | Retry | Warn
OutageDecision = Retry | Raise | Run | Skip


def _read_seconds(
    decision: Retry | Wait | BufferOne | CancelRunning, name: str
) -> None:
    if (value := getattr(decision, name)) is not None:
        object.__setattr__(decision, name, seconds_of(name, value))
