"""The nodes that must reply alike: one in memory, and servers of each version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.devnodes import DevNode
from celery_redlock.devnodes.stores.etcd import Etcd
from celery_redlock.devnodes.stores.zookeeper import ZooKeeper
from celery_redlock.errors import ConfigurationError, RedlockError
from celery_redlock.stores.connection import store_of
from tests.conftest import leaves_long_out, missing, server_parameters
from tests.contract.listener import Listener
from tests.contract.subjects import (
    MemorySubject,
    ServerSubject,
    StoreOfTwo,
    StoreSubject,
)
from tests.harness.servers import PostgreSQL
from tests.harness.store_nodes import postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.devnodes.stores.cluster import Cluster
    from celery_redlock.stores.connection import Store
    from tests.contract.subjects import Subject

MEMORY = "memory"
_OF_LOCKS = "test_lock_scripts"
POSTGRESQL, ETCD, ZOOKEEPER = STORES = ("postgresql", "etcd", "zookeeper")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of a ``subject`` on all nodes, tests of a ``server`` on servers.

    `make test` has one node in memory and one server. On stores a script runs as the
    operations that the node in memory carries out.
    """
    servers = server_parameters()
    if "subject" in metafunc.fixturenames:
        stores = (pytest.param(s, id=s, marks=pytest.mark.long) for s in STORES)
        every = [pytest.param(MEMORY, id=MEMORY), *servers]
        every += [] if leaves_long_out(metafunc.config) else stores
        metafunc.parametrize("subject", every, indirect=True)
    elif "server" in metafunc.fixturenames:
        metafunc.parametrize("server", servers, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests on etcd and ZooKeeper as exhaustive, but those of locks.

    All stores carry out the same operations, and PostgreSQL runs them in full.
    """
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            store = item.callspec.params.get("subject")
            if store in (ETCD, ZOOKEEPER) and item.path.stem != _OF_LOCKS:
                item.add_marker("exhaustive")


@pytest.fixture(scope="session")
def postgresql_store() -> Iterator[str]:
    """Give the URL of a PostgreSQL with our table."""
    store = _driver_of("postgresql")
    with postgresql(PostgreSQL) as server:
        url = server.url
        store.prepare(url, 5.0)
        yield url


@pytest.fixture(scope="session")
def etcd_store() -> Iterator[str]:
    """Give the URL of an etcd of one member."""
    _driver_of("etcd")
    yield from _url_of(Etcd, members=1)


@pytest.fixture(scope="session")
def zookeeper_store() -> Iterator[str]:
    """Give the URL of a ZooKeeper of three servers, with our znodes."""
    store = _driver_of("zookeeper")
    for url in _url_of(ZooKeeper, members=3):
        store.prepare(url, 5.0)
        yield url


def _driver_of(name: str) -> type[Store]:
    try:
        return store_of(f"{name}://")
    except ConfigurationError as error:
        missing(str(error))


def _url_of(kind: type[Cluster], members: int) -> Iterator[str]:
    try:
        server = kind(members=members)
    except RedlockError as error:
        missing(str(error))
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, ServerSubject]]:
    """Keep the servers of earlier tests for later ones, by their path."""
    started: dict[str, ServerSubject] = {}
    yield started
    for server in started.values():
        server.stop()


def _server_at(path: str, request: pytest.FixtureRequest) -> ServerSubject:
    servers: dict[str, ServerSubject] = request.getfixturevalue("servers")
    if path in STORES and path not in servers:
        servers[path] = StoreSubject(request.getfixturevalue(f"{path}_store"))
    if path not in servers:
        binary = path or request.getfixturevalue("redis_server")
        servers[path] = ServerSubject(DevNode(binary=binary))
    return servers[path]


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return a node with keys that no other test uses; they are empty."""
    if request.param == MEMORY:
        return MemorySubject()
    return _server_at(request.param, request).anew()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> ServerSubject:
    """Return a real server with keys that no other test uses."""
    return _server_at(request.param, request).anew()


@pytest.fixture(scope="module", params=STORES)
def store_of_two(request: pytest.FixtureRequest) -> Iterator[StoreOfTwo]:
    """Return a store that two clients use in turn."""
    subject = StoreOfTwo(request.getfixturevalue(f"{request.param}_store"))
    yield subject
    subject.stop()


@pytest.fixture
def listener(subject: Subject, request: pytest.FixtureRequest) -> Iterator[Listener]:
    """Return a listener on a channel of the node."""
    listener = Listener(subject, subject.key(getattr(request, "param", "w")))
    yield listener
    listener.close()
