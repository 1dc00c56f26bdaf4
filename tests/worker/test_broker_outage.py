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


def begin_to_wait(here: Deployment, key: str) -> AsyncResult:
    """Publish a duplicate that waits for its lock, and then wants to be put back."""
    result = here.send("job-wait-then-retry", key)
    until(lambda: here.stage.notes(key, "conflict"))
    here.until_idle()  # its message is acknowledged: the broker has none of it
    return result


def until_refused_by_the_broker(here: Deployment, result: AsyncResult) -> None:
    """Wait until the copy has tried in vain to be put back."""
    until(
        lambda: f"{result.id}] could not be put back" in here.logs_of_the_package(),
        20,
        what="a copy that cannot be put back",
    )


def test_duplicate_waits_for_the_broker_to_be_put_back(
    here: Deployment, own_broker: LocalRedis, key: str
) -> None:
    """With the broker gone the copy keeps its slot, and is published afterwards."""
    with here.task("job").lock(key):
        result = begin_to_wait(here, key)
        own_broker.kill()
        until_refused_by_the_broker(here, result)

        own_broker.start()
        own_broker.ready()
        here.until_received(result.id, times=2, seconds=60)
        assert here.stage.runs(key) == []

    here.stage.open(key)
    assert result.get(timeout=30) == result.id
    assert len(here.stage.runs(key)) == 1


def test_duplicate_runs_when_the_lock_is_free_before_the_broker_is_back(
    here: Deployment, own_broker: LocalRedis, key: str
) -> None:
    """A copy that waits for the broker takes the lock if that comes first."""
    here.stage.open(key)
    with here.task("job").lock(key):
        result = begin_to_wait(here, key)
        own_broker.kill()
        until_refused_by_the_broker(here, result)

    assert result.get(timeout=30) == result.id
    assert len(here.stage.runs(key)) == 1
