"""What becomes of a run that a newcomer has cancelled, and of the newcomer."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery import states

from celery_redlock import LockCancelled, LockLost, current_lease, singleton_task
from celery_redlock.cancelling import ask_to_end
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.scripts import CANCEL
from celery_redlock.runtime import runtime_of
from celery_redlock.testing import FakeNodes, SignalRecorder

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.lease import Holder
    from celery_redlock.core.redlock import Redlock
    from tests.unit.tasks.support import Worker

TTL = 0.9  # seconds: a lock that is renewed soon
LONG = 10.0  # seconds in which everything has happened
WHO = "job[newcomer]"


@pytest.fixture
def live_nodes(app: Celery) -> FakeNodes:
    """Give nodes in real time: the watchdog works as it does live."""
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


def cancelled(rival: Redlock, key: str) -> None:
    """Ask whoever holds this lock to end."""
    holder = rival.inspect(key).holder
    assert holder is not None
    assert ask_to_end(rival, key, holder, WHO)


def replacing(app: Celery, key: str, body: Any, **options: Any) -> Any:
    """Return a task whose calls replace each other."""
    options = {"ttl": TTL, "on_conflict": "cancel_running", **options}
    return singleton_task(app=app, shared=False, name="job", key=key, **options)(body)


def test_cancelled_body_ends_as_revoked_and_says_for_whom(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """LockCancelled is raised where the body stands, and is the result."""
    seen: list[BaseException] = []

    def body() -> None:
        cancelled(rival, name)
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
    """It may take its time to tidy up: nobody else has the lock meanwhile."""
    holders: list[Holder | None] = []

    def body() -> str:
        cancelled(rival, name)
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


def test_body_that_goes_on_is_struck_again_after_its_grace(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """As often as it takes."""

    def body() -> int:
        cancelled(rival, name)
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
        cancelled(rival, name)
        with suppress(LockCancelled):
            run_until_stopped()
        raise ValueError(name)

    run = worker.run(replacing(app, name, body))

    assert (run.stored, type(run.result)) == (states.FAILURE, ValueError)


@pytest.mark.parametrize("on_lock_lost", ["warn", "retry"])
def test_cancellation_is_no_loss(
    app: Celery, worker: Worker, rival: Redlock, name: str, on_lock_lost: str
) -> None:
    """``on_lock_lost`` is not asked: nothing is put back, and nothing goes on."""

    def body() -> None:
        cancelled(rival, name)
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
    """``autoretry_for=(Exception,)`` does not mean it."""

    def body() -> None:
        cancelled(rival, name)
        run_until_stopped()

    task = replacing(app, name, body, autoretry_for=(Exception,))

    run = worker.run(task)

    assert run.stored == states.REVOKED
    assert worker.published == []


def test_lock_that_is_lost_after_the_cancellation_is_a_loss(
    app: Celery, live_nodes: FakeNodes, worker: Worker, rival: Redlock, name: str
) -> None:
    """The body swallows the one and gets the other."""

    def body() -> None:
        cancelled(rival, name)
        with suppress(LockCancelled):
            run_until_stopped()
        live_nodes.partition()
        run_until_stopped()

    run = worker.run(replacing(app, name, body, cancel_grace=60))

    assert run.stored == states.FAILURE
    assert type(run.result) is LockLost


def test_lock_of_the_body_itself_is_its_own_affair(
    app: Celery, worker: Worker, rival: Redlock, name: str
) -> None:
    """A lock that it took besides is cancelled: it asks, and its error is its own."""
    inner = f"{name}-inner"

    def nothing() -> None:
        pass

    task = replacing(app, inner, nothing)

    def body() -> None:
        with task.lock() as lease:
            cancelled(rival, inner)
            while True:
                lease.ensure()
                SYSTEM_CLOCK.sleep(0.01)

    outer = singleton_task(app=app, shared=False, name="outer", key=name, ttl=TTL)

    run = worker.run(outer(body))

    assert (run.stored, type(run.result)) == (states.FAILURE, LockCancelled)


def test_successor_is_not_cancelled(live_nodes: FakeNodes, rival: Redlock) -> None:
    """A word that is left for one holder does not reach the next one."""
    first = rival.acquire("k")
    holder = rival.inspect("k").holder
    assert holder is not None
    rival.release(first)
    rival.acquire("k")

    assert ask_to_end(rival, "k", holder, WHO) == 0

    inspected = rival.inspect("k").holder
    assert inspected is not None
    assert inspected.cancelled_by == ""


def test_one_node_is_enough_to_be_told(
    app: Celery, live_nodes: FakeNodes, worker: Worker, rival: Redlock, name: str
) -> None:
    """The newcomer reached a single node; the renewal comes to it."""

    def body() -> None:
        lease = current_lease()
        assert lease is not None
        lock = f"redlock:lock:{name}"
        live_nodes.nodes[1].memory.execute(CANCEL, [lock], [lease.token, WHO])
        run_until_stopped()

    run = worker.run(replacing(app, name, body))

    assert isinstance(run.result, LockCancelled)
    assert WHO in str(run.result)


@pytest.mark.parametrize("is_older", [True, False])
def test_call_that_finds_the_lock_free_makes_way_for_a_newer_one_that_waits(
    app: Celery, worker: Worker, rival: Redlock, name: str, *, is_older: bool
) -> None:
    """A cancelled call that retries itself at once does not get ahead."""

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
        assert f"{waits.id} runs in its stead" in str(run.result)
        assert "cancel_running" in str(run.result)
    else:
        assert (run.stored, run.result) == (states.SUCCESS, "ran")
    assert rival.inspect(name).holder is None
