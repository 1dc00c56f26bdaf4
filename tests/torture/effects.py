"""Effects in a PostgreSQL that is killed: jobs with ``exactly_once_in`` and without.

Each job adds one to a row of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData, NullPool, create_engine, text

from celery_redlock.contrib.sqlalchemy import record_table
from tests.harness.servers import PostgreSQL, find_postgresql, sqlalchemy_url

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

DATABASE = "TORTURE_DATABASE"  # the variable with its URL
# A commit that was answered must be there after the server was killed.
_DURABLE = {"synchronous_commit": "on"}
_ADD = text(
    "INSERT INTO effect VALUES (:job, 1) "
    "ON CONFLICT (job) DO UPDATE SET value = effect.value + 1"
)


class Database(PostgreSQL):
    """A PostgreSQL with the table of the effects and that of the records."""

    def __init__(self) -> None:
        programs = find_postgresql()
        if programs is None:
            message = "PostgreSQL is not installed: on Debian, apt install postgresql"
            raise FileNotFoundError(message)
        super().__init__(programs, **_DURABLE)

    def create(self) -> None:
        """Create the tables."""
        engine, metadata = _engine(sqlalchemy_url(self)), MetaData()
        record_table(metadata)
        metadata.create_all(engine)
        with engine.begin() as connection:
            table = "CREATE TABLE effect (job text PRIMARY KEY, value int NOT NULL)"
            connection.execute(text(table))

    def effects(self) -> dict[str, int]:
        """Return how often each job has had its effect."""
        with _engine(sqlalchemy_url(self)).begin() as connection:
            rows = connection.execute(text("SELECT job, value FROM effect")).all()
        return dict(map(tuple, rows))


def engine_of_workers() -> Engine:
    """Return the engine of the database; it is first used by a job."""
    return _engine(os.environ.get(DATABASE) or "sqlite://")


def add_one(session: Session, job: str) -> None:
    """Add one to the row of a job."""
    session.execute(_ADD, {"job": job})


def _engine(url: str) -> Engine:
    options: dict[str, Any] = {}
    if url.startswith("postgresql"):
        options = {"connect_args": {"connect_timeout": 5}}
    return create_engine(url, poolclass=NullPool, **options)
