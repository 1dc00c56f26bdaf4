"""Calls that are published, and calls that get the job that is here already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import chain, chord, group, states

from celery_redlock.core.lease import Holder
from celery_redlock.policies import Conflict
from tests.unit.core.support import asked
from tests.unit.tasks.support import claims, held, messages, unique_job

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker

# -- a job that waits --------------------------------------------------------------


def test_second_call_is_the_first_one_while_that_waits(
    app: Celery, nodes: FakeNodes
) -> None:
    """The second call is not published; its caller gets the first one's result."""
    task = unique_job(app)

    first = task.delay(0)
    second = task.apply_async((), {"n": 0}, countdown=5)

    assert first.conflict is None
    assert second.id == first.id
    assert isinstance(second.conflict, Conflict)
    assert str(second.conflict.holder).startswith(f"job[{first.id}] on ")
    assert second.conflict.phase == "queued"
    assert second.conflict.stage == "publish"
    assert messages(app) == [first.id]
    assert list(claims(nodes)) == [first.id]


def test_call_with_other_arguments_is_another_one(app: Celery) -> None:
    """Claims are by key, as locks are."""
    task = unique_job(app)

    first, second = task.delay(1), task.delay(2)

    assert messages(app) == [first.id, second.id]


def test_task_that_is_unique_while_running_claims_nothing(
    app: Celery, nodes: FakeNodes
) -> None:
    """With ``unique_while="running"`` a publisher sends the nodes no request."""
    task = unique_job(app, "running")

    assert len({task.delay(0).id, task.delay(0).id}) == 2
    assert asked(nodes) == []


def test_call_that_does_not_fit_claims_nothing(app: Celery, nodes: FakeNodes) -> None:
    """Celery checks the arguments before a claim is taken."""
    task = unique_job(app)

    with pytest.raises(TypeError, match="argument"):
        task.delay(0, 1, 2)

    assert claims(nodes) == {}


def test_signature_of_a_single_call_is_a_plain_call(app: Celery) -> None:
    """``task.s(0).delay()`` is ``task.delay(0)``."""
    task = unique_job(app)

    first, second = task.s(0).delay(), task.s(0).apply_async(countdown=3)

    assert second.id == first.id


# -- queued, or running ------------------------------------------------------------


def test_queued_lets_one_wait_beside_one_that_runs(app: Celery, rival: Redlock) -> None:
    """With ``queued`` a held lock does not make a call a duplicate."""
    task = unique_job(app)

    with held(rival, "running", key="k:0"):
        first, second = task.delay(0), task.delay(0)

    assert second.id == first.id != "running"
    assert messages(app) == [first.id]


def test_queued_or_running_is_the_job_that_runs(app: Celery, rival: Redlock) -> None:
    """The lock shows a running job, also one sent by name or one without a claim."""
    task = unique_job(app, "queued_or_running")

    with held(rival, "running", key="k:0"):
        first = task.delay(0)

    assert first.id == "running"
    assert first.conflict.phase == "running"
    assert messages(app) == []
    again = task.delay(0)
    assert messages(app) == [again.id]


def test_lock_taken_outside_of_a_task_is_no_job(app: Celery, rival: Redlock) -> None:
    """Such a lock has no result to return; a worker checks the lock later."""
    task = unique_job(app, "queued_or_running")
    rival.acquire("k:0", holder=Holder.here())

    first = task.delay(0)

    assert (messages(app), first.conflict) == ([first.id], None)


# -- calls that are always published -----------------------------------------------


def test_canvas_is_always_published(app: Celery, nodes: FakeNodes) -> None:
    """Other calls know its task ids already, and would wait for them for ever."""
    task = unique_job(app)
    first = task.delay(0)

    group(task.s(0), task.s(0)).apply_async()
    chain(task.si(0), task.si(0)).apply_async()
    chord([task.s(0)], task.si(0)).apply_async()
    task.apply_async((0,), link=task.si(1))
    task.apply_async((0,), link_error=task.si(1))
    task.apply_async((0,), task_id="chosen")
    task.apply_async((0,), {}, "by position")

    ids = messages(app)
    assert len(ids) == 9
    assert ids[0] == first.id
    assert ids[-2:] == ["chosen", "by position"]
    assert list(claims(nodes)) == [first.id]


def test_callback_is_always_published(app: Celery, worker: Worker) -> None:
    """An error while a callback is published would fail the task before it."""
    task = unique_job(app, on_conflict="raise")
    first = task.delay(1)

    run = worker.run(task, 0, callbacks=[task.si(1)])

    assert run.stored == states.SUCCESS
    assert len(worker.published) == 2
    assert worker.published[0][0]["id"] == first.id


def test_call_by_name_is_not_asked_about(app: Celery, nodes: FakeNodes) -> None:
    """``send_task`` does not use the task class; the worker deduplicates."""
    task = unique_job(app)

    ids = [app.send_task(task.name, (0,)).id for _ in range(2)]

    assert messages(app) == ids
    assert claims(nodes) == {}


def test_eager_call_claims_nothing(app: Celery, nodes: FakeNodes) -> None:
    """An eager call never waits in a queue."""
    app.conf.task_always_eager = True
    task = unique_job(app)

    assert task.delay(3).get() == 3
    assert asked(nodes) == []
