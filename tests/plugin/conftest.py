"""An app without lock nodes in its settings, and a worker in a thread."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_redlock import singleton_task

SOON = 10.0  # seconds


@pytest.fixture
def app() -> Iterator[Celery]:
    """Give an app without lock nodes in its settings."""
    app = Celery("unit", set_as_current=False)
    app.conf.update(
        broker_url="memory://",
        broker_transport_options={"polling_interval": 0.02},  # seconds; usually 1
        result_backend="cache+memory://",
        task_default_queue=f"unit-{secrets.token_hex(4)}",
        redlock_eager=True,
        redlock_ttl=10,
        worker_hijack_root_logger=False,
    )
    yield app
    app.close()


@pytest.fixture
def task(app: Celery) -> Any:
    """Give a task that returns its key, and runs once at a time for each key."""

    @singleton_task(app=app, name="work", key="{key}", shared=False)
    def work(key: str) -> str:
        return key

    return work


@pytest.fixture
def worker(app: Celery) -> Iterator[Any]:
    """Give a worker in a thread of this process."""
    with start_worker(app, perform_ping_check=False, shutdown_timeout=SOON) as worker:
        yield worker
