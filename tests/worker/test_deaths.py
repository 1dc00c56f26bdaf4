"""A job survives the death of what ran it, and runs again exactly once."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import WorkerLostError

from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.worker.harness.deployment import Deployment

FREED_WITHIN = 6.0  # seconds, with a ttl of 30: the longest that a kill may go unseen


def kill_child(deployment: Deployment, key: str) -> None:
    """SIGKILL the process that runs this key, and it alone."""
    (run,) = deployment.stage.running(key)
    deployment.stage.killed(key, run.pid)
    os.kill(run.pid, signal.SIGKILL)


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_killed_child_with_acks_late_is_run_again_once(
    prefork: Deployment, key: str, attempt: int
) -> None:
    """SIGKILL in the middle: the same job runs again soon, once, and ends well."""
    result = prefork.begin("late", key)

    kill_child(prefork, key)

    prefork.until_running(key, result.id, seconds=FREED_WITHIN)
    prefork.stage.open(key)
    assert result.get(timeout=10) == result.id
    outcomes = [run.outcome for run in prefork.stage.runs(key)]
    assert outcomes == ["killed", "done"]
    prefork.nodes.until_free(key)


def test_killed_child_without_acks_late_frees_its_lock(
    prefork: Deployment, key: str
) -> None:
    """Where Celery gives the job up, its lock goes too, and the next call runs."""
    result = prefork.begin("job", key)

    kill_child(prefork, key)

    prefork.nodes.until_free(key, FREED_WITHIN)
    with pytest.raises(WorkerLostError):
        result.get(timeout=10)
    prefork.stage.open(key)
    assert prefork.send("job", key).get(timeout=10)


def test_killed_child_does_not_free_the_locks_of_others(
    prefork: Deployment, key: str
) -> None:
    """Only the dead child's own lock is freed; a sibling's run keeps its own."""
    sibling = prefork.begin("job", f"{key}-sibling")
    prefork.begin("job", key)
    holders = prefork.nodes.holders(f"{key}-sibling")

    kill_child(prefork, key)

    until(lambda: not prefork.nodes.holders(key), FREED_WITHIN)
    assert prefork.nodes.holders(f"{key}-sibling") == holders
    prefork.stage.open(f"{key}-sibling")
    assert sibling.get(timeout=10) == sibling.id


def test_killed_worker_keeps_others_out_until_the_ttl_ends(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """Nobody is left to free the lock of a worker killed whole; its ttl does."""
    here = deploy(
        workers=2,
        concurrency=1,
        settings={"worker_prefetch_multiplier": 1, **REDELIVERY},
    )
    result = here.begin("late-short", key)

    here.kill_worker(key, here.worker_of(key))

    here.until_running(key, result.id, seconds=20)
    here.stage.open(key)
    assert result.get(timeout=10) == result.id
    outcomes = [run.outcome for run in here.stage.runs(key)]
    assert outcomes == ["killed", "done"]
    assert here.stage.overlaps(key) == []
    here.nodes.until_free(key)


REDELIVERY = {
    "broker_transport_options": {
        "visibility_timeout": 2,  # seconds
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
}
