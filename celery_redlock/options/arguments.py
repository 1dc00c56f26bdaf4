"""The arguments of ``@singleton_task``, for editors and type checkers.

Nothing here runs: `LockOptions` checks the values. Both have the same options, and the
texts about them are here only: editors show them, and the reference is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from celery_redlock.policies import (
    Conflict,
    ConflictDecision,
    Loss,
    LossDecision,
    Outage,
    OutageDecision,
    PublishDecision,
)

Seconds = float | timedelta

ConflictWord = Literal[
    "allow", "buffer_one", "cancel_running", "raise", "retry", "skip", "wait"
]
PublishWord = Literal["allow", "raise", "skip"]
LossWord = Literal["abort", "retry", "warn"]
OutageWord = Literal["raise", "retry", "run", "skip"]

_ConflictPolicy = (
    ConflictWord | ConflictDecision | Callable[[Conflict], ConflictDecision | str]
)
_PublishPolicy = (
    PublishWord | PublishDecision | Callable[[Conflict], PublishDecision | str]
)
_LossPolicy = LossWord | LossDecision | Callable[[Loss], LossDecision | str]
_OutagePolicy = OutageWord | OutageDecision | Callable[[Outage], OutageDecision | str]


class _PolicyByStage(TypedDict, total=False):
    publish: _PublishPolicy
    execute: _ConflictPolicy


class LockArguments(TypedDict, total=False):
    """The lock options, in the order of `LockOptions`."""

    key: str | Callable[..., str] | None
    """``"sync:{user_id}"`` over the arguments, or a callable of them."""

    keys: Sequence[str] | Mapping[str, int] | None
    """Several such templates, as ``["account:{source}", "account:{target}"]``: a call
    takes all of these keys together, or none. Or several with the limit of each, as
    ``{"tenant:{tenant}": 1, "imports": 10}``."""

    unique_on: Sequence[str] | None
    """Names of the arguments that make two calls the same; by default all."""

    limit: int | None
    """How many calls may have the key at once, from 1 to 1000; by default 1, or with
    ``rate`` as many as it lets start. For all calls of a task, with any arguments,
    add ``unique_on=[]``. With ``keys``, write the limits there."""

    rate: str | tuple[int, Seconds] | None
    """How many calls may start in any period of this length, over all workers:
    ``"10/m"`` (also ``/s``, ``/h``, ``/d``), or ``(10, timedelta(minutes=5))``, at
    most 1000. It counts the starts of the key; with ``keys``, each of them has this
    rate. (Celery's own ``rate_limit`` counts in each worker by itself, and by task.)
    """

    unique_while: Literal["running", "queued", "queued_or_running"]
    """Which other job makes a job a duplicate: one that is ``"running"`` (default),
    ``"queued"`` or ``"queued_or_running"``."""

    unique_for: Seconds
    """Seconds after a success in which a job is a duplicate, too; by default 0."""

    claim_ttl: Seconds | None
    """Seconds, beyond its countdown or eta, for which a waiting job keeps others out of
    the queue, or with ``in_order`` keeps later ones back; by default 1 h."""

    on_conflict: _ConflictPolicy | _PolicyByStage | None
    """What happens to a duplicate: ``"skip"``, ``"raise"``, ``"retry"``, ``"wait"``,
    ``"buffer_one"``, ``"cancel_running"``, ``"allow"``, a decision of ``policies``, or
    a callable that gets the `Conflict` and returns one of these. Or two of them, as
    ``{"publish": ..., "execute": ...}``. By default ``"skip"``; with ``limit``,
    ``rate``, or a number above 1 in ``keys`` it is ``"retry"``."""

    on_lock_lost: _LossPolicy
    """What happens to a running body whose lock can no longer be proven: ``"abort"``
    (default), ``"retry"``, ``"warn"``, or a callable that gets the `Loss`."""

    on_backend_error: _OutagePolicy | None
    """What happens to a call in an outage, when too few nodes vote: ``"retry"``,
    ``"raise"``, ``"run"``, ``"skip"``, or a callable that gets the `Outage`; by default
    ``redlock_on_backend_error``, which is ``"retry"``."""

    ttl: Seconds | None
    """Seconds for which nodes keep a lock without renewal; by default ``redlock_ttl``,
    30 s."""

    renew: bool
    """Whether the lock is renewed while the body runs; by default it is."""

    hold_at_least: Seconds
    """Seconds from the start for which the lock is kept, also when the body was faster:
    against schedulers whose clocks differ; by default 0, at most ``redlock_max_ttl``.
    """

    wait_timeout: Seconds | None
    """For ``"wait"``: seconds for which a call waits at most; by default 10 s."""

    retry_countdown: Seconds | None
    """Seconds after which a republished call tries again, if its lock is not free
    before. For ``"retry"``: by default random, ttl / 2 on average; with a limit or a
    rate, when its turn is near. For ``"buffer_one"``: by default from 1 s on, doubled
    each time, up to that."""

    in_order: bool
    """For ``"retry"``: whether calls of a key run in the order in which they were
    published; by default they do not. A call then waits for all that are before it, for
    ``claim_ttl`` at most where one of them never comes."""

    buffer_keep: Literal["latest", "first"] | None
    """For ``"buffer_one"``: which of the waiting calls runs: the ``"latest"`` (default)
    or the ``"first"``."""

    cancel_grace: Seconds | None
    """For ``"cancel_running"``: seconds that the cancelled body may take before it is
    interrupted again; by default 10 s."""

    exactly_once_in: str | Callable[[], Any] | None
    """The database of the effects: the alias of a Django database, or a callable that
    returns a session of SQLAlchemy. The body runs in one transaction with a record of
    the call, so that its effects there happen once."""

    exactly_once_per: Literal["task_id", "key"]
    """Which calls are the same one: those with the same ``"task_id"`` (default), or
    those with the same ``"key"`` within ``exactly_once_for``."""

    exactly_once_for: Seconds | None
    """For ``"key"``: seconds for which the same call is given the first result."""

    exactly_once_failures: bool
    """Whether the failure of a body is recorded, too, and is the result of each copy;
    by default it is not, and a copy runs again."""

    record_keep: Seconds | None
    """Seconds after which a record may be deleted; by default 30 days."""


class TaskArguments(LockArguments, total=False):
    """The lock options, and the options of Celery's own decorator but ``bind``.

    Celery takes any other name as an attribute of the task. Type checkers refuse such
    names, because most of them are typing errors: give the attributes to a class, and
    the class as ``base``.
    """

    redlock: LockArguments
    name: str | None
    shared: bool
    lazy: bool
    typing: bool
    pydantic: bool
    pydantic_strict: bool
    pydantic_context: dict[str, Any] | None
    pydantic_dump_kwargs: dict[str, Any] | None
    serializer: str | None
    compression: str | None
    queue: str | None
    exchange: str | None
    routing_key: str | None
    priority: int | None
    delivery_mode: int | str | None
    expires: float | datetime | None
    max_retries: int | None
    default_retry_delay: float
    autoretry_for: Collection[type[BaseException]]
    dont_autoretry_for: Collection[type[BaseException]]
    retry_kwargs: Mapping[str, Any]
    retry_backoff: bool | float
    retry_backoff_max: float
    retry_jitter: bool
    rate_limit: str | float | None
    time_limit: float | None
    soft_time_limit: float | None
    acks_late: bool | None
    acks_on_failure: bool | None
    acks_on_failure_or_timeout: bool | None
    acks_on_timeout: bool | None
    reject_on_worker_lost: bool | None
    retry_on_worker_lost: bool | None
    ignore_result: bool | None
    store_eager_result: bool | None
    store_errors_even_if_ignored: bool | None
    track_started: bool | None
    send_events: bool
    trail: bool
    throws: type[BaseException] | tuple[type[BaseException], ...]
    resultrepr_maxsize: int
    before_start: Callable[..., Any]
    on_success: Callable[..., Any]
    on_failure: Callable[..., Any]
    on_retry: Callable[..., Any]
    after_return: Callable[..., Any]
