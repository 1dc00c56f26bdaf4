"""Each answer of ``on_lock_lost``, for a run that loses its lock."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from celery import states

from celery_redlock import LockLost
from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.deployment import Deployment
    from tests.harness.lock_nodes import LockNodes


@pytest.fixture
def key(key: str, nodes: LockNodes) -> Iterator[str]:
    """Give the key; undo the theft of its lock afterwards."""
    yield key
    nodes.undo_steal(key)


@pytest.mark.parametrize(
    "name",
    [
        "lost-other-autoretry",  # autoretry_for=(Exception,)
        "lost-stubborn",  # catches soft limits
        "lost-swallowed",  # catches Exception, and returns a result
        "lost-deaf",  # catches LockLost, and goes on
    ],
)
def test_lost_run_ends_as_lost(prefork: Deployment, key: str, name: str) -> None:
    """Neither ``autoretry_for`` nor what the body catches makes it another ending."""
    first = prefork.begin(name, key)

    prefork.nodes.steal(key, seconds=30)

    with pytest.raises(LockLost):
        first.get(timeout=60)
    assert first.state == states.FAILURE
    assert len(prefork.stage.notes(key, "caught")) == (name == "lost-deaf")
    assert prefork.stage.outcomes(key) == ["LockLost"]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("lost-autoretry", ()),  # autoretry_for=(LockLost,)
        ("lost-retry", ()),
        ("lost-mutating", ([1, 2, 3],)),  # clears its list
    ],
)
def test_lost_run_runs_again_when_the_lock_is_free(
    prefork: Deployment, key: str, name: str, args: tuple[list[int], ...]
) -> None:
    """The job is republished under ``retry``, with the arguments as they came."""
    first = prefork.begin(name, key, *args)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.outcomes(key)[0] == "LockLost")
    prefork.nodes.undo_steal(key)
    prefork.stage.open(key)

    assert first.get(timeout=60) == (args[0] if args else first.id)
    assert prefork.stage.outcomes(key) == ["LockLost", "done"]
    assert {run.task_id for run in prefork.stage.runs(key)} == {first.id}


def test_warn_lets_the_body_go_on(prefork: Deployment, key: str) -> None:
    """With ``warn`` the body goes on; its lease says that it is not valid."""
    first = prefork.begin("lost-warn", key)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.notes(key, "signal-lost"))
    assert prefork.stage.running(key)
    prefork.stage.open(key)

    assert first.get(timeout=60) is False
    assert prefork.nodes.is_stolen(key)


def test_callable_is_called_once(prefork: Deployment, key: str) -> None:
    """The user's function gets the lost lease; the body goes on if it says ``warn``."""
    first = prefork.begin("lost-callable", key)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.notes(key, "lost"))

    prefork.finish(key, first)
    assert len(prefork.stage.notes(key, "lost")) == 1


def test_soft_limit_reaches_a_body_under_a_lock(prefork: Deployment, key: str) -> None:
    """The code that interrupts on loss passes soft limits on; the run does not end."""
    result = prefork.begin("lost-stubborn", key)
    (run,) = prefork.stage.running(key)

    os.kill(run.pid, signal.SIGUSR1)  # as billiard does when the limit is over

    until(lambda: prefork.stage.notes(key, "caught"))
    prefork.stage.open(key)

    assert result.get(timeout=60) is None
    assert prefork.stage.outcomes(key) == ["done"]


# -- Nodes -------------------------------------------------------------------------


def test_minority_that_forgot_gets_it_again(prefork: Deployment, key: str) -> None:
    """Two of five nodes without the lock stop no run; renewal sets it there again."""
    first = prefork.begin("short", key)
    prefork.nodes.until_held(key)

    prefork.nodes.forget(key, nodes=2)

    until(lambda: len(prefork.nodes.holders(key)) == len(prefork.nodes.urls))
    prefork.finish(key, first)


def test_hung_majority_stops_the_body(frail: Deployment, key: str) -> None:
    """When too few nodes answer a renewal, the body ends when its lock expires."""
    first = frail.begin("short", key)

    with frail.nodes.majority_paused(), pytest.raises(LockLost):
        first.get(timeout=60)

    assert frail.stage.outcomes(key) == ["LockLost"]
    frail.nodes.until_free(key)


def test_hung_minority_stops_no_lock(frail: Deployment, key: str) -> None:
    """With two of five nodes hung the lock is renewed, and released on the rest."""
    first = frail.begin("short", key)

    with frail.nodes.minority_paused():
        frail.nodes.until_renewed(key, times=4)
        frail.finish(key, first)

    frail.nodes.until_free(key)
