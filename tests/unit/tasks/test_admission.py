"""What becomes of a call that is refused its lock: the table, line by line."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from celery import states

from celery_redlock import DuplicateTask, LockContended, QuorumUnreachable
from celery_redlock.testing import SignalRecorder
from tests.unit.core.support import put
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
    """A skipped duplicate has a result that ends every wait, and says why."""
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
    """``ignore_result`` is kept to."""
    task = leased_job(app, ignore_result=True)

    with held(rival):
        run = worker.run(task)

    assert (run.state, run.stored) == (states.IGNORED, states.PENDING)


def test_raise_fails_with_the_holder_in_the_error(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """``raise`` is a failure, which errbacks see."""
    task = leased_job(app, on_conflict="raise")

    with held(rival):
        run = worker.run(task)

    assert (run.state, run.stored) == (states.FAILURE, states.FAILURE)
    assert isinstance(run.result, DuplicateTask)


def test_retry_publishes_the_same_call_and_spends_no_retry(
    app: Celery, worker: Worker, call_id: str, rival: Redlock
) -> None:
    """The copy has the id, the arguments and the count of retries of the first."""
    task = leased_job(app, on_conflict="retry", retry_countdown=7, max_retries=0)

    with held(rival):
        run = worker.run(task, 42, id=call_id, retries=2, group="group-id")

    assert (run.state, run.stored) == (states.RETRY, states.RETRY)
    ((headers, body),) = worker.published
    assert (headers["id"], headers["retries"], body[0]) == (call_id, 2, [42])
    assert headers["group"] == "group-id"
    assert headers["eta"] is not None
    assert headers["redlock"] == {"deferred": 1, "outages": 0, "twin": False}


def test_retry_keeps_the_expiry_of_a_first_copy(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """A call that has not begun may still expire while it waits."""
    task = leased_job(app, on_conflict="retry")
    expires = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()

    with held(rival):
        worker.run(task, expires=expires)

    ((headers, _),) = worker.published
    assert headers["expires"] == expires


def test_wait_keeps_the_slot_and_then_gives_up(
    app: Celery, worker: Worker, nodes: FakeNodes, rival: Redlock
) -> None:
    """After ``wait_timeout`` the duplicate fails, and says how long it waited."""
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
    """The body knows that it has no lease."""
    task = leased_job(app, on_conflict="allow")

    with held(rival):
        run = worker.run(task)

    assert (run.stored, run.result) == (states.SUCCESS, False)


def test_conflict_is_announced_with_its_decision(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """Whoever listens learns who wanted what, who has it and what was decided."""
    task = leased_job(app)

    with SignalRecorder("lock_conflict") as events, held(rival):
        run = worker.run(task, 42)

    (event,) = events.seen
    assert event.sender.name == task.name
    assert event.conflict.task_id == run.id
    assert event.conflict.holder.task_id == "other-id"
    assert event.conflict.args == (42,)
    assert type(event.decision).__name__ == "Skip"


# -- nobody, or too few ------------------------------------------------------------


def test_split_votes_are_put_back_and_never_skipped(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """Where no majority names a holder there is no duplicate."""
    task = leased_job(app)
    for index in range(3):
        put(nodes, index, f"token-{index}")

    run = worker.run(task)

    assert (run.state, run.stored) == (states.RETRY, states.RETRY)
    assert isinstance(run.result, LockContended)
    ((headers, _),) = worker.published
    assert headers["redlock"] == {"deferred": 1, "outages": 0, "twin": False}


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
    """Each word of ``on_backend_error`` does what it says."""
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
    """The next delay depends on how often it was an outage."""
    task = leased_job(app)
    nodes.partition(0, 1)

    worker.run(task, redlock={"deferred": 3, "outages": 2})

    ((headers, _),) = worker.published
    assert headers["redlock"] == {"deferred": 3, "outages": 3, "twin": False}
