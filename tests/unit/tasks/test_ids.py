"""One id for several calls: retries, replacements, ids that are used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import states

if TYPE_CHECKING:
    from tests.unit.tasks.support import Worker


@pytest.mark.parametrize("request_", [{"retries": 1}, {"replaced_task_nesting": 1}])
def test_call_that_follows_its_holder_runs_when_that_has_ended(
    worker: Worker, request_: dict[str, Any]
) -> None:
    """Its parent has stored SUCCESS under the same id, and that is not its own."""
    job = worker.leased_job()
    with worker.held(worker.call_id):
        assert worker.run(job, id=worker.call_id, **request_).state == states.RETRY
    job.backend.mark_as_done(worker.call_id, "of the parent")

    run = worker.run(job, id=worker.call_id, **request_)

    assert run.state == states.SUCCESS


def test_redelivered_retry_is_a_copy_of_the_first_one(worker: Worker) -> None:
    """The broker says that it comes again: what has the lock may be its first copy."""
    job = worker.leased_job()
    with worker.held(worker.call_id):
        assert worker.redeliver(job, id=worker.call_id, retries=1).state == "IGNORED"
    job.backend.mark_as_done(worker.call_id, "done")

    assert worker.redeliver(job, id=worker.call_id, retries=1).state == "IGNORED"


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
