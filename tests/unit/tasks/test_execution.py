"""Runs that lose their lock, and locks of runs that end."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery import states
from celery.exceptions import SoftTimeLimitExceeded

from celery_redlock import LockLost, current_lease, locking, singleton_task
from celery_redlock.app.runtime import runtime_of
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import LeaseState
from celery_redlock.signals import lock_heartbeat
from celery_redlock.task.execution import running
from celery_redlock.testing import FakeNodes, SignalRecorder
from tests.interruptions import counts_places, interruptions
from tests.unit.core.support import holders, put

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.lease import Lease
    from tests.interruptions import Interruption
    from tests.unit.tasks.support import Worker

TTL = 0.3  # seconds: a lock that is not renewed is soon lost
LONG = 10.0  # seconds: longer than any step of these tests takes


@pytest.fixture
def live_nodes(app: Celery) -> FakeNodes:
    """Give nodes in real time, so that the watchdog renews as in production."""
    nodes = FakeNodes(3, clock=SYSTEM_CLOCK)
    runtime_of(app).use(nodes.redlock(ttl=TTL))
    return nodes


@pytest.fixture
def name() -> str:
    """Give a key that no other test uses."""
    return f"k-{secrets.token_hex(4)}"


def run_until_stopped() -> None:
    """Run on in small steps until something stops it."""
    end = SYSTEM_CLOCK.monotonic() + LONG
    never = threading.Event()
    while SYSTEM_CLOCK.monotonic() < end:
        never.wait(0.005)
    pytest.fail("nothing has stopped the body")


def test_abort_ends_the_body_with_the_key_in_the_error(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """``abort`` raises LockLost inside the body, and LockLost is the result."""
    seen: list[BaseException] = []

    @singleton_task(app=app, shared=False, name="job", key=name, ttl=TTL)
    def job() -> None:
        live_nodes.partition()
        try:
            run_until_stopped()
        except BaseException as error:
            seen.append(error)
            raise

    run = worker.run(job)

    assert run.stored == states.FAILURE
    assert isinstance(run.result, LockLost)
    assert name in str(run.result)
    assert isinstance(seen[0], LockLost)


def test_retry_sends_the_arguments_as_they_came(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """The republished call has the arguments without the body's changes."""

    @singleton_task(
        app=app, shared=False, name="job", key=name, ttl=TTL, on_lock_lost="retry"
    )
    def job(numbers: list[int]) -> None:
        numbers.append(4)
        live_nodes.partition()
        run_until_stopped()

    run = worker.run(job, [1, 2, 3])

    assert (run.state, run.stored) == (states.RETRY, states.RETRY)
    ((_, body),) = worker.published
    assert body[0] == [[1, 2, 3]]


def test_warn_keeps_the_result(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """``warn`` sends the signal; the body runs to its end, and its result counts."""

    @singleton_task(
        app=app, shared=False, name="job", key=name, ttl=TTL, on_lock_lost="warn"
    )
    def job() -> str:
        live_nodes.partition()
        events.wait_for("lock_lost")
        return "done"

    with SignalRecorder("lock_lost") as events:
        run = worker.run(job)

    assert (run.stored, run.result) == (states.SUCCESS, "done")
    assert type(events.seen[0].decision).__name__ == "Warn"


def test_callable_that_fails_stops_the_body(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """If the callable raises, the body is aborted, since that is safe."""

    def fail(loss: Any) -> str:
        raise ValueError(loss)

    @singleton_task(
        app=app, shared=False, name="job", key=name, ttl=TTL, on_lock_lost=fail
    )
    def job() -> None:
        live_nodes.partition()
        run_until_stopped()

    assert isinstance(worker.run(job).result, LockLost)


def test_body_that_ends_as_if_nothing_had_happened_has_lost_its_lock(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """A result that the body returns after the loss is discarded."""

    @singleton_task(app=app, shared=False, name="job", key=name, ttl=TTL)
    def job() -> str:
        live_nodes.partition()
        with suppress(LockLost):
            run_until_stopped()
        return "done"

    assert isinstance(worker.run(job).result, LockLost)


def test_error_of_the_body_after_a_loss_is_the_bodys(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """If the body raises another error instead of LockLost, that is the result."""

    @singleton_task(app=app, shared=False, name="job", key=name, ttl=TTL)
    def job() -> None:
        live_nodes.partition()
        try:
            run_until_stopped()
        except LockLost:
            raise KeyError(name) from None

    assert isinstance(worker.run(job).result, KeyError)


def test_lost_lock_of_the_bodys_own_is_its_error(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """LockLost about another key says nothing about the task's lock."""

    @singleton_task(
        app=app, shared=False, name="job", key=name, ttl=TTL, on_lock_lost="retry"
    )
    def job() -> None:
        raise LockLost("The lock 'other' was lost.", key="other")

    run = worker.run(job)

    assert run.stored == states.FAILURE
    assert "other" in str(run.result)
    assert worker.published == []


def test_lost_lock_around_a_nested_run_is_not_the_nested_runs(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """LockLost interrupts the nested run; only the outer task reports the loss."""
    app.conf.redlock_eager = True

    @singleton_task(app=app, shared=False, name="inner", key=f"{name}-inner", ttl=TTL)
    def inner() -> None:
        for index in range(3):
            put(live_nodes, index, "thief", key=name)
        run_until_stopped()

    @singleton_task(app=app, shared=False, name="outer", key=name, ttl=TTL)
    def outer() -> str:
        return str(inner.apply().state)

    with SignalRecorder("lock_lost") as events:
        run = worker.run(outer)
        events.wait_for("lock_lost")

    assert isinstance(run.result, LockLost)
    assert f"{name}-inner" not in str(run.result)
    assert [event.task_id for event in events.seen] == [run.id]


def test_autoretry_passes_a_lost_lock_over(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """``autoretry_for=(Exception,)`` retries errors of the body, not a lost lock."""

    @singleton_task(
        app=app,
        shared=False,
        name="job",
        key=name,
        ttl=TTL,
        autoretry_for=(Exception,),
        max_retries=3,
    )
    def job() -> None:
        live_nodes.partition()
        run_until_stopped()

    run = worker.run(job)

    assert run.stored == states.FAILURE
    assert worker.published == []


@pytest.mark.parametrize(
    "error", [None, ValueError("x"), SoftTimeLimitExceeded(), SystemExit(1)]
)
def test_end_of_the_body_releases_the_lock(
    app: Celery, worker: Worker, name: str, error: BaseException | None
) -> None:
    """Every end of the body releases its lease and leaves no run behind."""
    leases: list[Lease | None] = []

    @singleton_task(app=app, shared=False, name="job", key=name, ttl=TTL)
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


@counts_places
def test_end_that_is_interrupted_anywhere_releases_the_lock(
    app: Celery, worker: Worker, nodes: FakeNodes, name: str
) -> None:
    """A time limit of the user's own can arrive at any place of the release."""
    places = 0
    for interruption in interruptions(locking.__file__):
        places = interruption.at

        @singleton_task(app=app, shared=False, name=f"job-{places}", key=name)
        def job(interruption: Interruption = interruption) -> None:
            interruption.__enter__()

        worker.run(job)
        interruption.__exit__(None)

        assert holders(nodes, name) == [""] * 3, f"interrupted at place {places}"
        assert running() is None
        assert current_lease() is None

    assert places > 2


def test_recursion_takes_the_lock_once(app: Celery, worker: Worker, name: str) -> None:
    """``self(n - 1)`` in a body is a function call."""

    @singleton_task(app=app, shared=False, name="job", key=name, bind=True)
    def job(self: Any, number: int) -> int:
        return number * self(number - 1) if number else 1

    with SignalRecorder("lock_acquired") as events:
        run = worker.run(job, 5)

    assert run.result == 120
    assert len(events.seen) == 1


def test_nested_apply_of_the_same_key_is_reentrant(
    app: Celery, worker: Worker, name: str
) -> None:
    """A task that applies a task with its own key runs it under its own lease."""
    app.conf.redlock_eager = True

    @singleton_task(app=app, shared=False, name="inner", key=name)
    def inner() -> bool:
        return current_lease() is outer_leases[0]

    outer_leases: list[Lease | None] = []

    @singleton_task(app=app, shared=False, name="outer", key=name)
    def outer() -> bool:
        outer_leases.append(current_lease())
        return bool(inner.apply().get(disable_sync_subtasks=False))

    assert worker.run(outer).result is True


def test_heartbeat_renews_the_senders_lock(
    app: Celery, live_nodes: FakeNodes, worker: Worker, name: str
) -> None:
    """The signal makes the watchdog renew the sender's lock at once."""

    @singleton_task(app=app, shared=False, name="job", key=name, bind=True, ttl=30)
    def job(self: Any) -> None:
        lock_heartbeat.send(sender=self)
        events.wait_for("lock_renewed")

    with SignalRecorder("lock_renewed") as events:
        run = worker.run(job)

    assert run.stored == states.SUCCESS
    assert events.seen[0].task_id == run.id
