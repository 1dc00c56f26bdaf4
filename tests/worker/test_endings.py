"""A lock is free soon after its run, however the run ends; a killed job runs again."""

from __future__ import annotations

import os
import signal

import celery
import pytest
from celery import states
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from tests.harness.deployment import Deploy, Deployment
from tests.harness.lock_nodes import FREED_WITHIN
from tests.harness.processes import is_alive
from tests.harness.stage import Run
from tests.harness.waiting import until
from tests.worker.support import redelivery

# -- The end of the body -----------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("return", states.SUCCESS),
        ("exception", states.FAILURE),
        ("retry", states.SUCCESS),
        ("ignore", None),
        # Earlier versions store nothing.
        ("reject", states.FAILURE if celery.VERSION >= (5, 7) else None),
        ("exit", states.FAILURE),
    ],
)
def test_ending_frees_the_lock(
    prefork: Deployment, key: str, how: str, state: str | None
) -> None:
    """A return, an error, a retry, Ignore, Reject and an exit all free the lock."""
    result = prefork.begin("ending", key, how)
    prefork.nodes.until_held(key)

    prefork.stage.open(key)

    prefork.nodes.until_free(key)
    if state:
        until(lambda: result.state == state)
    assert prefork.stage.overlaps(key) == []
    assert prefork.send("quick", key).get(timeout=60)


# -- Limits and revokes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "outcome"),
    [("return", "SoftTimeLimitExceeded"), ("soft limit, tidied", "done")],
)
def test_soft_limit_frees_the_lock(
    prefork: Deployment, key: str, how: str, outcome: str
) -> None:
    """A soft time limit frees the lock, whether the body catches it or not."""
    result = prefork.begin("ending", key, how)
    prefork.nodes.until_held(key)
    (run,) = prefork.stage.running(key)

    os.kill(run.pid, signal.SIGUSR1)  # as billiard does when the limit is over

    until(result.ready)

    assert prefork.stage.outcomes(key) == [outcome]
    prefork.nodes.until_free(key)


@pytest.mark.parametrize("how", ["return", "deaf"])
def test_hard_limit_frees_the_lock_once_the_child_is_gone(
    prefork: Deployment, key: str, how: str
) -> None:
    """A hard limit kills a child, also one that ignores SIGTERM, and frees its lock."""
    result = prefork.send("ending", key, how, time_limit=2)

    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=60)

    prefork.nodes.until_free(key)
    assert has_ended(prefork.stage.runs(key))


@pytest.mark.parametrize("signame", ["TERM", "KILL"])
def test_revoke_with_terminate_frees_the_lock(
    prefork: Deployment, key: str, signame: str
) -> None:
    """A task that is revoked while it runs frees its lock when its child is gone."""
    result = prefork.begin("ending", key, "return")

    prefork.app.control.revoke(result.id, terminate=True, signal=signame)

    prefork.nodes.until_free(key)
    assert has_ended(prefork.stage.runs(key))
    until(lambda: result.state == states.REVOKED)


def has_ended(runs: list[Run]) -> bool:
    """Tell whether each body has ended or its process is gone."""
    return all(run.ended is not None or not is_alive(run.pid) for run in runs)


@pytest.mark.long
def test_soft_limit_that_lands_in_the_release_leaves_no_lock(
    deploy: Deploy, key: str
) -> None:
    """Of many runs that end at the moment of their soft limit, none keeps a lock.

    The limit may also interrupt Celery while it stores a result: that result is lost.
    And on a slow machine it may come before the body begins: that call has no run.
    """
    here = deploy()
    limit, spread = 0.4, 0.03
    results = {}
    for number in range(60):
        seconds = limit - spread + 2 * spread * number / 60
        each = f"{key}-{number}"
        results[each] = here.send("sleeper", each, seconds, soft_time_limit=limit)

    for each, result in results.items():
        until(lambda: here.stage.runs(each) or result.failed(), 60, what=each)  # noqa: B023

    here.nodes.until_free(key)
    here.send("sleeper", f"{key}-after", 0.0)
    until(lambda: here.stage.runs(f"{key}-after"), 10)


# -- The end of a child or a worker ------------------------------------------------


@pytest.mark.long
def test_child_that_is_replaced_leaves_no_lock(deploy: Deploy, key: str) -> None:
    """A child that ends because of ``max_tasks_per_child`` leaves no lock."""
    here = deploy(concurrency=1, options=["--max-tasks-per-child", "1"])

    pids = [here.send("whoami", key).get(timeout=60) for _ in range(2)]

    assert len(set(pids)) == 2
    here.nodes.until_free(key)


def test_warm_shutdown_keeps_the_lock_until_the_run_ends(
    deploy: Deploy, key: str
) -> None:
    """A worker in a warm shutdown renews the locks of the tasks that it still runs."""
    here = deploy(concurrency=1)
    result = here.begin("short", key)

    os.kill(here.worker.container.pid, signal.SIGTERM)
    until(lambda: "Warm shutdown" in here.logs())
    here.nodes.until_renewed(key, times=4)
    here.finish(key, result)

    here.nodes.until_free(key)
    here.worker.container.wait()
    assert here.stage.outcomes(key) == ["done"]


def test_cold_shutdown_frees_the_lock(deploy: Deploy, key: str) -> None:
    """A worker in a cold shutdown frees the locks of the tasks that it interrupts."""
    here = deploy(concurrency=1)
    here.begin("late", key)

    here.worker.kill("SIGQUIT")

    here.nodes.until_free(key)


# -- Kills -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["late", "limited-late"])
def test_killed_child_with_acks_late_is_run_again_once(
    prefork: Deployment, key: str, name: str
) -> None:
    """SIGKILL in the middle: the same job runs again soon, once, and ends well.

    The main process releases the lock, or the permit and what keeps copies out.
    """
    result = prefork.begin(name, key)

    prefork.kill_child(key)

    prefork.until_running(key, result.id, seconds=FREED_WITHIN)
    prefork.finish(key, result)
    assert prefork.stage.outcomes(key) == ["killed", "done"]
    prefork.nodes.until_free(key)


def test_killed_child_frees_the_locks_that_its_body_took(
    prefork: Deployment, key: str
) -> None:
    """A lock, a permit and a pair in a body are free as soon as the task's own."""
    result = prefork.begin("nesting", key)
    prefork.nodes.until_held(f"{key}-right")

    prefork.kill_child(key)

    prefork.nodes.until_free(key)
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)


def test_killed_child_frees_no_other_lock(prefork: Deployment, key: str) -> None:
    """Only the dead child's own lock is freed; a sibling's run keeps its own."""
    others = f"{key}-sibling"
    sibling = prefork.begin("job", others)
    prefork.begin("job", key)
    tokens = prefork.nodes.tokens(others)

    prefork.kill_child(key)

    until(lambda: not prefork.nodes.holders(key), FREED_WITHIN)
    assert prefork.nodes.tokens(others) == tokens
    prefork.nodes.until_held(others)
    prefork.finish(others, sibling)


def test_killed_worker_keeps_others_out_until_the_ttl_ends(
    deploy: Deploy, key: str
) -> None:
    """A killed worker leaves no process to release its lock; the lock's ttl ends it."""
    here = deploy(workers=2, concurrency=1, settings=redelivery())
    result = here.begin("late-short", key)

    here.kill_worker(key, here.worker_of(key))

    here.until_running(key, result.id, seconds=20)
    here.finish(key, result)
    assert here.stage.outcomes(key) == ["killed", "done"]
    assert here.stage.overlaps(key) == []
    here.nodes.until_free(key)
