"""Storage that refuses late writers: cells with a fence, and all accepted writes.

The row of a write is inserted in the transaction of the write, so the order of the rows
is the order in which SQLite accepted the writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, select, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    configure_mappers,
    mapped_column,
)
from sqlalchemy.pool import NullPool

from celery_redlock.contrib.sqlalchemy import Fenced, update_fenced

_PATIENCE = 60.0  # seconds; a frozen process may have the database locked


class Base(DeclarativeBase):
    """Tables of the ledger."""


class Cell(Fenced, Base):
    """One value under one lock."""

    __tablename__ = "cell"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str] = mapped_column(default="[]")


class Write(Base):
    """One write that was accepted."""

    __tablename__ = "write"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    name: Mapped[str]
    fence: Mapped[int]
    run: Mapped[str]


# Not at first use, in the body of a job: an interrupt would leave them unusable.
configure_mappers()


class Ledger:
    """The cells in one SQLite file. Any number of processes may use it."""

    def __init__(self, folder: Path) -> None:
        self._engine = create_engine(
            f"sqlite:///{folder / 'ledger.sqlite'}",
            poolclass=NullPool,
            connect_args={"timeout": _PATIENCE},
        )
        event.listen(self._engine, "connect", _trust_the_machine)

    def create(self, names: list[str]) -> None:
        """Make the tables and one cell per name."""
        Base.metadata.create_all(self._engine)
        with Session(self._engine) as session:
            session.add_all([Cell(name=name) for name in names])
            session.commit()

    def claim(self, name: str, fence: int) -> list[str]:
        """Raise the fence of a cell, and return what the cell holds.

        From then on no earlier holder can write what it read before.

        Raises:
            StaleFence: A later holder has been here.
        """
        with Session(self._engine) as session:
            update_fenced(session, update(Cell).where(Cell.name == name), fence)
            text = session.scalar(select(Cell.value).where(Cell.name == name))
            session.commit()
        elements: list[str] = json.loads(text or "[]")
        return elements

    def write(self, name: str, fence: int, run: str, value: list[str]) -> None:
        """Write a cell, and the row of this write.

        Raises:
            StaleFence: A later holder has been here; nothing was written.
        """
        statement = update(Cell).where(Cell.name == name)
        with Session(self._engine) as session:
            update_fenced(session, statement.values(value=json.dumps(value)), fence)
            session.add(Write(name=name, fence=fence, run=run))
            session.commit()

    def read(self, name: str) -> tuple[int, list[str]]:
        """Return the fence of a cell, and what the cell holds."""
        with Session(self._engine) as session:
            statement = select(Cell.fence, Cell.value).where(Cell.name == name)
            fence, text = session.execute(statement).one()
        return fence, json.loads(text)

    def writes(self) -> list[tuple[str, int, str]]:
        """Return name, fence and run of all writes, in the order of acceptance."""
        with Session(self._engine) as session:
            rows = session.execute(
                select(Write.name, Write.fence, Write.run).order_by(Write.number)
            )
            return [(name, fence, run) for name, fence, run in rows]

    def elements(self) -> set[str]:
        """Return the elements of all cells."""
        with Session(self._engine) as session:
            texts = session.scalars(select(Cell.value)).all()
        return {element for text in texts for element in json.loads(text)}

    def close(self) -> None:
        """Close the file."""
        self._engine.dispose()


def _trust_the_machine(connection: Any, _: Any) -> None:
    """Do not wait for the disk: processes are killed here, the machine is not."""
    connection.execute("PRAGMA synchronous=OFF").close()
