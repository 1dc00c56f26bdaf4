"""A copy of a job is the same job: it is never lost, and never runs beside it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from celery import states, uuid
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from tests.conftest import with_long
from tests.harness.deployment import Deploy, Deployment, Site
from tests.harness.processes import RedisServer
from tests.harness.waiting import until
from tests.worker.support import pools, redelivery, stored_by

# -- Its retries -------------------------------------------------------------------


def test_retry_that_overtakes_its_parent_is_not_a_duplicate(
    any_pool: Deployment, key: str
) -> None:
    """A retry that meets its parent's lock waits, and is republished: it is one job."""
    result = any_pool.begin("overtaken", key)

    any_pool.until_received(result.id, times=3)  # itself, its retry, that republished
    any_pool.finish(key, result)

    assert len(any_pool.stage.runs(key)) == 2
    assert any_pool.stage.overlaps(key) == []


def test_retries_without_delay_all_run(any_pool: Deployment, key: str) -> None:
    """Each retry starts at about the time when its parent ends, and none is lost."""
    names = [f"{key}-{number}" for number in range(8)]
    results = [any_pool.send("retried-at-once", name, 3) for name in names]

    assert [result.get(timeout=60) for result in results] == [3] * 8

    for name in names:
        assert len(any_pool.stage.runs(name)) == 4
        assert any_pool.stage.overlaps(name) == []


@pytest.fixture
def late(site: Site) -> dict[str, str]:
    """Give the settings of a worker whose RETRY is stored late."""
    return stored_by(site, "LateRetries")


@pytest.mark.long
@pools
def test_duplicate_that_was_republished_has_its_own_result_in_the_end(
    deploy: Deploy, late: dict[str, str], key: str, pool: str
) -> None:
    """The result stays, even if the republishing worker stores RETRY after the end."""
    worker = deploy(pool=pool, settings=late)
    worker.begin("job-retry", key)

    second = worker.send("job-retry", key)
    worker.until_received(second.id, times=2)
    worker.finish(key, second)

    again = worker.logs().count(f"[{second.id}] received") - 1
    until(lambda: worker.logs().count(f"{second.id}] retry: ") >= again, 20)
    assert worker.app.AsyncResult(second.id).state == states.SUCCESS


@pytest.mark.long
@pools
def test_retry_without_delay_begins_when_its_parent_has_stored_that_it_retries(
    deploy: Deploy, late: dict[str, str], key: str, pool: str
) -> None:
    """A retry begins after RETRY is stored, so RETRY never overwrites its result."""
    worker = deploy(pool=pool, settings=late)

    result = worker.send("retried-at-once", key, 1)
    assert result.get(timeout=60) == 1
    until(lambda: f"{result.id}] retry: " in worker.logs(), 20)  # when it is stored

    assert worker.app.AsyncResult(result.id).state == states.SUCCESS
    assert len(worker.stage.runs(key)) == 2
    assert worker.stage.overlaps(key) == []


# -- Its copies --------------------------------------------------------------------


@pytest.mark.long
@pools
def test_copy_that_has_the_lock_before_the_result_is_stored_is_dropped(
    deploy: Deploy, site: Site, key: str, pool: str
) -> None:
    """Celery stores a result after the lock is released: the copy waits for it."""
    worker = deploy(pool=pool, settings=stored_by(site, "LateResults"))
    task_id = uuid()
    first = worker.begin("job", key, task_id=task_id)

    worker.send("job", key, task_id=task_id)
    worker.until_received(task_id, times=3)  # the job, the copy, the copy again
    worker.finish(key, first)

    worker.until_settled(task_id)
    assert len(worker.stage.notes(key, "signal-acquired")) == 2
    assert len(worker.stage.runs(key)) == 1


def test_call_whose_worker_is_restarted_while_it_waits_expires(
    deploy: Deploy, key: str
) -> None:
    """It comes back as a copy. None of it runs, so its expiry counts."""
    worker = deploy(concurrency=1)
    container = worker.worker.container

    with worker.task("job-retry").lock(key):
        expires_at = time.time() + 8
        call = worker.send("job-retry", key, expires=8)
        until(lambda: worker.stage.notes(key, "signal-conflict"))
        os.kill(container.pid, signal.SIGTERM)
        container.wait()
        worker.start_worker()
        until(lambda: len(worker.stage.notes(key, "signal-conflict")) > 1)
        until(lambda: time.time() > expires_at, what="the expiry")

    until(lambda: call.state == states.REVOKED)
    assert isinstance(call.result, TaskRevokedError)
    assert worker.stage.runs(key) == []


def test_copy_runs_after_a_job_without_result(prefork: Deployment, key: str) -> None:
    """Without a result no worker knows that the job is done: its copy runs after it."""
    task_id = uuid()
    prefork.begin("job-unstored", key, task_id=task_id)

    prefork.send("job-unstored", key, task_id=task_id)
    prefork.until_received(task_id, times=3)
    prefork.stage.open(key)

    until(lambda: len(prefork.stage.runs(key)) == 2, 40)
    prefork.until_settled(task_id)
    assert len(prefork.stage.runs(key)) == 2
    assert prefork.stage.overlaps(key) == []


@pytest.fixture
def impatient(deploy: Deploy) -> Deployment:
    """Give workers whose broker delivers a job again while it runs."""
    return deploy(workers=2, concurrency=2, settings=redelivery())


@pytest.mark.parametrize(
    "name", with_long(["short", "job", "limited-late"], "job", "limited-late")
)
def test_redelivery_while_the_job_runs_runs_it_once(
    impatient: Deployment, key: str, name: str
) -> None:
    """A job longer than the visibility timeout is redelivered often, and runs once.

    So does one with a limit of three, of which two permits are free for its copies.
    """
    result = impatient.begin(name, key)

    impatient.until_received(result.id, times=3)
    impatient.finish(key, result)

    impatient.until_settled(result.id)
    assert result.get(timeout=60) == result.id
    assert len(impatient.stage.runs(key)) == 1


# -- While the broker is down ------------------------------------------------------


@pytest.fixture
def own_broker(redis_server: str) -> Iterator[RedisServer]:
    """Give a broker to kill."""
    broker = RedisServer(redis_server)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def cut_off(deploy: Deploy, own_broker: RedisServer) -> Deployment:
    """Give a worker with one process, whose broker the test kills."""
    return deploy(concurrency=1, broker=own_broker)


def send_and_kill(here: Deployment, broker: RedisServer, key: str) -> AsyncResult:
    """Let a duplicate wait, kill the broker, and wait until it is refused a copy."""
    result = here.send("job-wait-then-retry", key)
    until(lambda: here.stage.notes(key, "conflict"))
    here.until_settled(result.id)  # acknowledged: the broker no longer has it
    broker.kill()
    until(
        lambda: f"{result.id}] could not be republished" in here.logs_of_the_package(),
        20,
        what="a copy that cannot be republished",
    )
    return result


def test_duplicate_waits_for_the_broker_to_be_republished(
    cut_off: Deployment, own_broker: RedisServer, key: str
) -> None:
    """With the broker down the call keeps its process; it is republished afterwards."""
    with cut_off.task("job").lock(key):
        result = send_and_kill(cut_off, own_broker, key)

        own_broker.start()
        cut_off.until_received(result.id, times=2, seconds=60)
        assert cut_off.stage.runs(key) == []

    cut_off.finish(key, result)
    assert len(cut_off.stage.runs(key)) == 1


@pytest.mark.long
def test_duplicate_runs_when_the_lock_is_free_before_the_broker_is_back(
    cut_off: Deployment, own_broker: RedisServer, key: str
) -> None:
    """A call that waits for the broker runs if its lock is free before that."""
    with cut_off.task("job").lock(key):
        result = send_and_kill(cut_off, own_broker, key)

    cut_off.finish(key, result)
    assert len(cut_off.stage.runs(key)) == 1
