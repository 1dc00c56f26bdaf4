"""The watchdog's inbox: nothing is found too late, nobody is woken for nothing."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core import inbox as inbox_module
from celery_redlock.core.agenda import Agenda, Watch
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.inbox import Inbox
from celery_redlock.core.lease import Lease

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock

_numbers = itertools.count()


@pytest.fixture
def inbox(clock: FakeClock) -> Inbox:
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
        until=100_000.0,
        votes=5,
        clock=SYSTEM_CLOCK,
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


@pytest.mark.parametrize("seconds", [0.0, 4.99, -1.0])
def test_who_puts_what_is_urgent_rings(
    inbox: Inbox, clock: FakeClock, seconds: float
) -> None:
    """The thread may have been about to sleep for as long as it ever does."""
    inbox.put(watch_due_at(clock.monotonic() + seconds))

    assert inbox.sleep(clock.monotonic() + 1000)


def test_what_is_due_later_than_the_thread_sleeps_wakes_nobody(
    inbox: Inbox, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sleep ends by itself, however far its end was, and finds it in time."""
    monkeypatch.setattr(inbox_module, "_LONGEST_SLEEP", 0.01)
    late = watch_due_at(clock.monotonic() + 5.0)
    inbox.put(late)

    assert not inbox.has_rung
    assert not inbox.sleep(math.inf)
    assert list(inbox.drain()) == [late]


def test_nobody_oversleeps_what_is_not_urgent() -> None:
    """With a second to spare for falling asleep."""
    assert inbox_module._LONGEST_SLEEP + 1 <= inbox_module._SOON  # noqa: SLF001


def test_sleep_whose_end_has_come_is_over(inbox: Inbox, clock: FakeClock) -> None:
    """It waits for nothing."""
    assert not inbox.sleep(clock.monotonic())


def test_bell_that_has_rung_ends_the_next_sleep(inbox: Inbox) -> None:
    """Once: draining stills it."""
    inbox.ring()

    assert inbox.has_rung
    assert inbox.sleep(math.inf)
    assert not inbox.has_rung


def test_watch_that_was_planned_twice_for_one_instant_is_due_once() -> None:
    """Else its lease would be renewed twice at the same time."""
    agenda, watch = Agenda(), watch_due_at(110)
    agenda.plan(watch)
    agenda.plan(watch)

    assert list(agenda.due(110)) == [watch]
