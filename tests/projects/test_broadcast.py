"""A project with a Broadcast queue, on RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.brokers import running_rabbitmq
from tests.projects.app import notes
from tests.projects.conftest import Project


@pytest.mark.long
def test_call_in_a_broadcast_queue_is_refused_once_by_each_worker(
    start: Callable[..., Project], tmp_path: Path
) -> None:
    """It was published again to all workers, by each of them, without end."""
    with running_rabbitmq(tmp_path) as rabbitmq:
        project = start("broadcast", {"broker_url": rabbitmq.url}, workers=2)

        project.clear.apply_async(("all",), queue="caches")
        project.plain.apply_async(("all",), queue="caches")

        project.until_noted("plain", 2)
        for worker in project.workers:
            worker.until_logged("came from the Broadcast")
            assert worker.count("Task clear[") == 2  # received, and refused
        assert notes("clear") == []
