"""Bugs that other job systems had with uniqueness, each where it would show here.

Tests of other files already covered many of them:

celery-singleton #40, Laravel #37060, the lock stays after a hard limit or a kill
    worker/test_endings.py::test_hard_limit_frees_the_lock_once_the_child_is_gone
    worker/test_endings.py::test_killed_child_frees_the_locks_that_its_body_took
    worker/test_endings.py::test_killed_worker_keeps_others_out_until_the_ttl_ends
celery-singleton #20 #26 #55, retries are refused; the refusal ends the worker
    worker/test_redelivery.py::test_retries_without_delay_all_run
    worker/test_conflicts.py::test_raise_spares_the_worker
celery-heimdall, a refused duplicate frees the lock of the one that runs
    worker/test_conflicts.py::test_skip_leaves_the_lock_to_its_holder
celery-once, the key is computed again at the end; different calls share one
    worker/test_kinds.py::test_body_may_mutate_its_arguments
    unit/options/test_call_key.py::test_different_on_the_wire_is_a_different_call
celery-once #136, publishers that go round the task's own method
    worker/test_kinds.py::test_call_by_name_is_deduplicated
rhubarb, state on the task: threads free each other's locks
    worker/test_pools.py::test_pool_runs_different_calls_at_once
celery #5935, kombu #337, one job is delivered twice
    worker/test_redelivery.py::test_redelivery_while_the_job_runs_runs_it_once
    worker/test_redelivery.py::test_copy_runs_after_a_job_without_result
GoodJob #622, a retry locks what its arguments have become
    unit/tasks/test_execution.py::test_retry_sends_the_arguments_as_they_came
Sidekiq unique jobs #779, a live lock is removed with the lock of a dead process
    worker/test_endings.py::test_killed_child_frees_no_other_lock
Sidekiq unique jobs #749, activejob-uniqueness #78, calls are dropped silently
    worker/test_seen_and_heard.py::test_duplicate_is_seen_and_heard
    worker/test_unreachable.py::test_retry_runs_the_job_when_the_nodes_are_back
Prefect #18893, marked as crashed while it goes on
    worker/test_loss.py::test_lost_run_ends_as_lost
Prefect #18942, marked as crashed after it finished
    nodes/test_renewal.py::test_forget_and_loss_exclude_each_other
Prefect #19068 #18839, python-redis-lock #91, a busy body starves the renewal
    nodes/test_many_threads.py::test_threads_without_pause_cost_no_lease
    nodes/test_event_loop.py::test_lease_is_renewed_while_the_loop_is_blocked
    unit/locking/test_block.py::test_lost_lock_is_noticed_without_an_announcement
lago-api #4538, half a second for each duplicate
    unit/locking/test_block.py::test_block_never_runs_without_the_lock
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from celery import states, uuid
from celery.beat import ScheduleEntry, Scheduler
from celery.result import AsyncResult
from celery.schedules import schedule

from celery_redlock import DuplicateTask
from celery_redlock.devnodes import DevNodes
from celery_redlock.election import Elector
from tests.harness.deployment import Deploy, Deployment
from tests.harness.waiting import until
from tests.nodes.support import BRIEF, client
from tests.worker.support import assert_refused


def tries(nodes: DevNodes) -> list[int]:
    """Count the acquires that each node has carried out.

    Each of them reads once what the node knows of itself; a release does not.
    """
    stats = [node.command("INFO", "commandstats") for node in nodes.nodes]
    return [stat["cmdstat_hmget"]["calls"] for stat in stats]


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


@pytest.mark.parametrize("late", ["beat", "client"])
def test_call_obeys_whether_beat_or_a_client_sends_it(
    prefork: Deployment, key: str, late: str
) -> None:
    """An entry of beat and a user's call are one job: the later is the duplicate.

    Source: celery-once #136, locks that beat ignores; Temporal sdk-typescript
    #1594, schedules that are triggered by hand and overlap.
    """
    ways: list[Callable[..., AsyncResult]]
    ways = [prefork.send, partial(send_by_beat, prefork)]
    former, latter = ways if late == "beat" else ways[::-1]
    first = former("job", key)
    prefork.until_running(key, first.id)
    second = latter("job", key)

    assert_refused(second, first)

    assert second.state == states.REVOKED
    prefork.finish(key, first)
    assert len(prefork.stage.runs(key)) == 1


def test_call_that_was_revoked_leaves_no_lock(prefork: Deployment, key: str) -> None:
    """A call that never ran holds no lock, and the next equal call runs.

    Source: celery-singleton #29.
    """
    task_id = uuid()
    replies = prefork.app.control.revoke(task_id, reply=True, timeout=10, limit=1)
    assert len(replies) == 1

    revoked = prefork.send("job", key, task_id=task_id)
    until(lambda: revoked.state == states.REVOKED)

    assert prefork.nodes.holders(key) == []
    result = prefork.send("job", key)
    prefork.finish(key, result)
    assert [run.task_id for run in prefork.stage.runs(key)] == [result.id]


def test_late_finisher_frees_no_successor(prefork: Deployment, key: str) -> None:
    """A body that goes on after a loss does not release its successor's lock.

    Source: Laravel #59567, "an unbounded number of duplicates"; Solid Queue.
    """
    late = prefork.begin("lost-warn", key)
    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.notes(key, "signal-lost"))
    prefork.nodes.undo_steal(key)
    with prefork.task("job").lock(key) as successor:
        prefork.stage.open(key)
        assert late.get(timeout=60) is False
        prefork.until_settled(late.id)

        successor.ensure(network=True)

        with pytest.raises(DuplicateTask):
            prefork.send("job", key).get(timeout=60)


@pytest.mark.long
def test_worker_that_comes_and_goes_leaves_live_locks(
    prefork: Deployment, deploy: Deploy, key: str
) -> None:
    """No worker removes locks that it finds, neither when it starts nor when it stops.

    Source: celery-singleton, ``clear_locks`` at start; Sidekiq unique jobs #488,
    #779 and others, the reaper and the jobs that run.
    """
    first = prefork.begin("job", key)
    prefork.nodes.until_held(key)
    tokens = prefork.nodes.tokens(key)

    other = deploy(concurrency=1)
    assert other.send("quick", f"{key}-other").get(timeout=60)
    os.kill(other.worker.container.pid, signal.SIGTERM)
    other.worker.container.wait()

    prefork.nodes.until_held(key)
    assert prefork.nodes.tokens(key) == tokens
    assert_refused(prefork.send("job", key), first)
    prefork.finish(key, first)


@pytest.mark.long
def test_retry_that_is_due_after_the_ttl_takes_the_lock_anew(
    deploy: Deploy, key: str
) -> None:
    """Other calls may run between two attempts; the second takes a lock of its own.

    Source: Prefect #20251, a retry delay longer than the lease.
    """
    delay = {"lost-autoretry": {"default_retry_delay": 5}}  # seconds; the ttl is 1.5
    here = deploy(concurrency=2, settings={"task_annotations": delay})
    first = here.begin("lost-autoretry", key)
    here.nodes.steal(key, seconds=30)
    until(lambda: first.state == states.RETRY)
    here.nodes.undo_steal(key)
    here.nodes.until_free(key)

    between = here.send("quick", key)

    assert between.get(timeout=60) == between.id
    here.until_running(key, first.id)
    here.nodes.until_held(key)
    here.nodes.until_renewed(key, times=2)
    here.finish(key, first)
    ran = [run.task_id for run in here.stage.runs(key)]
    assert ran == [first.id, between.id, first.id]
    assert here.stage.overlaps(key) == []


def test_late_leader_does_not_end_the_next_term(
    three_nodes: DevNodes, key: str
) -> None:
    """A beat that resigns after its term has ended does not end its successor's term.

    Source: Laravel #53342, the scheduler's mutex that is released by force.
    """
    with client(three_nodes) as redlock, client(three_nodes) as rival:
        late, successor = Elector(redlock, key, ttl=BRIEF), Elector(rival, key, ttl=30)
        assert late.campaign()
        term = until(successor.campaign, what="the next term")
        assert term

        late.resign()

        term.lease.ensure(network=True)
        successor.resign()
