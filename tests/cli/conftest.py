"""A project on nodes of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.devnodes import DevNodes
from tests.cli.project import Project


@pytest.fixture(autouse=True)
def _own_tasks(own_tasks: None) -> None:
    """Let the project have its own tasks only."""


@pytest.fixture
def start_project(
    lend_nodes: Callable[..., DevNodes], tmp_path: Path
) -> Iterator[Callable[..., Project]]:
    """Give a function that takes nodes, and a project that uses them."""
    with contextlib.ExitStack() as stack:

        def start(
            count: int = 3, settings: Mapping[str, Any] | None = None, **options: Any
        ) -> Project:
            nodes = lend_nodes(count, **options)
            return stack.enter_context(Project(tmp_path, nodes, **(settings or {})))

        yield start


@pytest.fixture
def project(start_project: Callable[..., Project]) -> Project:
    """Give a project on three nodes."""
    return start_project()
