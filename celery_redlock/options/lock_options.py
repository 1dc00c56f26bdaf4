"""A task's lock options: checked when the task is decorated, resolved per app.

`LockOptions` are the options as they were written. ``resolve`` fills in the app's
`Settings` and the defaults, once per task and app, and refuses options that do not go
with the settings. Options and rules of single policies are in their files: see
``policies``.

=======================  ====================================================
``unique_while``         a second job of the call is a duplicate
=======================  ====================================================
``"running"``            while one runs: by the lock alone
``"queued"``             also while one waits in the queue, until it begins
``"queued_or_running"``  from publishing until it has ended
=======================  ====================================================

``unique_for`` adds the seconds after a job has succeeded, in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery_redlock import policies
from celery_redlock.core.spelling import did_you_mean
from celery_redlock.core.timing import seconds_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.options.call_key import KeyRule, KeyTemplate

if TYPE_CHECKING:
    import inspect

__all__ = ["LockOptions", "ResolvedOptions", "flag", "naming", "seconds_or_zero"]

_CLAIM_TTL = 3600.0  # seconds
_UNIQUE_WHILE = ("running", "queued", "queued_or_running")
_NEARLY = 0.8  # similar enough for a typing error, by difflib's measure
_put = object.__setattr__  # in a frozen instance that is being made


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOptions:
    """The lock options of a task in an app, with nothing left open.

    The policies answer in full: no ``Retry`` without a countdown, no ``Wait`` without
    a timeout. Durations are in seconds.

    Attributes:
        is_claimed: Whether a call is claimed for the job that waits.
        renew_every: Seconds between renewals of the lock; ``None``: a third of the
            ttl.
        only_newest: Whether each call enters the successor register; see `Decision`.
        needs_arguments: Whether the arguments are needed again after the body.
    """

    on_publish: policies.Policy[policies.Conflict, policies.PublishDecision]
    on_conflict: policies.Policy[policies.Conflict, policies.ConflictDecision]
    on_lock_lost: policies.Policy[policies.Loss, policies.LossDecision]
    on_backend_error: policies.Policy[policies.Outage, policies.OutageDecision]
    ttl: float
    renew: bool
    hold_at_least: float
    unique_while: str
    is_claimed: bool
    unique_for: float
    claim_ttl: float
    cancel_grace: float
    renew_every: float | None
    only_newest: bool
    needs_arguments: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """A task's lock options as they were written.

    They have the same names in ``@singleton_task(...)`` and in ``redlock={...}``.
    Durations are in seconds or a ``timedelta``.

    Attributes:
        key: ``"sync:{user_id}"`` over the arguments, or a callable of them.
        unique_on: Names of the arguments that make two calls the same; all.
        unique_while: Which other job makes a job a duplicate: one that is
            ``"running"``, ``"queued"`` or ``"queued_or_running"``.
        unique_for: Seconds after a success in which a job is a duplicate, too; 0.
        claim_ttl: Seconds, beyond its countdown or eta, for which a waiting job keeps
            others out of the queue; 1 h.
        on_conflict: Policy for a duplicate; see ``policies``.
        on_lock_lost: Policy for a running body whose lock can no longer be proven.
        on_backend_error: Policy for an outage, when too few nodes answer;
            ``redlock_on_backend_error``.
        ttl: Seconds for which nodes keep a lock without renewal; ``redlock_ttl``.
        renew: Whether the lock is renewed while the body runs.
        hold_at_least: Seconds from the start for which the lock is kept, also when
            the body was faster: against schedulers whose clocks differ; at most
            max_ttl.
        wait_timeout: For ``wait``; 10 s.
        retry_countdown: For ``retry``; by default random, ttl / 2 on average. For
            ``buffer_one``; by default from 1 s on, doubled each time, up to that.
        buffer_keep: For ``buffer_one``: of the waiting calls the ``"latest"`` runs, or
            the ``"first"``.
        cancel_grace: For ``cancel_running``: seconds that the cancelled body may take
            before it is interrupted again; 10 s.
        registers_successors: Not an option, but a consequence: whether a publisher
            notes when it published a call, for the successor register.

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
    registers_successors: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("ttl", "claim_ttl"):
            if (value := getattr(self, name)) is not None:
                _put(self, name, seconds_of(name, value))
        for name in ("hold_at_least", "unique_for"):
            _put(self, name, seconds_or_zero(name, getattr(self, name)))
        flag("renew", self.renew)
        policies.ON_CONFLICT.policy(self.on_conflict)
        policies.publish_policy(self.on_conflict)
        policies.ON_LOCK_LOST.policy(self.on_lock_lost)
        if self.on_backend_error is not None:
            policies.ON_BACKEND_ERROR.policy(self.on_backend_error)
        self._check_key()
        self._check_uniqueness()
        self._check_options_of_policies()
        possible = policies.ON_CONFLICT.possible(self.on_conflict)
        _put(self, "registers_successors", any(kind.registers for kind in possible))

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

    def _check_uniqueness(self) -> None:
        while_ = self.unique_while
        if while_ not in _UNIQUE_WHILE:
            hint = did_you_mean(str(while_), _UNIQUE_WHILE)
            raise ConfigurationError(f"unique_while={while_!r} does not exist. {hint}")
        if while_ == "running" and self.claim_ttl is not None:
            raise ConfigurationError(
                "claim_ttl has no effect with unique_while='running': waiting jobs are "
                "not claimed. Leave it out, or write unique_while='queued'."
            )
        by_stage = self.on_conflict if isinstance(self.on_conflict, Mapping) else {}
        if "publish" in by_stage and not self.is_unique_before_it_runs:
            raise ConfigurationError(
                "on_conflict['publish'] has no effect with unique_while='running': a "
                "publisher does not look for duplicates. Leave it out, or write "
                "unique_while='queued'."
            )

    def _check_options_of_policies(self) -> None:
        """Check the options that only some policies read, and what these refuse."""
        possible: set[Any] = {*policies.ON_LOCK_LOST.possible(self.on_lock_lost)}
        possible.update(policies.ON_CONFLICT.possible(self.on_conflict))
        kinds = policies.ON_CONFLICT.words.values()
        for name in dict.fromkeys(name for kind in kinds for name in kind.reads):
            if (value := getattr(self, name)) is None:
                continue
            readers = [kind for kind in kinds if name in kind.reads]
            if not possible.intersection(readers):
                words = " or ".join(f"on_conflict={kind.name!r}" for kind in readers)
                raise ConfigurationError(
                    f"{name} has no effect with on_conflict={self.on_conflict!r}. "
                    f"Leave it out, or write {words}."
                )
            _put(self, name, readers[0].reads[name](name, value))
        given = policies.ON_CONFLICT.given(self.on_conflict)
        if given is not None:
            given.check(self)

    @property
    def is_unique_before_it_runs(self) -> bool:
        """Whether a publisher looks for duplicates."""
        return self.unique_while != "running" or bool(self.unique_for)

    @property
    def keeps_duplicates_out(self) -> bool:
        """Whether a duplicate is not published while another job has the claim."""
        if self.unique_while == "running":
            return False
        given = policies.given_at(self.on_conflict, "publish")
        return given is not None and not given.goes_on

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> LockOptions:
        """Read the ``redlock={...}`` of a task; refuse names that do not exist."""
        known = _names(cls)
        for name in sorted(options.keys() - set(known)):
            hint = did_you_mean(name, known)
            raise ConfigurationError(f"There is no lock option {name!r}. {hint}")
        return cls(**options)

    @classmethod
    def split(
        cls, arguments: Mapping[str, Any], *, foreign: Collection[str] = ()
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split a decorator's arguments into lock options and all others.

        A name that is nearly a lock option, and not in ``foreign``, counts as one, for
        ``of`` to refuse: Celery would accept it as an attribute of the task.
        """
        known = _names(cls)
        near = {n for n in arguments if get_close_matches(n, known, 1, _NEARLY)}
        ours = {n: arguments[n] for n in near if n in known or n not in foreign}
        return ours, {n: value for n, value in arguments.items() if n not in ours}

    def key_rule(self, task: str, signature: inspect.Signature) -> KeyRule:
        """Return the rule by which a call gets its key, checked against the task."""
        return KeyRule(task, signature, key=self.key, unique_on=self.unique_on)

    def resolve(self, settings: Any, task: str = "this task") -> ResolvedOptions:
        """Fill in an app's `Settings` and the defaults. An app does this once per task.

        A ttl or a hold_at_least that does not go with the settings is refused.
        """
        with naming(task):
            given = settings.ttl if self.ttl is None else self.ttl
            ttl = settings.timing.checked(given)
            hold: Any = self.hold_at_least  # in seconds by now
            if hold > settings.max_ttl:
                raise ConfigurationError(
                    f"hold_at_least is {hold:g} s, above redlock_max_ttl "
                    f"({settings.max_ttl:g} s): no lock lasts longer. Lower it."
                )
        grace = self.cancel_grace or policies.CancelRunning.default_grace
        seconds: dict[str, Any] = {"unique_for": self.unique_for, "cancel_grace": grace}
        seconds["claim_ttl"] = self.claim_ttl or _CLAIM_TTL
        whole = replace(self, ttl=ttl)
        on_backend_error = self.on_backend_error or settings.on_backend_error
        possible_losses = policies.ON_LOCK_LOST.possible(self.on_lock_lost)
        return ResolvedOptions(
            on_publish=policies.publish_policy(self.on_conflict),
            on_conflict=_filled(policies.ON_CONFLICT, self.on_conflict, whole),
            on_lock_lost=_filled(policies.ON_LOCK_LOST, self.on_lock_lost, whole),
            on_backend_error=_filled(
                policies.ON_BACKEND_ERROR, on_backend_error, whole
            ),
            ttl=ttl,
            renew=self.renew,
            hold_at_least=hold,
            unique_while=self.unique_while,
            is_claimed=self.unique_while != "running",
            renew_every=self._renew_every(),
            only_newest=any(kind.only_newest for kind in self._given()),
            needs_arguments=any(kind.needs_arguments for kind in possible_losses),
            **seconds,
        )

    def _renew_every(self) -> float | None:
        possible = policies.ON_CONFLICT.possible(self.on_conflict)
        seconds = [kind.renew_every for kind in possible if kind.renew_every]
        return min(seconds, default=None) if self.renew else None

    def _given(self) -> tuple[type[policies.ConflictDecision], ...]:
        given = policies.ON_CONFLICT.given(self.on_conflict)
        return () if given is None else (given,)

    @property
    def waits(self) -> bool:
        """Whether calls wait in a worker process as a rule."""
        return any(kind.occupies_process for kind in self._given())


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Put the name of the place of a mistake in front of its error text."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from error.__cause__


def flag(name: str, value: Any) -> None:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} is {value!r}; it must be True or False.")


def seconds_or_zero(name: str, value: Any) -> float:
    """Return a duration in seconds, which may be 0."""
    is_zero = value in (0, timedelta(0)) and not isinstance(value, bool)
    return 0.0 if is_zero else seconds_of(name, value)


def _names(options: type[LockOptions]) -> list[str]:
    return [option.name for option in fields(options) if option.init]


def _filled(option: policies.PolicyOption[Any, Any], value: Any, options: Any) -> Any:
    """Return a policy whose decisions have no gaps; see ``Decision.fill``."""
    policy = option.policy(value)
    return lambda situation: policy(situation).fill(situation, options)
