"""Situations, decisions, and the hooks that each policy file fills in.

A *situation* describes what has happened to a call. A *decision* answers it. A
*policy* is one file of this package: one decision class, with all that the rest of
the package needs to know about it::

    task option ──► registry: word, decision or callable ──► decision
                                                               │ fill: task options
                                                               ▼
    log, signal, event, metric, trace, explain  ◄── name, describe
    the call                                    ◄── perform: skip, fail, run, wait,
                                                    republish, …

===================  ==============================  ===========  =============
base class           performed when                  situation    call
===================  ==============================  ===========  =============
`ConflictDecision`   a worker is to run a call, and  `Conflict`   `RefusedCall`
                     another call has its lock, or
                     its cool-down lasts
`PublishDecision`    a call is published, and        `Conflict`   `DecidedCall`
                     another job has its claim, its
                     lock, or its cool-down lasts
`LossDecision`       the lock of a running body is   `Loss`       `WorkerCall`
                     lost
`OutageDecision`     too few nodes vote              `Outage`     `WorkerCall`
===================  ==============================  ===========  =============

The first two are for the option ``on_conflict``, at execution and at publishing, the
others for ``on_lock_lost`` and ``on_backend_error``. A decision class inherits from one
or more of them: from all whose situations it answers. `policy` registers it. To run, it
needs nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, cast

from celery_redlock.basics.timing import seconds_of
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_redlock.line.backlog import Place
    from celery_redlock.locks.lease import Holder
    from celery_redlock.locks.limits import Limit

_DecisionT = TypeVar("_DecisionT", bound="type[Decision]")

Duration = float | timedelta | None  # seconds; a decision turns it into float

# Names of task options, each with the function that returns the value to use.
OptionChecks = Mapping[str, Callable[[str, Any], Any]]


# -- situations --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts about a call that every policy knows.

    Attributes:
        key: The name that the call locks; of several keys, one a line.
        task: Name of the task.
        task_id: Id of the call.
        retries: Celery's count of retries. Republishing by a policy does not count.
    """

    key: str
    task: str
    task_id: str = ""
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict(Situation):
    """Another call is in the way.

    It has the lock of a key of the call, the claim or the cool-down of the key, or an
    earlier place in its order. A majority of the nodes says so; of the order one of
    them is enough. Where a key has a limit, other calls have all of its permits.

    Attributes:
        held_key: The key that the other call has: ``key``, or one of several keys.
        limit: The limit of this key that is reached: ``limit.most`` holders at once,
            or, if there is a ``limit.period`` in seconds, so many starts in it;
            ``None`` for a key with one holder.
        args: The call's positional arguments. They may be private: do not log them.
        kwargs: The call's keyword arguments. They may be private, too.
        holder: The other call; where the key has a limit, one of them.
        retry_after: Seconds until the lock ends if the holder does not renew it; where
            starts are limited, until the next one is possible. ``None`` where the nodes
            have not told it, or the lock never ends.
        due: Where starts are limited: in how many seconds each of the permits is free,
            the soonest first.
        place: The place of the call in the backlog of ``held_key``, if the task has
            one and a node answered: how many calls are before it, and how long runs
            took lately.
        waited: Seconds for which policies have let this execution wait in its process;
            0 when the policy is asked for the first time.
        deferrals: How often this call was republished because of a conflict.
        stage: ``"publish"`` before the call is sent (``task_id`` is then the id that
            the call would get), ``"execute"`` when a worker is to run it.
        phase: The state of the other call: ``"queued"``, ``"running"``, or
            ``"succeeded"`` while its cool-down lasts.
    """

    held_key: str = ""
    limit: Limit | None = None
    args: tuple[Any, ...] = field(default=(), repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    holder: Holder | None = None
    retry_after: float | None = None
    due: tuple[float, ...] = ()
    place: Place | None = None
    waited: float = 0.0
    deferrals: int = 0
    stage: str = "execute"
    phase: str = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Situation):
    """The lock of a running body can no longer be proven.

    A callable for ``on_lock_lost`` is asked while the body still runs: it must answer
    at once.

    Attributes:
        fence: The fence of the lost lease.
        ran: Seconds since the lock was taken.
    """

    fence: int = 0
    ran: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage(Situation):
    """Too few nodes answered to tell whether the key is free.

    Attributes:
        reason: The answers of the nodes, as text.
        retry_after: Seconds after which the nodes will vote again, as they said;
            ``None`` when no node said so.
        deferrals: How often this call was republished because of an outage.
    """

    reason: str = ""
    retry_after: float | None = None
    deferrals: int = 0


# -- the call that is decided about ------------------------------------------------


class DecidedCall(Protocol):
    """A call about which a policy has decided; the package ``task`` provides it.

    A decision performs itself by one of the methods, and returns what that returns:
    at publishing the ``AsyncResult``, for a loss the result of the body, in a worker
    the seconds for which to try for the lock again (``None``: run without it).
    """

    def skip(self) -> Any:
        """End the call as REVOKED; at publishing: return the other job's result."""

    def fail(self) -> Any:
        """Raise the error that names the reason."""

    def run(self) -> Any:
        """Go on without the lock; at publishing: send the call."""


class WorkerCall(DecidedCall, Protocol):
    """A call that a worker has received."""

    def republish(self, countdown: float) -> Any:
        """End this copy of the call, and send it again to run after a countdown."""


class RefusedCall(WorkerCall, Protocol):
    """A call whose `Conflict` is met in a worker."""

    @property
    def conflict(self) -> Conflict:
        """The situation."""

    def wait(self, timeout: float) -> float:
        """Wait for the lock in the worker process, then ask the policy again."""

    def wait_in_queue(self, keep: str, countdown: float) -> float:
        """Enter the successor register and return to the queue, or end as superseded.

        ``keep`` is ``"latest"`` or ``"first"``. With a countdown of 0 the call tries
        again less and less often, up to half a ttl.
        """

    def replace_holder(self, grace: float) -> float:
        """Ask the running call to end, unless it is the newer of the two.

        The call then waits for ``grace`` seconds in the worker process; if that is 0,
        in its queue.
        """


# -- the options of its task -------------------------------------------------------


class TaskOptions:
    """The `LockOptions` that policies read. Durations are in seconds.

    Attributes:
        ttl: The ttl of the lock, as given; ``fill`` gets that of the app, too.
        renew: Whether the lock is renewed while the body runs.
        unique_while: Which other job makes a call a duplicate.
        unique_for: The cool-down after a success; 0 without one.
        wait_timeout: The longest wait of ``wait``.
        retry_countdown: The countdown of ``retry`` and ``buffer_one``.
        buffer_keep: The call that ``buffer_one`` keeps.
        cancel_grace: The time of a body that ``cancel_running`` interrupts.
    """

    ttl: float | None
    renew: bool
    unique_while: str
    unique_for: float
    wait_timeout: float | None
    retry_countdown: float | None
    buffer_keep: Literal["latest", "first"] | None
    cancel_grace: float | None

    @property
    def keeps_duplicates_out(self) -> bool:
        """Whether a duplicate is not published while another job has the claim."""
        raise NotImplementedError


# -- decisions ---------------------------------------------------------------------


class Decision:
    """Base class of all policies. A subclass is a frozen dataclass.

    The first sentence of its docstring is its row in the documentation.

    Attributes:
        name: The word for it in task options, logs, events, metrics, traces and
            `explain`: the same everywhere.
        other_words: Words for it in options that do not use its name, by option.
        words: What happens to the call, as it follows after "will" or "would".
        reads: The task options that it reads.
        log_level: Level of the log line about this decision.
        goes_on: Whether the call goes on without the lock: it is sent, it runs, or its
            body runs on.
        needs_queue: Whether the call returns to its queue; an eager call then fails.
    """

    __slots__ = ()

    name: ClassVar[str]
    other_words: ClassVar[Mapping[str, str]] = {}
    words: ClassVar[str] = ""
    reads: ClassVar[OptionChecks] = {}
    log_level: ClassVar[int] = logging.INFO
    goes_on: ClassVar[bool] = False
    needs_queue: ClassVar[bool] = False

    @classmethod
    def answer(cls, situation: Any) -> Decision:  # noqa: ARG003  (for most words all are alike)
        """Return the decision of this word in a situation."""
        return cls()

    @classmethod
    def check(cls, options: TaskOptions) -> None:
        """Refuse `LockOptions` that make no sense with this policy.

        Raises:
            ConfigurationError: The error names the reason and the remedy.
        """

    @classmethod
    def _refuse_with_cool_down(cls, options: TaskOptions, reason: str) -> None:
        """Refuse a policy that needs a running call, for a task with ``unique_for``."""
        if options.unique_for:
            raise ConfigurationError(
                f"on_conflict={cls.name!r} makes no sense with unique_for, a cool-down "
                f"after success: {reason}. Use 'retry' to run after it, or 'skip'."
            )

    @classmethod
    def _refuse_without_queue(cls, options: TaskOptions, remedy: str) -> None:
        """Refuse a policy that needs duplicates in the queue, if none get there."""
        if options.keeps_duplicates_out:
            raise ConfigurationError(
                f"on_conflict={cls.name!r} needs the duplicate in the queue, and "
                f"unique_while={options.unique_while!r} keeps it out. {remedy}"
            )

    def _read_seconds(self, name: str, *, zero: bool = False) -> None:
        """Replace a duration of this decision by float seconds, if it is given."""
        if (value := getattr(self, name)) is not None:
            object.__setattr__(self, name, seconds_of(name, value, zero=zero))

    def fill(self, situation: Any, options: TaskOptions) -> Decision:  # noqa: ARG002  (most have no gap)
        """Return the decision with its gaps filled in from the `LockOptions`."""
        return self

    def describe(self, situation: Any) -> str:  # noqa: ARG002  (for some decisions)
        """Return what happens to the call, as it follows after "will" or "would"."""
        return self.words

    def keeps_trying(self, situation: Any) -> bool:  # noqa: ARG002  (most end their wait)
        """Tell whether the call first tries again in its worker process."""
        return False

    def perform(self, call: Any) -> Any:
        """Carry out the decision by a method of the call; return what that returns."""
        raise NotImplementedError


class ConflictDecision(Decision):
    """An answer to a `Conflict` in a worker.

    Attributes:
        sends_event: Whether the event ``task-conflict`` tells monitors about it;
            False where Celery's own event ends the call.
        occupies_process: Whether calls wait for it in a worker process as a rule. The
            worker then logs a warning when it starts.
        registers: Whether it uses the successor register: publishers then tell the
            nodes of each call.
        replaces: Whether a call that is published asks the running call to end.
        renew_every: Seconds between renewals of the lock that it needs; ``None``: a
            third of the ttl.
    """

    __slots__ = ()

    sends_event: ClassVar[bool] = True
    occupies_process: ClassVar[bool] = False
    registers: ClassVar[bool] = False
    replaces: ClassVar[bool] = False
    renew_every: ClassVar[float | None] = None

    @classmethod
    def keeps(cls, given: Any, options: TaskOptions) -> str:  # noqa: ARG003  (most have no order)
        """Return which of the calls that were published runs, also with a free lock.

        It is ``"latest"`` or ``"first"``; ``""``: all of them. ``given`` is the word or
        the decision in the task's `LockOptions`.
        """
        return ""


class PublishDecision(Decision):
    """An answer to a `Conflict` that a publisher has met.

    Attributes:
        words_at_publish: What happens to the call.
        raises: Whether the caller gets an exception. A call that a beat publishes, or
            that is published when a transaction commits, is skipped instead.
    """

    __slots__ = ()

    words_at_publish: ClassVar[str] = ""
    raises: ClassVar[bool] = False

    def describe(self, situation: Any) -> str:
        """Return what happens to the call, as it follows after "will" or "would"."""
        at_publish = isinstance(situation, Conflict) and situation.stage == "publish"
        return self.words_at_publish if at_publish else self.words


class LossDecision(Decision):
    """An answer to a `Loss`. Unless it goes on, ``LockLost`` interrupts the body first.

    Attributes:
        needs_arguments: Whether the call's arguments are needed after the body, which
            may have changed them.
    """

    __slots__ = ()

    needs_arguments: ClassVar[bool] = False


class OutageDecision(Decision):
    """An answer to an `Outage`."""

    __slots__ = ()


# -- registration, and what policy files share -------------------------------------

POLICIES: dict[str, type[Decision]] = {}  # by name


def policy(decision: _DecisionT) -> _DecisionT:
    """Register a decision class: from now on its word is one of the options' words.

    Raises:
        ConfigurationError: Another class has this name.
    """
    if decision.name in POLICIES:
        raise ConfigurationError(
            f"There is a policy {decision.name!r} already. Choose another name."
        )
    POLICIES[decision.name] = decision
    return decision


def in_seconds(duration: Duration) -> float:
    """Return a field that ``_read_seconds`` has made a float; ``None`` is 0."""
    return cast("float", duration or 0.0)
