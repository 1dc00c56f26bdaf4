"""Calls that are unique before they run, with real workers: options and policies."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from celery import group, states

from celery_redlock import DuplicateTask
from celery_redlock.app.runtime import runtime_of
from celery_redlock.devnodes.processes import free_port
from celery_redlock.operations.doctor import Case, deploys
from tests.conftest import with_long
from tests.harness.waiting import until
from tests.worker.project.app import create_app
from tests.worker.project.versions import GONE
from tests.worker.support import assert_refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

    from celery_redlock.operations.doctor import Finding
    from tests.harness.deployment import Deploy, Deployment

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


def test_queued_or_running_lasts_to_the_end(here: Deployment, key: str) -> None:
    """Publishing an equal call returns the first job, and later its result."""
    with here.worker_paused():
        first = here.send("one-at-all", key)
        assert here.send("one-at-all", key).id == first.id

    here.until_running(key, first.id)
    until_unclaimed(here, key)
    second = here.send("one-at-all", key)
    assert (second.id, second.conflict.phase) == (first.id, "running")

    here.stage.open(key)
    assert second.get(timeout=SOON) == first.id
    here.nodes.until_free(key)
    third = here.send("one-at-all", key)
    assert third.get(timeout=SOON) == third.id != first.id
    assert len(here.stage.runs(key)) == 2


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
    until(lambda: not here.nodes.cools_down(key))
    here.nodes.until_all_see_the_end()
    until(lambda: here.send("one-in-a-while", key).id != first.id, SOON)
    until(lambda: len(here.stage.runs(key)) == 2)


def test_raise_names_the_job_to_the_publisher(here: Deployment, key: str) -> None:
    """The error has the job's id, so that its publisher can fetch the result."""
    first = here.begin("one-queued-raise", key)

    with pytest.raises(DuplicateTask, match=first.id) as refusal:
        here.send("one-queued-raise", key)

    assert refusal.value.holder is not None
    assert refusal.value.holder.task_id == first.id
    here.finish(key, first)
    assert len(here.stage.runs(key)) == 1


def test_allow_leaves_it_to_the_worker(here: Deployment, key: str) -> None:
    """The publisher sees the conflict; the worker applies its own stage's policy."""
    first = here.begin("one-queued-allow", key)

    second = here.send("one-queued-allow", key)

    assert second.conflict.holder.task_id == first.id
    assert_refused(second, first)
    here.finish(key, first)


def test_callable_is_asked_at_both_stages(here: Deployment, key: str) -> None:
    """The function raises at the publisher, and skips in the worker."""
    first = here.begin("one-queued-callable", key)

    with pytest.raises(DuplicateTask, match=first.id):
        here.send("one-queued-callable", key)
    by_name = here.app.send_task("one-queued-callable", (key,))

    assert_refused(by_name, first)
    assert by_name.state == states.REVOKED


def test_canvas_is_deduplicated_when_it_runs(here: Deployment, key: str) -> None:
    """Members are published under the ids that the group waits for: none hangs."""
    first = here.begin("one-at-all", key)

    both = group(here.task("one-at-all").s(key) for _ in range(2)).apply_async()

    until(both.ready, SOON)
    assert {result.state for result in both} == {states.REVOKED}
    here.finish(key, first)
    assert len(here.stage.runs(key)) == 1


def test_retry_keeps_others_out_while_it_waits(here: Deployment, key: str) -> None:
    """A job that retries itself is queued again, so an equal call is not published."""
    first = here.send("one-queued-again", key)

    until(lambda: first.state == states.RETRY, SOON)
    here.nodes.until_free(key)
    second = here.send("one-queued-again", key)

    assert (second.id, second.conflict.phase) == (first.id, "queued")
    here.finish(key, first)
    assert len(here.stage.runs(key)) == 1


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


@pytest.mark.long
def test_revoked_job_releases_its_claim(here: Deployment, key: str) -> None:
    """The next call is published: it does not wait for a job that will never run."""
    first = here.send("one-at-all", key, countdown=10)  # seconds to revoke it
    here.until_received(first.id, 1)
    assert here.nodes.claimant(key) == first.id

    first.revoke()

    until_unclaimed(here, key)
    assert first.state == states.REVOKED
    second = here.send("one-at-all", key)
    here.finish(key, second)


def test_expired_job_releases_its_claim(here: Deployment, key: str) -> None:
    """The claim of an expired job is withdrawn, and the next call is published."""
    with here.worker_paused():
        first = here.send("one-at-all", key, expires=0.001)
        assert here.nodes.claimant(key) == first.id

    until_unclaimed(here, key)
    here.nodes.until_all_see_the_end()

    second = here.send("one-at-all", key)
    here.finish(key, second)
    assert [run.task_id for run in here.stage.runs(key)] == [second.id]


def test_revoked_job_that_is_due_later_keeps_no_call_out(
    here: Deployment, key: str
) -> None:
    """Celery stores REVOKED at once, and discards the job when it is due."""
    first = here.send("one-at-all", key, countdown=3600)
    here.until_received(first.id, 1)

    first.revoke()
    until(lambda: first.state == states.REVOKED)
    second = here.send("one-at-all", key)

    assert second.id != first.id
    assert second.conflict is None
    here.finish(key, second)
    assert [run.task_id for run in here.stage.runs(key)] == [second.id]


def test_unpublished_job_releases_its_claim(here: Deployment, key: str) -> None:
    """A call that could not be published leaves no claim; the next attempt runs."""
    settings: dict[str, Any] = {
        "broker_url": f"redis://127.0.0.1:{free_port()}/0",
        # Without these, Kombu connects again after 2 and 4 seconds.
        "broker_transport_options": {"max_retries": 1, "interval_start": 0.1},
        "task_publish_retry": False,
    }

    with publisher(here, **settings) as cut_off:
        with pytest.raises(Exception, match="refused"):
            cut_off.tasks["one-at-all"].delay(key)
        until_unclaimed(here, key)

    here.finish(key, here.send("one-at-all", key))


def test_job_is_published_if_no_node_answers(here: Deployment, key: str) -> None:
    """A publisher that cannot reach the nodes publishes; the workers deduplicate."""
    gone = [f"redis://127.0.0.1:{free_port()}/0" for _ in range(3)]

    with publisher(here, redlock_nodes=gone) as cut_off:
        ids = {cut_off.tasks["one-at-all"].delay(key).id for _ in range(2)}

    assert len(ids) == 2
    results = [here.app.AsyncResult(task_id) for task_id in ids]
    until(lambda: any(result.ready() for result in results), SOON)
    here.stage.open(key)
    until(lambda: all(result.ready() for result in results), SOON)
    final = sorted(result.state for result in results)
    assert final == [states.REVOKED, states.SUCCESS]
    assert len(here.stage.runs(key)) == 1


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
        *(
            pytest.param(*versions, marks=pytest.mark.long)
            for versions in (
                ("another key", "first"),
                ("first", "one argument more"),
                ("one argument more", "first"),
                ("first", "unclaimed"),
                ("unclaimed", "first"),
            )
        ),
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


@pytest.mark.parametrize("run_by", with_long(["no default", GONE], GONE))
@pytest.mark.long
def test_worker_that_cannot_run_a_job_releases_its_claim(
    deploy: Deploy, key: str, run_by: str
) -> None:
    """Its arguments do not fit any more, or the worker does not know the task."""
    workers = deploy(concurrency=1, settings={"project_version": run_by})
    with publisher(workers) as app:
        task = app.tasks["evolving"]
        first = task.delay(key)
        result = workers.app.AsyncResult(first.id)

        until(lambda: result.state == states.FAILURE)

        until_unclaimed(workers, task.lock_key(key))


@pytest.mark.long
def test_argument_with_a_default_changes_no_key(deploy: Deploy, key: str) -> None:
    """Old and new workers, side by side: a call of either is the other's duplicate."""
    old = deploy(concurrency=1)
    new = deploy(concurrency=1, settings={"project_version": "one argument more"})
    first = old.begin("evolving", key)
    until_unclaimed(old, old.task("evolving").lock_key(key))

    with_default = new.send("evolving", key, False)  # noqa: FBT003  (a message)
    by_name = new.app.send_task("evolving", (key,), {"depth": 3})

    assert (with_default.id, with_default.conflict.phase) == (first.id, "running")
    assert_refused(by_name, first)
    other = new.send("evolving", key, force=True)
    new.until_running(key, first.id, other.id)
    old.finish(key, first)
    new.finish(key, other)


def test_doctor_names_workers_of_another_version(deploy: Deploy, key: str) -> None:
    """It asks the running workers for the arguments and lock options of their tasks."""
    workers = deploy(concurrency=1, settings={"project_version": "another key"})

    def look(app: Celery) -> list[Finding]:
        return [*deploys.versions(Case(runtime_of(app).redlock, [], app))]

    with publisher(workers, project_version="first") as app:
        found = look(app)

    name = workers.worker.container.node_name
    assert {(each.code, each.about) for each in found} == {
        ("other-version", "evolving")
    }
    assert f"other arguments or key in {name} than here" in str(found)
    assert f"other lock options in {name} than here" in str(found)
    assert look(workers.app) == []
