"""Records of calls that have been done, in the database of their effects.

A record is written in the transaction of the effects. So both are there, or neither.
The id of a record is unique in its table: of two transactions that do the same call,
one can commit at most. That needs no lock. See ``exactly_once`` for the protocol, and
``contrib`` for the stores.

``delete_old_records`` deletes those whose time is over. The periodic task
``celery_redlock.prune`` does it, too.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from celery import Task, states
from celery.exceptions import SoftTimeLimitExceeded

from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import ConfigurationError
from celery_redlock.options.lock_options import lock_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from celery import Celery

log = logging.getLogger(__name__)

_T = TypeVar("_T")

PRUNE = "celery_redlock.prune"  # a task
_AT_ONCE = 1000  # records that one transaction deletes
CONTROLLED = "The package commits the effects of a call and its record together."
_IDLE = 0  # libpq's word for a connection that is in no transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A call that has been done.

    Attributes:
        id: A digest of the task's name, and of the task id or key of the call.
        task_id: The id of the call that did it, in printable letters, cut to 255.
        key: The key of that call.
        fence: The fence of its lock; 0 if it ran without a lock.
        state: SUCCESS or FAILURE.
        result: What Celery stores for it; in base64 if that is no text.
        content_type: The serializer, as kombu knows it.
        content_encoding: The encoding of the serialized result.
        recorded_at: When it was recorded, by the clock of the worker, in UTC.
        keep_until: When it may be deleted.
    """

    id: str
    task: str
    task_id: str
    key: str
    fence: int
    state: str
    result: str
    content_type: str
    content_encoding: str
    recorded_at: datetime
    keep_until: datetime

    def is_of(self, other: CallRecord) -> bool:
        """Tell whether both were written by the same attempt."""
        mine = (self.id, self.task_id, self.fence, self.recorded_at)
        return mine == (other.id, other.task_id, other.fence, other.recorded_at)


def in_utc(stored: datetime) -> datetime:
    """Return a moment that a database has returned, in UTC.

    A naive one was stored in UTC. Others have the zone of their connection: in Django
    that of ``DATABASES``, in SQLAlchemy that of the server.
    """
    if stored.tzinfo is None:
        return stored.replace(tzinfo=timezone.utc)
    return stored.astimezone(timezone.utc)


def from_row(kind: type[_T], row: Mapping[Any, Any]) -> _T:
    """Return what a row of a database says, with its moments in UTC."""
    moments = {n: in_utc(v) for n, v in row.items() if isinstance(v, datetime)}
    return kind(**{**row, **moments})


class RecordStore(Protocol):
    """The records in one database. It may be used by several threads at once.

    To make one connects to nothing, and raises ConfigurationError if it can never work.
    """

    def transaction(
        self, record_id: str, *, may_be_nested: bool = False
    ) -> AbstractContextManager[CallRecord | None]:
        """Run the block in a transaction, with the record of this id; then commit.

        An error rolls back. A connection that was found dead before the block began
        is replaced. ``may_be_nested``: it may be a part of the caller's transaction.

        Raises:
            ConfigurationError: The table is missing, or transactions cannot be
                controlled. The block did not run.
        """

    def guarded(self) -> AbstractContextManager[None]:
        """Refuse statements by which the block would end the transaction itself."""

    def write(self, record: CallRecord, over: CallRecord | None) -> None:
        """Write a record in the transaction, in place of an outdated one.

        That one may be gone: `delete_older` has deleted it.

        Raises:
            Exception: There is another record, or the database has failed: roll back,
                and look again.
        """

    def delete_older(self, than: datetime, most: int) -> int:
        """Delete at most ``most`` records whose time ended before ``than``."""


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.fromtimestamp(SYSTEM_CLOCK.wall(), timezone.utc)


def record_id(call: Any) -> str:
    """Return the id of the record of calls with the same key, or task id."""
    per_key = call.options.task.records_key
    kind, subject = ("key", call.key) if per_key else ("task_id", call.id)
    text = f"{kind}\n{call.task.name}\n{subject}"
    return hashlib.sha256(text.encode()).hexdigest()


def has_succeeded(call: Any) -> bool:
    """Tell whether a success is recorded for a call whose stored result is a failure.

    Celery stores such a failure after an error of its own: it could not store the
    result, and the effects are committed. The record is right.
    """
    records: RecordStore = call.options.records
    try:
        with records.transaction(record_id(call), may_be_nested=True) as found:
            pass
    except Exception:
        # If the database is away, the call fails when it looks for the record itself.
        log.exception("The record of %s could not be read.", call)
        return True
    return found is not None and bool(found.state == states.SUCCESS)


def check_in_transaction(raw: object, transaction: str = "its transaction") -> None:
    """Refuse a body after which the connection of a driver is in no transaction.

    The drivers of SQLite and PostgreSQL can say so. Others are not asked.
    """
    is_inside = getattr(raw, "in_transaction", None)
    if not isinstance(is_inside, bool):
        status = getattr(getattr(raw, "info", None), "transaction_status", None)
        is_inside = raw is not None and status != _IDLE
    if not is_inside:
        raise ConfigurationError(
            f"The body of a task with exactly_once_in has ended {transaction} by "
            "itself. What it did before that is committed without a record, or lost. "
            f"{CONTROLLED} Leave out what ends it."
        )


def in_each(databases: Iterable[_T], do: Callable[[_T], int]) -> int:
    """Do this in each database, and return the sum of what it returns.

    One that fails keeps no other from its turn; its error is raised after the last.
    """
    total, errors = 0, list[Exception]()
    for database in databases:
        try:
            total += do(database)
        except Exception as error:  # noqa: PERF203  (each has its own)
            if isinstance(error, SoftTimeLimitExceeded):
                raise
            log.exception("A database could not be used. The others have their turn.")
            errors.append(error)
    if errors:
        raise errors[0]
    return total


def delete_old_records(app: Celery) -> int:
    """Delete the records of an app's tasks whose time is over, and return how many.

    Each transaction is a small one.
    """
    stores = {}
    for task in lock_tasks(app):
        if (database := task.lock_options.exactly_once_in) is not None:
            stores[database] = runtime_of(app).options(task).records
    than = now()

    def delete_in(store: RecordStore) -> int:
        deleted = 0
        while count := store.delete_older(than, _AT_ONCE):
            deleted += count
        return deleted

    deleted = in_each(stores.values(), delete_in)
    log.info("%d old records of calls were deleted.", deleted)
    return deleted


def _prune(self: Task) -> int:
    """Delete the records whose time is over, and return how many they were."""
    return delete_old_records(self.app)


def register_prune(app: Celery) -> None:
    """Register ``celery_redlock.prune`` in an app: for the schedule of a beat."""
    # At once: the app may be collecting its tasks at this moment.
    how = {"base": Task, "bind": True, "shared": False, "lazy": False}
    app.task(name=PRUNE, ignore_result=True, **how)(_prune)
