"""The final result of a call that retries itself at once is that of its retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import states

from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.deployment import Deployment, Site


@pytest.fixture
def late(site: Site) -> dict[str, str]:
    """Give the settings of a worker whose RETRY is stored late."""
    backend = (
        f"tests.worker.project.late.LateRetries+redis://127.0.0.1:{site.backend.port}/0"
    )
    return {"result_backend": backend}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_duplicate_that_was_republished_has_its_own_result_in_the_end(
    deploy: Callable[..., Deployment], late: dict[str, str], key: str, pool: str
) -> None:
    """The result stays, even if the republishing worker stores RETRY after the end."""
    worker = deploy(pool=pool, settings=late)
    worker.begin("job-retry", key)

    second = worker.send("job-retry", key)
    received = f"[{second.id}] received"
    until(lambda: worker.logs().count(received) > 1, 20)
    worker.stage.open(key)

    assert second.get(timeout=20) == second.id
    again = worker.logs().count(received) - 1
    until(lambda: worker.logs().count(f"{second.id}] retry: ") >= again, 20)
    assert worker.app.AsyncResult(second.id).state == states.SUCCESS


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_retry_without_delay_begins_when_its_parent_has_stored_that_it_retries(
    deploy: Callable[..., Deployment], late: dict[str, str], key: str, pool: str
) -> None:
    """A retry begins after RETRY is stored, so RETRY never overwrites its result."""
    worker = deploy(pool=pool, settings=late)

    result = worker.send("retried-at-once", key, 1)
    assert result.get(timeout=20) == 1
    until(lambda: f"{result.id}] retry: " in worker.logs(), 20)  # when it is stored

    assert worker.app.AsyncResult(result.id).state == states.SUCCESS
    assert len(worker.stage.runs(key)) == 2
    assert worker.stage.overlaps(key) == []
