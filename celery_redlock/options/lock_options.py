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

Where a key may have several holders at once, or starts are counted, a refused call is
no duplicate as a rule: it is one more job, and has to wait. So ``"retry"`` is the
default of ``on_conflict`` there, and what needs the one running call is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_redlock import policies
from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.basics.timing import seconds_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.locks.limits import limit_of, rate_of
from celery_redlock.options.call_key import KeyRule, KeyTemplate
from celery_redlock.options.exactly_once import ExactlyOnce, check_exactly_once
from celery_redlock.options.foreign import FOREIGN

if TYPE_CHECKING:
    import inspect

    from celery_redlock.basics.timing import Timing

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
        keeps: Which of the calls that were published runs: the ``"latest"`` or the
            ``"first"``; ``""``: all of them.
        replaces: Whether a call that is published asks the running call to end.
        needs_arguments: Whether the arguments are needed again after the body.
        has_backlog: Whether a refused call joins the backlog of its key, and comes back
            when its turn is near.
        in_order: Whether calls of a key run in the order in which they were published.
        waits_on: Whether a refused call waits on when its countdown ends and its lock
            is still held: the policy would answer the same, and need not be asked.
        exactly_once: How calls are recorded in the database of their effects, or None.
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
    keeps: str
    replaces: bool
    needs_arguments: bool
    has_backlog: bool
    in_order: bool
    waits_on: bool
    exactly_once: ExactlyOnce | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """A task's lock options as they were written.

    They have the same names in ``@singleton_task(...)`` and in ``redlock={...}``.
    Durations are in seconds or a ``timedelta``.

    Attributes:
        key, unique_on, ...: See ``arguments.LockArguments``, which has all of them.
        registers_successors: Not an option, but a consequence: whether a publisher
            notes when it published a call, for the successor register.

    Raises:
        ConfigurationError: A value cannot be used, or two do not go together.
    """

    key: str | Callable[..., str] | None = None
    keys: Sequence[str] | Mapping[str, int] | None = None
    unique_on: Sequence[str] | None = None
    limit: int | None = None
    rate: str | tuple[int, float | timedelta] | None = None
    unique_while: str = "running"
    unique_for: float | timedelta = 0.0
    claim_ttl: float | timedelta | None = None
    on_conflict: Any = None
    on_lock_lost: Any = "abort"
    on_backend_error: Any = None
    ttl: float | timedelta | None = None
    renew: bool = True
    hold_at_least: float | timedelta = 0.0
    wait_timeout: float | timedelta | None = None
    retry_countdown: float | timedelta | None = None
    in_order: bool = False
    buffer_keep: str | None = None
    cancel_grace: float | timedelta | None = None
    exactly_once_in: str | Callable[[], Any] | None = None
    exactly_once_per: str = "task_id"
    exactly_once_for: float | timedelta | None = None
    exactly_once_failures: bool = False
    record_keep: float | timedelta | None = None
    registers_successors: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("ttl", "claim_ttl"):
            if (value := getattr(self, name)) is not None:
                _put(self, name, seconds_of(name, value))
        for name in ("hold_at_least", "unique_for"):
            _put(self, name, seconds_or_zero(name, getattr(self, name)))
        flag("renew", self.renew)
        flag("in_order", self.in_order)
        self._check_key()
        self._check_limits()
        _put(self, "on_conflict", self._on_conflict())
        policies.ON_CONFLICT.policy(self.on_conflict)
        policies.publish_policy(self.on_conflict)
        policies.ON_LOCK_LOST.policy(self.on_lock_lost)
        if self.on_backend_error is not None:
            policies.ON_BACKEND_ERROR.policy(self.on_backend_error)
        for kind in self._given():
            self._refuse_registering(kind)
        self._check_uniqueness()
        if self.in_order:
            self._check_order()
        self._check_options_of_policies()
        self._check_records()
        registers = any(kind.registers for kind in self._possible())
        _put(self, "registers_successors", registers)

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
        if self.keys is not None:
            self._check_keys()

    def _check_keys(self) -> None:
        texts = self.keys if isinstance(self.keys, (list, tuple, Mapping)) else ()
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ConfigurationError(
                f"keys is {self.keys!r}; it must be a list of templates such as "
                '["account:{source}", "account:{target}"], or a mapping of templates '
                'to limits such as {"tenant:{tenant}": 1, "imports": 10}.'
            )
        for text in texts:
            KeyTemplate(text)
        for other in ("key", "unique_on"):
            if getattr(self, other) is not None:
                raise ConfigurationError(
                    f"keys and {other} both say what a call locks. Leave one out."
                )

    def _check_limits(self) -> None:
        if self.limit is not None:
            limit_of("limit", self.limit)
            if self.keys is not None:
                with_limits = dict.fromkeys(self.keys, self.limit)
                raise ConfigurationError(
                    "limit is for one key. With keys, write the limit of each of them: "
                    f"keys={with_limits}."
                )
        if isinstance(self.keys, Mapping):
            for text, most in self.keys.items():
                limit_of(f"The limit of the key {text!r}", most)
        if self.rate is not None:
            rate_of("rate", self.rate)

    def _on_conflict(self) -> Any:
        """Return the policy as it was given, or by default."""
        given = self.on_conflict
        default = "retry" if self._is_limited else "skip"
        if isinstance(given, Mapping) and given and self._is_limited:
            return {"execute": default, **given}
        return default if given is None else given

    def _check_uniqueness(self) -> None:
        while_ = self.unique_while
        if while_ not in _UNIQUE_WHILE:
            hint = did_you_mean(str(while_), _UNIQUE_WHILE)
            raise ConfigurationError(f"unique_while={while_!r} does not exist. {hint}")
        is_used = while_ != "running" or self.in_order
        if self.claim_ttl is not None and not is_used:
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
        if while_ == "queued_or_running" and self.most_at_once > 1:
            raise ConfigurationError(
                "unique_while='queued_or_running' makes a call a duplicate while "
                f"another one runs, and with {self._several} several may run at once. "
                "Write unique_while='queued', or leave it out."
            )
        if self.unique_for and self._has_permits:
            raise ConfigurationError(
                f"unique_for makes no sense with {self._several}: the success of one "
                "call would keep the others out. For so many starts in a period write "
                "rate, such as rate='1/h'."
                if self.rate is None
                else "unique_for makes no sense with rate, which says how often calls "
                "may start. Leave one out."
            )

    def _check_order(self) -> None:
        """Refuse an order of calls of which some do not come back, or run at once."""
        if policies.ON_CONFLICT.possible(self.on_conflict) != (policies.Retry,):
            raise ConfigurationError(
                "in_order needs on_conflict='retry', by which each call returns to its "
                f"queue until its turn has come; on_conflict is {self.on_conflict!r}. "
                "Write on_conflict='retry', or leave in_order out."
            )
        if self.keys is not None:
            raise ConfigurationError(
                "in_order is for one key: each of several keys has an order of its "
                "own. Write key=..., or leave in_order out."
            )
        if self.limit != 1 and self.most_at_once > 1:
            raise ConfigurationError(
                f"in_order makes no sense with {self._several}: several calls may run "
                "at once, and a later one may end first. Write limit=1, or leave "
                "in_order out."
            )
        if self.unique_for:
            raise ConfigurationError(
                "in_order makes no sense with unique_for, a cool-down in which no call "
                "has its turn. Leave one of the two out."
            )

    def _check_records(self) -> None:
        check_exactly_once(self, _put)
        if self.exactly_once_per == "key" and self._has_permits:
            raise ConfigurationError(
                "exactly_once_per='key' needs one call of the key at a time, and with "
                f"{self._several} several may start. Leave one of the two out."
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

    @property
    def most_at_once(self) -> int:
        """The greatest number of calls that may have a key of the task at once."""
        if self.keys is not None:
            return max(self.keys.values()) if isinstance(self.keys, Mapping) else 1
        if self.limit is None and self.rate is not None:
            return rate_of("rate", self.rate)[0]
        return self.limit or 1

    @property
    def _has_permits(self) -> bool:
        return self.most_at_once > 1 or self.rate is not None

    @property
    def _is_limited(self) -> bool:
        """Whether a limit or a rate was written, also a limit of 1."""
        return self.limit is not None or self._has_permits

    def _has_backlog(self) -> bool:
        possible = policies.ON_CONFLICT.possible(self.on_conflict)
        comes_back = policies.Retry in possible and self.retry_countdown is None
        return self.in_order or (self._is_limited and comes_back)

    @property
    def _several(self) -> str:
        """The option by which several calls may have a key, as it was written."""
        names = ("keys", "limit", "rate") if self.most_at_once > 1 else ("rate",)
        name = next(name for name in names if getattr(self, name) is not None)
        return f"{name}={getattr(self, name)!r}"

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return the names of all lock options."""
        return frozenset(_names(cls))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> LockOptions:
        """Read the ``redlock={...}`` of a task; refuse names that do not exist."""
        known = _names(cls)
        for name in sorted(options.keys() - set(known)):
            hint = FOREIGN.get(name) or did_you_mean(name, known)
            raise ConfigurationError(f"There is no lock option {name!r}. {hint}")
        return cls(**options)

    @classmethod
    def split(
        cls, arguments: Mapping[str, Any], *, foreign: Collection[str] = ()
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split a decorator's arguments into lock options and all others.

        A name that is nearly a lock option, or is one of another library, and is not
        in ``foreign``, counts as one, for ``of`` to refuse: Celery would accept it as
        an attribute of the task.
        """
        known = tuple(_names(cls))
        near = {name for name in arguments if _is_near(name, known)}
        near |= FOREIGN.keys() & arguments.keys()
        ours = {n: arguments[n] for n in near if n in known or n not in foreign}
        return ours, {n: value for n, value in arguments.items() if n not in ours}

    def key_rule(
        self,
        task: str,
        signature: inspect.Signature,
        hidden: Mapping[str, str] | None = None,
    ) -> KeyRule:
        """Return the rule by which a call gets its key, checked against the task.

        ``hidden`` are parameters of the body that a decorator around it does not have.
        """
        return KeyRule(
            task,
            signature,
            hidden=hidden,
            key=self.key,
            keys=self.keys,
            unique_on=self.unique_on,
            limit=self.limit,
            rate=self.rate,
        )

    def resolve(self, settings: Any, task: str = "this task") -> ResolvedOptions:
        """Fill in an app's `Settings` and the defaults. An app does this once per task.

        A ttl or a hold_at_least that does not go with the settings is refused.
        """
        with naming(task):
            ttl, hold = self.durations(settings.timing)
        grace = self.cancel_grace or policies.CancelRunning.default_grace
        seconds: dict[str, Any] = {"unique_for": self.unique_for, "cancel_grace": grace}
        seconds["claim_ttl"] = self.claim_ttl or _CLAIM_TTL
        whole = replace(self, ttl=ttl)
        on_backend_error = self.on_backend_error or settings.on_backend_error
        possible_losses = policies.ON_LOCK_LOST.possible(self.on_lock_lost)
        return ResolvedOptions(
            on_publish=policies.publish_policy(self.on_conflict),
            on_conflict=_filled(
                policies.ON_CONFLICT,
                self.on_conflict,
                whole,
                None if self._knows_one_running_call else self._refuse_registering,
            ),
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
            keeps=self._keeps(),
            replaces=any(kind.replaces for kind in self._given()),
            needs_arguments=any(kind.needs_arguments for kind in possible_losses),
            has_backlog=self._has_backlog(),
            in_order=self.in_order,
            waits_on=policies.ON_CONFLICT.possible(self.on_conflict)
            == (policies.Retry,),
            exactly_once=self._exactly_once(task),
            **seconds,
        )

    def _exactly_once(self, task: str) -> ExactlyOnce | None:
        with naming(task):
            return ExactlyOnce.of(self)

    def durations(self, timing: Timing) -> tuple[float, float]:
        """Return ttl and hold_at_least in seconds.

        Raises:
            ConfigurationError: One of them does not go with the settings.
        """
        ttl = timing.ttl if self.ttl is None else timing.checked(self.ttl)
        hold: Any = self.hold_at_least  # in seconds by now
        if hold > timing.max_ttl:
            raise ConfigurationError(
                f"hold_at_least is {hold:g} s, above redlock_max_ttl "
                f"({timing.max_ttl:g} s): no lock lasts longer. Lower it."
            )
        return ttl, hold

    def _renew_every(self) -> float | None:
        seconds = [kind.renew_every for kind in self._possible() if kind.renew_every]
        return min(seconds, default=None) if self.renew else None

    def _keeps(self) -> str:
        given: Any = self.on_conflict
        if isinstance(given, Mapping):
            given = given.get("execute", "skip")
        return next((kind.keeps(given, self) for kind in self._given()), "")

    def _given(self) -> tuple[type[policies.ConflictDecision], ...]:
        given = policies.ON_CONFLICT.given(self.on_conflict)
        return () if given is None else (given,)

    def _possible(self) -> list[type[policies.ConflictDecision]]:
        """Return the classes of all decisions that may be performed in a worker."""
        possible = policies.ON_CONFLICT.possible(self.on_conflict)
        if self._knows_one_running_call:
            return [*possible]
        return [kind for kind in possible if not kind.registers]

    @property
    def _knows_one_running_call(self) -> bool:
        """Whether one call at most keeps another one from running."""
        return self.keys is None and not self._has_permits

    def _refuse_registering(self, kind: type[policies.ConflictDecision]) -> None:
        """Refuse a policy that lets one of the refused calls follow the running one."""
        if not kind.registers or self._knows_one_running_call:
            return
        needs = f"on_conflict={kind.name!r} needs"
        remedy = "Write on_conflict='retry' or 'wait', or"
        if self.keys is not None:
            raise ConfigurationError(
                f"{needs} one key: of calls with several keys, more than one can run "
                f"and keep another one out. {remedy} one key=...."
            )
        why = "several may run at once"
        if self.most_at_once == 1:
            why = "a call is refused when none runs, too"
        raise ConfigurationError(
            f"{needs} the one call that runs, and with {self._several} {why}. {remedy} "
            f"leave {self._several.partition('=')[0]} out."
        )

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


# Every task that is registered asks this for each of its attributes. The names are
# mostly Celery's, and the same for all tasks.
@lru_cache(maxsize=1024)
def _is_near(name: str, known: tuple[str, ...]) -> bool:
    """Tell whether a name is one of these, or nearly one."""
    return bool(get_close_matches(name, known, 1, _NEARLY))


def _filled(
    option: policies.PolicyOption[Any, Any],
    value: Any,
    options: LockOptions,
    check: Callable[[Any], None] | None = None,
) -> Any:
    """Return a policy whose decisions have no gaps; see ``Decision.fill``.

    The check gets the class of each decision, and may refuse it.
    """
    policy = option.policy(value)
    if check is None:
        return lambda situation: policy(situation).fill(situation, options)

    def checked(situation: Any) -> Any:
        decision = policy(situation)
        check(type(decision))
        return decision.fill(situation, options)

    return checked
