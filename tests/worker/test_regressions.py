"""Bugs that other job systems had with uniqueness, each where it would show here.

Many were tried here before anybody asked whose they are:

celery-singleton #40, Laravel #37060, the lock stays after a hard limit or a kill
    worker/test_endings.py::test_hard_limit_frees_the_lock_once_the_child_is_gone
    worker/test_deaths.py::test_killed_child_without_acks_late_frees_its_lock
    worker/test_deaths.py::test_killed_worker_keeps_others_out_until_the_ttl_ends
celery-singleton #20 #26 #55, retries are refused; the refusal ends the worker
    worker/test_redelivery.py::test_retries_without_delay_all_run
    worker/test_conflicts.py::test_raise_fails_the_duplicate_and_spares_the_worker
celery-heimdall, a refused duplicate frees the lock of the one that runs
    worker/test_conflicts.py::test_skip_leaves_the_lock_to_its_holder
celery-once, the key is computed again at the end; different calls share one
    worker/test_kinds.py::test_body_that_mutates_its_arguments_frees_the_lock_it_took
    worker/test_kinds.py::test_different_calls_are_different
celery-once #136, publishers that go round the task's own method
    worker/test_kinds.py::test_publisher_that_knows_only_the_name_is_deduplicated
rhubarb, state on the task: threads free each other's locks
    worker/test_pools.py::test_pool_runs_different_calls_at_once
celery #5935, kombu #337, one job is delivered twice
    worker/test_redelivery.py::test_redelivery_while_the_job_runs_runs_it_once
    worker/test_redelivery.py::test_redelivery_without_results_never_overlaps
GoodJob #622, a retry locks what its arguments have become
    worker/test_loss.py::test_retry_sends_the_arguments_as_they_came
Sidekiq unique jobs #779, a live lock is removed with the lock of a dead process
    worker/test_deaths.py::test_killed_child_does_not_free_the_locks_of_others
Sidekiq unique jobs #749, activejob-uniqueness #78, calls are dropped silently
    worker/test_conflicts.py::test_skip_ends_the_duplicate_as_revoked_and_names_the_holder
    worker/test_unreachable.py::test_retry_runs_the_job_when_the_nodes_are_back
activejob-uniqueness #23 #24, a split vote is taken for a duplicate
    worker/test_conflicts.py::test_split_votes_are_never_a_reason_to_skip
BullMQ #4311, an outage leaves keys
    worker/test_unreachable.py::test_failed_attempts_leave_nothing_on_the_nodes_that_answered
Prefect #18893, marked as crashed while it goes on
    worker/test_loss.py::test_body_that_swallows_the_loss_does_not_succeed
    worker/test_loss.py::test_body_that_goes_on_after_the_loss_is_struck_again
python-redis-lock #85 #91, renewal in a task, renewal under gevent
    worker/test_pools.py::test_pool_renews_the_lock_while_the_body_runs
DistributedLock, the holder is killed: who is next, and when
    worker/test_deaths.py::test_killed_child_with_acks_late_is_run_again_once
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from celery import states, uuid
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule

from celery_redlock import DuplicateTask
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.result import AsyncResult

    from tests.worker.harness.deployment import Deployment


def send_by_beat(here: Deployment, name: str, key: str) -> AsyncResult:
    """Send a call as beat does when its entry is due."""
    entry = ScheduleEntry(
        name=f"{name}-{key}",
        task=name,
        schedule=schedule(timedelta(hours=1), app=here.app),
        args=(key,),
        app=here.app,
    )
    return Scheduler(here.app, lazy=True).apply_async(entry, advance=False)


@pytest.mark.parametrize("late", ["beat", "somebody"])
def test_call_obeys_whether_beat_or_somebody_sends_it(
    prefork: Deployment, key: str, late: str
) -> None:
    """An entry of beat and a call by hand are one job: the later is the duplicate.

    Source: celery-once #136, locks that beat ignores; Temporal sdk-typescript
    #1594, schedules that are triggered by hand and overlap.
    """
    if late == "beat":
        first = prefork.begin("job", key)
        second = send_by_beat(prefork, "job", key)
    else:
        first = send_by_beat(prefork, "job", key)
        prefork.until_running(key, first.id)
        second = prefork.send("job", key)

    with pytest.raises(DuplicateTask, match=first.id):
        second.get(timeout=10)

    assert second.state == states.REVOKED
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert len(prefork.stage.runs(key)) == 1


def test_call_that_was_revoked_before_it_began_leaves_no_lock(
    prefork: Deployment, key: str
) -> None:
    """What never ran holds nothing, and the next equal call runs.

    Source: celery-singleton #29.
    """
    task_id = uuid()
    replies = prefork.app.control.revoke(task_id, reply=True, timeout=10, limit=1)
    assert len(replies) == 1

    revoked = prefork.send("job", key, task_id=task_id)
    until(lambda: revoked.state == states.REVOKED)

    assert prefork.nodes.holders(key) == []
    prefork.stage.open(key)
    result = prefork.send("job", key)
    assert result.get(timeout=10) == result.id
    assert [run.task_id for run in prefork.stage.runs(key)] == [result.id]


def test_late_finisher_does_not_free_its_successor(
    prefork: Deployment, key: str
) -> None:
    """A body that lost its lock, and goes on, ends without touching the next one's.

    Source: Laravel #59567, "an unbounded number of duplicates"; Solid Queue.
    """
    late = prefork.begin("lost-warn", key)
    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.notes(key, "signal-lost"))
    prefork.nodes.give_back(key)
    with prefork.task("job").lock(key) as successor:
        prefork.stage.open(key)
        assert late.get(timeout=10) is False
        prefork.until_idle()

        successor.ensure(network=True)

        with pytest.raises(DuplicateTask):
            prefork.send("job", key).get(timeout=10)


def test_worker_that_comes_and_goes_leaves_live_locks(
    prefork: Deployment, deploy: Callable[..., Deployment], key: str
) -> None:
    """No worker clears what it finds, neither when it starts nor when it stops.

    Source: celery-singleton, ``clear_locks`` at start; Sidekiq unique jobs #488,
    #779 and others, the reaper and the jobs that run.
    """
    first = prefork.begin("job", key)
    holders = prefork.nodes.holders(key)

    other = deploy(concurrency=1)
    assert other.send("quick", f"{key}-other").get(timeout=10)
    os.kill(other.worker.container.pid, signal.SIGTERM)
    other.worker.container.wait()

    assert prefork.nodes.holders(key) == holders
    with pytest.raises(DuplicateTask, match=first.id):
        prefork.send("job", key).get(timeout=10)
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id


def test_retry_that_is_due_after_the_ttl_takes_the_lock_anew(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """Between two attempts others may run; the second one has a lock of its own.

    Source: Prefect #20251, a retry delay longer than the lease.
    """
    delay = {"lost-autoretry": {"default_retry_delay": 3}}  # seconds; the ttl is 1.5
    here = deploy(concurrency=2, settings={"task_annotations": delay})
    first = here.begin("lost-autoretry", key)
    here.nodes.steal(key, seconds=30)
    until(lambda: first.state == states.RETRY)
    here.nodes.give_back(key)
    here.nodes.until_free(key)

    between = here.send("quick", key)

    assert between.get(timeout=10) == between.id
    here.until_running(key, first.id)
    here.nodes.until_held(key)
    here.nodes.until_renewed(key, times=4)
    here.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert [run.task_id for run in here.stage.runs(key)] == [
        *(first.id, between.id, first.id)
    ]
    assert here.stage.overlaps(key) == []
