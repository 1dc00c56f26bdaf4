"""An app in memory on the fake nodes, and a worker of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from celery_redlock.testing import FakeNodes
from tests.unit.tasks.support import Worker, open_app


@pytest.fixture
def app(nodes: FakeNodes) -> Iterator[Celery]:
    """Give an app whose locks are on the fake nodes."""
    with open_app(nodes) as app:
        yield app


@pytest.fixture
def worker(app: Celery, nodes: FakeNodes) -> Worker:
    """Give a worker of the app in this process."""
    return Worker(app, nodes)
