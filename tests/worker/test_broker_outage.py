"""A call that must be published again is not lost with the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.worker.harness.processes import LocalRedis
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.result import AsyncResult

    from tests.worker.harness.deployment import Deployment, Site


@pytest.fixture
def own_broker(site: Site) -> Iterator[LocalRedis]:
    """Give a broker to kill."""
    broker = LocalRedis(site.folder, "own-broker", site.broker.binary)
    broker.start()
    broker.ready()
    yield broker
    broker.teardown()


@pytest.fixture
def here(deploy: Callable[..., Deployment], own_broker: LocalRedis) -> Deployment:
    """Give a worker with one slot."""
    return deploy(concurrency=1, broker=own_broker)


def receive_behind_a_plain_task(here: Deployment, name: str, key: str) -> AsyncResult:
    """Have the worker receive a call that it cannot begin yet; open the gate then."""
    here.begin("plain", f"{key}-slot")
    result = here.send(name, key)
    here.until_received(result.id, times=1)
    return result


def test_duplicate_waits_for_the_broker_to_be_published_again(
    here: Deployment, own_broker: LocalRedis, key: str
) -> None:
    """With the broker gone the copy keeps its slot, and is published afterwards."""
    with here.task("job-retry").lock(key):
        result = receive_behind_a_plain_task(here, "job-retry", key)
        own_broker.kill()
        here.stage.open(f"{key}-slot")
        until(lambda: not here.stage.running(f"{key}-slot"))
        until(lambda: result.id in here.logs_of_the_package(), 20)

        own_broker.start()
        own_broker.ready()
        here.until_received(result.id, times=2, seconds=60)
        assert here.stage.runs(key) == []

    here.stage.open(key)
    assert result.get(timeout=30) == result.id
    assert len(here.stage.runs(key)) == 1


def test_duplicate_runs_at_once_when_the_lock_is_free_before_the_broker_is_back(
    here: Deployment, own_broker: LocalRedis, key: str
) -> None:
    """A copy that waits for the broker takes the lock if that comes first."""
    here.stage.open(key)
    with here.task("job-retry").lock(key):
        result = receive_behind_a_plain_task(here, "job-retry", key)
        own_broker.kill()
        here.stage.open(f"{key}-slot")
        until(lambda: result.id in here.logs_of_the_package(), 20)

    assert result.get(timeout=60) == result.id
    assert len(here.stage.runs(key)) == 1
