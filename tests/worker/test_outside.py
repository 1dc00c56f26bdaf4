"""The lock of a task outside of a worker: in a view, a script, an eager test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock import DuplicateTask, LockHeld, current_lease
from tests.worker.project.app import create_app

if TYPE_CHECKING:
    from tests.harness.deployment import Deployment
    from tests.harness.lock_nodes import LockNodes
    from tests.harness.stage import Stage


EAGER = {"task_always_eager": True}


def test_lock_taken_here_excludes_the_workers(prefork: Deployment, key: str) -> None:
    """``with task.lock(...)`` in any process is the lock that a worker would take."""
    with prefork.task("job").lock(key) as lease:
        assert current_lease() is lease
        with pytest.raises(DuplicateTask):
            prefork.send("job", key).get(timeout=10)

    prefork.finish(key, prefork.send("job", key))
    assert len(prefork.stage.runs(key)) == 1


def test_lock_held_by_a_worker_is_refused_here(prefork: Deployment, key: str) -> None:
    """``task.lock(...)`` raises and names the task while a worker runs the call."""
    first = prefork.begin("job", key)

    with pytest.raises(LockHeld, match=first.id), prefork.task("job").lock(key):
        pytest.fail("the body ran without the lock")

    prefork.finish(key, first)
    prefork.nodes.until_free(key)
    with prefork.task("job").lock(key=key) as lease:
        assert lease.is_valid()


def test_plain_call_runs_the_body_without_a_lock(prefork: Deployment, key: str) -> None:
    """``task(42)`` is a function call, as Celery's users expect."""
    first = prefork.begin("job", key)

    assert prefork.task("recursive")(key, 3) == 3

    prefork.finish(key, first)


def test_eager_task_takes_no_lock(nodes: LockNodes, stage: Stage, key: str) -> None:
    """A user's eager test needs no lock nodes: the task asks none of them."""
    nodes.steal(key, seconds=60)
    stage.open(key)

    with create_app({**EAGER, "redlock_nodes": nodes.urls}) as app:
        result = app.tasks["job"].delay(key)

        assert result.get() == result.id
    nodes.undo_steal(key)


def test_eager_task_can_take_its_lock(nodes: LockNodes, stage: Stage, key: str) -> None:
    """With ``redlock_eager`` an eager run is locked like any other."""
    settings = {**EAGER, "redlock_eager": True, "redlock_nodes": nodes.urls}
    stage.open(key)

    with create_app(settings) as app:
        informed = app.tasks["informed"].delay(key).get()
        assert informed["key"] == key
        nodes.steal(key, seconds=60)
        with pytest.raises(DuplicateTask):
            app.tasks["job-raise"].delay(key).get()

    assert len(stage.runs(key)) == 1
    nodes.undo_steal(key)
