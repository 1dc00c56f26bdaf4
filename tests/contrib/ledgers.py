"""Effects and records of calls in a database, by Django and by SQLAlchemy.

The contract tests use these, so that both keep the same contract.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.conf import settings
from django.db import connections, transaction
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from celery_redlock.contrib.sqlalchemy import (
    current_session,
    outbox_table,
    record_table,
)
from tests.contrib import declared
from tests.contrib.storages import Shop, SqlAlchemyStorage


class DjangoLedger:
    """Rows of the shop, written in Django's transaction.

    Attributes:
        database: The value of ``exactly_once_in``.
    """

    def __init__(self, url: str) -> None:
        self._shop = Shop(url)
        self.database: Any = self._shop.alias

    def add(self, name: str) -> None:
        """Write a row, in the body of a task."""
        self._shop.Customer.create(name=name)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Give a transaction outside of tasks; its session, if there is one."""
        with transaction.atomic(using=self.database):
            yield

    def savepoint(self) -> Any:
        """Return a block that may fail without the rest, in the body of a task."""
        return transaction.atomic(using=self.database)

    def commit(self) -> None:
        """Commit, in the body of a task, as it must not."""
        with connections[self.database].cursor() as cursor:
            cursor.execute("commit")

    def driver_connection(self) -> Any:
        """Return the connection below the ORM's, in the body of a task."""
        return connections[self.database].connection

    def break_connection(self) -> None:
        """Close the connection of this thread behind the ORM's back."""
        self.driver_connection().close()

    def count(self, name: str) -> int:
        """Return the number of rows of this name that are committed."""
        return int(elsewhere(lambda: self._shop.Customer.filter(name=name).count()))

    def records(self) -> list[dict[str, Any]]:
        """Return the records of calls that are committed."""
        return list(elsewhere(lambda: list(self._records().values())))

    def change_records(self, **values: Any) -> None:
        """Change all records."""
        elsewhere(lambda: self._records().update(**values))

    def clear(self) -> None:
        """Delete all records and messages."""
        self._records().all().delete()
        self._messages().all().delete()
        connections[self.database].close()

    def _records(self) -> Any:
        from celery_redlock.contrib.django.models import (  # noqa: PLC0415
            CallRecord,
        )

        return CallRecord.objects.using(self.database)

    def _messages(self) -> Any:
        from celery_redlock.contrib.django.models import (  # noqa: PLC0415
            OutboxMessage,
        )

        return OutboxMessage.objects.using(self.database)


class SqlAlchemyLedger:
    """Rows of declarative models, written in the session of the call."""

    def __init__(self, url: str) -> None:
        self._engine = SqlAlchemyStorage(url).engine
        self._table = record_table(declared.Base.metadata)
        self.database: Any = self._session

    def _session(self) -> Session:
        return Session(self._engine)

    def add(self, name: str) -> None:
        """Write a row, in the body of a task."""
        current_session().add(declared.Customer(name=name))
        current_session().flush()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """Give a transaction outside of tasks; its session, if there is one."""
        with self._session() as session, session.begin():
            yield session

    def savepoint(self) -> Any:
        """Return a block that may fail without the rest, in the body of a task."""
        return current_session().begin_nested()

    def commit(self) -> None:
        """Commit, in the body of a task, as it must not."""
        current_session().commit()

    def driver_connection(self) -> Any:
        """Return the connection below the ORM's, in the body of a task."""
        return current_session().connection().connection.dbapi_connection

    def break_connection(self) -> None:
        """Close the connection of the call behind the ORM's back."""
        self.driver_connection().close()

    def count(self, name: str) -> int:
        """Return the number of rows of this name that are committed."""
        customer = declared.Customer
        with self._session() as session:
            rows = select(func.count()).where(customer.name == name)
            return int(session.scalar(rows.select_from(customer)) or 0)

    def records(self) -> list[dict[str, Any]]:
        """Return the records of calls that are committed."""
        with self._session() as session:
            return [row._asdict() for row in session.execute(select(self._table))]

    def change_records(self, **values: Any) -> None:
        """Change all records."""
        with self._session() as session, session.begin():
            session.execute(update(self._table).values(values))

    def clear(self) -> None:
        """Delete all records and messages."""
        with self._session() as session, session.begin():
            session.execute(delete(self._table))
            session.execute(delete(outbox_table(declared.Base.metadata)))


Ledger = DjangoLedger | SqlAlchemyLedger
_AnyLedger = TypeVar("_AnyLedger", bound=Ledger)


def open_ledger(orm: str, url: str) -> Ledger:
    """Open a database with this ORM, and create its tables if there are none."""
    return DjangoLedger(url) if orm == "django" else SqlAlchemyLedger(url)


def lent(ledger: _AnyLedger) -> Iterator[_AnyLedger]:
    """Give a ledger to a test, and clear it after the test."""
    with closing_connections():
        yield ledger
        ledger.clear()


def elsewhere(do: Callable[[], Any]) -> Any:
    """Do something in another thread, with a connection of its own."""
    answers: list[Any] = []

    def run() -> None:
        with closing_connections():
            answers.append(do())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers[0]


@contextlib.contextmanager
def closing_connections() -> Iterator[None]:
    """Close Django's connections of this thread at the end."""
    try:
        yield
    finally:
        if settings.configured:  # SQLAlchemy does without Django
            for connection in connections.all(initialized_only=True):
                connection.close()
