"""Which slots are due, told the same way by every beat."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from celery import schedules
from celery.schedules import crontab

from celery_redlock.beat.due import as_us, next_due, slots_due, window_from
from tests.unit.beat.support import (
    NOON,
    Project,
    us,
)


def times(instants: list[int]) -> list[str]:
    """Return instants as times of day in UTC."""
    return [
        datetime.fromtimestamp(instant / 1e6, timezone.utc).strftime("%H:%M:%S")
        for instant in instants
    ]


@pytest.fixture
def app() -> Project:
    """Give an app in UTC."""
    return Project("project", set_as_current=False)


def test_due_time_does_not_depend_on_when_one_asks(app: Project) -> None:
    """Two beats come to the same microsecond, an hour apart."""
    interval = schedules.schedule(0.1, app=app)

    assert next_due(interval, us("12:00:00") + 7) == us("12:00:00") + 100_007
    assert slots_due(interval, us("12:00:00") + 7, us("13:00:00")) == [
        us("12:00:00") + 100_007
    ]


def test_each_instant_of_a_crontab_is_a_slot(app: Project) -> None:
    """Those after the last run, up to now, both ends as one expects."""
    five = crontab(minute="*/5", app=app)

    assert times(slots_due(five, us("12:00:00"), us("12:15:00"))) == [
        "12:05:00",
        "12:10:00",
        "12:15:00",
    ]
    assert slots_due(five, us("12:00:00"), us("12:04:59")) == []


@pytest.mark.parametrize(
    ("since", "earliest", "expected"),
    [
        ("12:00:00", "11:59:00", "12:00:00"),
        ("12:00:00", "12:00:30", "12:00:00"),
        ("12:00:00", "12:01:00", "12:00:00"),
        ("12:00:00", "12:01:01", "12:01:00"),
        ("12:00:00", "12:59:59", "12:59:00"),
        ("12:00:00", "13:00:00", "12:59:00"),
    ],
)
def test_window_moves_an_interval_in_whole_steps(
    app: Project, since: str, earliest: str, expected: str
) -> None:
    """The first slot that is sent is the first at or after the window's beginning."""
    minute = schedules.schedule(60, app=app)

    assert window_from(minute, us(since), us(earliest)) == us(expected)


def test_window_cuts_a_crontab(app: Project) -> None:
    """A slot at its very beginning is still sent."""
    since = window_from(crontab(app=app), us("08:00:00"), us("12:00:00"))

    assert times(slots_due(crontab(app=app), since, us("12:01:00"))) == [
        "12:00:00",
        "12:01:00",
    ]


def test_schedule_that_names_one_instant_for_ever_is_due_once() -> None:
    """As a clocked task of django-celery-beat does."""

    class Clocked(schedules.BaseSchedule):
        def remaining_estimate(self, _: datetime) -> Any:
            return datetime.fromisoformat(NOON) - self.now()

    assert slots_due(Clocked(), us("11:00:00"), us("12:00:01")) == [us("12:00:00")]
    assert slots_due(Clocked(), us("11:00:00"), us("11:59:59")) == []


def test_schedule_that_is_over_is_not_due() -> None:
    """As a rule with an end, of RedBeat, says by None."""

    class Over(schedules.BaseSchedule):
        def remaining_estimate(self, _: datetime) -> None:
            return None

    assert slots_due(Over(), us("11:00:00"), us("12:00:00")) == []
    assert window_from(Over(), us("11:00:00"), us("12:00:00")) == us("11:00:00")


def test_naive_instants_are_utc() -> None:
    """As Celery takes them."""
    assert as_us(datetime.fromisoformat(NOON).replace(tzinfo=None)) == us("12:00:00")
    assert as_us(None) == 0
