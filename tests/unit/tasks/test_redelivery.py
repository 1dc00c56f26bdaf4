"""Redelivered calls: another copy with the same task id runs, or has ended."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from celery import states
from celery.exceptions import TaskRevokedError

from celery_redlock.task.outcome import has_ended
from tests.unit.tasks.support import held, leased_job

if TYPE_CHECKING:
    import pytest
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker


def test_copy_of_a_running_call_is_republished_and_leaves_the_result_alone(
    app: Celery, worker: Worker, call_id: str, nodes: FakeNodes, rival: Redlock
) -> None:
    """It waits a second and is republished without its expiry."""
    task = leased_job(app)
    began = nodes.clock.monotonic()

    with held(rival, call_id):
        run = worker.redeliver(task, 42, id=call_id, retries=1, expires=None)

    assert (run.state, run.stored) == (states.IGNORED, states.PENDING)
    ((headers, body),) = worker.published
    assert (headers["id"], headers["retries"], body[0]) == (call_id, 1, [42])
    assert headers["redlock"] == {"deferred": 1, "outages": 0, "redelivered": True}
    assert headers["expires"] is None
    assert nodes.clock.monotonic() - began > 0.5


def test_republished_copy_does_not_expire(
    app: Celery, worker: Worker, call_id: str, rival: Redlock
) -> None:
    """The expiry of a copy would end the result of the call that runs."""
    task = leased_job(app)
    expires = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()

    with held(rival, call_id):
        worker.run(task, id=call_id, expires=expires)

    ((headers, _),) = worker.published
    assert headers["expires"] is None


def test_copy_waits_longer_each_time_up_to_the_ttl(
    app: Celery, worker: Worker, call_id: str, rival: Redlock
) -> None:
    """The countdown doubles, so that a long job is not asked for every second."""
    task = leased_job(app)

    with held(rival, call_id):
        for deferred, seconds in ((0, 1), (2, 4), (20, 10)):
            began = datetime.now(timezone.utc)
            worker.run(
                task, id=call_id, redlock={"deferred": deferred, "redelivered": True}
            )
            ended = datetime.now(timezone.utc)

            eta = datetime.fromisoformat(worker.published[-1][0]["eta"])
            longest = timedelta(seconds=seconds)
            assert began + longest / 2 <= eta <= ended + longest


def test_copy_of_a_call_that_has_ended_is_dropped(
    app: Celery, worker: Worker, call_id: str
) -> None:
    """A stored result shows that the call has ended."""
    task = leased_job(app)
    task.backend.store_result(call_id, "the result", states.SUCCESS)

    run = worker.redeliver(task, id=call_id)

    assert (run.state, run.result) == (states.IGNORED, "the result")
    assert worker.published == []


def test_copy_of_a_call_that_has_ended_is_no_duplicate_either(
    app: Celery, worker: Worker, call_id: str, rival: Redlock
) -> None:
    """The result stays, even if another call holds the lock by now."""
    task = leased_job(app)
    task.backend.store_result(call_id, "the result", states.SUCCESS)

    with held(rival):
        run = worker.redeliver(task, id=call_id)

    assert (run.stored, run.result) == (states.SUCCESS, "the result")


def test_copy_of_a_call_without_a_result_runs(
    app: Celery, worker: Worker, call_id: str
) -> None:
    """The first copy died: this one runs under the lock."""
    run = worker.redeliver(leased_job(app), id=call_id)

    assert (run.stored, run.result) == (states.SUCCESS, True)


def test_redelivered_call_that_has_expired_ends_as_expired(
    app: Celery, worker: Worker, call_id: str
) -> None:
    """The lock shows that no copy runs, so the expiry counts."""
    expires = (datetime.now(timezone.utc) - timedelta(seconds=1)).isoformat()

    run = worker.redeliver(leased_job(app), id=call_id, expires=expires)

    assert run.stored == states.REVOKED
    assert isinstance(run.result, TaskRevokedError)


def test_app_without_a_result_backend_is_no_error(
    app: Celery, call_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No stored result can tell whether the other call has ended."""
    app.conf.result_backend = None
    task = leased_job(app)

    assert not has_ended(task, task.request, call_id)
    assert caplog.messages == []
