"""Tasks with limits in real workers: never too many, none lost, and none left."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.exceptions import WorkerLostError
from celery.result import AsyncResult

from celery_redlock import Redlock, singleton_task
from celery_redlock.operations.doctor import Case, Finding, Severity
from celery_redlock.operations.doctor.workers import processes
from tests.harness.deployment import Deployment
from tests.harness.lock_nodes import FREED_WITHIN, NO_SUCH_KEY
from tests.harness.waiting import until
from tests.worker.project.jobs import AT_ONCE, PERIOD, STARTS


def begin(deployment: Deployment, key: str, part: str) -> AsyncResult:
    """Publish a job that waits for a gate of its own, and wait until it runs."""
    job = deployment.send("limited", key, part)
    deployment.until_running(f"{key}-{part}", job.id)
    return job


def until_refused(deployment: Deployment, call: AsyncResult) -> None:
    """Wait until a call has met its limit."""
    until(lambda: f"[{call.id}] will " in deployment.logs(), what="a refusal")


def are_there(here: Deployment, name: str) -> bool:
    """Tell whether any node has this key."""
    return any(
        node.command("PTTL", name) != NO_SUCH_KEY for node in here.nodes.dev.nodes
    )


def test_limit_is_never_exceeded_and_no_job_is_lost(here: Deployment, key: str) -> None:
    """Four processes take the jobs, and two run them."""
    calls = [here.send("limited-storm", key, 0.05) for _ in range(16)]

    assert [call.get(timeout=60) for call in calls] == [call.id for call in calls]
    assert here.stage.most_at_once(key) <= AT_ONCE
    assert len(here.stage.runs(key)) == len(calls)


def test_backlog_is_empty_when_its_jobs_have_run(here: Deployment, key: str) -> None:
    """Each came back in its turn, and left. How long runs take is known then."""
    calls = [here.send("backlog-storm", key, 0.05) for _ in range(24)]

    assert [call.get(timeout=60) for call in calls] == [call.id for call in calls]
    assert here.stage.most_at_once(key) <= AT_ONCE
    until(lambda: are_there(here, f"redlock:pace:{key}"), what="the mean of the runs")
    until(lambda: not are_there(here, f"redlock:backlog:{key}"), what="an empty one")


def test_killed_child_frees_its_permit(prefork: Deployment, key: str) -> None:
    """The main process releases it, and no other one: the next job runs."""
    first, second = (begin(prefork, key, part) for part in "ab")
    third = prefork.send("limited", key, "c")
    until_refused(prefork, third)

    prefork.kill_child(f"{key}-a")

    prefork.until_running(f"{key}-c", third.id, seconds=2 * FREED_WITHIN)
    with pytest.raises(WorkerLostError):
        first.get(timeout=60)
    prefork.until_running(f"{key}-b", second.id)
    fourth = prefork.send("limited", key, "d")
    until_refused(prefork, fourth)
    assert prefork.stage.runs(f"{key}-d") == []
    for part, call in zip("bcd", (second, third, fourth), strict=True):
        prefork.finish(f"{key}-{part}", call)


def test_each_key_has_its_limit(here: Deployment, key: str) -> None:
    """One job of each tenant at a time, and two of all of them."""
    calls = [here.send("tenant-storm", key, "abc"[n % 3]) for n in range(24)]

    assert [call.get(timeout=60) for call in calls] == [call.id for call in calls]
    assert here.stage.most_at_once(f"{key}-all") <= AT_ONCE
    for tenant in "abc":
        assert here.stage.most_at_once(f"{key}-{tenant}") == 1


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"limit": 5}, 5),
        ({"limit": 4}, None),
        ({"rate": "5/s"}, None),
        ({"keys": {"a": 1, "b": 9}}, 9),
        ({"keys": ["a", "b"]}, None),
    ],
)
def test_doctor_finds_a_limit_that_workers_do_not_reach(
    prefork: Deployment, options: dict[str, Any], limit: int | None
) -> None:
    """It asks the running workers how many tasks they run at once: four here."""
    app = Celery("looks", broker=prefork.app.conf.broker_url, set_as_current=False)

    @singleton_task(app=app, shared=False, name="looks.job", **options)
    def job() -> None: ...

    redlock = Redlock(prefork.nodes.urls)

    def findings() -> list[Finding]:
        return [*processes(Case(redlock, [], app))]

    # A busy worker may not answer within the second that the doctor gives it.
    found = findings() if limit is None else until(findings, what="an answer")

    app.close()
    redlock.close()
    if limit is None:
        assert found == []
    else:
        (finding,) = found
        assert (finding.code, finding.severity) == ("limit", Severity.NOTE)
        text = f"Task looks.job has a limit of {limit}, and the running workers"
        assert finding.fact.startswith(text)
        assert "run 4 tasks at once" in finding.fact


def test_no_period_has_more_starts_than_the_rate(here: Deployment, key: str) -> None:
    """However short the runs are, and over all processes. All jobs run in the end."""
    calls = [here.send("rated", key) for _ in range(2 * STARTS + 1)]

    assert [call.get(timeout=60) for call in calls] == [call.id for call in calls]
    starts = sorted(note["began_at"] for note in here.stage.notes(key, "start"))
    assert len(starts) == len(calls)
    for start, next_one in zip(starts, starts[STARTS:], strict=False):
        assert next_one - start >= PERIOD, starts
    here.nodes.until_free(key, 10 * PERIOD)
