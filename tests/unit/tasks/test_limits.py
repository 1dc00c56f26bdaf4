"""Tasks of which several calls run at once, or of which so many start in a period."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import states

from celery_redlock.errors import LockHeld
from celery_redlock.line.backlog import place_of_newcomer
from celery_redlock.locking import current_lease
from celery_redlock.locks.lease import Holder, Lease
from celery_redlock.locks.limits import Limit, Limits, with_copies
from celery_redlock.policies import Conflict
from tests.unit.tasks.support import KEY, Worker


def imports(worker: Worker, seen: list[Any], **options: Any) -> Any:
    """Return a task that notes the keys of its lease."""

    def job(tenant: str = "") -> str:
        lease = current_lease()
        seen.append(lease and lease.keys)
        return tenant

    return worker.task(**options)(job)


@contextmanager
def held(
    worker: Worker, count: int = 1, *, limits: Limits, task_id: str = "other-id"
) -> Iterator[list[Lease]]:
    """Let other clients hold so many permits."""
    keys = [limit.key for limit in limits]
    holder = Holder.here(task="job", task_id=task_id)
    leases = [
        worker.rival.acquire(keys, holder=holder, limits=limits) for _ in range(count)
    ]
    yield leases
    for lease in leases:
        worker.rival.release(lease)


def noting(conflicts: list[Conflict]) -> Callable[[Conflict], str]:
    """Return a policy that notes each conflict and fails the call."""

    def note(conflict: Conflict) -> str:
        conflicts.append(conflict)
        return "raise"

    return note


def at_most(count: int, key: str = KEY) -> Limits:
    """Return the limits of one key."""
    return (Limit(key, count),)


# -- at most n -----------------------------------------------------------------------


def test_body_runs_while_a_permit_is_free(worker: Worker) -> None:
    """It has the permit that no other client has, and no other one after it."""
    seen: list[Any] = []
    job = imports(worker, seen, limit=3)
    names = {KEY, f"{KEY}##2", f"{KEY}##3"}

    with held(worker, 2, limits=at_most(3)) as others:
        assert worker.run(job).state == states.SUCCESS

    taken = {lease.key for lease in others}
    assert seen == [(*(names - taken),)]
    with held(worker, 3, limits=at_most(3)):
        pass  # all of them are free again


def test_job_goes_back_to_its_queue_while_all_permits_are_in_use(
    worker: Worker,
) -> None:
    """It is not lost: ``retry`` is the policy of a task with a limit."""
    seen: list[Any] = []
    job = imports(worker, seen, limit=2)

    with held(worker, 2, limits=at_most(2)):
        refused = worker.run(job, "a")

    assert refused.stored == states.RETRY
    assert seen == []
    ((_, payload),) = worker.published
    assert payload[0] == ["a"]
    assert worker.run(job, "a", id=refused.id).state == states.SUCCESS


def test_call_that_does_not_run_is_no_run_of_its_key(worker: Worker) -> None:
    """Refused calls come back by how long runs took; with one of 0 s, too early."""
    job = imports(worker, [], limit=2)

    worker.run(job, expires="2020-01-01T00:00:00+00:00")
    before = place_of_newcomer(worker.rival, KEY)
    worker.run(job)
    after = place_of_newcomer(worker.rival, KEY)

    assert before
    assert before.run_time == 0.0
    assert after
    assert after.run_time > 0.0


def test_conflict_says_which_limit_is_reached(worker: Worker) -> None:
    """A callable can decide by it; the error and the event name the key."""
    conflicts: list[Conflict] = []
    job = imports(worker, [], limit=2, on_conflict=noting(conflicts))

    with held(worker, 2, limits=at_most(2)):
        error = worker.run(job).result

    (conflict,) = conflicts
    assert conflict.limit == Limit(KEY, 2)
    assert (conflict.key, conflict.held_key) == (KEY, KEY)
    assert conflict.holder is not None
    assert conflict.holder.task_id == "other-id"
    assert repr(KEY) in str(error)


@pytest.mark.parametrize("word", ["buffer_one", "cancel_running"])
@pytest.mark.parametrize(
    "limits",
    [
        {"limit": 2},
        {"rate": "2/m"},
        {"keys": {KEY: 2}, "key": None},
        {"keys": [KEY, "another"], "key": None},
    ],
)
def test_callable_cannot_choose_a_policy_that_needs_one_running_call(
    worker: Worker, limits: dict[str, Any], word: str
) -> None:
    """The call fails and names the remedy, as at decoration. No node hears of it."""
    job = imports(worker, [], on_conflict=lambda _: word, **limits)

    with held(worker, 2, limits=at_most(2)):
        refused = worker.run(job)

    assert refused.state == states.FAILURE
    assert f"on_conflict={word!r} needs " in str(refused.result)
    assert "Write on_conflict='retry' or 'wait'" in str(refused.result)
    assert not job.lock_options.registers_successors


def test_waiting_job_keeps_others_out_of_the_queue(worker: Worker) -> None:
    """A claim is about the queue alone: permits in use are no duplicates."""
    job = imports(worker, [], key="k", limit=2, unique_while="queued")

    with held(worker, 2, limits=at_most(2, "k")):
        first, second = job.delay(), job.delay()

    assert second.id == first.id
    assert worker.messages() == [first.id]


# -- copies of a call ----------------------------------------------------------------


def waited(worker: Worker, copy: Any) -> bool:
    """Tell whether a copy has gone back to the queue, and touched no result."""
    ((headers, _),) = worker.published
    is_same = headers["id"] == worker.call_id and headers["redlock"]["met_copy"]
    untouched = copy.state == states.IGNORED and copy.stored == states.PENDING
    return bool(is_same and untouched)


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("on_conflict", ["retry", "skip", "raise", "wait"])
def test_copy_waits_although_a_permit_is_free(
    worker: Worker, on_conflict: str, others: int
) -> None:
    """And also if other calls have all other permits: no policy is asked about it."""
    seen: list[Any] = []
    job = imports(worker, seen, limit=3, on_conflict=on_conflict)
    first = with_copies(at_most(3), worker.call_id)

    with (
        held(worker, others, limits=at_most(3)),
        held(worker, limits=first, task_id=worker.call_id),
    ):
        copy = worker.redeliver(job, id=worker.call_id)

    assert waited(worker, copy)
    assert seen == []


def test_copy_waits_where_starts_are_counted(worker: Worker) -> None:
    """Each copy could have a start of its own, too."""
    seen: list[Any] = []
    job = imports(worker, seen, rate="5/m")
    limits = (Limit(KEY, 5), Limit(KEY, 5, 60.0))
    first = with_copies(limits, worker.call_id)

    with held(worker, limits=first, task_id=worker.call_id):
        copy = worker.redeliver(job, id=worker.call_id)

    assert waited(worker, copy)
    assert seen == []


def test_body_keeps_its_copies_out(worker: Worker) -> None:
    """While it runs, and not after it. Its lease names its permit and nothing else."""
    keys: list[str] = []
    copies = with_copies(at_most(3), worker.call_id)

    def job() -> None:
        lease = current_lease()
        assert lease is not None
        keys.append(lease.key)
        assert lease.wanted == KEY
        assert not lease.covers(worker.call_id)
        with pytest.raises(LockHeld, match="A copy of the call") as refused:
            worker.rival.acquire(KEY, limits=copies)
        assert refused.value.holder is not None
        assert refused.value.holder.task_id == worker.call_id

    assert worker.run(worker.task(limit=3)(job), id=worker.call_id).state == "SUCCESS"

    assert keys[0] in {KEY, f"{KEY}##2", f"{KEY}##3"}
    with held(worker, limits=copies):
        pass


# -- so many starts in a period ------------------------------------------------------


def test_conflict_about_a_rate_says_when_the_next_start_is_due(worker: Worker) -> None:
    """Not before the period of the first one has passed."""
    conflicts: list[Conflict] = []
    job = imports(worker, [], rate="1/m", on_conflict=noting(conflicts))
    worker.run(job)
    worker.nodes.clock.sleep(20)

    worker.run(job)

    (conflict,) = conflicts
    assert conflict.limit == Limit(KEY, 1, 60.0)
    assert conflict.retry_after == pytest.approx(40, abs=2)


def test_refused_call_does_not_count_as_a_start(worker: Worker) -> None:
    """Neither does one that is dropped under its lock, before its body."""
    seen: list[Any] = []
    job = imports(worker, seen, limit=1, rate="2/m", on_conflict="raise")
    done = worker.run(job, id=worker.call_id)

    for _ in range(5):
        with held(worker, limits=at_most(1)):
            assert worker.run(job).state == states.FAILURE
        worker.redeliver(job, id=done.id)

    assert worker.run(job).state == states.SUCCESS
    assert len(seen) == 2


# -- the same permits elsewhere ------------------------------------------------------


def test_lock_of_a_task_with_a_limit(worker: Worker) -> None:
    """``task.lock`` takes a permit, and counts as a start."""
    job = imports(worker, [], limit=2, rate="3/m")

    for number in range(3):
        with job.lock() as lease, held(worker, limits=at_most(2)):
            assert lease.key in {KEY, f"{KEY}##2"}, number
            with pytest.raises(LockHeld):
                worker.rival.acquire(KEY, limits=at_most(2))
    with pytest.raises(LockHeld) as refused, job.lock():
        pytest.fail("the fourth start in a minute")
    assert refused.value.limit == Limit(KEY, 3, 60.0)


def test_lock_of_a_task_with_a_limit_in_a_coroutine(worker: Worker) -> None:
    """``task.alock`` does the same."""
    job = imports(worker, [], limit=2)

    async def block() -> None:
        async with job.alock() as lease:
            assert lease.key in {KEY, f"{KEY}##2"}
            with held(worker, limits=at_most(2)), pytest.raises(LockHeld):
                worker.rival.acquire(KEY, limits=at_most(2))

    asyncio.run(block())


def test_task_tells_what_a_call_wants(worker: Worker) -> None:
    """The key, and the limits; none where a lock does."""
    job, plain = imports(worker, [], limit=2), imports(worker, [], name="plain")

    assert job.lock_wanted("a") == (KEY, (Limit(KEY, 2),))
    assert plain.lock_wanted("a") == (KEY, ())
