"""Fixtures: a PostgreSQL with our table, and services on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from celery_redlock.locks.redlock import Redlock
from celery_redlock.stores.postgresql import PostgreSQL as Store
from celery_redlock.stores.server_clock import ServerClock, ServerTime
from tests.harness.servers import PostgreSQL
from tests.harness.store_nodes import postgresql, store_servers
from tests.stores.commands import NOW_US


@pytest.fixture(scope="session")
def postgresql_store() -> Iterator[str]:
    """Give the URL of a PostgreSQL that is a node, and votes."""
    with postgresql(PostgreSQL) as server:
        url = server.url
        Store.prepare(url, 5.0)
        with closing(Redlock([url], node_timeout=5.0)) as redlock:
            redlock.initialize()
        yield url


@pytest.fixture(scope="session")
def etcd_store() -> Iterator[str]:
    """Give the URL of an etcd of three members that votes."""
    with store_servers("etcd") as cluster:
        yield cluster.urls[0]


@pytest.fixture(scope="session")
def zookeeper_store() -> Iterator[str]:
    """Give the URL of a ZooKeeper of three servers that votes."""
    with store_servers("zookeeper") as cluster:
        yield cluster.urls[0]


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("etcd", "zookeeper")]


@pytest.fixture(params=["postgresql", *LONG])
def store_url(request: pytest.FixtureRequest) -> str:
    """Give the URL of each store in turn."""
    url: str = request.getfixturevalue(f"{request.param}_store")
    return url


@pytest.fixture
def set_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give a function that sets the clocks of all servers to a time, in us."""

    def set_time(now_us: int) -> None:
        now = ServerTime(now_us, now_us)
        monkeypatch.setattr(ServerClock, "read", lambda *_: now)

    set_time(NOW_US)
    return set_time


@pytest.fixture
def own_postgresql() -> Iterator[int]:
    """Give the port of a PostgreSQL for this test alone, without our table."""
    with postgresql(PostgreSQL) as server:
        yield server.port


@pytest.fixture
def redlock(postgresql_store: str) -> Iterator[Redlock]:
    """Give a service on the store."""
    with closing(Redlock([postgresql_store], node_timeout=5.0)) as redlock:
        yield redlock


@pytest.fixture
def rival(postgresql_store: str) -> Iterator[Redlock]:
    """Give another service on the store."""
    with closing(Redlock([postgresql_store], node_timeout=5.0)) as redlock:
        yield redlock


@pytest.fixture
def connection(postgresql_store: str) -> Iterator[psycopg.Connection]:
    """Give a connection to the database of the store."""
    with psycopg.connect(postgresql_store) as connection:
        yield connection
        connection.rollback()
