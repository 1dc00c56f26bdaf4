"""One id for several calls: retries, replacements, ids that are used again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import states

from tests.unit.tasks.support import Worker


def _retries(job: Any) -> None:
    job.retry((1,), throw=False, countdown=0)


def _sends_itself(job: Any) -> None:
    job.apply_async((1,), task_id=job.request.id)


def _replaces_itself(job: Any) -> None:
    job.replace(job.si(1))


@pytest.mark.parametrize("send", [_retries, _sends_itself, _replaces_itself])
def test_call_that_follows_its_holder_runs_when_that_has_ended(
    worker: Worker, send: Callable[[Any], None]
) -> None:
    """The result that its parent stores under the same id is not its own."""
    met, ran = [], []

    @worker.task(bind=True)
    def job(self: Any, number: int = 0) -> None:
        ran.append(number)
        if not number:
            try:
                send(self)
            finally:
                with ThreadPoolExecutor() as pool:
                    meet = pool.submit(worker.run, self, 1, id=worker.call_id)
                    met.append(meet.result())

    worker.run(job, id=worker.call_id)
    assert [run.state for run in met] == [states.RETRY]
    job.backend.mark_as_done(worker.call_id, "of the parent")

    assert worker.run(job, 1, id=worker.call_id).state == states.SUCCESS

    assert ran == [0, 1]


def test_retry_that_meets_its_own_copy_runs_once(worker: Worker) -> None:
    """Its countdown was longer than the visibility timeout, and the copy began first.

    The broker does not mark the first message of the two, and this one has waited.
    """
    job = worker.leased_job()
    request = {"id": worker.call_id, "retries": 1}
    with worker.held(worker.call_id):
        assert worker.run(job, **request).state == "IGNORED"
    job.backend.mark_as_done(worker.call_id, "of the copy")

    assert worker.run(job, **request).state == "IGNORED"


def test_redelivered_retry_is_a_copy_of_the_first_one(worker: Worker) -> None:
    """The broker says that it comes again: what has the lock may be its first copy."""
    job = worker.leased_job()
    with worker.held(worker.call_id):
        assert worker.redeliver(job, id=worker.call_id, retries=1).state == "IGNORED"
    job.backend.mark_as_done(worker.call_id, "done")

    assert worker.redeliver(job, id=worker.call_id, retries=1).state == "IGNORED"


def test_copy_of_a_call_that_has_retried_itself_runs(worker: Worker) -> None:
    """RETRY is no end: it may be of an attempt before a process was killed."""
    job = worker.leased_job()
    with worker.held(worker.call_id):
        assert worker.redeliver(job, id=worker.call_id).state == "IGNORED"
    job.backend.mark_as_retry(worker.call_id, ValueError("not yet"))

    assert worker.redeliver(job, id=worker.call_id).state == states.SUCCESS


def test_id_that_is_used_again_is_a_call_of_its_own(worker: Worker) -> None:
    """It runs, with a conflict before and without."""
    job = worker.leased_job(on_conflict="retry")
    assert worker.run(job, id=worker.call_id).state == states.SUCCESS
    assert worker.run(job, id=worker.call_id).state == states.SUCCESS

    assert worker.refuse(job, id=worker.call_id).state == states.RETRY

    assert worker.run(job, id=worker.call_id).state == states.SUCCESS


def test_copy_that_was_published_twice_runs_once(worker: Worker) -> None:
    """Its publisher may have been killed before it acknowledged the first copy."""
    job = worker.leased_job(on_conflict="retry")
    assert worker.refuse(job, id=worker.call_id).state == states.RETRY
    assert worker.run(job, id=worker.call_id).state == states.SUCCESS

    assert worker.run(job, id=worker.call_id).state == "IGNORED"


@pytest.mark.parametrize("state", [states.FAILURE, states.REVOKED, states.SUCCESS])
def test_tracked_start_is_not_stored_over_an_end(worker: Worker, state: str) -> None:
    """A redelivered copy of an ended call does not run, and leaves its state."""
    job = worker.leased_job(track_started=True)
    error = ValueError("ended")
    if state == states.SUCCESS:
        job.backend.mark_as_done(worker.call_id, "done")
    else:
        job.backend.mark_as_failure(worker.call_id, error, state=state)

    run = worker.redeliver(job, id=worker.call_id)

    assert (run.state, run.stored) == ("IGNORED", state)


def test_start_is_tracked_when_the_body_begins(worker: Worker) -> None:
    """A call that waits for its lock, or is skipped, has not started."""
    seen = []

    @worker.task(bind=True, track_started=True)
    def job(self: Any) -> None:
        seen.append(self.AsyncResult(self.request.id).state)

    assert worker.refuse(job).stored == states.REVOKED
    assert worker.run(job).stored == states.SUCCESS
    assert seen == [states.STARTED]
