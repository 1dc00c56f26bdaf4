"""Fixtures: servers for the session, and workers for each pool."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import with_long
from tests.harness.brokers import running_rabbitmq
from tests.harness.deployment import Deploy, Deployment, Site
from tests.harness.lock_nodes import LockNodes, lock_nodes
from tests.harness.logs import log_marks, pytest_runtest_makereport
from tests.harness.servers import RabbitMQ
from tests.harness.stage import Stage
from tests.harness.store_nodes import pytest_collection_modifyitems
from tests.worker.project.body import STAGE

__all__ = [  # pytest finds them here
    "log_marks",
    "pytest_collection_modifyitems",
    "pytest_runtest_makereport",
]

POOLS = ("prefork", "threads", "gevent", "eventlet", "solo")


# -- Servers -------------------------------------------------------------------


@pytest.fixture(scope="session")
def site(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Give a place for deployments, with a broker and a result backend."""
    folder = tmp_path_factory.mktemp("worker")
    os.environ[STAGE] = str(folder / "stage")  # bodies also run here when eager
    with Site(folder, redis_server) as site:
        yield site


@pytest.fixture(scope="session")
def nodes(redis_server: str) -> Iterator[LockNodes]:
    """Give five lock nodes that stay up."""
    with lock_nodes(binary=redis_server) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def frail_nodes(redis_server: str) -> Iterator[LockNodes]:
    """Give five lock nodes that tests may stop and kill."""
    with lock_nodes(binary=redis_server) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """Give a RabbitMQ; without one, skip here and fail in CI."""
    with running_rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


# -- Workers -------------------------------------------------------------------


@pytest.fixture(scope="session")
def deployed(site: Site, nodes: LockNodes) -> Iterator[Callable[[str], Deployment]]:
    """Give a function that returns the workers of a pool: four tasks at a time."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def of(pool: str) -> Deployment:
            if pool in ("gevent", "eventlet"):
                pytest.importorskip(pool)
            # A solo worker runs one task at a time; four of them are like a pool.
            children, workers = (1, 4) if pool == "solo" else (4, 1)
            return stack.enter_context(
                site.deploy(nodes, pool=pool, concurrency=children, workers=workers)
            )

        yield of


@pytest.fixture
def prefork(deployed: Callable[[str], Deployment]) -> Deployment:
    """Give a prefork worker with four processes that all tests share."""
    return deployed("prefork")


@pytest.fixture(scope="session")
def on_rabbitmq(
    site: Site, nodes: LockNodes, rabbitmq: RabbitMQ
) -> Iterator[Deployment]:
    """Give a prefork worker with four processes, whose broker is a RabbitMQ."""
    settings = {
        "broker_url": rabbitmq.url,
        "broker_transport_options": {"confirm_publish": True},
    }
    with site.deploy(nodes, settings=settings) as deployment:
        yield deployment


@pytest.fixture(params=with_long(["redis", "rabbitmq"], "rabbitmq"))
def each_broker(request: pytest.FixtureRequest) -> Deployment:
    """Give a prefork worker on each broker in turn; all tests share them."""
    name = "prefork" if request.param == "redis" else "on_rabbitmq"
    deployment: Deployment = request.getfixturevalue(name)
    return deployment


@pytest.fixture(params=with_long(POOLS, "eventlet", "solo"))
def every_pool(
    request: pytest.FixtureRequest, deployed: Callable[[str], Deployment]
) -> Deployment:
    """Give workers of each pool; `make test` has processes, threads and greenlets."""
    return deployed(request.param)


@pytest.fixture(params=with_long(POOLS, *POOLS[1:]))
def any_pool(
    request: pytest.FixtureRequest, deployed: Callable[[str], Deployment]
) -> Deployment:
    """Give workers of each pool in turn; all tests share them."""
    return deployed(request.param)


@pytest.fixture(params=with_long(POOLS[:2], "threads"))
def here(
    request: pytest.FixtureRequest, deployed: Callable[[str], Deployment]
) -> Deployment:
    """Give workers of both pools in turn; all tests share them."""
    return deployed(request.param)


@pytest.fixture(params=with_long(POOLS[:4], *POOLS[1:4]))
def early(
    request: pytest.FixtureRequest, deployed: Callable[[str], Deployment]
) -> Deployment:
    """Give workers of each pool that begins calls while others run, in turn."""
    return deployed(request.param)


@pytest.fixture(scope="session")
def frail(site: Site, frail_nodes: LockNodes) -> Iterator[Deployment]:
    """Give a prefork worker whose lock nodes may be stopped."""
    with site.deploy(frail_nodes) as deployment:
        yield deployment


@pytest.fixture
def deploy(site: Site, nodes: LockNodes) -> Iterator[Deploy]:
    """Give a function that starts workers for this test alone."""
    with contextlib.ExitStack() as stack:

        def start(lock_nodes: LockNodes = nodes, **options: Any) -> Deployment:
            return stack.enter_context(site.deploy(lock_nodes, **options))

        yield start


@pytest.fixture
def stage(site: Site) -> Stage:
    """Give the records and gates of the task bodies."""
    return site.stage


@pytest.fixture
def key(key: str, site: Site, nodes: LockNodes) -> Iterator[str]:
    """Give an argument that no other test uses; its locks must be gone afterwards."""
    yield key
    site.stage.open_all(key)
    nodes.until_free(key)
