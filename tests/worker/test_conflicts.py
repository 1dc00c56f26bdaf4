"""Each policy of ``on_conflict``, for a call that finds its lock taken.

``buffer_one`` and ``cancel_running`` have files of their own. `test_seen_and_heard`
checks how each policy is reported.
"""

from __future__ import annotations

import pytest
from celery import states
from celery.result import AsyncResult

from celery_redlock import DuplicateTask
from tests.harness.deployment import Deployment
from tests.harness.waiting import until
from tests.worker.support import assert_refused

COST = "Calls of %s may wait for their lock"


# -- skip, raise, retry, allow -----------------------------------------------------


def test_skip_leaves_the_lock_to_its_holder(prefork: Deployment, key: str) -> None:
    """However many duplicates come and go, the running call keeps its lock."""
    first = prefork.begin("job", key)
    tokens = prefork.nodes.tokens(key)

    for _ in range(8):
        assert_refused(prefork.send("job", key), first)

    assert prefork.nodes.tokens(key) == tokens
    prefork.finish(key, first)
    assert len(prefork.stage.runs(key)) == 1


def test_skip_calls_neither_links_nor_errbacks(prefork: Deployment, key: str) -> None:
    """A skipped call has neither succeeded nor failed: nothing follows it."""
    prefork.begin("job", key)
    tail = prefork.task("tail").s(f"{key}-linked")

    with pytest.raises(DuplicateTask):
        prefork.send("job", key, link=tail, link_error=tail).get(timeout=60)

    prefork.send("quick", f"{key}-later").get(timeout=60)  # would come after them
    assert prefork.stage.runs(f"{key}-linked-tail") == []


def test_raise_spares_the_worker(prefork: Deployment, key: str) -> None:
    """The error survives the JSON result, and the worker runs the next call."""
    first = prefork.begin("job-raise", key)
    main = prefork.worker.container.pid

    second = prefork.send("job-raise", key)

    assert_refused(second, first)
    assert second.state == states.FAILURE
    prefork.finish(key, first)
    assert prefork.send("job-raise", key).get(timeout=60)
    assert prefork.worker.container.is_running
    assert prefork.worker.container.pid == main


def test_short_runs_follow_each_other(prefork: Deployment, key: str) -> None:
    """Calls that find a run just begun wait for it: none takes the long way twice."""
    results = [prefork.send("sleeper-retry", key, 0.02) for _ in range(40)]

    for result in results:
        assert result.get(timeout=60) == result.id
    logs = prefork.logs()
    republished = [logs.count(f"[{r.id}] will be republished, ") for r in results]
    assert max(republished) <= 1
    assert prefork.stage.overlaps(key) == []


def test_allow_runs_both_side_by_side(prefork: Deployment, key: str) -> None:
    """With ``allow`` the duplicate runs without the lock, and does not change it."""
    first = prefork.begin("job-allow", key)
    tokens = prefork.nodes.tokens(key)

    second = prefork.send("job-allow", key)

    prefork.until_running(key, first.id, second.id)
    assert prefork.nodes.tokens(key) == tokens
    prefork.finish(key, first, second)
    assert len(prefork.stage.overlaps(key)) == 1


# -- wait --------------------------------------------------------------------------


def until_in_line(here: Deployment, key: str, count: int) -> None:
    """Wait until the lock's wait queue has this many entries on every node."""
    until(
        lambda: all(
            int(node.command("ZCARD", f"redlock:line:{key}")) == count
            for node in here.nodes.dev.nodes
        )
    )


def ran(here: Deployment, key: str) -> list[str]:
    """Return the ids of the bodies that have begun, in order."""
    return [run.task_id for run in here.stage.runs(key)]


def test_waiting_calls_run_one_after_the_other(any_pool: Deployment, key: str) -> None:
    """In every pool the release of one call wakes the next, and no call is lost."""
    results: list[AsyncResult] = [any_pool.begin("job-wait", key)]
    for number in (1, 2, 3):
        results.append(any_pool.send("job-wait", key))
        until_in_line(any_pool, key, number)

    any_pool.finish(key, *results)

    assert sorted(ran(any_pool, key)) == sorted(result.id for result in results)
    assert any_pool.stage.overlaps(key) == []
    until_in_line(any_pool, key, 0)


def test_waiting_call_follows_a_killed_holder(prefork: Deployment, key: str) -> None:
    """The worker's main process releases the dead child's lock, and wakes the call."""
    prefork.begin("job-wait", key)
    second = prefork.send("job-wait", key)
    until_in_line(prefork, key, 1)

    prefork.kill_child(key)

    until(lambda: second.id in ran(prefork, key), 20)
    prefork.finish(key, second)


def test_worker_says_at_its_start_what_waiting_costs(prefork: Deployment) -> None:
    """The worker logs the cost once for each task with the policy ``wait``."""
    until(lambda: COST % "job-wait-briefly" in prefork.logs())

    assert prefork.logs().count(COST % "job-wait ") <= 1
    assert prefork.logs().count(COST % "job-wait-briefly") == 1
    assert COST % "job-retry" not in prefork.logs()


def test_callable_that_waits_is_logged_then(prefork: Deployment, key: str) -> None:
    """A function's decision is not known at the start: its first wait logs the cost."""
    name = "job-wait-then-retry"
    prefork.begin(name, key)

    second = prefork.send(name, key)

    until(lambda: COST % name in prefork.logs())
    prefork.finish(key, second)
