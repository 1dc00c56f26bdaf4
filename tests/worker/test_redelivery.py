"""A copy of a job is the same job: it is never lost, and never runs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import states, uuid

from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.deployment import Deployment


def test_retry_that_overtakes_its_parent_is_not_a_duplicate(
    any_pool: Deployment, key: str
) -> None:
    """A retry that meets its parent's lock waits, and is republished: it is one job."""
    result = any_pool.begin("overtaken", key)

    any_pool.until_received(result.id, times=3)  # itself, its retry, that republished
    any_pool.stage.open(key)

    assert result.get(timeout=20) == result.id
    assert len(any_pool.stage.runs(key)) == 2
    assert any_pool.stage.overlaps(key) == []


def test_retries_without_delay_all_run(any_pool: Deployment, key: str) -> None:
    """Each retry starts at about the time when its parent ends, and none is lost."""
    results = [
        any_pool.send("retried-at-once", f"{key}-{number}", 3) for number in range(8)
    ]

    assert [result.get(timeout=60) for result in results] == [3] * 8

    for number in range(8):
        assert len(any_pool.stage.runs(f"{key}-{number}")) == 4
        assert any_pool.stage.overlaps(f"{key}-{number}") == []


def test_copy_of_a_running_job_is_dropped_when_the_job_has_a_result(
    prefork: Deployment, key: str
) -> None:
    """The copy waits for the first to end, sees its result, and does not run."""
    task_id = uuid()
    first = prefork.begin("job", key, task_id=task_id)

    prefork.send("job", key, task_id=task_id)
    prefork.until_received(task_id, times=3)  # the job, the copy, the copy again
    assert first.state == states.PENDING
    prefork.stage.open(key)

    assert first.get(timeout=10) == task_id
    prefork.until_idle()
    assert first.get(timeout=10) == task_id
    assert len(prefork.stage.runs(key)) == 1


def test_copy_of_a_running_job_runs_after_it_where_no_result_is_kept(
    prefork: Deployment, key: str
) -> None:
    """Without a result no worker knows that the job is done: its copy runs after it."""
    task_id = uuid()
    prefork.begin("job-unstored", key, task_id=task_id)

    prefork.send("job-unstored", key, task_id=task_id)
    prefork.until_received(task_id, times=3)
    prefork.stage.open(key)

    until(lambda: len(prefork.stage.runs(key)) == 2, 40)
    prefork.until_idle()
    assert len(prefork.stage.runs(key)) == 2
    assert prefork.stage.overlaps(key) == []


def test_copy_of_a_job_that_failed_to_finish_runs(
    prefork: Deployment, key: str
) -> None:
    """A copy runs if its original died without a result."""
    task_id = uuid()
    with prefork.task("job").lock(key):  # acts as another run of this id
        prefork.nodes.until_held(key)
        prefork.nodes.rename_holder(key, task_id)
        result = prefork.send("job", key, task_id=task_id)
        prefork.until_received(task_id, times=2)
        assert result.state == states.PENDING

    prefork.stage.open(key)
    assert result.get(timeout=40) == task_id
    assert len(prefork.stage.runs(key)) == 1


REDELIVERY: dict[str, Any] = {
    "task_acks_late": True,
    "worker_prefetch_multiplier": 1,
    "broker_transport_options": {
        "visibility_timeout": 2,  # seconds
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
}


@pytest.mark.parametrize("name", ["short", "job"])
def test_redelivery_while_the_job_runs_runs_it_once(
    deploy: Callable[..., Deployment], key: str, name: str
) -> None:
    """A job longer than the visibility timeout is redelivered often, and runs once."""
    here = deploy(workers=2, concurrency=2, settings=REDELIVERY)
    result = here.begin(name, key)

    here.until_received(result.id, times=3)
    here.stage.open(key)

    assert result.get(timeout=20) == result.id
    here.until_idle()
    assert result.get(timeout=10) == result.id
    assert len(here.stage.runs(key)) == 1


def test_redelivery_without_results_never_overlaps(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """Without a stored result a redelivered copy runs after the job, not beside it."""
    here = deploy(workers=2, concurrency=2, settings=REDELIVERY)
    result = here.begin("job-unstored", key)

    here.until_received(result.id, times=3)
    here.stage.open(key)

    until(lambda: len(here.stage.runs(key)) >= 2, 40)
    here.until_idle()
    assert here.stage.overlaps(key) == []


def test_copy_that_expires_does_not_touch_the_result_of_the_running_job(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """Expiry is for jobs that have not begun: the running one keeps its result."""
    here = deploy(workers=2, concurrency=2, settings=REDELIVERY)
    result = here.begin("job", key, expires=1.5)

    here.until_received(result.id, times=3)
    assert result.state == states.PENDING
    here.stage.open(key)

    assert result.get(timeout=20) == result.id
    here.until_idle()
    assert result.state == states.SUCCESS
    assert len(here.stage.runs(key)) == 1
