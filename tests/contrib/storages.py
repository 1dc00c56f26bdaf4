"""The same few operations on a fenced row, by Django and by SQLAlchemy.

The contract is tested through these, so that both keep the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import django
from django.conf import settings
from django.db import connections
from sqlalchemy import NullPool, create_engine, delete, make_url, update
from sqlalchemy.orm import Session

from celery_redlock.contrib.sqlalchemy import fenced, update_fenced
from tests.contrib import declared, office

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DjangoStorage",
    "Draft",
    "Row",
    "SqlAlchemyStorage",
    "Storage",
    "open_storage",
]


class Row(NamedTuple):
    """What is stored."""

    text: str
    fence: int


class Draft(Protocol):
    """A row as somebody has loaded it, to be written later."""

    def write(self, text: str, fence: Any = None) -> None:
        """Change it and write it, under this fence or that of the loaded row."""


class Storage(Protocol):
    """Invoices in one database."""

    def add(self, text: str = "", fence: int = 0) -> int:
        """Insert a row and return its key."""

    def load(self, pk: int) -> Draft:
        """Load a row, to write it later."""

    def update(self, pks: Sequence[int], text: str, fence: Any) -> int:
        """Write many rows in one statement, and return how many."""

    def read(self, pk: int) -> Row:
        """Read what is stored now."""

    def remove(self, pk: int) -> None:
        """Delete a row without asking anybody."""


def open_storage(orm: str, url: str) -> Storage:
    """Open a database by this ORM, and make its tables if there are none."""
    return DjangoStorage(url) if orm == "django" else SqlAlchemyStorage(url)


# -- Django ----------------------------------------------------------------------


def use_django(url: str) -> str:
    """Set Django up, where nobody has yet. Return its alias of this database."""
    parts = make_url(url)
    alias = str(parts.get_backend_name())
    database = {
        "ENGINE": f"django.db.backends.{alias.replace('sqlite', 'sqlite3')}",
        "NAME": parts.database,
        "USER": parts.username or "",
        "HOST": parts.host or "",
        "PORT": str(parts.port or ""),
    }
    if not settings.configured:
        settings.configure(DATABASES={}, **office.SETTINGS)
        django.setup()
    known = {"default": {}, alias: database}
    connections.settings[alias] = connections.configure_settings(known)[alias]
    return alias


def make_tables(alias: str) -> None:
    """Make the tables of all Django models, if there are none."""
    from tests.contrib.shop.models import ALL  # noqa: PLC0415  (Django is set up now)

    connection = connections[alias]
    if "shop_invoice" in connection.introspection.table_names():
        return
    connection.disable_constraint_checking()
    with connection.schema_editor() as editor:
        for model in ALL:
            editor.create_model(model)


class DjangoStorage:
    """Invoices as Django models. Threads have their connections for a moment."""

    def __init__(self, url: str) -> None:
        self.alias = use_django(url)
        make_tables(self.alias)
        from tests.contrib.shop.models import Invoice  # noqa: PLC0415  (set up now)

        self._rows = Invoice.objects.using(self.alias)
        self.hang_up()

    def add(self, text: str = "", fence: int = 0) -> int:
        """Insert a row and return its key."""
        pk = int(self._rows.create(text=text, fence=fence).pk)
        self.hang_up()
        return pk

    def load(self, pk: int) -> Draft:
        """Load a row, to write it later."""
        draft = DjangoDraft(self, self._rows.get(pk=pk))
        self.hang_up()
        return draft

    def update(self, pks: Sequence[int], text: str, fence: Any) -> int:
        """Write many rows in one statement, and return how many."""
        try:
            return int(self._rows.filter(pk__in=pks).fenced(fence).update(text=text))
        finally:
            self.hang_up()

    def read(self, pk: int) -> Row:
        """Read what is stored now."""
        row = Row(*self._rows.values_list("text", "fence").get(pk=pk))
        self.hang_up()
        return row

    def remove(self, pk: int) -> None:
        """Delete a row without asking anybody."""
        self._rows.filter(pk=pk).delete()
        self.hang_up()

    def hang_up(self) -> None:
        """Close this thread's connection."""
        connections[self.alias].close()


class DjangoDraft:
    """A row that Django has loaded."""

    def __init__(self, storage: DjangoStorage, row: Any) -> None:
        self._storage = storage
        self._row = row

    def write(self, text: str, fence: Any = None) -> None:
        """Save it."""
        self._row.text = text
        try:
            if fence is None:
                self._row.save()
            else:
                self._row.save(fence=fence)
        finally:
            self._storage.hang_up()


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

    def load(self, pk: int) -> Draft:
        """Load a row, to write it later."""
        session = Session(self.engine)
        return SqlAlchemyDraft(session, session.get_one(declared.Invoice, pk))

    def update(self, pks: Sequence[int], text: str, fence: Any) -> int:
        """Write many rows in one statement, and return how many."""
        invoice = declared.Invoice
        chosen = update(invoice).where(invoice.id.in_(pks)).values(text=text)
        with Session(self.engine) as session, session.begin():
            return update_fenced(session, chosen, fence)

    def read(self, pk: int) -> Row:
        """Read what is stored now."""
        with Session(self.engine) as session:
            row = session.get_one(declared.Invoice, pk)
            return Row(row.text, row.fence)

    def remove(self, pk: int) -> None:
        """Delete a row without asking anybody."""
        with Session(self.engine) as session, session.begin():
            session.execute(delete(declared.Invoice).where(declared.Invoice.id == pk))


class SqlAlchemyDraft:
    """A row that a session of its own has loaded."""

    def __init__(self, session: Session, row: declared.Invoice) -> None:
        self._session = session
        self._row = row

    def write(self, text: str, fence: Any = None) -> None:
        """Change it and commit."""
        with self._session as session:
            if fence is None:
                self._row.text = text
            else:
                with fenced(session, fence):
                    self._row.text = text
            session.commit()
