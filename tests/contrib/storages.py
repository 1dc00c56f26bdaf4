"""The same operations on a fenced row, by Django and by SQLAlchemy.

The contract tests use these, so that both ORMs keep the same contract.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from sqlalchemy import NullPool, create_engine, delete, make_url, update
from sqlalchemy.orm import Session

from celery_redlock.contrib.sqlalchemy import fenced, update_fenced
from tests.contrib import declared, office

SOON = 20.0  # seconds within which something happens at once, on a busy machine too


class Row(NamedTuple):
    """A row as it is stored."""

    text: str
    fence: int


# -- Django ----------------------------------------------------------------------


def set_up_django() -> None:
    """Set Django up on first use."""
    if not settings.configured:
        settings.configure(DATABASES={}, **office.SETTINGS)
        django.setup()


def use_django(url: str) -> str:
    """Set Django up on first use. Return its alias of this database."""
    parts = make_url(url)
    alias = str(parts.get_backend_name())
    database = {
        "ENGINE": f"django.db.backends.{alias.replace('sqlite', 'sqlite3')}",
        "NAME": parts.database,
        "USER": parts.username or "",
        "HOST": parts.host or "",
        "PORT": str(parts.port or ""),
    }
    set_up_django()
    known = {"default": {}, alias: database}
    connections.settings[alias] = connections.configure_settings(known)[alias]
    return alias


def make_tables(alias: str) -> None:
    """Create the tables of all Django models, if there are none."""
    from tests.contrib.shop.models import ALL  # noqa: PLC0415  (Django is set up now)

    connection = connections[alias]
    if "shop_invoice" in connection.introspection.table_names():
        return
    connection.disable_constraint_checking()
    with connection.schema_editor() as editor:
        for model in ALL:
            editor.create_model(model)
    call_command("migrate", "celery_redlock", database=alias, verbosity=0)


@contextlib.contextmanager
def default_database(alias: str) -> Iterator[None]:
    """Make this database the default one of Django."""
    before = connections.settings["default"]
    connections.settings["default"] = connections.settings[alias]
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections[alias].close()
        connections["default"].close()
        connections.settings["default"] = before
        connections["default"] = connections.create_connection("default")


class Shop:
    """The managers of the shop's models in one database: ``shop.Invoice.create()``."""

    def __init__(self, url: str) -> None:
        self.alias = use_django(url)
        make_tables(self.alias)

    def __getattr__(self, name: str) -> Any:
        from tests.contrib.shop import models  # noqa: PLC0415  (Django is set up now)

        return getattr(models, name).objects.using(self.alias)

    def close(self) -> None:
        """Close the connection of this thread."""
        connections[self.alias].close()


class DjangoStorage:
    """Invoices as Django models. Each operation uses a connection of its own."""

    def __init__(self, url: str) -> None:
        self._shop = Shop(url)

    @contextlib.contextmanager
    def _rows(self) -> Iterator[Any]:
        with contextlib.closing(self._shop):
            yield self._shop.Invoice

    def add(self, text: str = "", fence: int = 0) -> int:
        """Insert a row and return its key."""
        with self._rows() as rows:
            return int(rows.create(text=text, fence=fence).pk)

    def load(self, pk: int) -> Callable[..., None]:
        """Load a row, and return the function that writes it later."""
        with self._rows() as rows:
            row = rows.get(pk=pk)

        def write(text: str, fence: Any = None) -> None:
            row.text = text
            with self._rows():
                row.save(**({} if fence is None else {"fence": fence}))

        return write

    def update(self, pks: Sequence[int], text: str, fence: Any) -> int:
        """Write many rows in one statement, and return how many."""
        with self._rows() as rows:
            return int(rows.filter(pk__in=pks).fenced(fence).update(text=text))

    def read(self, pk: int) -> Row:
        """Read the stored row."""
        with self._rows() as rows:
            return Row(*rows.values_list("text", "fence").get(pk=pk))

    def remove(self, pk: int) -> None:
        """Delete a row without a fence."""
        with self._rows() as rows:
            rows.filter(pk=pk).delete()


# -- SQLAlchemy --------------------------------------------------------------------


class SqlAlchemyStorage:
    """Invoices as declarative models."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url, poolclass=NullPool)
        declared.Base.metadata.create_all(self.engine)

    def add(self, text: str = "", fence: int = 0) -> int:
        """Insert a row and return its key."""
        with Session(self.engine) as session, session.begin():
            row = declared.Invoice(text=text, fence=fence)
            session.add(row)
            session.flush()
            return int(row.id)

    def load(self, pk: int) -> Callable[..., None]:
        """Load a row, and return the function that writes it later."""
        session = Session(self.engine)
        row = session.get_one(declared.Invoice, pk)

        def write(text: str, fence: Any = None) -> None:
            with session:
                if fence is None:
                    row.text = text
                else:
                    with fenced(session, fence):
                        row.text = text
                session.commit()

        return write

    def update(self, pks: Sequence[int], text: str, fence: Any) -> int:
        """Write many rows in one statement, and return how many."""
        invoice = declared.Invoice
        chosen = update(invoice).where(invoice.id.in_(pks)).values(text=text)
        with Session(self.engine) as session, session.begin():
            return update_fenced(session, chosen, fence)

    def read(self, pk: int) -> Row:
        """Read the stored row."""
        with Session(self.engine) as session:
            row = session.get_one(declared.Invoice, pk)
            return Row(row.text, row.fence)

    def remove(self, pk: int) -> None:
        """Delete a row without a fence."""
        with Session(self.engine) as session, session.begin():
            session.execute(delete(declared.Invoice).where(declared.Invoice.id == pk))


Storage = DjangoStorage | SqlAlchemyStorage


def open_storage(orm: str, url: str) -> Storage:
    """Open a database with this ORM, and create its tables if there are none."""
    return DjangoStorage(url) if orm == "django" else SqlAlchemyStorage(url)
