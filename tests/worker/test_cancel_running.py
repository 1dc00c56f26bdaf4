"""``cancel_running``: the newest call replaces the running call, never beside it."""

from __future__ import annotations

import os
import signal
import time

import pytest
from celery import states
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_redlock import DuplicateTask, LockCancelled
from tests.conftest import with_long
from tests.harness.deployment import Deploy, Deployment
from tests.harness.waiting import until
from tests.worker.support import assert_refused, redelivery


def until_asked(here: Deployment, result: AsyncResult) -> None:
    """Wait until this call has asked the running call to end."""
    until(
        lambda: f"[{result.id}] will cancel the running call" in here.logs(),
        what=f"{result.id} to ask the one that runs to end",
    )


def assert_cancelled(first: AsyncResult, by: AsyncResult) -> None:
    """Check that a call ends as cancelled, and that its error names the other call."""
    with pytest.raises(LockCancelled, match=by.id):
        first.get(timeout=60)


def test_newcomer_replaces_the_running_call(any_pool: Deployment, key: str) -> None:
    """The running call ends as REVOKED and names the newcomer, which runs after it."""
    first = any_pool.begin("replacing", key, 1)

    second = any_pool.begin("replacing", key, 2)

    assert_cancelled(first, by=second)
    assert first.state == states.REVOKED
    any_pool.stage.open(key)
    assert second.get(timeout=60) == 2
    assert any_pool.stage.outcomes(key) == ["LockCancelled", "done"]
    assert any_pool.stage.overlaps(key) == []


def test_of_several_newcomers_the_newest_runs(here: Deployment, key: str) -> None:
    """Only the newest call counts: calls in between are cancelled, or never begin."""
    first = here.begin("replacing-tidy", key, 0)
    others = []
    for number in (1, 2, 3):
        others.append(here.send("replacing-tidy", key, number))
        until_asked(here, others[-1])

    here.stage.open(f"{key}-tidied")
    here.stage.open(f"{key}-3")

    assert first.get(timeout=60) == "half of 0"
    assert others[-1].get(timeout=60) == "all of 3"
    for other in others[:-1]:
        with pytest.raises(DuplicateTask, match="runs instead"):
            other.get(timeout=60)
        assert other.state == states.REVOKED
    assert here.stage.overlaps(key) == []


def test_newcomer_that_expires_has_cancelled_the_running_call(
    prefork: Deployment, key: str
) -> None:
    """It expires while the body cleans up, and no call runs to its end."""
    first = prefork.send("replacing-tidy", key, 1)
    prefork.until_running(key, first.id)

    newcomer = prefork.send("replacing-tidy", key, 2, expires=1)
    until_asked(prefork, newcomer)
    expires_at = time.time() + 1
    until(lambda: time.time() > expires_at, what="the expiry")
    prefork.stage.open(f"{key}-tidied")

    assert first.get(timeout=60) == "half of 1"
    with pytest.raises(TaskRevokedError, match="expired"):
        newcomer.get(timeout=60)
    assert len(prefork.stage.runs(key)) == 1


def test_older_call_does_not_cancel_a_newer_one(here: Deployment, key: str) -> None:
    """The newest call is the one published last, not the one received last."""
    late = {"redlock": {"published": 1_000_000}}
    newer = here.begin("replacing", key, 2)

    # By name, as a publisher without this package does: the nodes have no number.
    older = here.app.send_task("replacing", [key, 1], headers=late)

    assert_refused(older, newer)
    assert older.state == states.REVOKED
    here.stage.open(key)
    assert newer.get(timeout=60) == 2
    assert here.stage.notes(key, "signal-cancelled") == []


def test_block_outside_of_a_task_asks_its_lease(here: Deployment, key: str) -> None:
    """A ``with task.lock(...)`` block is not interrupted, but can ask its lease.

    No call runs beside the block.
    """
    with here.task("replacing").lock(key) as lease:
        second = here.send("replacing", key, 2)
        until(lambda: lease.cancelled_by)
        with pytest.raises(LockCancelled, match=second.id):
            lease.ensure()
        assert here.stage.runs(key) == []
        assert lease.is_valid()

    here.stage.open(key)
    assert second.get(timeout=60) == 2


@pytest.mark.parametrize("victim", with_long(["running", "newcomer"], "newcomer"))
@pytest.mark.long
def test_killed_workers_lose_no_newest_call(
    deploy: Deploy, key: str, victim: str
) -> None:
    """SIGKILL the worker of either call: the newest runs in the end, and alone."""
    here = deploy(workers=2, concurrency=1, settings=redelivery(after=4))
    here.begin("replacing-late", key, 1)
    running = here.worker_of(key)
    (body,) = here.stage.running(key)
    os.kill(body.pid, signal.SIGSTOP)  # it must not notice the request yet

    newest = here.send("replacing-late", key, 2)
    until_asked(here, newest)
    number = running if victim == "running" else 1 - running
    here.kill_worker(key, number, [newest] if victim == "newcomer" else [])
    if victim == "newcomer":
        os.kill(body.pid, signal.SIGCONT)
    here.start_worker(number)
    here.stage.open(key)

    assert newest.get(timeout=60) == 2
    assert here.stage.overlaps(key) == []
