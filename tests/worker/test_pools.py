"""Each worker pool keeps the promise: once at a time, renewed, stopped on loss."""

from __future__ import annotations

import pytest
from celery import states

from celery_redlock import DuplicateTask, LockLost
from tests.harness.deployment import Deployment
from tests.harness.waiting import until
from tests.worker.support import assert_refused


def test_pool_runs_equal_calls_once(every_pool: Deployment, key: str) -> None:
    """Of equal calls at the same time one runs; the others end and name it."""
    results = [every_pool.send("job", key) for _ in range(4)]
    until(lambda: sum(result.ready() for result in results) == 3, 20)
    (run,) = until(lambda: every_pool.stage.runs(key))

    every_pool.stage.open(key)

    for result in results:
        if result.id == run.task_id:
            assert result.get(timeout=60) == run.task_id
        else:
            with pytest.raises(DuplicateTask, match=run.task_id):
                result.get(timeout=60)
            assert result.state == states.REVOKED
    assert len(every_pool.stage.runs(key)) == 1


def test_pool_runs_different_calls_at_once(any_pool: Deployment, key: str) -> None:
    """Calls with different arguments run side by side and free their own locks."""
    here, there = f"{key}-here", f"{key}-there"
    first = any_pool.begin("canonical", here, 1)
    (lock,) = {name.partition(" on ")[0] for name in any_pool.nodes.locks("canonical")}
    second = any_pool.begin("canonical", there, 1)

    any_pool.finish(here, first)
    until(lambda: all(lock not in name for name in any_pool.nodes.locks("canonical")))

    assert_refused(any_pool.send("canonical", there, 1), second)
    any_pool.finish(there, second)
    any_pool.nodes.until_free("canonical")


def test_pool_renews_the_lock_while_a_body_runs(any_pool: Deployment, key: str) -> None:
    """A run that outlives the ttl many times keeps its lock throughout."""
    first = any_pool.begin("short", key)
    any_pool.nodes.until_held(key)

    any_pool.nodes.until_renewed(key, times=4)

    assert_refused(any_pool.send("short", key), first)
    any_pool.finish(key, first)


def test_pool_stops_a_body_whose_lock_is_lost(every_pool: Deployment, key: str) -> None:
    """LockLost interrupts the body where it runs; the new holder's lock stays."""
    first = every_pool.begin("short", key)

    every_pool.nodes.steal(key, seconds=60)

    with pytest.raises(LockLost, match=key):
        first.get(timeout=60)
    assert first.state == states.FAILURE
    assert every_pool.stage.outcomes(key) == ["LockLost"]
    assert every_pool.nodes.is_stolen(key)
    every_pool.nodes.undo_steal(key)
