"""A call that retries itself at once has the result of the retry in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import states

from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.worker.harness.deployment import Deployment, Site


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_retry_without_delay_begins_when_its_parent_has_stored_that_it_retries(
    deploy: Callable[..., Deployment], site: Site, key: str, pool: str
) -> None:
    """Otherwise the parent may store RETRY over the result, for ever."""
    backend = (
        f"tests.worker.project.late.LateRetries+redis://127.0.0.1:{site.backend.port}/0"
    )
    worker = deploy(pool=pool, settings={"result_backend": backend})

    result = worker.send("retried-at-once", key, 1)
    assert result.get(timeout=20) == 1
    until(lambda: f"{result.id}] retry: " in worker.logs(), 20)  # when it is stored

    assert worker.app.AsyncResult(result.id).state == states.SUCCESS
    assert len(worker.stage.runs(key)) == 2
    assert worker.stage.overlaps(key) == []
