"""Runs that lose their lock, and locks of runs that end."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from celery import states
from celery.exceptions import SoftTimeLimitExceeded

from celery_redlock import LockLost, current_lease
from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics import process
from celery_redlock.locks.lease import Lease, LeaseState
from celery_redlock.policies import DecidedCall, LossDecision
from celery_redlock.signals import lock_acquired, lock_heartbeat
from celery_redlock.task import ends, execution
from celery_redlock.task.execution import running
from celery_redlock.testing import SignalRecorder
from tests.harness.waiting import until
from tests.unit.tasks.support import HOUR, KEY, Worker, run_until_stopped


@pytest.fixture
def live(worker: Worker) -> Worker:
    """Give a worker on nodes in real time, whose watchdog has a thread."""
    worker.use_real_time(ttl=30)
    return worker


def lose_lock(worker: Worker) -> None:
    """Run on in a body whose lock has just been lost."""
    run_until_stopped(lambda: runtime_of(worker.app).watchdog.expire(KEY))


def fail(loss: Any) -> str:
    """Fail in the place of a decision: the body is aborted then, since that is safe."""
    raise ValueError(loss)


@pytest.mark.parametrize(
    "options",
    [{}, {"on_lock_lost": fail}, {"autoretry_for": (Exception,), "max_retries": 3}],
    ids=["abort", "callable that fails", "autoretry, which is for errors of the body"],
)
def test_abort_ends_the_body_with_the_key_in_the_error(
    live: Worker, options: dict[str, Any]
) -> None:
    """``abort`` raises LockLost inside the body, and LockLost is the result."""
    seen: list[BaseException] = []

    @live.task(**options)
    def job() -> None:
        try:
            lose_lock(live)
        except BaseException as error:
            seen.append(error)
            raise

    run = live.run(job)

    assert run.stored == states.FAILURE
    assert isinstance(run.result, LockLost)
    assert KEY in str(run.result)
    assert isinstance(seen[0], LockLost)
    assert live.published == []


@pytest.mark.usefixtures("failing_log")
@pytest.mark.parametrize("failing_log", [execution.__name__], indirect=True)
@pytest.mark.parametrize("options", [{}, {"on_lock_lost": fail}])
def test_body_is_stopped_where_a_handler_of_the_log_raises(
    live: Worker, options: dict[str, Any]
) -> None:
    """The thread that stops it cannot write why."""

    @live.task(**options)
    def job() -> None:
        lose_lock(live)

    run = live.run(job)

    assert isinstance(run.result, LockLost)


def test_retry_sends_the_arguments_as_they_came(live: Worker) -> None:
    """The republished call has the arguments without the body's changes."""

    @live.task(on_lock_lost="retry")
    def job(numbers: list[int]) -> None:
        numbers.append(4)
        lose_lock(live)

    run = live.run(job, [1, 2, 3])

    assert (run.state, run.stored) == (states.RETRY, states.RETRY)
    ((_, body),) = live.published
    assert body[0] == [[1, 2, 3]]


def test_decision_about_a_loss_may_end_the_call_as_revoked(live: Worker) -> None:
    """Every decision has the methods of a `DecidedCall`, that of a project, too."""

    class Drop(LossDecision):
        name = "drop"

        def perform(self, call: DecidedCall) -> Any:
            """Skip the call."""
            return call.skip()

    @live.task(on_lock_lost=lambda _: Drop())
    def job() -> None:
        lose_lock(live)

    run = live.run(job)

    assert run.stored == states.REVOKED
    assert live.published == []


@pytest.mark.parametrize("on_lock_lost", ["abort", "retry", "warn"])
def test_lock_lost_before_the_body_begins_is_taken_again(
    live: Worker, on_lock_lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a killed call waits under its lock, and loses it meanwhile."""
    monkeypatch.setattr(ends, "_STORED_WITHIN", 2.0)  # seconds of this wait
    locks: list[Lease] = []

    def lose(lease: Lease) -> None:
        until(lambda: runtime_of(live.app).watchdog.expire(lease))

    @live.task(on_lock_lost=on_lock_lost)
    def job() -> int:
        lease = current_lease()
        return lease.fence if lease else 0

    def acquired(lease: Lease, **_: Any) -> None:
        locks.append(lease)
        if len(locks) == 1:
            threading.Thread(target=lose, args=(lease,)).start()

    header = {"deferred": 1, "redelivered": True, "met_copy": True}
    lock_acquired.connect(acquired, sender=job, weak=False)
    with SignalRecorder("lock_lost") as events:
        run = live.redeliver(job, id=live.call_id, retries=1, redlock=header)

    assert (run.stored, run.result) == (states.SUCCESS, locks[1].fence)
    assert (len(locks), events.seen, live.published) == (2, [], [])


def test_body_is_stopped_though_no_thread_can_start(
    live: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog interrupts it itself: once, for it has other locks to renew."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    @live.task()
    def job() -> None:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        without = SimpleNamespace(start_new_thread=refuse)
        monkeypatch.setattr(process, "_thread", without)
        lose_lock(live)

    run = live.run(job)

    assert (run.stored, type(run.result)) == (states.FAILURE, LockLost)


def test_warn_keeps_the_result(live: Worker) -> None:
    """``warn`` sends the signal; the body runs to its end, and its result counts."""

    @live.task(on_lock_lost="warn")
    def job() -> str:
        runtime_of(live.app).watchdog.expire(KEY)
        events.wait_for("lock_lost")
        return "done"

    with SignalRecorder("lock_lost") as events:
        run = live.run(job)

    assert (run.stored, run.result) == (states.SUCCESS, "done")
    assert type(events.seen[0].decision).__name__ == "Warn"


def test_body_that_ends_as_if_nothing_had_happened_has_lost_its_lock(
    live: Worker,
) -> None:
    """A result that the body returns after the loss is discarded."""

    @live.task()
    def job() -> str:
        with suppress(LockLost):
            lose_lock(live)
        return "done"

    assert isinstance(live.run(job).result, LockLost)


@pytest.mark.parametrize(
    ("on_lock_lost", "stored"),
    [("abort", states.FAILURE), ("retry", states.RETRY), ("warn", states.FAILURE)],
)
def test_body_that_asks_for_its_lost_lease_gets_lock_lost(
    worker: Worker, on_lock_lost: str, stored: str
) -> None:
    """A process that was paused asks for its lease before the watchdog runs again."""

    @worker.task(on_lock_lost=on_lock_lost)
    def job() -> None:
        worker.nodes.clock.sleep(HOUR)
        lease = current_lease()
        assert lease is not None
        lease.ensure()

    run = worker.run(job)

    assert run.stored == stored
    if stored == states.FAILURE:
        assert isinstance(run.result, LockLost)


def test_error_of_the_body_after_a_loss_is_the_bodys(live: Worker) -> None:
    """If the body raises another error instead of LockLost, that is the result."""

    @live.task()
    def job() -> None:
        try:
            lose_lock(live)
        except LockLost:
            raise KeyError(KEY) from None

    assert isinstance(live.run(job).result, KeyError)


def test_lost_lock_of_the_bodys_own_is_its_error(worker: Worker) -> None:
    """LockLost about another key says nothing about the task's lock."""

    @worker.task(on_lock_lost="retry")
    def job() -> None:
        raise LockLost("The lock 'other' was lost.", key="other")

    run = worker.run(job)

    assert run.stored == states.FAILURE
    assert "other" in str(run.result)
    assert worker.published == []


def test_lost_lock_around_a_nested_run_is_not_the_nested_runs(live: Worker) -> None:
    """LockLost interrupts the nested run; only the outer task reports the loss."""
    live.app.conf.redlock_eager = True

    @live.task(name="inner", key=f"{KEY}-inner")
    def inner() -> None:
        lose_lock(live)

    @live.task(name="outer")
    def outer() -> str:
        return str(inner.apply().state)

    with SignalRecorder("lock_lost") as events:
        run = live.run(outer)
        events.wait_for("lock_lost")

    assert isinstance(run.result, LockLost)
    assert f"{KEY}-inner" not in str(run.result)
    assert [event.task_id for event in events.seen] == [run.id]


@pytest.mark.parametrize(
    "error", [None, ValueError("x"), SoftTimeLimitExceeded(), SystemExit(1)]
)
def test_end_of_the_body_releases_the_lock(
    worker: Worker, error: BaseException | None
) -> None:
    """Every end of the body releases its lease and leaves no run behind."""
    leases: list[Lease | None] = []

    @worker.task()
    def job() -> None:
        leases.append(current_lease())
        if error:
            raise error

    with suppress(SystemExit):
        worker.run(job)

    (lease,) = leases
    assert lease is not None
    assert lease.state is LeaseState.RELEASED
    assert running() is None
    assert current_lease() is None


def test_recursion_takes_the_lock_once(worker: Worker) -> None:
    """``self(n - 1)`` in a body is a function call."""

    @worker.task(bind=True)
    def job(self: Any, number: int) -> int:
        return number * self(number - 1) if number else 1

    with SignalRecorder("lock_acquired") as events:
        run = worker.run(job, 5)

    assert run.result == 120
    assert len(events.seen) == 1


def test_nested_apply_of_the_same_key_is_reentrant(worker: Worker) -> None:
    """A task that applies a task with its own key runs it under its own lease."""
    worker.app.conf.redlock_eager = True

    @worker.task(name="inner")
    def inner() -> bool:
        return current_lease() is outer_leases[0]

    outer_leases: list[Lease | None] = []

    @worker.task(name="outer")
    def outer() -> bool:
        outer_leases.append(current_lease())
        return bool(inner.apply().get(disable_sync_subtasks=False))

    assert worker.run(outer).result is True


@pytest.mark.parametrize("number", [0, 1])
def test_nested_apply_under_the_id_of_the_call_has_the_lock_of_its_key(
    worker: Worker, number: int
) -> None:
    """The id does not make it the same call: its arguments do."""
    worker.app.conf.redlock_eager = True

    @worker.task(key="k:{n}", bind=True)
    def job(self: Any, n: int, steps: int = 1) -> str:
        if steps:
            nested = self.apply((number, steps - 1), task_id=self.request.id)
            return str(nested.get(disable_sync_subtasks=False))
        lease = current_lease()
        return lease.key if lease else ""

    assert worker.run(job, 0).result == f"k:{number}"


@pytest.mark.parametrize("name", ["job", "step"])
def test_step_under_the_id_of_the_call_leaves_its_lock(
    worker: Worker, name: str
) -> None:
    """A body may run a step under its own id, for logs: the call itself goes on."""

    @worker.app.task(name="step")
    def step(*_: Any) -> None:
        """Do a part of the work."""

    @worker.task(name="job", bind=True)
    def job(self: Any, *, is_step: bool = False) -> bool:
        if not is_step:
            steps = worker.app.tasks[name]
            is_of_us = {"is_step": True} if name == "job" else {}
            steps.apply(kwargs=is_of_us, task_id=self.request.id)
        return current_lease() is not None

    assert worker.run(job).result is True


def test_heartbeat_renews_the_senders_lock(live: Worker) -> None:
    """The signal makes the watchdog renew the sender's lock at once."""

    @live.task(bind=True)
    def job(self: Any) -> None:
        lock_heartbeat.send(sender=self)
        events.wait_for("lock_renewed")

    with SignalRecorder("lock_renewed") as events:
        run = live.run(job)

    assert run.stored == states.SUCCESS
    assert events.seen[0].task_id == run.id


def test_copy_of_the_context_of_a_run_is_not_in_it_when_it_has_ended(
    live: Worker,
) -> None:
    """A thread that outlives the body locks in its own name, not for the call."""
    contexts: list[contextvars.Context] = []

    @live.task(key="{what}")
    def job(what: str) -> None:
        contexts.append(contextvars.copy_context())

    def lock_later() -> tuple[Any, Any]:
        with job.lock("another") as lease:
            return running(), live.rival.inspect(lease.key).holder

    live.run(job, "one")
    with ThreadPoolExecutor(1) as thread:
        execution, holder = thread.submit(contexts[0].run, lock_later).result()

    assert execution is None
    assert holder.task_id == ""
