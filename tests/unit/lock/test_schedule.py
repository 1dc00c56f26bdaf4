"""The schedule: no watch is found too late, and the thread is woken only if needed."""

from __future__ import annotations

import itertools
import math

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.locks import renewal_schedule as schedule
from celery_redlock.locks.lease import Lease
from celery_redlock.locks.renewal_schedule import RenewalSchedule, WakeupQueue, Watch
from celery_redlock.testing import FakeClock

_numbers = itertools.count()


@pytest.fixture
def wakeups(clock: FakeClock) -> WakeupQueue:
    """Give an empty queue."""
    return WakeupQueue(clock)


def watch_due_at(instant: float) -> Watch:
    """Make a watch of a lease that is to be renewed at this instant."""
    lease = Lease(
        key="k",
        token=f"t{next(_numbers)}.1",
        holder_info="",
        fence=1,
        ttl=60.0,
        started_at=90.0,
        until=100_000.0,
        votes=5,
        clock=SYSTEM_CLOCK,
        confirm=lambda _: None,
    )
    return Watch(lease, instant)


def test_watch_that_is_put_is_drained_once(wakeups: WakeupQueue) -> None:
    """Even if it was put twice."""
    first, second = watch_due_at(110), watch_due_at(120)
    for watch in (first, second, first):
        wakeups.put(watch)

    assert list(wakeups.drain()) == [first, second]
    assert list(wakeups.drain()) == []


def test_watch_that_is_discarded_is_never_drained(wakeups: WakeupQueue) -> None:
    """A lease that is released at once costs the thread nothing."""
    watch = watch_due_at(110)
    wakeups.put(watch)
    wakeups.discard(watch.lease.token)

    assert list(wakeups.drain()) == []


@pytest.mark.parametrize("seconds", [0.0, 4.99, -1.0])
def test_watch_that_is_due_soon_wakes_the_thread(
    wakeups: WakeupQueue, clock: FakeClock, seconds: float
) -> None:
    """The thread may be about to sleep for its longest time."""
    wakeups.put(watch_due_at(clock.monotonic() + seconds))

    assert wakeups.sleep(clock.monotonic() + 1000)


def test_watch_that_is_due_later_does_not_wake_the_thread(
    wakeups: WakeupQueue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sleep ends by itself, and the thread finds the watch in time."""
    monkeypatch.setattr(schedule, "_LONGEST_SLEEP", 0.01)
    late = watch_due_at(clock.monotonic() + 5.0)
    wakeups.put(late)

    assert not wakeups.was_woken
    assert not wakeups.sleep(math.inf)
    assert list(wakeups.drain()) == [late]


def test_longest_sleep_ends_before_the_first_watch_without_a_wakeup_is_due() -> None:
    """There is a second to spare for falling asleep."""
    assert schedule._LONGEST_SLEEP + 1 <= schedule._SOON  # noqa: SLF001


def test_sleep_until_now_returns_after_each_wake_up(
    wakeups: WakeupQueue, clock: FakeClock
) -> None:
    """The thread renews in steps, without a sleep between them.

    In Python 3.10, one in some hundred ``SimpleQueue.get(timeout=0.0)`` behind a
    ``put`` and a ``get`` waits for ever.
    """
    for _ in range(5_000):
        wakeups.wake()
        assert list(wakeups.drain()) == []
        assert not wakeups.sleep(clock.monotonic())


def test_sleep_until_now_returns_at_once(
    wakeups: WakeupQueue, clock: FakeClock
) -> None:
    """A sleep until a past instant returns at once."""
    assert not wakeups.sleep(clock.monotonic())


def test_wake_ends_the_next_sleep(wakeups: WakeupQueue) -> None:
    """One call of ``wake`` ends one sleep."""
    wakeups.wake()

    assert wakeups.was_woken
    assert wakeups.sleep(math.inf)
    assert not wakeups.was_woken


def test_watch_that_is_planned_twice_for_one_instant_is_due_once() -> None:
    """Otherwise its lease would be renewed twice at the same time."""
    schedule, watch = RenewalSchedule(), watch_due_at(110)
    schedule.plan(watch)
    schedule.plan(watch)

    assert list(schedule.due(110)) == [watch]
