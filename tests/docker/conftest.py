"""The fixtures of the worker tests, as containers."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import pytest
from docker.errors import DockerException

from tests.docker.containers import DockerEngine, DockerNodes, RedisServer
from tests.docker.site import DockerDeployment, DockerSite
from tests.harness.lock_nodes import LockNodes
from tests.harness.stage import Stage
from tests.worker.conftest import deploy, key
from tests.worker.project.body import STAGE

__all__ = ["deploy", "key"]  # pytest finds them here

SHORT = {"redlock_max_ttl": 2, "redlock_ttl": 1.5}  # seconds: a short quarantine


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    """Give an engine with a network; without an engine, skip."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # docker's own, on failure
        try:
            engine = DockerEngine()
            engine.open()
        except DockerException as error:
            reason = f"no Docker engine answers: {error}"
        else:
            reason = ""
        gc.collect()
    if reason:
        pytest.skip(reason)
    try:
        yield engine
    finally:
        engine.clear()


@pytest.fixture(scope="session")
def site(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> DockerSite:
    """Give a place for deployments, with a broker and a result backend."""
    folder = tmp_path_factory.mktemp("docker")
    (folder / "image").mkdir()
    image = engine.build_worker(folder / "image")
    broker, backend = RedisServer(engine, "broker"), RedisServer(engine, "backend")
    for server in (broker, backend):
        server.until_it_answers()
    os.environ[STAGE] = str(folder / "stage")
    return DockerSite(engine, image, (broker, backend), Stage(folder / "stage"))


@pytest.fixture(scope="session")
def nodes(engine: DockerEngine) -> Iterator[LockNodes]:
    """Give five lock nodes, each in a container."""
    dev: Any = DockerNodes(engine, 5, "node", max_ttl=60)
    with closing(LockNodes(dev)) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def prefork(site: DockerSite, nodes: LockNodes) -> Iterator[DockerDeployment]:
    """Give a worker with four processes."""
    with site.deploy(nodes) as deployment:
        yield deployment


@pytest.fixture(scope="session")
def any_pool(prefork: DockerDeployment) -> DockerDeployment:
    """Give the same worker: containers make no difference between pools."""
    return prefork


@pytest.fixture(scope="session")
def every_pool(prefork: DockerDeployment) -> DockerDeployment:
    """Give the same worker."""
    return prefork


@pytest.fixture(scope="session")
def frail(prefork: DockerDeployment) -> DockerDeployment:
    """Give the same worker: a paused container keeps its state."""
    return prefork


@pytest.fixture(scope="session")
def mortal(engine: DockerEngine, site: DockerSite) -> Iterator[DockerDeployment]:
    """Give a worker whose lock nodes may be killed: they vote again soon."""
    dev: Any = DockerNodes(engine, 3, "mortal", max_ttl=2)
    with (
        closing(LockNodes(dev)) as nodes,
        site.deploy(nodes, concurrency=1, settings=SHORT) as deployment,
    ):
        yield deployment


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what the workers have logged."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if hasattr(value, "worker_cluster"):
                report.sections.append((f"Logs of {name}", value.logs()[-20_000:]))
    return report
