"""A worker says that no process is left for other tasks, and why."""

from __future__ import annotations

import pytest

from tests.harness.deployment import Deploy, Deployment
from tests.harness.waiting import until
from tests.worker.support import pools

TEXT = "This worker is busy with calls that do not get their lock"


def said(deployment: Deployment) -> list[str]:
    """Return what the worker says about it."""
    return [line for line in deployment.logs().splitlines() if TEXT in line]


@pools
@pytest.mark.long
def test_worker_whose_processes_all_wait_says_so(
    deploy: Deploy, key: str, pool: str
) -> None:
    """It is one warning of the worker, while the calls still wait."""
    deployment = deploy(pool=pool, concurrency=2)
    task = deployment.task("job-wait")

    with task.lock(key):
        calls = [deployment.send("job-wait", key) for _ in range(2)]
        (line,) = until(lambda: said(deployment), 30)

    where, why = "WARNING MainProcess", "calls that wait there: 2"
    for text in (where, why, "job-wait", f"'{key}'"):
        assert text in line
    deployment.finish(key, *calls)
    assert len(said(deployment)) == 1


@pytest.mark.long
def test_worker_whose_other_processes_only_refuse_says_so(
    deploy: Deploy, key: str
) -> None:
    """One process runs the call, and the other one refuses all its duplicates."""
    deployment = deploy(concurrency=2)
    first = deployment.begin("job", key)
    duplicates: list[str] = []

    def is_said() -> list[str]:
        duplicates.extend(deployment.send("job", key).id for _ in range(20))
        return said(deployment)

    (line,) = until(is_said, 30)

    where, why = "WARNING MainProcess", "processes that do nothing else: 1 of 2"
    for text in (where, why, f"'{key}'"):
        assert text in line
    deployment.finish(key, first)
    deployment.until_settled(*duplicates)
