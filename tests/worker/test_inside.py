"""The lock in its own body, and outside of a worker.

A body has its lease, inner runs and signals. A view, a script or an eager test takes
the lock of a task, too.
"""

from __future__ import annotations

import contextlib

import pytest

from celery_redlock import DuplicateTask, LockHeld, current_lease
from tests.harness.deployment import Deployment
from tests.harness.waiting import until
from tests.worker.project.jobs import HOLD


def test_lease_in_the_body_is_of_this_run(any_pool: Deployment, key: str) -> None:
    """``current_lease()`` is the run's own lease; each later run's fence is greater."""
    leases = [any_pool.send("informed", key).get(timeout=60) for _ in range(5)]

    fences = [lease["fence"] for lease in leases]
    assert fences == sorted(set(fences))
    assert {lease["key"] for lease in leases} == {key}
    assert all(0 < lease["remaining"] < 30 for lease in leases)


# -- Inner runs --------------------------------------------------------------------


def test_apply_in_the_body_takes_no_lock_by_default(here: Deployment, key: str) -> None:
    """An eager run in a body runs under the body's lock, and does not wait for it."""
    tokens = here.send("applying", key, 2).get(timeout=60)

    assert len(set(tokens)) == 1


# -- Time and signals --------------------------------------------------------------


def test_hold_at_least_keeps_the_lock(prefork: Deployment, key: str) -> None:
    """Until ``hold_at_least`` ends, an equal call of a late clock is a duplicate."""
    ends = prefork.stage.now() + HOLD - 0.01  # at least: it counts from the acquire on
    first = prefork.send("keeping", key)
    assert first.get(timeout=60) == first.id

    second = prefork.send("keeping", key)
    with contextlib.suppress(DuplicateTask):  # a busy machine may send it too late
        second.get(timeout=60)
    begun = [run.began for run in prefork.stage.runs(key)]
    assert all(began >= ends for began in begun[1:])

    until(lambda: len(prefork.nodes.holders(key)) < prefork.nodes.quorum)
    assert prefork.stage.now() >= ends
    prefork.nodes.until_free(key)
    prefork.nodes.until_all_see_the_end()
    prefork.finish(key, prefork.send("keeping", key))
    prefork.nodes.until_free(key)


def test_signals_tell_the_life_of_a_lock(any_pool: Deployment, key: str) -> None:
    """The signals of the lock are sent where the task runs, with the task's id."""
    result = any_pool.begin("short", key)
    until(lambda: any_pool.stage.notes(key, "signal-renewed"))

    any_pool.finish(key, result)

    for event in ("signal-acquired", "signal-released"):
        notes = until(lambda: any_pool.stage.notes(key, event))  # noqa: B023
        assert [note["task_id"] for note in notes] == [result.id]
    assert any_pool.stage.notes(key, "signal-lost") == []


# -- Outside of a worker -----------------------------------------------------------


def test_lock_taken_here_excludes_the_workers(prefork: Deployment, key: str) -> None:
    """``with task.lock(...)`` in any process is the lock that a worker would take."""
    with prefork.task("job").lock(key) as lease:
        assert current_lease() is lease
        with pytest.raises(DuplicateTask):
            prefork.send("job", key).get(timeout=60)

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
