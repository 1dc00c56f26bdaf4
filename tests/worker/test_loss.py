"""Each answer of ``on_lock_lost``, for a run that loses its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import states

from celery_redlock import LockLost
from tests.harness.waiting import until

if TYPE_CHECKING:
    from tests.harness.deployment import Deployment


def test_abort_is_not_autoretried_unless_listed(prefork: Deployment, key: str) -> None:
    """``autoretry_for=(Exception,)`` does not run an aborted job again."""
    first = prefork.begin("lost-other-autoretry", key)

    prefork.nodes.steal(key, seconds=5)

    with pytest.raises(LockLost):
        first.get(timeout=10)
    assert first.state == states.FAILURE
    assert [run.outcome for run in prefork.stage.runs(key)] == ["LockLost"]
    prefork.nodes.undo_steal(key)


def test_abort_is_autoretried_where_listed(prefork: Deployment, key: str) -> None:
    """``autoretry_for=(LockLost,)`` runs the job again once the lock is free."""
    first = prefork.begin("lost-autoretry", key)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.runs(key)[0].outcome == "LockLost")
    prefork.nodes.undo_steal(key)
    prefork.stage.open(key)

    assert first.get(timeout=20) == first.id
    assert [run.outcome for run in prefork.stage.runs(key)] == ["LockLost", "done"]


def test_retry_runs_the_job_again_when_the_lock_is_free(
    prefork: Deployment, key: str
) -> None:
    """With ``retry`` the stopped job is republished and succeeds."""
    first = prefork.begin("lost-retry", key)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.runs(key)[0].outcome == "LockLost")
    prefork.nodes.undo_steal(key)
    prefork.stage.open(key)

    assert first.get(timeout=20) == first.id
    assert [run.outcome for run in prefork.stage.runs(key)] == ["LockLost", "done"]
    assert {run.task_id for run in prefork.stage.runs(key)} == {first.id}


def test_retry_sends_the_arguments_as_they_came(prefork: Deployment, key: str) -> None:
    """A job is republished without the changes that its body made to the arguments."""
    first = prefork.begin("lost-mutating", key, [1, 2, 3])

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.runs(key)[0].outcome == "LockLost")
    prefork.nodes.undo_steal(key)
    prefork.stage.open(key)

    assert first.get(timeout=20) == [1, 2, 3]
    assert len(prefork.stage.runs(key)) == 2


def test_warn_lets_the_body_go_on(prefork: Deployment, key: str) -> None:
    """With ``warn`` the body goes on; its lease says that it is not valid."""
    first = prefork.begin("lost-warn", key)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.notes(key, "signal-lost"))
    assert prefork.stage.running(key)
    prefork.stage.open(key)

    assert first.get(timeout=10) is False
    assert prefork.nodes.is_stolen(key)
    prefork.nodes.undo_steal(key)


def test_callable_is_called_once_with_the_lost_lease(
    prefork: Deployment, key: str
) -> None:
    """The user's function is called once; the body goes on if it answers ``warn``."""
    first = prefork.begin("lost-callable", key)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.notes(key, "lost"))
    prefork.stage.open(key)

    assert first.get(timeout=10) == first.id
    assert len(prefork.stage.notes(key, "lost")) == 1
    prefork.nodes.undo_steal(key)


def test_body_that_catches_soft_limits_is_still_stopped(
    prefork: Deployment, key: str
) -> None:
    """A loss is no soft time limit: catching the one does not catch the other."""
    first = prefork.begin("lost-stubborn", key)

    prefork.nodes.steal(key, seconds=30)

    with pytest.raises(LockLost):
        first.get(timeout=10)
    assert prefork.stage.notes(key, "caught") == []
    assert [run.outcome for run in prefork.stage.runs(key)] == ["LockLost"]
    prefork.nodes.undo_steal(key)


def test_soft_limit_still_reaches_a_body_under_a_lock(
    prefork: Deployment, key: str
) -> None:
    """The code that interrupts on loss passes soft limits on; the run does not end."""
    result = prefork.begin("lost-stubborn", key, soft_time_limit=0.5)

    until(lambda: prefork.stage.notes(key, "caught"))
    prefork.stage.open(key)

    assert result.get(timeout=10) is None
    assert [run.outcome for run in prefork.stage.runs(key)] == ["done"]


def test_body_that_goes_on_after_the_loss_is_interrupted_again(
    prefork: Deployment, key: str
) -> None:
    """A body that catches LockLost and goes on is interrupted again."""
    first = prefork.begin("lost-deaf", key)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.notes(key, "caught"))

    with pytest.raises(LockLost):
        first.get(timeout=20)
    assert [run.outcome for run in prefork.stage.runs(key)] == ["LockLost"]
    prefork.nodes.undo_steal(key)


def test_body_that_swallows_the_loss_does_not_succeed(
    prefork: Deployment, key: str
) -> None:
    """However the body ends after a loss, its result is LockLost."""
    first = prefork.begin("lost-swallowed", key)

    prefork.nodes.steal(key, seconds=30)

    with pytest.raises(LockLost):
        first.get(timeout=10)
    assert first.state == states.FAILURE
    prefork.nodes.undo_steal(key)


def test_minority_that_forgot_is_given_the_lock_again(
    prefork: Deployment, key: str
) -> None:
    """Two of five nodes without the lock stop no run; renewal sets it there again."""
    first = prefork.begin("short", key)
    prefork.nodes.until_held(key)

    prefork.nodes.forget(key, nodes=2)

    until(lambda: len(prefork.nodes.holders(key)) == len(prefork.nodes.urls))
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id


def test_hung_majority_stops_the_body(frail: Deployment, key: str) -> None:
    """When too few nodes answer a renewal, the body ends when its lock expires."""
    first = frail.begin("short", key)

    with frail.nodes.majority_paused(), pytest.raises(LockLost):
        first.get(timeout=10)

    assert [run.outcome for run in frail.stage.runs(key)] == ["LockLost"]
    frail.nodes.until_free(key)


def test_hung_minority_stops_no_lock(frail: Deployment, key: str) -> None:
    """With two of five nodes hung the lock is renewed, and released on the rest."""
    first = frail.begin("short", key)

    with frail.nodes.minority_paused():
        frail.nodes.until_renewed(key, times=6)
        frail.stage.open(key)
        assert first.get(timeout=10) == first.id

    frail.nodes.until_free(key)
