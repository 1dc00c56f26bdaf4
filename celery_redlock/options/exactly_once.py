"""``exactly_once_in`` and the options that go with it: what they mean, and their rules.

The stores of records and messages are in ``contrib``, and are imported when a task or
an outbox first needs them: ``open_store``.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kombu.utils.imports import symbol_by_name

from celery_redlock.basics.spelling import check_word
from celery_redlock.errors import ConfigurationError
from celery_redlock.options.key_options import LimitOptions
from celery_redlock.options.values import flag

if TYPE_CHECKING:
    from collections.abc import Callable

_PER = ("task_id", "key")
_KEEP = timedelta(days=30).total_seconds()


@dataclass(frozen=True, kw_only=True)
class RecordOptions(LimitOptions):
    """The options of a task whose effects happen once in their database."""

    exactly_once_in: str | Callable[[], Any] | None = None
    exactly_once_per: str = "task_id"
    exactly_once_for: float | None = None
    exactly_once_failures: bool = False
    record_keep: float | None = None

    def check(self) -> None:
        """Refuse values that cannot be used, and options that have no effect."""
        super().check()
        database = self.exactly_once_in
        if database is None:
            self._refuse_without_database()
            return
        check_database("exactly_once_in", database)
        if inspect.iscoroutinefunction(database):
            raise ConfigurationError(
                "exactly_once_in is an async function. The body of a task is a plain "
                "function, so its session is one, too: return a sqlalchemy.orm.Session."
            )
        check_word("exactly_once_per", self.exactly_once_per, _PER)
        flag("exactly_once_failures", self.exactly_once_failures)
        self._check_period()
        if self.records_key and self.has_permits:
            raise ConfigurationError(
                "exactly_once_per='key' needs one call of the key at a time, and with "
                f"{self.several} several may start. Leave one of the two out."
            )

    @property
    def records_key(self) -> bool:
        """Whether calls with the same key are the same, and not those of one id."""
        return self.exactly_once_per == "key"

    @property
    def keeps_records_for(self) -> float:
        """The seconds after which a record may be deleted."""
        return max(self.record_keep or _KEEP, self.exactly_once_for or 0.0)

    def open_records(self) -> Any:
        """Return the `RecordStore` of the calls; None without ``exactly_once_in``."""
        if self.exactly_once_in is None:
            return None
        return open_store(
            "exactly_once_in",
            self.exactly_once_in,
            django="django.records:DjangoRecords",
            sqlalchemy="sqlalchemy.records:SqlAlchemyRecords",
        )

    def _refuse_without_database(self) -> None:
        for name in RecordOptions.__annotations__:
            if getattr(self, name) != getattr(RecordOptions, name):
                raise ConfigurationError(
                    f"{name} has no effect without exactly_once_in, which names the "
                    "database of the effects. Leave it out, or write "
                    'exactly_once_in="default".'
                )

    def _check_period(self) -> None:
        per_key, period = self.records_key, self.exactly_once_for
        if per_key and period is None:
            raise ConfigurationError(
                "exactly_once_per='key' needs exactly_once_for, the time in which the "
                "same call is given the first result, such as timedelta(days=1)."
            )
        if not per_key and period is not None:
            raise ConfigurationError(
                "exactly_once_for has no effect with exactly_once_per='task_id': such "
                "a record counts for as long as it is kept (record_keep). Leave it "
                "out, or write exactly_once_per='key'."
            )
        if period and self.record_keep is not None and self.record_keep < period:
            raise ConfigurationError(
                f"record_keep is {self.record_keep:g} s, less than exactly_once_for "
                f"({period:g} s): the record would be deleted while it counts. Raise "
                "it."
            )


def check_database(what: str, database: object) -> None:
    """Refuse a value that names no database of records or messages."""
    if not (isinstance(database, str) and database) and not callable(database):
        raise ConfigurationError(
            f"{what} is {database!r}; it must be the alias of a Django database such "
            'as "default", or a callable that returns a session of SQLAlchemy such as '
            "`lambda: Session(engine)`."
        )


def open_store(what: str, database: object, *, django: str, sqlalchemy: str) -> Any:
    """Return the store of records or messages in a database.

    Its class is ``"module:Class"`` in ``contrib``, for each of the two packages.

    Raises:
        ConfigurationError: The store can never work, or the package that it needs is
            not installed.
    """
    is_django = isinstance(database, str)
    package, name = ("Django", django) if is_django else ("SQLAlchemy", sqlalchemy)
    try:
        kind = symbol_by_name(f"celery_redlock.contrib.{name}")  # type: ignore[no-untyped-call]
    except ImportError as error:
        raise ConfigurationError(
            f"{what} with {database!r} needs {package}, which cannot be imported "
            f"({error}). Install it, or leave that out."
        ) from error
    return kind(database)
