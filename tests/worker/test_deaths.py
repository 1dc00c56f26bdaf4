"""A job survives the death of its process or worker, and runs again exactly once."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import WorkerLostError

from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.deployment import Deployment

FREED_WITHIN = 6.0  # seconds, with a ttl of 30: the longest that a kill may go unseen


def kill_child(deployment: Deployment, key: str, *others: str) -> None:
    """SIGKILL the process that runs this key; it may now run one of the others."""
    (run,) = deployment.stage.running(key)
    for record in (key, *others):
        deployment.stage.killed(record, run.pid)
    os.kill(run.pid, signal.SIGKILL)


@pytest.mark.parametrize("attempt", [1, 2])
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
    """When Celery gives the job up, its lock is released, and the next call runs."""
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
    tokens = prefork.nodes.tokens(f"{key}-sibling")

    kill_child(prefork, key)

    until(lambda: not prefork.nodes.holders(key), FREED_WITHIN)
    assert prefork.nodes.tokens(f"{key}-sibling") == tokens
    prefork.nodes.until_held(f"{key}-sibling")
    prefork.stage.open(f"{key}-sibling")
    assert sibling.get(timeout=10) == sibling.id


def test_killed_worker_keeps_others_out_until_the_ttl_ends(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """A killed worker leaves no process to release its lock; the lock's ttl ends it."""
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


def test_storm_with_kills_never_overlaps_and_loses_nothing(
    prefork: Deployment, key: str
) -> None:
    """Of many calls on few keys, with killed children, each ends and none overlap."""
    names = [f"{key}-{number}" for number in range(3)]
    results = [prefork.send("storm", names[n % 3], 0.15) for n in range(30)]

    for name in names:
        until(lambda: len(prefork.stage.running(name)) == 1)  # noqa: B023
        with contextlib.suppress(ValueError):  # it ended in this very moment
            kill_child(prefork, name, *names)

    assert [result.get(timeout=60) for result in results] == [r.id for r in results]
    for name in names:
        runs = prefork.stage.runs(name)
        assert prefork.stage.overlaps(name) == []
        assert [run.outcome for run in runs].count("done") == 10
        assert len(runs) <= 11


REDELIVERY = {
    "broker_transport_options": {
        "visibility_timeout": 2,  # seconds
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
}
