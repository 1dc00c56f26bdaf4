"""An app in memory on the fake nodes, and a worker of it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from celery_redlock.app.runtime import runtime_of
from tests.unit.tasks.support import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.testing import FakeNodes


@pytest.fixture
def app(nodes: FakeNodes) -> Iterator[Celery]:
    """Give an app whose locks are on the fake nodes."""
    app = Celery("unit", set_as_current=False)
    app.conf.update(
        broker_url="memory://",
        result_backend="cache+memory://",
        task_default_queue=f"unit-{secrets.token_hex(4)}",
        redlock_nodes=nodes.urls,
        redlock_ttl=10,
    )
    runtime_of(app).use(nodes.redlock(ttl=10.0))
    yield app
    runtime_of(app).stop()
    app.close()


@pytest.fixture
def worker(app: Celery, nodes: FakeNodes) -> Worker:
    """Give a worker of the app in this process."""
    return Worker(app, nodes)
