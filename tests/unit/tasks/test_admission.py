"""Refused calls in a worker: the table of ``task.admission``, line by line."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from celery import states

from celery_redlock import DuplicateTask, LockContended, QuorumUnreachable
from celery_redlock.app.runtime import runtime_of
from celery_redlock.testing import SignalRecorder
from tests.unit.core.support import put
from tests.unit.support import CONFLICT
from tests.unit.tasks.support import held, leased_job

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker

# -- a real duplicate --------------------------------------------------------------


def test_skip_finishes_the_result_and_names_holder_policy_and_key(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """The result is final, and its error gives the reason."""
    task = leased_job(app)

    with held(rival):
        run = worker.run(task)

    assert (run.state, run.stored) == (states.IGNORED, states.REVOKED)
    assert isinstance(run.result, DuplicateTask)
    for word in ("other-id", "skip", "'k'", run.id):
        assert word in str(run.result)
    assert worker.published == []


def test_skip_of_a_task_without_results_stores_none(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """``ignore_result`` counts here, too."""
    task = leased_job(app, ignore_result=True)

    with held(rival):
        run = worker.run(task)

    assert (run.state, run.stored) == (states.IGNORED, states.PENDING)


def test_raise_fails_and_names_the_holder(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """``raise`` is a failure: error callbacks follow."""
    task = leased_job(app, on_conflict="raise")

    with held(rival):
        run = worker.run(task)

    assert (run.state, run.stored) == (states.FAILURE, states.FAILURE)
    assert isinstance(run.result, DuplicateTask)


def test_retry_republishes_the_same_call_and_spends_no_retry(
    app: Celery, worker: Worker, call_id: str, rival: Redlock
) -> None:
    """The copy has the id, the arguments and the count of retries of the call."""
    task = leased_job(app, on_conflict="retry", retry_countdown=7, max_retries=0)

    with held(rival):
        run = worker.run(task, 42, id=call_id, retries=2, group="group-id")

    assert (run.state, run.stored) == (states.RETRY, states.RETRY)
    ((headers, body),) = worker.published
    assert (headers["id"], headers["retries"], body[0]) == (call_id, 2, [42])
    assert headers["group"] == "group-id"
    assert headers["eta"] is not None
    assert headers["redlock"] == {"deferred": 1, "outages": 0, "redelivered": False}


def test_retry_keeps_the_expiry_of_a_first_copy(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """A call that has not begun may expire while it waits."""
    task = leased_job(app, on_conflict="retry")
    expires = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()

    with held(rival):
        worker.run(task, expires=expires)

    ((headers, _),) = worker.published
    assert headers["expires"] == expires


def test_wait_keeps_the_worker_process_until_its_timeout(
    app: Celery, worker: Worker, nodes: FakeNodes, rival: Redlock
) -> None:
    """After ``wait_timeout`` the duplicate fails, and its error names the time."""
    task = leased_job(app, on_conflict="wait", wait_timeout=4)
    began = nodes.clock.monotonic()

    with held(rival):
        run = worker.run(task)

    assert run.stored == states.FAILURE
    assert "after 4 s of waiting" in str(run.result)
    assert 3 < nodes.clock.monotonic() - began <= 4
    assert worker.published == []


def test_allow_runs_without_the_lock(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """The body has no lease."""
    task = leased_job(app, on_conflict="allow")

    with held(rival):
        run = worker.run(task)

    assert (run.stored, run.result) == (states.SUCCESS, False)


def test_conflict_is_signalled_with_its_decision(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """The signal carries the task, the situation with the holder, and the decision."""
    task = leased_job(app)

    with SignalRecorder("lock_conflict") as events, held(rival):
        run = worker.run(task, 42)

    (event,) = events.seen
    assert event.sender.name == task.name
    assert event.conflict.task_id == run.id
    assert event.conflict.holder.task_id == "other-id"
    assert event.conflict.args == (42,)
    assert type(event.decision).__name__ == "Skip"


def test_policies_of_a_task_are_resolved_once(app: Celery) -> None:
    """Each call uses the same resolved options; only the countdown is drawn anew."""
    task, runtime = leased_job(app, on_conflict="retry"), runtime_of(app)

    once = runtime.options(task.name, task.lock_options)
    again = runtime.options(task.name, task.lock_options)

    assert once is again
    assert once.on_conflict(CONFLICT) != once.on_conflict(CONFLICT)


# -- no holder, or too few nodes ----------------------------------------------------


def test_split_votes_are_republished_and_never_skipped(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """Without a holder that a majority names there is no duplicate."""
    task = leased_job(app)
    for index in range(3):
        put(nodes, index, f"token-{index}")

    run = worker.run(task)

    assert (run.state, run.stored) == (states.RETRY, states.RETRY)
    assert isinstance(run.result, LockContended)
    ((headers, _),) = worker.published
    assert headers["redlock"] == {"deferred": 1, "outages": 0, "redelivered": False}


@pytest.mark.parametrize(
    ("policy", "state", "stored"),
    [
        ("raise", states.FAILURE, states.FAILURE),
        ("skip", states.IGNORED, states.REVOKED),
        ("retry", states.RETRY, states.RETRY),
        ("run", states.SUCCESS, states.SUCCESS),
    ],
)
def test_unreachable_nodes_are_answered_by_on_backend_error(  # noqa: PLR0913
    app: Celery,
    worker: Worker,
    nodes: FakeNodes,
    *,
    policy: str,
    state: str,
    stored: str,
) -> None:
    """Each word of ``on_backend_error`` is performed."""
    task = leased_job(app, on_backend_error=policy)
    nodes.partition(0, 1)

    run = worker.run(task)

    assert (run.state, run.stored) == (state, stored)
    if policy == "run":
        assert run.result is False
    else:
        assert isinstance(run.result, QuorumUnreachable)
    assert len(worker.published) == (policy == "retry")


def test_outage_is_counted_apart_from_conflicts(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """The header counts outages and other deferrals separately."""
    task = leased_job(app)
    nodes.partition(0, 1)

    worker.run(task, redlock={"deferred": 3, "outages": 2})

    ((headers, _),) = worker.published
    assert headers["redlock"] == {"deferred": 3, "outages": 3, "redelivered": False}
