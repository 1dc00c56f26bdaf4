"""Databases, and both ORMs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kombu.utils.uuid import uuid
from sqlalchemy.orm import Session

from celery_redlock.testing import FakeNodes
from tests.contrib.ledgers import Ledger, lent, open_ledger
from tests.contrib.storages import Shop, SqlAlchemyStorage, Storage, open_storage
from tests.harness.servers import PostgreSQL, sqlalchemy_url
from tests.harness.store_nodes import postgresql
from tests.unit.tasks.support import Worker, open_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

DATABASES = ["sqlite", "postgresql"]


@pytest.fixture(autouse=True)
def _own_tasks(own_tasks: None) -> None:
    """Let the site have its own tasks only."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Give the URL of a PostgreSQL; without one, skip here and fail in CI."""
    with postgresql(PostgreSQL) as server:
        yield sqlalchemy_url(server)


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the URL of a SQLite database in a file."""
    return f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'db'}"


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    """Give the URL of each kind of database in turn."""
    return str(request.getfixturevalue(request.param.removesuffix("ql")))


@pytest.fixture(params=["django", "sqlalchemy"])
def orm(request: pytest.FixtureRequest) -> str:
    """Give the name of each ORM in turn."""
    return str(request.param)


@pytest.fixture
def storage(orm: str, database: str) -> Storage:
    """Give fenced rows, by each ORM in each database."""
    return open_storage(orm, database)


@pytest.fixture
def ledger(orm: str, database: str) -> Iterator[Ledger]:
    """Give rows, records and messages, by each ORM in each database."""
    yield from lent(open_ledger(orm, database))


@pytest.fixture
def name() -> str:
    """Give a name that no other test writes."""
    return uuid()


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Give a worker whose locks are on fake nodes."""
    nodes = FakeNodes(3)
    with open_app(nodes) as app:
        yield Worker(app, nodes)


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    """Give the models of the shop, in Django's database of each kind in turn."""
    shop = Shop(database)
    yield shop
    shop.close()


@pytest.fixture
def engine(database: str) -> Engine:
    """Give SQLAlchemy's engine of each database in turn, with tables of all models."""
    return SqlAlchemyStorage(database).engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """Give a session of SQLAlchemy's."""
    with Session(engine) as session:
        yield session
