"""``on_conflict="wait"`` in real workers: a release wakes calls; the cost is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.waiting import until
from tests.worker.test_deaths import kill_child

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from tests.harness.deployment import Deployment

COST = "Calls of %s may wait for their lock"


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

    any_pool.stage.open(key)

    for result in results:
        assert result.get(timeout=20) == result.id
    assert sorted(ran(any_pool, key)) == sorted(result.id for result in results)
    assert any_pool.stage.overlaps(key) == []
    until_in_line(any_pool, key, 0)


def test_waiting_call_runs_when_the_holder_was_killed(
    prefork: Deployment, key: str
) -> None:
    """The worker's main process releases the dead child's lock, and wakes the call."""
    prefork.begin("job-wait", key)
    second = prefork.send("job-wait", key)
    until_in_line(prefork, key, 1)

    kill_child(prefork, key)

    until(lambda: second.id in ran(prefork, key), 20)
    prefork.stage.open(key)
    assert second.get(timeout=20) == second.id


def test_worker_says_at_its_start_what_waiting_costs(prefork: Deployment) -> None:
    """The worker logs the cost once for each task with the policy ``wait``."""
    until(lambda: COST % "job-wait-briefly" in prefork.logs())

    assert prefork.logs().count(COST % "job-wait ") <= 1
    assert prefork.logs().count(COST % "job-wait-briefly") == 1
    assert COST % "job-retry" not in prefork.logs()


def test_callable_that_waits_is_told_of_at_its_first_wait(
    prefork: Deployment, key: str
) -> None:
    """A function's decision cannot be known before that, so the cost is logged then."""
    name = "job-wait-then-retry"
    prefork.begin(name, key)

    second = prefork.send(name, key)

    until(lambda: COST % name in prefork.logs())
    prefork.stage.open(key)
    assert second.get(timeout=20) == second.id
