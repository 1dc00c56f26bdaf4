"""Fixtures: real servers for the session, beats for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.beat.support import KEY, Beats, MakeBeats, often
from tests.harness.deployment import Site
from tests.harness.lock_nodes import LockNodes, lock_nodes
from tests.harness.logs import log_marks, pytest_runtest_makereport
from tests.harness.store_nodes import pytest_collection_modifyitems

__all__ = [  # pytest finds them here
    "log_marks",
    "pytest_collection_modifyitems",
    "pytest_runtest_makereport",
]


@pytest.fixture(scope="session")
def site(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Give a place for projects, with a broker."""
    with Site(tmp_path_factory.mktemp("beat"), redis_server) as site:
        yield site


@pytest.fixture(scope="session")
def session_nodes(redis_server: str) -> Iterator[LockNodes]:
    """Give five lock nodes for all tests."""
    with lock_nodes(binary=redis_server) as nodes:
        yield nodes


@pytest.fixture
def nodes(session_nodes: LockNodes) -> Iterator[LockNodes]:
    """Give five lock nodes without records of the beats of other tests."""
    yield session_nodes
    for node in session_nodes.dev.nodes:
        for name in ("lock", "slots", "standby"):
            node.command("DEL", f"redlock:{name}:{KEY}")


@pytest.fixture
def project(site: Site, nodes: LockNodes) -> Iterator[MakeBeats]:
    """Give a function that makes a project with a schedule and settings."""
    made: list[Beats] = []

    def make(schedule: dict[str, Any], **settings: Any) -> Beats:
        made.append(Beats(site, nodes, {"beat_schedule": schedule, **settings}))
        return made[-1]

    yield make
    for beats in made:
        beats.teardown()


@pytest.fixture
def beats(project: MakeBeats) -> Beats:
    """Give a project with one entry, twice a second, and no process yet."""
    return project(often())
