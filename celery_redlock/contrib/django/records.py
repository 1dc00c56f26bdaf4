"""Records of calls in a Django database, for tasks with ``exactly_once_in="default"``.

The app ``"celery_redlock.contrib.django"`` has the model `models.CallRecord` and its
migration. A router is not asked: the alias names the database. The body of a call runs
in ``transaction.atomic``, so nested ``atomic`` blocks are savepoints, and functions of
``transaction.on_commit`` run after the commit of effects and record.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import (
    DatabaseError,
    InterfaceError,
    connections,
    transaction,
)
from django.db.models import F

from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.effects.call_records import (
    CONTROLLED,
    CallRecord,
    check_in_transaction,
    from_row,
)
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

_APP = "celery_redlock.contrib.django"
_ENDS = re.compile(
    r"\s*(?:COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|PREPARE\s+TRANSACTION"
    r"|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE,
)
_MOMENTS = ("recorded_at", "keep_until")


class DjangoRecords:
    """The records in one database of Django: an `effects.call_records.RecordStore`."""

    def __init__(self, alias: str) -> None:
        check_alias(f"exactly_once_in={alias!r}", alias)
        self._alias = alias

    @contextlib.contextmanager
    def transaction(
        self, record_id: str, *, may_be_nested: bool = False
    ) -> Iterator[CallRecord | None]:
        """Run the block in a transaction, with the record of this id; then commit."""
        if not may_be_nested:
            self._refuse_open_transaction()
        opened, found = self._begin(record_id)
        with opened:
            yield found

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Refuse SQL by which the body would end the transaction itself."""
        connection = connections[self._alias]
        with connection.execute_wrapper(_refuse_end):
            yield
        of = f"the transaction of {self._alias!r}"
        check_in_transaction(connection.connection, of)

    def write(self, record: CallRecord, over: CallRecord | None) -> None:
        """Write a record in the transaction, in place of an outdated one."""
        rows, values = self._rows(), asdict(record)
        values |= {name: as_moment(values[name]) for name in _MOMENTS}
        if over is not None:
            same = rows.filter(pk=over.id, recorded_at=as_moment(over.recorded_at))
            if same.update(**values):
                return
        rows.create(**values)

    def delete_older(self, than: datetime, most: int) -> int:
        """Delete at most ``most`` records whose time ended before ``than``."""
        old = self._rows().filter(keep_until__lt=as_moment(than))
        found = [*old.values_list("pk", flat=True)[:most]]
        return int(old.filter(pk__in=found).delete()[0])

    # -- the transaction -----------------------------------------------------------

    def _rows(self) -> Any:
        return apps.get_model("celery_redlock", "CallRecord").objects.using(self._alias)

    def _refuse_open_transaction(self) -> None:
        connection = connections[self._alias]
        if connection.in_atomic_block or not connection.get_autocommit():
            raise ConfigurationError(
                f"A transaction of {self._alias!r} is open before the body begins, or "
                f"its AUTOCOMMIT is off. {CONTROLLED} Leave out the outer "
                "transaction, or AUTOCOMMIT."
            )

    def _begin(self, record_id: str) -> tuple[contextlib.ExitStack, CallRecord | None]:
        connection = connections[self._alias]
        for is_last in (False, True):
            connection.ensure_connection()
            its = connection.connection
            try:
                with contextlib.ExitStack() as opened:
                    opened.enter_context(transaction.atomic(using=self._alias))
                    found = self._find(record_id)
                    return opened.pop_all(), found
            except (DatabaseError, InterfaceError) as error:
                # Django may have connected anew by now, in place of a dead one.
                is_open = connection.connection is its and connection.is_usable()
                if is_open or connection.in_atomic_block:
                    self._refuse_missing_table(error)
                    raise
                if is_last:
                    raise
                _replace(connection)
        raise AssertionError  # the loop ends in a return or an error

    def _find(self, record_id: str) -> CallRecord | None:
        rows = self._rows().filter(pk=record_id)
        if not connections[self._alias].features.has_select_for_update:
            # SQLite: a transaction that begins with a SELECT fails when it writes
            # after another one has. One that begins with a write waits its turn.
            rows.update(fence=F("fence"))
        found = rows.values().first()
        return None if found is None else from_row(CallRecord, found)

    def _refuse_missing_table(self, error: BaseException) -> None:
        table = self._rows().model._meta.db_table  # noqa: SLF001
        with contextlib.suppress(DatabaseError):
            if table in connections[self._alias].introspection.table_names():
                return
            raise ConfigurationError(
                f"The table {table} is not in the database {self._alias!r} of "
                "exactly_once_in. Nothing was done. Run `manage.py migrate "
                f"celery_redlock --database={self._alias}`."
            ) from error


def _replace(connection: Any) -> None:
    """Have another connection take the place of one that is dead."""
    connection.close()
    if pool := getattr(connection, "pool", None):
        pool.check()  # its other connections may be as dead


def check_alias(what: str, alias: str) -> None:
    """Refuse an alias that does not exist, and a project without the app.

    ``what`` says to whom the alias was given, as it was written.
    """
    try:
        known = [*connections]
        installed = settings.INSTALLED_APPS
    except ImproperlyConfigured as error:
        raise ConfigurationError(
            f"{what} is the alias of a Django database, and Django is not set up: "
            f"{error}"
        ) from error
    if alias not in known:
        hint = did_you_mean(alias, known)
        raise ConfigurationError(f"{what} is not in DATABASES. {hint}")
    if not any(str(app).startswith(_APP) for app in installed):
        raise ConfigurationError(
            f"{what} needs a table. Add {_APP!r} to INSTALLED_APPS, and run "
            "`manage.py migrate`."
        )


def as_moment(moment: datetime) -> datetime:
    """Return a moment in UTC as Django stores it: with a zone only if USE_TZ is on."""
    return moment if settings.USE_TZ else moment.replace(tzinfo=None)


def _refuse_end(
    execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: Any
) -> Any:
    if isinstance(sql, str) and _ENDS.match(sql):
        raise ConfigurationError(
            f"The body of a task with exactly_once_in has executed {sql.split()[0]}. "
            f"{CONTROLLED} Leave it out. For a part that may fail, use "
            "transaction.atomic()."
        )
    return execute(sql, params, many, context)
