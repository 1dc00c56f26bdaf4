"""A lock is free soon after the end of its run: each exception, limit and shutdown."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from celery import states
from celery.exceptions import TimeLimitExceeded

from tests.harness.processes import is_alive
from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.deployment import Deployment
    from tests.harness.stage import Run

FREED_WITHIN = 6.0  # seconds, with a ttl of 30: the longest that a kill may go unseen


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("return", states.SUCCESS),
        ("exception", states.FAILURE),
        ("retry", states.SUCCESS),
        ("ignore", None),
        ("reject", states.FAILURE),
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

    prefork.nodes.until_free(key, FREED_WITHIN)
    if state:
        until(lambda: result.state == state)
    assert prefork.stage.overlaps(key) == []
    assert prefork.send("quick", key).get(timeout=10)


def test_autoretry_runs_each_attempt_under_the_lock(
    prefork: Deployment, key: str
) -> None:
    """``autoretry_for`` with a backoff sees its errors; no attempt is a duplicate."""
    result = prefork.send("autoretried", key)

    assert result.get(timeout=20) == 2
    assert [run.outcome for run in prefork.stage.runs(key)] == [
        *("ValueError", "ValueError", "done")
    ]
    prefork.nodes.until_free(key, FREED_WITHIN)


@pytest.mark.parametrize("how", ["return", "soft limit, tidied"])
def test_soft_limit_frees_the_lock(prefork: Deployment, key: str, how: str) -> None:
    """A soft time limit frees the lock, whether the body catches it or not."""
    result = prefork.begin("ending", key, how, soft_time_limit=1)
    prefork.nodes.until_held(key)

    until(result.ready)

    outcome = "done" if how != "return" else "SoftTimeLimitExceeded"
    assert [run.outcome for run in prefork.stage.runs(key)] == [outcome]
    prefork.nodes.until_free(key, FREED_WITHIN)


@pytest.mark.parametrize("how", ["return", "deaf"])
def test_hard_limit_frees_the_lock_once_the_child_is_gone(
    prefork: Deployment, key: str, how: str
) -> None:
    """A hard limit kills a child, also one that ignores SIGTERM, and frees its lock."""
    result = prefork.begin("ending", key, how, time_limit=1)

    prefork.nodes.until_free(key, FREED_WITHIN + 1)

    assert has_ended(prefork.stage.runs(key))
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=10)


@pytest.mark.parametrize("signame", ["TERM", "KILL"])
def test_revoke_with_terminate_frees_the_lock(
    prefork: Deployment, key: str, signame: str
) -> None:
    """A task that is revoked while it runs frees its lock when its child is gone."""
    result = prefork.begin("ending", key, "return")

    prefork.app.control.revoke(result.id, terminate=True, signal=signame)

    prefork.nodes.until_free(key, FREED_WITHIN)
    assert has_ended(prefork.stage.runs(key))
    until(lambda: result.state == states.REVOKED)


def has_ended(runs: list[Run]) -> bool:
    """Tell whether each body has ended or its process is gone."""
    return all(run.ended is not None or not is_alive(run.pid) for run in runs)


def test_child_that_has_served_its_tasks_leaves_no_lock(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """A child that ends because of ``max_tasks_per_child`` leaves no lock."""
    here = deploy(concurrency=1, options=["--max-tasks-per-child", "1"])

    pids = [here.send("whoami", key).get(timeout=20) for _ in range(2)]

    assert len(set(pids)) == 2
    here.nodes.until_free(key, FREED_WITHIN)


def test_warm_shutdown_keeps_the_lock_until_the_run_ends(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """A worker in a warm shutdown renews the locks of the tasks that it still runs."""
    here = deploy(concurrency=1)
    result = here.begin("short", key)

    os.kill(here.worker.container.pid, signal.SIGTERM)
    until(lambda: "Warm shutdown" in here.logs())
    here.nodes.until_renewed(key, times=6)
    here.stage.open(key)

    assert result.get(timeout=10) == result.id
    here.nodes.until_free(key, FREED_WITHIN)
    here.worker.container.wait()
    assert [run.outcome for run in here.stage.runs(key)] == ["done"]


def test_cold_shutdown_frees_the_lock(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """A worker in a cold shutdown frees the locks of the tasks that it interrupts."""
    here = deploy(concurrency=1)
    here.begin("late", key)

    here.worker.kill("SIGQUIT")

    here.nodes.until_free(key, FREED_WITHIN)


def test_soft_limit_that_lands_in_the_release_leaves_no_lock(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """Of many runs that end at the moment of their soft limit, none keeps a lock.

    The limit may also interrupt Celery while it stores a result. That result is lost,
    so the test waits for runs and locks, and not for results.
    """
    here = deploy()
    limit, spread = 0.4, 0.03
    keys = [f"{key}-{number}" for number in range(60)]
    for number, each in enumerate(keys):
        seconds = limit - spread + 2 * spread * number / 60
        here.send("sleeper", each, seconds, soft_time_limit=limit)

    until(lambda: all(here.stage.runs(each) for each in keys), 60)

    here.nodes.until_free(key, FREED_WITHIN)
    here.send("sleeper", f"{key}-after", 0.0)
    until(lambda: here.stage.runs(f"{key}-after"), 10)
