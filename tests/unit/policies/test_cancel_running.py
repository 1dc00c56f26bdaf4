"""``cancel_running`` in a worker: the cancelled call, and the newcomer."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery import states
from prometheus_client import CollectorRegistry

from celery_redlock import (
    LockCancelled,
    LockLost,
    current_lease,
    metrics,
    singleton_task,
)
from celery_redlock.app.runtime import runtime_of
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import Holder
from celery_redlock.core.records.cancel_requests import ask_to_end
from celery_redlock.core.scripts import REQUEST_CANCEL
from celery_redlock.testing import FakeNodes, SignalRecorder

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.policies import Conflict
    from tests.unit.tasks.support import Worker

TTL = 0.9  # seconds: a lock that is renewed soon
LONG = 10.0  # seconds in which everything has happened
WHO = "job[newcomer]"


@pytest.fixture
def live_nodes(app: Celery) -> FakeNodes:
    """Give nodes in real time, in which the watchdog renews."""
    nodes = FakeNodes(3, clock=SYSTEM_CLOCK)
    runtime_of(app).use(nodes.redlock(ttl=TTL))
    return nodes


@pytest.fixture
def rival(live_nodes: FakeNodes) -> Redlock:
    """Give the lock service of another process on the same nodes."""
    return live_nodes.another_client().redlock(ttl=TTL)


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


def do_nothing() -> None:
    """Stand in for the body of a call that is refused."""


def cancel(rival: Redlock, key: str) -> None:
    """Ask the holder of this lock to end."""
    holder = rival.inspect(key).holder
    assert holder is not None
    assert ask_to_end(rival, key, holder, WHO)


def replacing(app: Celery, key: str, body: Any, **options: Any) -> Any:
    """Return a task whose calls replace each other."""
    options = {"ttl": TTL, "on_conflict": "cancel_running", **options}
    return singleton_task(app=app, shared=False, name="job", key=key, **options)(body)


def test_cancelled_body_ends_as_revoked_and_names_the_newcomer(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """LockCancelled interrupts the body, and is the result."""
    seen: list[BaseException] = []

    def body() -> None:
        cancel(rival, name)
        try:
            run_until_stopped()
        except BaseException as error:
            seen.append(error)
            raise

    run = worker.run(replacing(app, name, body))

    assert (run.state, run.stored) == (states.IGNORED, states.REVOKED)
    assert isinstance(run.result, LockCancelled)
    for word in (WHO, name, "cancel_running"):
        assert word in str(run.result)
    assert isinstance(seen[0], LockCancelled)
    assert rival.inspect(name).holder is None


def test_lock_is_kept_until_the_body_has_ended(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """No other call gets the lock while the body tidies up."""
    holders: list[Holder | None] = []

    def body() -> str:
        cancel(rival, name)
        try:
            run_until_stopped()
        except LockCancelled:
            lease = current_lease()
            assert lease is not None
            tidied_at = SYSTEM_CLOCK.monotonic() + 2 * TTL
            while SYSTEM_CLOCK.monotonic() < tidied_at:
                SYSTEM_CLOCK.sleep(0.05)
                assert lease.is_valid()
            holders.append(rival.inspect(name).holder)
        return "tidied"

    run = worker.run(replacing(app, name, body))

    assert (run.stored, run.result) == (states.SUCCESS, "tidied")
    assert holders[0] is not None
    assert holders[0].cancelled_by == WHO


def test_body_that_goes_on_is_interrupted_again_after_its_grace(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """It is interrupted until it ends."""

    def body() -> int:
        cancel(rival, name)
        for _ in range(3):
            with suppress(LockCancelled):
                run_until_stopped()
        return 3

    run = worker.run(replacing(app, name, body, cancel_grace=0.05))

    assert (run.stored, run.result) == (states.SUCCESS, 3)


def test_error_of_the_body_is_its_result(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """A body that ends in an error of its own ends in that error."""

    def body() -> None:
        cancel(rival, name)
        with suppress(LockCancelled):
            run_until_stopped()
        raise ValueError(name)

    run = worker.run(replacing(app, name, body))

    assert (run.stored, type(run.result)) == (states.FAILURE, ValueError)


@pytest.mark.parametrize("on_lock_lost", ["warn", "retry"])
def test_cancellation_is_no_loss(
    app: Celery, worker: Worker, rival: Redlock, name: str, on_lock_lost: str
) -> None:
    """``on_lock_lost`` is not asked: the call is not republished and does not go on."""

    def body() -> None:
        cancel(rival, name)
        run_until_stopped()

    task = replacing(app, name, body, on_lock_lost=on_lock_lost)

    with SignalRecorder("lock_lost", "lock_cancelled") as events:
        run = worker.run(task)
        events.wait_for("lock_cancelled")

    assert run.stored == states.REVOKED
    assert worker.published == []
    ((event),) = events.seen
    assert (event.name, event.cancelled_by) == ("lock_cancelled", WHO)
    assert event.task_id == run.id


def test_cancelled_call_is_not_autoretried(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """``autoretry_for=(Exception,)`` does not include it."""

    def body() -> None:
        cancel(rival, name)
        run_until_stopped()

    task = replacing(app, name, body, autoretry_for=(Exception,))

    run = worker.run(task)

    assert run.stored == states.REVOKED
    assert worker.published == []


def test_lock_that_is_lost_after_the_cancellation_is_a_loss(
    app: Celery, live_nodes: FakeNodes, worker: Worker, rival: Redlock, name: str
) -> None:
    """The body ignores LockCancelled and gets LockLost."""

    def body() -> None:
        cancel(rival, name)
        with suppress(LockCancelled):
            run_until_stopped()
        live_nodes.partition()
        run_until_stopped()

    run = worker.run(replacing(app, name, body, cancel_grace=60))

    assert run.stored == states.FAILURE
    assert type(run.result) is LockLost


def test_lock_that_the_body_takes_is_cancelled_for_the_body(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """The body gets the error from its own lease, and may handle it."""
    inner = f"{name}-inner"

    task = replacing(app, inner, do_nothing)

    def body() -> None:
        with task.lock() as lease:
            cancel(rival, inner)
            while True:
                lease.ensure()
                SYSTEM_CLOCK.sleep(0.01)

    outer = singleton_task(app=app, shared=False, name="outer", key=name, ttl=TTL)

    run = worker.run(outer(body))

    assert (run.stored, type(run.result)) == (states.FAILURE, LockCancelled)


def test_next_holder_is_not_cancelled(live_nodes: FakeNodes, rival: Redlock) -> None:
    """A request for one holder does not reach the next one."""
    first = rival.acquire("k")
    holder = rival.inspect("k").holder
    assert holder is not None
    rival.release(first)
    rival.acquire("k")

    assert ask_to_end(rival, "k", holder, WHO) == 0

    inspected = rival.inspect("k").holder
    assert inspected is not None
    assert inspected.cancelled_by == ""


def test_request_on_one_node_is_enough(
    app: Celery, live_nodes: FakeNodes, worker: Worker, rival: Redlock, name: str
) -> None:
    """The newcomer has reached a single node; the next renewal reads it there."""

    def body() -> None:
        lease = current_lease()
        assert lease is not None
        lock = f"redlock:lock:{name}"
        live_nodes.nodes[1].memory.execute(REQUEST_CANCEL, [lock], [lease.token, WHO])
        run_until_stopped()

    run = worker.run(replacing(app, name, body))

    assert isinstance(run.result, LockCancelled)
    assert WHO in str(run.result)


@pytest.mark.parametrize("is_older", [True, False])
def test_call_that_finds_the_lock_free_is_superseded_by_a_newer_one(
    app: Celery, worker: Worker, rival: Redlock, name: str, *, is_older: bool
) -> None:
    """A cancelled call that retries itself at once does not run first."""

    def body() -> str:
        return "ran"

    task = replacing(app, name, body, cancel_grace=0.05)
    holder = rival.acquire(name)
    waits = worker.run(task, redlock={"published": 2_000_000})
    assert waits.stored == states.RETRY
    rival.release(holder)

    run = worker.run(task, redlock={"published": 1_000_000 if is_older else 3_000_000})

    if is_older:
        assert run.stored == states.REVOKED
        assert f"{waits.id} runs instead" in str(run.result)
        assert "cancel_running" in str(run.result)
    else:
        assert (run.stored, run.result) == (states.SUCCESS, "ran")
    assert rival.inspect(name).holder is None


def test_wait_of_the_newcomer_counts_as_waited(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """A callable is asked again after the grace, and knows that the call has waited."""
    asked: list[float] = []

    def cancel_once(conflict: Conflict) -> str:
        asked.append(conflict.waited)
        return "skip" if conflict.waited else "cancel_running"

    options = {"on_conflict": cancel_once, "cancel_grace": 0.05}
    rival.acquire(name, holder=Holder.here(task="job", task_id="other-id"))

    run = worker.run(replacing(app, name, do_nothing, **options))

    assert asked == [0.0, 0.05]
    assert run.stored == states.REVOKED
    assert "after 0.05 s of waiting" in str(run.result)


def test_wait_of_the_newcomer_is_timed_when_it_returns_to_its_queue(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """Its wait in the worker process is over, and the lock was refused."""
    registry = CollectorRegistry()
    installed = metrics.install(app, registry=registry)
    rival.acquire(name, holder=Holder.here(task="job", task_id="other-id"))

    run = worker.run(replacing(app, name, do_nothing, cancel_grace=0.05))
    installed.uninstall()

    labels = {"task": "job", "outcome": "refused"}
    assert run.stored == states.RETRY
    assert registry.get_sample_value("redlock_wait_seconds_count", labels) == 1
