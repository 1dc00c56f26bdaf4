"""Checks and settings that several files of these tests use."""

from __future__ import annotations

from typing import Any

import pytest
from celery.result import AsyncResult

from celery_redlock import DuplicateTask
from tests.conftest import with_long
from tests.harness.deployment import Site

pools = pytest.mark.parametrize("pool", with_long(["prefork", "threads"], "threads"))


def assert_refused(call: AsyncResult, holder: AsyncResult) -> None:
    """Check that a call ends as a duplicate, and that its error names the holder."""
    with pytest.raises(DuplicateTask, match=holder.id):
        call.get(timeout=60)


def redelivery(after: float = 2) -> dict[str, Any]:
    """Return settings with which the broker soon delivers a job again.

    Args:
        after: The seconds until a job without an acknowledgement is delivered again.
    """
    return {
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
        "broker_transport_options": {
            "visibility_timeout": after,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            # Kombu's lock around each look for such jobs. A worker that is killed then
            # keeps the others from looking until it ends: 300 s by default.
            "unacked_mutex_expire": 2,
        },
    }


def stored_by(site: Site, backend: str) -> dict[str, str]:
    """Return the settings of a worker with a result backend of the project."""
    url = f"redis://127.0.0.1:{site.backend.port}/0"
    return {"result_backend": f"tests.worker.project.backends.{backend}+{url}"}
