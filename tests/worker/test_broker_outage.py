"""A call that has to be republished is not lost when the broker is down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import RedisServer
from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.result import AsyncResult

    from tests.harness.deployment import Deployment


@pytest.fixture
def own_broker(redis_server: str) -> Iterator[RedisServer]:
    """Give a broker to kill."""
    broker = RedisServer(redis_server)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def here(deploy: Callable[..., Deployment], own_broker: RedisServer) -> Deployment:
    """Give a worker with one process."""
    return deploy(concurrency=1, broker=own_broker)


def begin_to_wait(here: Deployment, key: str) -> AsyncResult:
    """Publish a duplicate that waits for its lock, and then has to be republished."""
    result = here.send("job-wait-then-retry", key)
    until(lambda: here.stage.notes(key, "conflict"))
    here.until_idle()  # its message is acknowledged: the broker no longer has it
    return result


def until_refused_by_the_broker(here: Deployment, result: AsyncResult) -> None:
    """Wait until an attempt to republish the call has failed."""
    until(
        lambda: f"{result.id}] could not be republished" in here.logs_of_the_package(),
        20,
        what="a copy that cannot be republished",
    )


def test_duplicate_waits_for_the_broker_to_be_republished(
    here: Deployment, own_broker: RedisServer, key: str
) -> None:
    """With the broker down the call keeps its process; it is republished afterwards."""
    with here.task("job").lock(key):
        result = begin_to_wait(here, key)
        own_broker.kill()
        until_refused_by_the_broker(here, result)

        own_broker.start()
        here.until_received(result.id, times=2, seconds=60)
        assert here.stage.runs(key) == []

    here.stage.open(key)
    assert result.get(timeout=30) == result.id
    assert len(here.stage.runs(key)) == 1


def test_duplicate_runs_when_the_lock_is_free_before_the_broker_is_back(
    here: Deployment, own_broker: RedisServer, key: str
) -> None:
    """A call that waits for the broker runs if its lock is free before that."""
    here.stage.open(key)
    with here.task("job").lock(key):
        result = begin_to_wait(here, key)
        own_broker.kill()
        until_refused_by_the_broker(here, result)

    assert result.get(timeout=30) == result.id
    assert len(here.stage.runs(key)) == 1
