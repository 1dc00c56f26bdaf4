"""The watchdog's inbox: nothing is found too late, nobody is woken for nothing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.agenda import Agenda, Watch
from celery_redlock.core.inbox import Inbox
from celery_redlock.core.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable

_numbers = itertools.count()


class LastMoment:
    """A clock that lets something happen when it is read.

    Who goes to sleep reads it last of all: what happens then happens too late for
    its last look, and too early to find it asleep.

    Attributes:
        now: The instant that it tells.
        happens: What happens at the next reading.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.happens: Callable[[], object] | None = None

    def monotonic(self) -> float:
        """Let it happen, once, and tell the instant."""
        happens, self.happens = self.happens, None
        if happens:
            happens()
        return self.now

    def wall_us(self) -> int:
        """Tell the same in microseconds."""
        return round(self.now * 1e6)

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.now += seconds


@pytest.fixture
def clock() -> LastMoment:
    """Give a clock of this test's own."""
    return LastMoment()


@pytest.fixture
def inbox(clock: LastMoment) -> Inbox:
    """Give an empty inbox."""
    return Inbox(clock)


def watch_due_at(instant: float) -> Watch:
    """Make a watch of a lease that is to be renewed at this instant."""
    lease = Lease(
        key="k",
        token=f"t{next(_numbers)}.1",
        facts="",
        fence=1,
        ttl=60.0,
        started_at=90.0,
        until=1000.0,
        votes=5,
        clock=LastMoment(),
        confirm=lambda _: None,
    )
    return Watch(lease, None, None, instant)


def test_what_is_put_is_drained_once(inbox: Inbox) -> None:
    """However often it was put."""
    first, second = watch_due_at(110), watch_due_at(120)
    for watch in (first, second, first):
        inbox.put(watch)

    assert list(inbox.drain()) == [first, second]
    assert list(inbox.drain()) == []


def test_what_is_taken_back_is_never_seen(inbox: Inbox) -> None:
    """A lease that is released at once costs the thread nothing."""
    watch = watch_due_at(110)
    inbox.put(watch)
    inbox.take_back(watch.lease.token)

    assert list(inbox.drain()) == []


def test_sleep_that_nobody_ends_lasts_to_its_end(inbox: Inbox) -> None:
    """Here it is over at once, since its end has come."""
    assert not inbox.sleep(100.0)


def test_nobody_sleeps_over_what_is_there(inbox: Inbox) -> None:
    """Whenever it is due: it was put while the thread was at work."""
    inbox.put(watch_due_at(10_000))

    assert inbox.sleep(200.0)


def test_who_would_wake_too_late_is_woken(inbox: Inbox, clock: LastMoment) -> None:
    """Also when it is put in the moment between the last look and the sleep."""
    early = watch_due_at(110)
    clock.happens = lambda: inbox.put(early)

    assert inbox.sleep(150.0)
    assert list(inbox.drain()) == [early]


def test_who_wakes_in_time_is_left_asleep(inbox: Inbox, clock: LastMoment) -> None:
    """And finds it there when it wakes, before it is due."""
    late = watch_due_at(110)

    def put_late() -> None:
        inbox.put(late)
        clock.now = 105.0  # the sleep is over as soon as it has begun

    clock.happens = put_late

    assert not inbox.sleep(105.0)
    assert not inbox.has_rung
    assert list(inbox.drain()) == [late]


def test_nobody_rings_for_one_who_is_awake(inbox: Inbox) -> None:
    """It drains before it sleeps."""
    assert not inbox.sleep(100.0)
    inbox.put(watch_due_at(1))

    assert not inbox.has_rung


def test_bell_that_has_rung_ends_the_next_sleep(inbox: Inbox) -> None:
    """Once: draining stills it."""
    inbox.ring()

    assert inbox.has_rung
    assert inbox.sleep(200.0)
    assert not inbox.has_rung


def test_watch_that_was_planned_twice_for_one_instant_is_due_once() -> None:
    """Else its lease would be renewed twice at the same time."""
    agenda, watch = Agenda(), watch_due_at(110)
    agenda.plan(watch)
    agenda.plan(watch)

    assert list(agenda.due(110)) == [watch]
