"""``cancel_running`` in a worker: the cancelled call, and the newcomer."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
from celery import states
from prometheus_client import CollectorRegistry

from celery_redlock import LockCancelled, LockLost, current_lease, metrics
from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.line.cancel_requests import ask_to_end
from celery_redlock.locks.lease import Holder, Lease
from celery_redlock.policies import Conflict
from celery_redlock.signals import lock_acquired
from celery_redlock.testing import SignalRecorder
from tests.harness.waiting import until
from tests.unit.tasks.support import KEY, Worker, run_until_stopped

WHO = "job[newcomer]"


@pytest.fixture
def worker(worker: Worker) -> Worker:
    """Give a worker on nodes in real time."""
    worker.use_real_time(ttl=30)
    return worker


def cancel(worker: Worker, key: str = KEY) -> None:
    """Ask the holder of this lock to end; its next renewal, which is now, says so."""
    holder = worker.rival.inspect(key).holder
    assert holder is not None
    assert ask_to_end(worker.rival, key, holder, WHO)
    runtime_of(worker.app).watchdog.renew_key(key)


def be_cancelled(worker: Worker) -> None:
    """Run on in a body until its cancellation interrupts it."""
    cancel(worker)
    run_until_stopped()


def replacing(worker: Worker, body: Any = lambda: None, **options: Any) -> Any:
    """Return a task whose calls replace each other."""

    def job() -> Any:
        return body()

    return worker.task(**{"on_conflict": "cancel_running", **options})(job)


def test_cancelled_body_ends_as_revoked_and_names_the_newcomer(worker: Worker) -> None:
    """LockCancelled interrupts the body, and is the result."""
    seen: list[BaseException] = []

    def body() -> None:
        try:
            be_cancelled(worker)
        except BaseException as error:
            seen.append(error)
            raise

    run = worker.run(replacing(worker, body))

    assert (run.state, run.stored) == (states.IGNORED, states.REVOKED)
    assert isinstance(run.result, LockCancelled)
    for word in (WHO, KEY, "cancel_running"):
        assert word in str(run.result)
    assert isinstance(seen[0], LockCancelled)
    assert worker.rival.inspect(KEY).holder is None


def test_lock_is_kept_until_the_body_has_ended(worker: Worker) -> None:
    """No other call gets the lock while the body tidies up."""
    holders: list[Holder | None] = []

    def body() -> str:
        try:
            be_cancelled(worker)
        except LockCancelled:
            lease = current_lease()
            assert lease is not None
            with SignalRecorder("lock_renewed") as events:
                runtime_of(worker.app).watchdog.renew_key(KEY)
                events.wait_for("lock_renewed")
            assert lease.is_valid()
            holders.append(worker.rival.inspect(KEY).holder)
        return "tidied"

    run = worker.run(replacing(worker, body))

    assert (run.stored, run.result) == (states.SUCCESS, "tidied")
    assert holders[0] is not None
    assert holders[0].cancelled_by == WHO


def test_call_that_is_cancelled_before_its_body_begins_ends(worker: Worker) -> None:
    """A copy of a killed call waits under its lock, and a newcomer asks for that."""
    bodies: list[int] = []
    task = replacing(worker, lambda: bodies.append(1))

    def be_asked(lease: Lease) -> None:
        cancel(worker)
        until(lambda: lease.cancelled_by)
        task.backend.mark_as_retry(worker.call_id, LockCancelled())

    def acquired(lease: Lease, **_: Any) -> None:
        threading.Thread(target=be_asked, args=(lease,)).start()

    header = {"deferred": 1, "redelivered": True, "met_copy": True}
    lock_acquired.connect(acquired, sender=task, weak=False)
    run = worker.redeliver(task, id=worker.call_id, retries=1, redlock=header)

    assert (run.stored, type(run.result)) == (states.REVOKED, LockCancelled)
    assert bodies == []


def test_body_that_goes_on_is_interrupted_again_after_its_grace(worker: Worker) -> None:
    """It is interrupted until it ends: each time it leaves one block."""
    not_stopped: list[int] = []

    def body() -> None:
        try:
            try:
                be_cancelled(worker)
            finally:
                run_until_stopped()
                not_stopped.append(2)
        finally:
            run_until_stopped()
            not_stopped.append(3)

    run = worker.run(replacing(worker, body, cancel_grace=0.05))

    assert (run.stored, type(run.result)) == (states.REVOKED, LockCancelled)
    assert not_stopped == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_that_python_ignores_is_repeated(worker: Worker) -> None:
    """It landed in a finaliser, whose exceptions never reach the body."""
    ignored: list[BaseException] = []

    class Finalised:
        def __del__(self) -> None:
            try:
                be_cancelled(worker)
            except LockCancelled as error:
                ignored.append(error)
                raise

    def body() -> None:
        Finalised()
        run_until_stopped()

    run = worker.run(replacing(worker, body, cancel_grace=0.5))

    assert (run.stored, type(run.result)) == (states.REVOKED, LockCancelled)
    assert ignored


def test_error_of_the_body_is_its_result(worker: Worker) -> None:
    """A body that ends in an error of its own ends in that error."""

    def body() -> None:
        with suppress(LockCancelled):
            be_cancelled(worker)
        raise ValueError(KEY)

    run = worker.run(replacing(worker, body))

    assert (run.stored, type(run.result)) == (states.FAILURE, ValueError)


@pytest.mark.parametrize(
    "options",
    [
        {"on_lock_lost": "warn"},
        {"on_lock_lost": "retry"},
        {"autoretry_for": (Exception,)},
    ],
    ids=["warn", "retry", "autoretry"],
)
def test_cancellation_is_no_loss_and_no_failure(
    worker: Worker, options: dict[str, Any]
) -> None:
    """The call is not republished and does not go on."""
    task = replacing(worker, lambda: be_cancelled(worker), **options)

    with SignalRecorder("lock_lost", "lock_cancelled") as events:
        run = worker.run(task)
        events.wait_for("lock_cancelled")

    assert run.stored == states.REVOKED
    assert worker.published == []
    ((event),) = events.seen
    assert (event.name, event.cancelled_by) == ("lock_cancelled", WHO)
    assert event.task_id == run.id


def test_lock_that_is_lost_after_the_cancellation_is_a_loss(worker: Worker) -> None:
    """The body ignores LockCancelled and gets LockLost."""

    def body() -> None:
        with suppress(LockCancelled):
            be_cancelled(worker)
        run_until_stopped(lambda: runtime_of(worker.app).watchdog.expire(KEY))

    run = worker.run(replacing(worker, body, cancel_grace=60))

    assert run.stored == states.FAILURE
    assert type(run.result) is LockLost


def test_lock_that_the_body_takes_is_cancelled_for_the_body(worker: Worker) -> None:
    """The body gets the error from its own lease, and may handle it."""
    inner = replacing(worker, key="inner")

    @worker.task(name="outer")
    def outer() -> None:
        with inner.lock() as lease:
            cancel(worker, "inner")
            while True:
                lease.ensure()
                SYSTEM_CLOCK.sleep(0.01)

    run = worker.run(outer)

    assert (run.stored, type(run.result)) == (states.FAILURE, LockCancelled)


@pytest.mark.parametrize("is_older", [True, False])
def test_call_that_finds_the_lock_free_is_superseded_by_a_newer_one(
    worker: Worker, *, is_older: bool
) -> None:
    """A cancelled call that retries itself at once does not run first."""
    task = replacing(worker, lambda: "ran", cancel_grace=0.05)
    holder = worker.rival.acquire(KEY)
    waits = worker.run(task, redlock={"published": 2_000_000})
    assert waits.stored == states.RETRY
    worker.rival.release(holder)

    run = worker.run(task, redlock={"published": 1_000_000 if is_older else 3_000_000})

    if is_older:
        assert run.stored == states.REVOKED
        assert f"{waits.id} runs instead" in str(run.result)
        assert "cancel_running" in str(run.result)
    else:
        assert (run.stored, run.result) == (states.SUCCESS, "ran")
    assert worker.rival.inspect(KEY).holder is None


def test_wait_of_the_newcomer_counts_as_waited(worker: Worker) -> None:
    """A callable is asked again after the grace, and knows that the call has waited."""
    asked: list[float] = []

    def cancel_once(conflict: Conflict) -> str:
        asked.append(conflict.waited)
        return "skip" if conflict.waited else "cancel_running"

    task = replacing(worker, on_conflict=cancel_once, cancel_grace=0.05)

    run = worker.refuse(task)

    assert asked == [0.0, 0.05]
    assert run.stored == states.REVOKED
    assert "after 0.05 s of waiting" in str(run.result)


def test_wait_of_the_newcomer_is_timed_when_it_returns_to_its_queue(
    worker: Worker,
) -> None:
    """Its wait in the worker process is over, and the lock was refused."""
    registry = CollectorRegistry()
    installed = metrics.install(worker.app, registry=registry)

    run = worker.refuse(replacing(worker, cancel_grace=0.05))
    installed.uninstall()

    labels = {"task": "job", "outcome": "refused"}
    assert run.stored == states.RETRY
    assert registry.get_sample_value("redlock_wait_seconds_count", labels) == 1
