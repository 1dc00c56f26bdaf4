"""A task's lock options, validated at decoration; combinations without sense refused.

``LockOptions`` are what was written; ``resolve`` fills in from the app's `Settings`
what was left open, and refuses what does not go with them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery_redlock import checks
from celery_redlock.core.timing import seconds_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.fingerprint import KeyRule, KeyTemplate, did_you_mean
from celery_redlock.policies import (
    ON_BACKEND_ERROR,
    ON_CONFLICT,
    ON_LOCK_LOST,
    Conflict,
    ConflictDecision,
    Loss,
    LossDecision,
    Outage,
    OutageDecision,
    Policy,
    PolicyOption,
    Retry,
    Wait,
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

    on_conflict: Policy[Conflict, ConflictDecision]
    on_lock_lost: Policy[Loss, LossDecision]
    on_backend_error: Policy[Outage, OutageDecision]
    ttl: float
    renew: bool
    hold_at_least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """A task's lock options as they were written.

    The same names in ``@singleton_task(...)``, in ``redlock={...}`` and here.
    Durations are given in seconds or as ``timedelta``.

    Attributes:
        key: ``"sync:{user_id}"`` over the arguments, or a callable of them.
        unique_on: Names of the arguments that make two calls the same; all.
        on_conflict: When somebody else holds the lock; see ``policies``.
        on_lock_lost: When the lock of the running body can no longer be proven.
        on_backend_error: When too few nodes answer; ``redlock_on_backend_error``.
        ttl: For how long nodes keep an unrenewed lock; ``redlock_ttl``.
        renew: Renew it while the body runs.
        hold_at_least: Keep it this long from the start, also when the body was
            faster, against schedulers whose clocks differ; at most max_ttl.
        wait_timeout: For ``wait``; 10 s.
        retry_countdown: For ``retry``; by default random, ttl / 2 on average.

    Raises:
        ConfigurationError: A value cannot be used, or two do not go together.
    """

    key: str | Callable[..., str] | None = None
    unique_on: Sequence[str] | None = None
    on_conflict: Any = "skip"
    on_lock_lost: Any = "abort"
    on_backend_error: Any = None
    ttl: float | timedelta | None = None
    renew: bool = True
    hold_at_least: float | timedelta = 0.0
    wait_timeout: float | timedelta | None = None
    retry_countdown: float | timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("ttl", "wait_timeout", "retry_countdown"):
            if (value := getattr(self, name)) is not None:
                _put(self, name, seconds_of(name, value))
        hold = checks.seconds_or_none_at_all("hold_at_least", self.hold_at_least)
        _put(self, "hold_at_least", hold)
        checks.flag("renew", self.renew)
        ON_CONFLICT.policy(self.on_conflict)
        ON_LOCK_LOST.policy(self.on_lock_lost)
        if self.on_backend_error is not None:
            ON_BACKEND_ERROR.policy(self.on_backend_error)
        self._check_key()
        waits = _may(Wait, self.on_conflict)
        retries = _may(Retry, self.on_conflict) or _may(Retry, self.on_lock_lost)
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

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> LockOptions:
        """Read the ``redlock={...}`` of a task.

        Raises:
            ConfigurationError: A name does not exist, or a value cannot be used.
        """
        known = [field.name for field in fields(cls)]
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
        known = [field.name for field in fields(cls)]
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

        def policy(option: PolicyOption[Any, Any], value: Any) -> Policy[Any, Any]:
            ask = option.policy(value)

            def answer(situation: Any) -> Any:
                decision = ask(situation)
                if decision == Wait():
                    return Wait(self.wait_timeout or _WAIT_TIMEOUT)
                jittered = ttl * random.uniform(0.25, 0.75)  # noqa: S311  (no secret)
                countdown = self.retry_countdown or jittered
                return Retry(countdown) if decision == Retry() else decision

            return answer

        outages = self.on_backend_error or settings.on_backend_error
        return ResolvedOptions(
            on_conflict=policy(ON_CONFLICT, self.on_conflict),
            on_lock_lost=policy(ON_LOCK_LOST, self.on_lock_lost),
            on_backend_error=policy(ON_BACKEND_ERROR, outages),
            ttl=ttl,
            renew=self.renew,
            hold_at_least=hold,
        )


def _may(decide: type[Wait | Retry], policy: Any) -> bool:
    if isinstance(policy, Mapping):
        policy = policy["execute"]
    word = decide.__name__.lower()
    return policy == word or isinstance(policy, decide) or callable(policy)
