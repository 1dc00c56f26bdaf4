"""Each worker pool keeps the promise: once at a time, renewed, stopped on loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import states

from celery_redlock import DuplicateTask, LockLost
from tests.harness.waiting import until

if TYPE_CHECKING:
    from tests.harness.deployment import Deployment


def test_pool_runs_equal_calls_once(any_pool: Deployment, key: str) -> None:
    """Of equal calls at the same time one runs; the others end and name it."""
    results = [any_pool.send("job", key) for _ in range(4)]
    until(lambda: sum(result.ready() for result in results) == 3, 20)
    (run,) = any_pool.stage.runs(key)

    any_pool.stage.open(key)

    for result in results:
        if result.id == run.task_id:
            assert result.get(timeout=10) == run.task_id
        else:
            with pytest.raises(DuplicateTask, match=run.task_id):
                result.get(timeout=10)
            assert result.state == states.REVOKED
    assert len(any_pool.stage.runs(key)) == 1


def test_pool_runs_waiting_calls_one_after_the_other(
    any_pool: Deployment, key: str
) -> None:
    """Equal calls that wait all run, and never two of them at once."""
    results = [any_pool.send("job-wait", key) for _ in range(3)]
    until(lambda: any_pool.stage.running(key))

    any_pool.stage.open(key)

    assert [result.get(timeout=20) for result in results] == [r.id for r in results]
    assert len(any_pool.stage.runs(key)) == 3
    assert any_pool.stage.overlaps(key) == []


def test_pool_runs_different_calls_at_once(any_pool: Deployment, key: str) -> None:
    """Calls with different arguments run side by side and free their own locks."""
    here, there = f"{key}-here", f"{key}-there"
    first = any_pool.begin("canonical", here, 1)
    second = any_pool.begin("canonical", there, 1)
    locks = any_pool.nodes.locks("canonical")

    any_pool.stage.open(here)
    assert first.get(timeout=10) == first.id
    until(lambda: len(any_pool.nodes.locks("canonical")) <= len(locks) // 2)

    with pytest.raises(DuplicateTask, match=second.id):  # its lock is still its own
        any_pool.send("canonical", there, 1).get(timeout=10)
    any_pool.stage.open(there)
    assert second.get(timeout=10) == second.id
    any_pool.nodes.until_free("canonical")


def test_pool_renews_the_lock_while_the_body_runs(
    any_pool: Deployment, key: str
) -> None:
    """A run that outlives the ttl many times keeps its lock throughout."""
    first = any_pool.begin("short", key)
    any_pool.nodes.until_held(key)

    any_pool.nodes.until_renewed(key, times=6)

    with pytest.raises(DuplicateTask, match=first.id):
        any_pool.send("short", key).get(timeout=10)
    any_pool.stage.open(key)
    assert first.get(timeout=10) == first.id


def test_pool_interrupts_a_body_whose_lock_is_lost(
    any_pool: Deployment, key: str
) -> None:
    """LockLost interrupts the body where it runs; the new holder's lock stays."""
    first = any_pool.begin("short", key)

    any_pool.nodes.steal(key, seconds=8)

    with pytest.raises(LockLost, match=key):
        first.get(timeout=10)
    assert first.state == states.FAILURE
    assert [run.outcome for run in any_pool.stage.runs(key)] == ["LockLost"]
    assert any_pool.nodes.is_stolen(key)
    any_pool.nodes.undo_steal(key)


def test_pool_goes_on_after_an_interrupt(any_pool: Deployment, key: str) -> None:
    """After a body was interrupted, the next calls run normally."""
    interrupted = [any_pool.begin("short", f"{key}-{number}") for number in range(3)]
    for number in range(3):
        any_pool.nodes.steal(f"{key}-{number}", seconds=5)
    for result in interrupted:
        with pytest.raises(LockLost):
            result.get(timeout=10)

    results = [any_pool.send("quick", f"{key}-after-{number}") for number in range(20)]

    assert [result.get(timeout=10) for result in results] == [r.id for r in results]
