"""A project, and locks of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.lease import Holder
from tests.cli.project import Project
from tests.nodes.support import PATIENT, client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery_redlock.core.lease import Lease
    from celery_redlock.devnodes import DevNodes


@pytest.fixture(autouse=True)
def _own_tasks(own_tasks: None) -> None:
    """Let the project have its own tasks only."""


@pytest.fixture
def project_on(tmp_path: Path) -> Callable[..., Project]:
    """Give a function that sets up a project with these nodes."""

    def set_up(nodes: DevNodes, **settings: Any) -> Project:
        patient = {"redlock_nodes": nodes.urls, "redlock_node_timeout": PATIENT}
        return Project(tmp_path, {**patient, **settings})

    return set_up


@pytest.fixture
def project(three_nodes: DevNodes, project_on: Callable[..., Project]) -> Project:
    """Give a project that uses the test's three nodes."""
    return project_on(three_nodes)


@pytest.fixture
def hold(three_nodes: DevNodes) -> Iterator[Callable[..., Lease]]:
    """Give a function that takes a lock on all nodes, as a task in a worker does."""
    with client(three_nodes) as redlock:
        redlock.check()  # connects to all of them

        def take(key: str, **fields: Any) -> Lease:
            task = {"task": "proj.send_invoice", "task_id": f"id-of-{key}"}
            holder = Holder("", host="worker-1", pid=4711, **{**task, **fields})
            return redlock.acquire(key, ttl=60.0, holder=holder)

        yield take
