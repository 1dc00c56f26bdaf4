"""``exactly_once_in`` and the options that go with it: what they mean, and their rules.

`ExactlyOnce` has them with nothing left open. It names the store of the records, which
is in ``contrib`` and is imported when a task with the option first needs it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from kombu.utils.imports import symbol_by_name

from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.errors import ConfigurationError
from celery_redlock.options.key_options import LimitOptions
from celery_redlock.options.values import Readers, flag, seconds_if_given

if TYPE_CHECKING:
    from collections.abc import Callable

_PER = ("task_id", "key")
_KEEP = timedelta(days=30).total_seconds()
_DJANGO = "celery_redlock.contrib.django.records:DjangoRecords"
_SQLALCHEMY = "celery_redlock.contrib.sqlalchemy.records:SqlAlchemyRecords"


@dataclass(frozen=True, kw_only=True)
class RecordOptions(LimitOptions):
    """The options of a task whose effects happen once in their database."""

    readers: ClassVar[Readers] = {
        "exactly_once_for": seconds_if_given,
        "record_keep": seconds_if_given,
    }

    exactly_once_in: str | Callable[[], Any] | None = None
    exactly_once_per: str = "task_id"
    exactly_once_for: float | None = None
    exactly_once_failures: bool = False
    record_keep: float | None = None

    def check(self) -> None:
        """Refuse values that cannot be used, and options that have no effect."""
        super().check()
        database, per = self.exactly_once_in, self.exactly_once_per
        if database is None:
            self._refuse_without_database()
            return
        if not (isinstance(database, str) and database) and not callable(database):
            raise ConfigurationError(
                f"exactly_once_in is {database!r}; it must be the alias of a Django "
                'database such as "default", or a callable that returns a session of '
                "SQLAlchemy such as `lambda: Session(engine)`."
            )
        if inspect.iscoroutinefunction(database):
            raise ConfigurationError(
                "exactly_once_in is an async function. The body of a task is a plain "
                "function, so its session is one, too: return a sqlalchemy.orm.Session."
            )
        if per not in _PER:
            hint = did_you_mean(str(per), _PER)
            raise ConfigurationError(f"exactly_once_per={per!r} does not exist. {hint}")
        flag("exactly_once_failures", self.exactly_once_failures)
        self._check_period()
        if per == "key" and self.has_permits:
            raise ConfigurationError(
                "exactly_once_per='key' needs one call of the key at a time, and with "
                f"{self.several} several may start. Leave one of the two out."
            )

    def _refuse_without_database(self) -> None:
        for option in fields(self):
            name, is_ours = option.name, option.name in RecordOptions.__annotations__
            if is_ours and getattr(self, name) != option.default:
                raise ConfigurationError(
                    f"{name} has no effect without exactly_once_in, which names the "
                    "database of the effects. Leave it out, or write "
                    'exactly_once_in="default".'
                )

    def _check_period(self) -> None:
        per_key, period = self.exactly_once_per == "key", self.exactly_once_for
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """The options of a task whose calls are recorded in the database of their effects.

    Attributes:
        records: The store of the records (``effects.call_records.RecordStore``).
        per_key: Whether calls with the same key are the same call; otherwise calls
            with the same task id are.
        repeats_for: Seconds for which a call with the same key is given the recorded
            result; 0 where a record counts for as long as it is kept.
        keep: Seconds after which a record may be deleted.
        failures: Whether a failure is recorded, too.
    """

    records: Any
    per_key: bool
    repeats_for: float
    keep: float
    failures: bool

    @classmethod
    def of(cls, options: RecordOptions) -> ExactlyOnce | None:
        """Return the resolved options of a task; None without ``exactly_once_in``.

        Raises:
            ConfigurationError: The database is not known, or the package that its
                records need is not installed.
        """
        database = options.exactly_once_in
        if database is None:
            return None
        return cls(
            records=_open_records(database),
            per_key=options.exactly_once_per == "key",
            repeats_for=options.exactly_once_for or 0.0,
            keep=max(options.record_keep or _KEEP, options.exactly_once_for or 0.0),
            failures=options.exactly_once_failures,
        )


def _open_records(database: object) -> Any:
    name = _DJANGO if isinstance(database, str) else _SQLALCHEMY
    try:
        records = symbol_by_name(name)(database)  # type: ignore[no-untyped-call]
    except ImportError as error:
        package = "Django" if name == _DJANGO else "SQLAlchemy"
        raise ConfigurationError(
            f"exactly_once_in={database!r} needs {package}, which cannot be imported "
            f"({error}). Install it, or leave the option out."
        ) from error
    records.check()
    return records
