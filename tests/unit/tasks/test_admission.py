"""What becomes of a call that is refused its lock: the table, line by line."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import states
from celery.exceptions import TaskRevokedError

from celery_redlock import (
    DuplicateTask,
    LockContended,
    QuorumUnreachable,
    current_lease,
    singleton_task,
)
from celery_redlock.core.lease import Holder
from celery_redlock.testing import SignalRecorder
from tests.unit.core.support import put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker


def singleton(app: Celery, **options: Any) -> Any:
    """Return a task that says whether it has a lease."""

    @singleton_task(app=app, shared=False, name="job", key="k", **options)
    def job(_: Any = None) -> bool:
        return current_lease() is not None

    return job


@contextmanager
def held(rival: Redlock, task_id: str = "other-id") -> Iterator[None]:
    """Let another execution hold the lock of the task."""
    lease = rival.acquire("k", facts=Holder.here(task="job", task_id=task_id))
    yield
    rival.release(lease)


# -- a real duplicate --------------------------------------------------------------


def test_skip_finishes_the_result_and_names_holder_policy_and_key(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """A skipped duplicate has a result that ends every wait, and says why."""
    task = singleton(app)

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
    task = singleton(app, ignore_result=True)

    with held(rival):
        run = worker.run(task)

    assert (run.state, run.stored) == (states.IGNORED, states.PENDING)


def test_raise_fails_with_the_holder_in_the_error(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """``raise`` is a failure, which errbacks see."""
    task = singleton(app, on_conflict="raise")

    with held(rival):
        run = worker.run(task)

    assert (run.state, run.stored) == (states.FAILURE, states.FAILURE)
    assert isinstance(run.result, DuplicateTask)


def test_retry_publishes_the_same_call_and_spends_no_retry(
    app: Celery, worker: Worker, call_id: str, rival: Redlock
) -> None:
    """The copy has the id, the arguments and the count of retries of the first."""
    task = singleton(app, on_conflict="retry", retry_countdown=7, max_retries=0)

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
    task = singleton(app, on_conflict="retry")
    expires = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()

    with held(rival):
        worker.run(task, expires=expires)

    ((headers, _),) = worker.published
    assert headers["expires"] == expires


def test_wait_keeps_the_slot_and_then_gives_up(
    app: Celery, worker: Worker, nodes: FakeNodes, rival: Redlock
) -> None:
    """After ``wait_timeout`` the duplicate fails, and says how long it waited."""
    task = singleton(app, on_conflict="wait", wait_timeout=4)
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
    task = singleton(app, on_conflict="allow")

    with held(rival):
        run = worker.run(task)

    assert (run.stored, run.result) == (states.SUCCESS, False)


def test_conflict_is_announced_with_its_decision(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """Whoever listens learns who wanted what, who has it and what was decided."""
    task = singleton(app)

    with SignalRecorder("lock_conflict") as events, held(rival):
        run = worker.run(task, 42)

    (event,) = events.seen
    assert event.sender.name == task.name
    assert event.conflict.task_id == run.id
    assert event.conflict.holder.task_id == "other-id"
    assert event.conflict.args == (42,)
    assert type(event.decision).__name__ == "Skip"


# -- the same call again -------------------------------------------------------------


def test_copy_of_a_running_call_is_put_back_and_leaves_the_result_alone(
    app: Celery, worker: Worker, call_id: str, nodes: FakeNodes, rival: Redlock
) -> None:
    """It waits a second, goes back into the queue without its expiry, and is silent."""
    task = singleton(app)
    began = nodes.clock.monotonic()

    with held(rival, call_id):
        run = worker.redeliver(task, 42, id=call_id, retries=1, expires=None)

    assert (run.state, run.stored) == (states.IGNORED, states.PENDING)
    ((headers, body),) = worker.published
    assert (headers["id"], headers["retries"], body[0]) == (call_id, 1, [42])
    assert headers["redlock"] == {"deferred": 1, "outages": 0, "twin": True}
    assert headers["expires"] is None
    assert nodes.clock.monotonic() - began > 0.5


def test_copy_that_is_put_back_does_not_expire(
    app: Celery, worker: Worker, call_id: str, rival: Redlock
) -> None:
    """The expiry of a copy would end the result of the call that runs."""
    task = singleton(app)
    expires = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()

    with held(rival, call_id):
        worker.run(task, id=call_id, expires=expires)

    ((headers, _),) = worker.published
    assert headers["expires"] is None


def test_copy_waits_longer_each_time_up_to_the_ttl(
    app: Celery, worker: Worker, call_id: str, rival: Redlock
) -> None:
    """The countdown doubles: a job of hours is not asked for every second."""
    task = singleton(app)
    delays = []

    with held(rival, call_id):
        for deferred in (0, 2, 20):
            envelope = {"deferred": deferred, "twin": True}
            now = datetime.now(timezone.utc)
            worker.run(task, id=call_id, redlock=envelope)
            eta = datetime.fromisoformat(worker.published[-1][0]["eta"])
            delays.append((eta - now).total_seconds())

    for delay, longest in zip(delays, (1, 4, 10), strict=True):
        assert longest / 2 - 0.1 <= delay <= longest + 0.1


def test_copy_of_a_call_that_has_ended_is_dropped(
    app: Celery, worker: Worker, call_id: str
) -> None:
    """A stored result says that it has been done."""
    task = singleton(app)
    task.backend.store_result(call_id, "the result", states.SUCCESS)

    run = worker.redeliver(task, id=call_id)

    assert (run.state, run.result) == (states.IGNORED, "the result")
    assert worker.published == []


def test_copy_of_a_call_that_has_ended_is_no_duplicate_either(
    app: Celery, worker: Worker, call_id: str, rival: Redlock
) -> None:
    """Not even when somebody else holds the lock by now: the result stays."""
    task = singleton(app)
    task.backend.store_result(call_id, "the result", states.SUCCESS)

    with held(rival):
        run = worker.redeliver(task, id=call_id)

    assert (run.stored, run.result) == (states.SUCCESS, "the result")


def test_copy_of_a_call_without_a_result_runs(
    app: Celery, worker: Worker, call_id: str
) -> None:
    """Its first copy died: this one takes its place, under the lock."""
    run = worker.redeliver(singleton(app), id=call_id)

    assert (run.stored, run.result) == (states.SUCCESS, True)


def test_redelivered_call_that_has_expired_ends_as_expired(
    app: Celery, worker: Worker, call_id: str
) -> None:
    """Nobody runs it, says the lock; so its expiry counts."""
    expires = (datetime.now(timezone.utc) - timedelta(seconds=1)).isoformat()

    run = worker.redeliver(singleton(app), id=call_id, expires=expires)

    assert run.stored == states.REVOKED
    assert isinstance(run.result, TaskRevokedError)


# -- nobody, or too few --------------------------------------------------------------


def test_split_votes_are_put_back_and_never_skipped(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """Where no majority names a holder there is no duplicate."""
    task = singleton(app)
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
    task = singleton(app, on_backend_error=policy)
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
    task = singleton(app)
    nodes.partition(0, 1)

    worker.run(task, redlock={"deferred": 3, "outages": 2})

    ((headers, _),) = worker.published
    assert headers["redlock"] == {"deferred": 3, "outages": 3, "twin": False}
