"""A task's lock options, validated at decoration; combinations without sense refused.

``LockOptions`` are what was written; ``resolve`` fills in from the app's `Settings`
what was left open, and refuses what does not go with them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery_redlock import checks, succession, uniqueness
from celery_redlock.core.timing import seconds_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.fingerprint import KeyRule, KeyTemplate, did_you_mean
from celery_redlock.policies import (
    ON_BACKEND_ERROR,
    ON_CONFLICT,
    ON_LOCK_LOST,
    BufferOne,
    CancelRunning,
    Conflict,
    ConflictDecision,
    Loss,
    LossDecision,
    Outage,
    OutageDecision,
    Policy,
    PolicyOption,
    PublishDecision,
    Retry,
    Wait,
    publish_policy,
)

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Collection, Sequence
    from datetime import timedelta

    from celery_redlock.settings import Settings

__all__ = ["LockOptions", "ResolvedOptions"]

_WAIT_TIMEOUT = 10.0  # seconds
_NEARLY = 0.8  # alike enough for a typing error, by difflib's measure
_put = object.__setattr__  # in a frozen instance that is being made


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOptions:
    """All that a task's lock needs to know, with nothing left open.

    The policies answer in full: no ``Retry`` without a countdown, no ``Wait``
    without a timeout. Durations are in seconds.
    """

    on_publish: Policy[Conflict, PublishDecision]
    on_conflict: Policy[Conflict, ConflictDecision]
    on_lock_lost: Policy[Loss, LossDecision]
    on_backend_error: Policy[Outage, OutageDecision]
    ttl: float
    renew: bool
    hold_at_least: float
    unique_while: str
    unique_for: float
    claim_ttl: float
    cancel_grace: float
    renew_every: float | None
    only_newest: bool

    @property
    def is_claimed(self) -> bool:
        """Whether a call is claimed for the job that waits."""
        return self.unique_while != "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """A task's lock options as they were written.

    The same names in ``@singleton_task(...)``, in ``redlock={...}`` and here.
    Durations are given in seconds or as ``timedelta``.

    Attributes:
        key: ``"sync:{user_id}"`` over the arguments, or a callable of them.
        unique_on: Names of the arguments that make two calls the same; all.
        unique_while: What a second job of the call is a duplicate of: one that is
            ``"running"``, ``"queued"`` or ``"queued_or_running"``; see ``claims``.
        unique_for: And of one that succeeded so long ago; 0.
        claim_ttl: For how long a job that waits keeps others out of the queue,
            beyond its countdown or eta; 1 h.
        on_conflict: When there is another one; see ``policies``.
        on_lock_lost: When the lock of the running body can no longer be proven.
        on_backend_error: When too few nodes answer; ``redlock_on_backend_error``.
        ttl: For how long nodes keep an unrenewed lock; ``redlock_ttl``.
        renew: Renew it while the body runs.
        hold_at_least: Keep it this long from the start, also when the body was
            faster, against schedulers whose clocks differ; at most max_ttl.
        wait_timeout: For ``wait``; 10 s.
        retry_countdown: For ``retry``; by default random, ttl / 2 on average. For
            ``buffer_one``; by default from 1 s on, doubled each time, up to that.
        buffer_keep: For ``buffer_one``: of those that wait the ``"latest"`` runs, or
            the ``"first"``.
        cancel_grace: For ``cancel_running``: how long the one that is told to end may
            take before it is told again; 10 s.
        lines_up: Not an option, but told by them: whether it counts which of two calls
            was published first.

    Raises:
        ConfigurationError: A value cannot be used, or two do not go together.
    """

    key: str | Callable[..., str] | None = None
    unique_on: Sequence[str] | None = None
    unique_while: str = "running"
    unique_for: float | timedelta = 0.0
    claim_ttl: float | timedelta | None = None
    on_conflict: Any = "skip"
    on_lock_lost: Any = "abort"
    on_backend_error: Any = None
    ttl: float | timedelta | None = None
    renew: bool = True
    hold_at_least: float | timedelta = 0.0
    wait_timeout: float | timedelta | None = None
    retry_countdown: float | timedelta | None = None
    buffer_keep: str | None = None
    cancel_grace: float | timedelta | None = None
    lines_up: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        durations = ("ttl", "wait_timeout", "retry_countdown", "claim_ttl")
        for name in (*durations, "cancel_grace"):
            if (value := getattr(self, name)) is not None:
                _put(self, name, seconds_of(name, value))
        hold = checks.seconds_or_none_at_all("hold_at_least", self.hold_at_least)
        _put(self, "hold_at_least", hold)
        checks.flag("renew", self.renew)
        ON_CONFLICT.policy(self.on_conflict)
        publish_policy(self.on_conflict)
        unique_for = uniqueness.cool_down(self.unique_for)
        _put(self, "unique_for", unique_for)
        uniqueness.check(
            unique_while=self.unique_while,
            unique_for=unique_for,
            claim_ttl=self.claim_ttl,
            on_conflict=self.on_conflict,
        )
        ON_LOCK_LOST.policy(self.on_lock_lost)
        if self.on_backend_error is not None:
            ON_BACKEND_ERROR.policy(self.on_backend_error)
        self._check_key()
        follows = any(
            _may(kind, self.on_conflict) for kind in (BufferOne, CancelRunning)
        )
        _put(self, "lines_up", follows)
        waits = _may(Wait, self.on_conflict)
        succession.check(
            buffer_keep=self.buffer_keep,
            cancel_grace=self.cancel_grace,
            renew=self.renew,
            may=lambda kind: _may(kind, self.on_conflict),
            asks=callable(_at_execution(self.on_conflict)),
        )
        retries = (
            _may(Retry, self.on_lock_lost) or _may(Retry, self.on_conflict) or follows
        )
        for name, used in (("wait_timeout", waits), ("retry_countdown", retries)):
            if getattr(self, name) is not None and not used:
                raise ConfigurationError(
                    f"{name} has no effect with on_conflict={self.on_conflict!r}."
                    f" Leave it out, or write on_conflict={name.partition('_')[0]!r}."
                )

    def _check_key(self) -> None:
        if isinstance(self.key, str):
            KeyTemplate(self.key)
        elif self.key is not None and not callable(self.key):
            raise ConfigurationError(
                f"key is {self.key!r}; it must be a template such as "
                "'invoice:{invoice_id}' or a callable that returns the key."
            )
        names = self.unique_on if isinstance(self.unique_on, (list, tuple)) else [None]
        if self.unique_on is not None and not all(isinstance(n, str) for n in names):
            raise ConfigurationError(
                f"unique_on is {self.unique_on!r}; it must be a list of argument names "
                'such as ["user_id"].'
            )
        if self.unique_on is not None and self.key is not None:
            raise ConfigurationError(
                "key and unique_on both say which calls are the same. Leave one out."
            )

    @property
    def is_unique_before_it_runs(self) -> bool:
        """Whether there can be duplicates of a call that is not yet published."""
        return self.unique_while != "running" or bool(self.unique_for)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> LockOptions:
        """Read the ``redlock={...}`` of a task.

        Raises:
            ConfigurationError: A name does not exist, or a value cannot be used.
        """
        known = _names(cls)
        for name in sorted(options.keys() - set(known)):
            hint = did_you_mean(name, known)
            raise ConfigurationError(f"There is no lock option {name!r}. {hint}")
        return cls(**options)

    @classmethod
    def split(
        cls, arguments: Mapping[str, Any], *, foreign: Collection[str] = ()
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Part a decorator's arguments into lock options and everything else.

        Args:
            arguments: What the decorator was given.
            foreign: Names of somebody else's. What else is nearly an option counts
                as one, for ``of`` to refuse: Celery takes any name as an attribute.
        """
        known = _names(cls)
        near = {n for n in arguments if get_close_matches(n, known, 1, _NEARLY)}
        ours = {n: arguments[n] for n in near if n in known or n not in foreign}
        return ours, {n: value for n, value in arguments.items() if n not in ours}

    def key_rule(self, task: str, signature: inspect.Signature) -> KeyRule:
        """Return how calls of the task are reduced to keys, checked against it.

        Raises:
            ConfigurationError: An argument is named that the task does not have.
        """
        return KeyRule(task, signature, key=self.key, unique_on=self.unique_on)

    def resolve(self, settings: Settings, task: str = "this task") -> ResolvedOptions:
        """Fill in from the app's settings what was left open.

        Raises:
            ConfigurationError: The ttl or hold_at_least does not go with them.
        """
        with checks.naming(task):
            ttl = settings.timing.checked(
                settings.ttl if self.ttl is None else self.ttl
            )
            hold: Any = self.hold_at_least  # in seconds by now
            if hold > settings.max_ttl:
                raise ConfigurationError(
                    f"hold_at_least is {hold:g} s, above redlock_max_ttl "
                    f"({settings.max_ttl:g} s): no lock lasts longer. Lower it."
                )

        grace: Any = self.cancel_grace or succession.CANCEL_GRACE

        def policy(option: PolicyOption[Any, Any], value: Any) -> Policy[Any, Any]:
            ask = option.policy(value)

            def answer(situation: Any) -> Any:
                decision = ask(situation)
                if decision == Wait():
                    return Wait(self.wait_timeout or _WAIT_TIMEOUT)
                jittered = ttl * random.uniform(0.25, 0.75)  # noqa: S311  (no secret)
                if getattr(situation, "phase", "") == "succeeded":
                    jittered = uniqueness.after(situation.retry_after)
                countdown = self.retry_countdown or jittered
                if decision == Retry():
                    return Retry(countdown)
                return succession.filled(
                    decision,
                    keep=self.buffer_keep,
                    grace=grace,
                    countdown=self.retry_countdown,  # type: ignore[arg-type]
                )

            return answer

        cancels = _may(CancelRunning, self.on_conflict) and self.renew
        outages = self.on_backend_error or settings.on_backend_error
        return ResolvedOptions(
            on_publish=publish_policy(self.on_conflict),
            on_conflict=policy(ON_CONFLICT, self.on_conflict),
            on_lock_lost=policy(ON_LOCK_LOST, self.on_lock_lost),
            on_backend_error=policy(ON_BACKEND_ERROR, outages),
            ttl=ttl,
            renew=self.renew,
            hold_at_least=hold,
            unique_while=self.unique_while,
            unique_for=uniqueness.cool_down(self.unique_for),
            claim_ttl=uniqueness.time_of_claim(self.claim_ttl),
            cancel_grace=grace,
            renew_every=succession.LEARNS_WITHIN if cancels else None,
            only_newest=cancels and not callable(_at_execution(self.on_conflict)),
        )

    @property
    def waits(self) -> bool:
        """Whether it is known, without asking anybody, that calls may wait."""
        policy = _at_execution(self.on_conflict)
        return policy == "wait" or isinstance(policy, Wait)


def _names(options: type[LockOptions]) -> list[str]:
    return [option.name for option in fields(options) if option.init]


def _at_execution(policy: Any) -> Any:
    return policy.get("execute", "skip") if isinstance(policy, Mapping) else policy


def _may(decide: type, policy: Any) -> bool:
    policy = _at_execution(policy)
    word = re.sub(r"(?<=.)([A-Z])", r"_\1", decide.__name__).lower()
    return policy == word or isinstance(policy, decide) or callable(policy)
