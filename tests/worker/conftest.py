"""Fixtures: real servers for the session, real workers for each pool."""

from __future__ import annotations

import os
import re
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.devnodes import DevNodes, find_redis_server
from celery_redlock.errors import RedlockError
from tests.worker.harness.deployment import Site
from tests.worker.harness.logs import log_marks, pytest_runtest_makereport
from tests.worker.harness.nodes import LockNodes
from tests.worker.harness.processes import LocalRedis
from tests.worker.harness.stage import Stage
from tests.worker.project.body import STAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.worker.harness.deployment import Deployment

__all__ = ["log_marks", "pytest_runtest_makereport"]  # pytest finds them here


# -- Servers -------------------------------------------------------------------


@pytest.fixture(scope="session")
def redis_server() -> str:
    """Give the path of a redis-server; without one, skip here and fail in CI."""
    try:
        return find_redis_server()
    except RedlockError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def site(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Give a place for deployments, with a broker and a result backend."""
    folder = tmp_path_factory.mktemp("worker")
    broker = LocalRedis(folder, "broker", redis_server)
    backend = LocalRedis(folder, "backend", redis_server)
    os.environ[STAGE] = str(folder / "stage")  # bodies also run here when eager
    try:
        for server in (broker, backend):
            server.start()
            server.ready()
        yield Site(folder, broker, backend, Stage(folder / "stage"))
    finally:
        broker.teardown()
        backend.teardown()


@pytest.fixture(scope="session")
def nodes(redis_server: str) -> Iterator[LockNodes]:
    """Give five lock nodes that stay up."""
    yield from _lock_nodes()


@pytest.fixture(scope="session")
def frail_nodes(redis_server: str) -> Iterator[LockNodes]:
    """Give five lock nodes to stop and to kill."""
    yield from _lock_nodes()


def _lock_nodes() -> Iterator[LockNodes]:
    with DevNodes(5) as dev:
        nodes = LockNodes(dev)
        yield nodes
        nodes.close()


# -- Workers -------------------------------------------------------------------


@pytest.fixture(scope="session")
def deployed(site: Site, nodes: LockNodes) -> Iterator[Callable[[str], Deployment]]:
    """Give the workers of a pool, started when first asked for; four at a time."""
    deployments: dict[str, Deployment] = {}

    def of(pool: str) -> Deployment:
        if pool not in deployments:
            if pool in ("gevent", "eventlet"):
                pytest.importorskip(pool)
            # One solo worker runs one task; four of them are like a pool.
            concurrency, workers = (1, 4) if pool == "solo" else (4, 1)
            deployments[pool] = site.deploy(
                nodes, pool=pool, concurrency=concurrency, workers=workers
            )
        return deployments[pool]

    yield of
    for deployment in deployments.values():
        deployment.teardown()


@pytest.fixture
def prefork(deployed: Callable[[str], Deployment]) -> Deployment:
    """Give a prefork worker with four children, shared by all tests."""
    return deployed("prefork")


@pytest.fixture(params=["prefork", "threads", "gevent", "eventlet", "solo"])
def any_pool(
    request: pytest.FixtureRequest, deployed: Callable[[str], Deployment]
) -> Deployment:
    """Give workers of each pool in turn, shared by all tests."""
    return deployed(request.param)


@pytest.fixture(scope="session")
def frail(site: Site, frail_nodes: LockNodes) -> Iterator[Deployment]:
    """Give a prefork worker whose lock nodes may be stopped."""
    deployment = site.deploy(frail_nodes)
    yield deployment
    deployment.teardown()


@pytest.fixture
def deploy(site: Site, nodes: LockNodes) -> Iterator[Callable[..., Deployment]]:
    """Give a function that starts workers for this test alone."""
    deployments: list[Deployment] = []

    def start(lock_nodes: LockNodes = nodes, **options: Any) -> Deployment:
        deployment = site.deploy(lock_nodes, **options)
        deployments.append(deployment)
        return deployment

    yield start
    for deployment in deployments:
        deployment.teardown()


@pytest.fixture
def stage(site: Site) -> Stage:
    """Give the record of the task bodies, and their gates."""
    return site.stage


@pytest.fixture
def key(request: pytest.FixtureRequest, site: Site, nodes: LockNodes) -> Iterator[str]:
    """Give an argument that no other test uses; afterwards no lock on it is left."""
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))[:60]
    key = f"{name}-{secrets.token_hex(4)}"
    yield key
    site.stage.open_all(key)
    nodes.until_free(key)
