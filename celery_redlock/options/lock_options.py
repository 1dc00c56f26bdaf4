"""A task's lock options: checked when the task is decorated, resolved per app.

`LockOptions` are the options of a task, in groups that check themselves: each group
knows those above it. ::

    KeyOptions      which calls are the same       key, keys, unique_on
    LimitOptions    how many of them at once       limit, rate
    UniqueOptions   which jobs are duplicates      unique_while, unique_for, claim_ttl
    PolicyOptions   what happens then, and when    on_conflict, ..., ttl, renew, ...
    RecordOptions   whose effects happen once      exactly_once_in, ..., record_keep

``arguments.LockArguments`` has the list of all options with their types and texts: type
checkers, the reference and the errors about unknown names use it.

``resolve`` fills in the app's `Settings`, once per task and app, and refuses options
that do not go with the settings. Options and rules of single policies are in their
files: see ``policies``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock import policies
from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.basics.timing import seconds_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.options.arguments import LockArguments
from celery_redlock.options.exactly_once import RecordOptions
from celery_redlock.options.foreign import remedy_of
from celery_redlock.options.policy_options import (
    PolicyOptions,
    on_conflict_of,
    options_of_policies,
)
from celery_redlock.options.values import naming

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from celery import Celery, Task
    from typing_extensions import Unpack

_NAMES = tuple(LockArguments.__annotations__)
_READERS: dict[str, Callable[[str, Any], Any]] = {  # of durations
    **dict.fromkeys(("unique_for", "hold_at_least"), partial(seconds_of, zero=True)),
    **dict.fromkeys(
        ("claim_ttl", "ttl", "exactly_once_for", "record_keep"), seconds_of
    ),
}
_OF_A_CALL = ("timeout",)  # kombu takes it, with another meaning
_NEARLY = 0.8  # similar enough for a typing error, by difflib's measure
_OF_A_SHORT_NAME = 2 / 3  # that of two words of three letters that differ in one
_IF_YOURS = (
    "If it is an attribute of your own, write base= with a task class that has it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOptions:
    """The lock options of a task in an app, with nothing left open.

    The policies answer in full: no ``Retry`` without a countdown, no ``Wait`` without
    a timeout.

    Attributes:
        task: The options of the task, as they were written.
        ttl: Seconds for which nodes keep a lock that is not renewed.
        records: The store in which calls are recorded (``effects.call_records``); None
            without ``exactly_once_in``.
    """

    task: LockOptions
    ttl: float
    on_publish: policies.Policy[policies.Conflict, policies.PublishDecision]
    on_conflict: policies.Policy[policies.Conflict, policies.ConflictDecision]
    on_lock_lost: policies.Policy[policies.Loss, policies.LossDecision]
    on_backend_error: policies.Policy[policies.Outage, policies.OutageDecision]
    records: Any


@dataclass(frozen=True, kw_only=True)
class _AllOptions(RecordOptions, PolicyOptions):
    """The options of all groups, in the order of `LockArguments`."""


class LockOptions(_AllOptions):
    """A task's lock options, as `LockArguments` lists them.

    They have these names in ``@singleton_task(...)``, in ``redlock={...}`` and as
    attributes. A duration may be given as ``timedelta``; the attribute is in seconds.

    Raises:
        ConfigurationError: A name does not exist, a value cannot be used, or two do not
            go together.
    """

    def __init__(self, **options: Unpack[LockArguments]) -> None:
        given: dict[str, Any] = {**options}
        for name in sorted(given.keys() - {*_NAMES}):
            raise ConfigurationError(_unknown(name))
        theirs = {name: k[0].reads[name] for name, k in options_of_policies().items()}
        for name, read in {**_READERS, **theirs}.items():
            default = getattr(LockOptions, name)
            if (value := given.get(name, default)) is not default:
                given[name] = read(name, value)
        given["on_conflict"] = on_conflict_of(given)
        super().__init__(**given)
        self.check()

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return the names of all lock options."""
        return frozenset(_NAMES)

    @classmethod
    def split(
        cls, arguments: Mapping[str, Any], *, foreign: Collection[str] = ()
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split a decorator's arguments into lock options and all others.

        Raises:
            ConfigurationError: A name is nearly a lock option, or is meant as one
                (``options.foreign``), and is not in ``foreign``. Celery would accept it
                as an attribute of the task.
        """
        ours = {n: value for n, value in arguments.items() if n in _NAMES}
        others = {n: value for n, value in arguments.items() if n not in ours}
        for name in sorted(others.keys() - {*foreign}):
            if _is_near(name) or remedy_of(name, _NAMES):
                raise ConfigurationError(f"{_unknown(name)} {_IF_YOURS}")
        return ours, others

    def resolve(self, settings: Any, task: str = "this task") -> ResolvedOptions:
        """Fill in an app's `Settings` and the defaults. An app does this once per task.

        A ttl or a hold_at_least that does not go with the settings is refused.
        """
        with naming(task):
            ttl = self.ttl_in(settings.timing)
            records = self.open_records()
        whole = replace(self, ttl=ttl)
        return ResolvedOptions(
            task=self,
            ttl=ttl,
            on_publish=policies.publish_policy(self.on_conflict),
            on_conflict=_filled(policies.ON_CONFLICT, self.on_conflict, whole),
            on_lock_lost=_filled(policies.ON_LOCK_LOST, self.on_lock_lost, whole),
            on_backend_error=_filled(
                policies.ON_BACKEND_ERROR,
                self.on_backend_error or settings.on_backend_error,
                whole,
            ),
            records=records,
        )


def options_in(redlock: Any) -> dict[str, Any]:
    """Return the lock options in a ``redlock={...}``, which must be a dict."""
    if not isinstance(redlock, Mapping):
        raise ConfigurationError(
            f"redlock is {redlock!r}; it must be a dict of lock options, such as "
            '{"key": "invoice:{invoice_id}"}.'
        )
    return {**redlock}


def fault_of_call(
    task: str, options: Mapping[str, Any], then: str = "Nothing was sent."
) -> ConfigurationError | None:
    """Return an error if one call has a lock option, which Celery would pass on unread.

    ``then`` says what holds after the error.
    """
    for name, remedy in unread_in(options):
        return ConfigurationError(
            f"{task}: lock options are for all calls of a task, and {name} was given "
            f"for one call. {then} {remedy}"
        )
    return None


def may_take_options(task: Task, method: str) -> bool:
    """Tell whether a class of the project has this method, and may take any option."""
    having = [base for base in type(task).__mro__ if method in vars(base)]
    ours = ("celery.", "celery_redlock.")
    return not all(base.__module__.startswith(ours) for base in having)


class ScheduledOption(NamedTuple):
    """A lock option that an entry of ``beat_schedule`` gives for its calls."""

    entry: str
    task: str
    name: str
    remedy: str


def lock_options_in_schedule(app: Celery) -> Iterator[ScheduledOption]:
    """Yield the lock options in ``beat_schedule``: each call there would be refused.

    Beat only logs that, when an entry is due.
    """
    for entry, given in (app.conf.beat_schedule or {}).items():
        known = given if isinstance(given, Mapping) else vars(given)
        task: Any = app.tasks.get(known.get("task"))
        if takes_lock(task) and not may_take_options(task, "apply_async"):
            for name, remedy in unread_in(known.get("options") or {}):
                yield ScheduledOption(entry, task.name, name, remedy)


def unread_in(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lock options among the options of a call, each with its remedy.

    Stamps of Celery are options of the call as well, and may have any name.
    """
    for name in sorted(options.keys() - set(options.get("stamped_headers") or ())):
        if name in (*_NAMES, "redlock"):
            yield name, f"Write @singleton_task({name}=...)."
        elif name not in _OF_A_CALL and remedy_of(name, _NAMES):
            yield name, _unknown(name)


def _unknown(name: str) -> str:
    hint = remedy_of(name, _NAMES) or did_you_mean(name, _NAMES)
    return f"There is no lock option {name!r}. {hint}"


def lock_tasks(app: Celery) -> list[Any]:
    """Return the tasks of an app that take a lock, by name.

    Celery's own take none, also where ``SingletonTask`` is the app's ``task_cls``.
    """
    return [task for _, task in sorted(app.tasks.items()) if takes_lock(task)]


def takes_lock(task: object) -> bool:
    """Tell whether this is a task that takes a lock."""
    return isinstance(getattr(task, "lock_options", None), LockOptions)


def lock_task_inside(task: object) -> Any:
    """Return the lock task that is the function of another task, or None.

    That is so where Celery's own decorator is above ours. With ``autoretry_for``,
    Celery wraps the function.
    """
    bodies = (getattr(task, name, None) for name in ("run", "_orig_run"))
    return next(filter(takes_lock, bodies), None)


# Every task that is registered asks this for each of its attributes. The names are
# mostly Celery's, and the same for all tasks.
@lru_cache(maxsize=1024)
def _is_near(name: str) -> bool:
    """Tell whether a name is nearly that of a lock option.

    Capital letters make no difference. Of a short name, one letter is a large part.
    """
    word = name.lower()
    short = [one for one in _NAMES if len(one) == len(word) < 5]  # noqa: PLR2004  (letters)
    return bool(
        get_close_matches(word, _NAMES, 1, _NEARLY)
        or get_close_matches(word, short, 1, _OF_A_SHORT_NAME)
    )


def _filled(
    option: policies.PolicyOption[Any, Any], value: object, options: LockOptions
) -> Any:
    """Return a policy whose decisions have no gaps; see ``Decision.fill``."""
    policy = option.policy(value)

    def answer(situation: object) -> Any:
        decision = policy(situation)
        if isinstance(decision, policies.ConflictDecision):
            options.refuse_registering(type(decision))
        return decision.fill(situation, options)

    return answer
