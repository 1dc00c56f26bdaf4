"""Calls that are unique before they run, with real workers: options and policies."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery, states
from celery.worker.request import Request

from celery_redlock.app.runtime import runtime_of
from celery_redlock.operations.doctor import Case, Finding
from celery_redlock.operations.doctor.workers import versions
from tests.harness.deployment import Deploy, Deployment
from tests.harness.waiting import until
from tests.worker.project.app import create_app
from tests.worker.support import assert_refused

SOON = 10.0  # seconds


def until_unclaimed(deployment: Deployment, key: str) -> None:
    """Wait until no job has the claim.

    A worker does not wait until the nodes have released it, and begins.
    """
    until(lambda: deployment.nodes.claimant(key) is None, what=f"no claim on {key}")


# -- options and policies --------------------------------------------------------


def test_queued_lets_one_wait_and_another_one_as_soon_as_that_runs(
    here: Deployment, key: str
) -> None:
    """Of many published calls one runs and one waits; the others return that one."""
    with here.worker_paused():
        first = here.send("one-queued", key)
        assert [here.send("one-queued", key).id for _ in range(3)] == [first.id] * 3

    here.until_running(key, first.id)
    until_unclaimed(here, key)
    second = here.send("one-queued", key)
    assert second.id != first.id
    assert [here.send("one-queued", key).id for _ in range(3)] == [second.id] * 3

    here.finish(key, first, second)
    assert [run.task_id for run in here.stage.runs(key)] == [first.id, second.id]
    assert here.stage.overlaps(key) == []


@pytest.mark.skipif(
    not hasattr(Request, "_retry_worker_lost"), reason="Celery does not retry it"
)
def test_call_that_celery_retries_for_its_killed_child_is_claimed_again(
    each_broker: Deployment, key: str
) -> None:
    """It waits for its countdown; until then no second call is published."""
    call = each_broker.begin("one-queued-retried", key)

    each_broker.kill_child(key)

    until(lambda: call.state == states.RETRY, what="the retry")
    assert each_broker.send("one-queued-retried", key).id == call.id
    each_broker.finish(key, call)
    assert [run.task_id for run in each_broker.stage.runs(key)] == [call.id] * 2


def test_unique_for_lasts_longer_than_the_run(here: Deployment, key: str) -> None:
    """A later call has the first one's result; a call sent by name is skipped."""
    first = here.send("one-in-a-while", key)
    assert first.get(timeout=SOON) == first.id
    here.nodes.until_free(key)

    second = here.send("one-in-a-while", key)
    assert (second.id, second.conflict.phase) == (first.id, "succeeded")
    by_name = here.app.send_task("one-in-a-while", (key,))
    assert_refused(by_name, first)
    assert by_name.state == states.REVOKED

    assert here.nodes.cools_down(key)
    here.nodes.end_cool_down(key)  # as its ttl does
    until(lambda: here.send("one-in-a-while", key).id != first.id, SOON)
    until(lambda: len(here.stage.runs(key)) == 2)


def test_one_of_many_publishers_wins(here: Deployment, key: str) -> None:
    """Each publisher has its own app, like processes of a web server; never two win."""
    with contextlib.ExitStack() as stack:
        apps = [stack.enter_context(publisher(here)) for _ in range(4)]
        for app in apps:
            runtime_of(app).redlock.check()  # connects to all of them
        for number in range(5):
            call = f"{key}-{number}"
            results = at_once(apps, call)
            (task_id,) = {result.id for result in results}
            assert sum(result.conflict is None for result in results) == 1
            here.stage.open(call)
            assert here.app.AsyncResult(task_id).get(timeout=SOON) == task_id
            assert len(here.stage.runs(call)) == 1


@contextlib.contextmanager
def publisher(deployment: Deployment, **settings: Any) -> Iterator[Celery]:
    """Give an app of its own that publishes to these workers."""
    conf = {
        "broker_url": deployment.app.conf.broker_url,
        "result_backend": "disabled://",
        "redlock_nodes": deployment.nodes.urls,
        **settings,
    }
    with create_app(conf) as app:
        yield app
        runtime_of(app).stop()
        runtime_of(app).redlock.close()


def at_once(apps: Sequence[Celery], call: str) -> list[Any]:
    """Let each app publish the call, all at the same instant."""
    gate = threading.Barrier(len(apps))

    def publish(app: Celery) -> Any:
        gate.wait(SOON)
        return app.tasks["one-at-all"].delay(call)

    with ThreadPoolExecutor(len(apps)) as pool:
        return list(pool.map(publish, apps))


# -- withdrawn -------------------------------------------------------------------


def test_killed_job_keeps_no_other_call_out(prefork: Deployment, key: str) -> None:
    """No claim outlives a killed job: once its lock is free, the next call runs."""
    first = prefork.begin("one-at-all", key)
    until_unclaimed(prefork, key)
    prefork.kill_child(key)

    prefork.nodes.until_free(key)
    second = prefork.send("one-at-all", key)

    prefork.finish(key, second)
    assert second.id != first.id


# -- two versions at a time ---------------------------------------------------------


@pytest.mark.parametrize(
    ("published_by", "run_by"),
    [
        ("first", "another key"),
        ("another key", "first"),
        ("first", "one argument more"),
        ("one argument more", "first"),
        ("first", "unclaimed"),
        ("unclaimed", "first"),
    ],
)
@pytest.mark.long
def test_worker_of_another_version_releases_the_claim(
    deploy: Deploy, key: str, published_by: str, run_by: str
) -> None:
    """The message names what was claimed, so no call is kept out afterwards."""
    workers = deploy(concurrency=1, settings={"project_version": run_by})
    with publisher(workers, project_version=published_by) as app:
        task = app.tasks["evolving"]
        first = task.delay(key)

        workers.until_running(key, first.id)

        until_unclaimed(workers, task.lock_key(key))


@pytest.mark.long
def test_doctor_names_workers_of_another_version(deploy: Deploy, key: str) -> None:
    """It asks the running workers for the arguments and lock options of their tasks."""
    workers = deploy(concurrency=1, settings={"project_version": "another key"})

    def look(app: Celery) -> list[Finding]:
        return [*versions(Case(runtime_of(app).redlock, [], app))]

    with publisher(workers, project_version="first") as app:
        found = look(app)

    name = workers.worker.container.node_name
    assert {(each.code, each.about) for each in found} == {
        ("other-version", "evolving")
    }
    assert f"other arguments or key in {name} than here" in str(found)
    assert f"other lock options in {name} than here" in str(found)
    assert look(workers.app) == []
