"""The due slots of a schedule, computed alike by every beat."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import schedules
from celery.schedules import crontab

from celery_redlock.beat.due_entries import as_us, cut_to_window, next_due, slots_due
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.beat.support import (
    DAY,
    MINUTE,
    NOON,
    Beat,
    Broker,
    Project,
    RecordingScheduler,
    Schedule,
    Site,
    crontabs,
    us,
)
from tests.unit.election.support import run

BERLIN = "Europe/Berlin"


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


def test_due_time_does_not_depend_on_when_a_beat_asks(app: Project) -> None:
    """Two beats that ask an hour apart compute the same microsecond."""
    interval = schedules.schedule(0.1, app=app)

    assert next_due(interval, us("12:00:00") + 7) == us("12:00:00") + 100_007
    assert slots_due(interval, us("12:00:00") + 7, us("13:00:00")) == [
        us("12:00:00") + 100_007
    ]


def test_each_instant_of_a_crontab_is_a_slot(app: Project) -> None:
    """The slots are those after the last run, up to and including now."""
    five = crontab(minute="*/5", app=app)

    assert times(slots_due(five, us("12:00:00"), us("12:15:00"))) == [
        "12:05:00",
        "12:10:00",
        "12:15:00",
    ]
    assert slots_due(five, us("12:00:00"), us("12:04:59")) == []


@pytest.mark.parametrize(
    ("earliest", "expected"),
    [
        ("11:59:00", "12:00:00"),
        ("12:00:30", "12:00:00"),
        ("12:01:00", "12:00:00"),
        ("12:01:01", "12:01:00"),
        ("12:59:59", "12:59:00"),
        ("13:00:00", "12:59:00"),
    ],
)
def test_window_moves_an_interval_in_whole_steps(
    app: Project, earliest: str, expected: str
) -> None:
    """The first slot to send is the first at or after the start of the window."""
    minute = schedules.schedule(60, app=app)

    assert cut_to_window(minute, us("12:00:00"), us(earliest)) == us(expected)


def test_window_of_a_crontab_includes_its_first_instant(app: Project) -> None:
    """A slot at the start of the window is sent."""
    since = cut_to_window(crontab(app=app), us("08:00:00"), us("12:00:00"))

    assert times(slots_due(crontab(app=app), since, us("12:01:00"))) == [
        "12:00:00",
        "12:01:00",
    ]


def test_schedule_with_one_fixed_instant_is_due_once() -> None:
    """A clocked task of django-celery-beat is such a schedule."""

    class Clocked(schedules.BaseSchedule):
        def remaining_estimate(self, _: datetime) -> Any:
            return datetime.fromisoformat(NOON) - self.now()

    assert slots_due(Clocked(), us("11:00:00"), us("12:00:01")) == [us("12:00:00")]
    assert slots_due(Clocked(), us("11:00:00"), us("11:59:59")) == []


def test_schedule_that_has_ended_is_not_due() -> None:
    """A rule of RedBeat with an end returns None."""

    class Over(schedules.BaseSchedule):
        def remaining_estimate(self, _: datetime) -> None:
            return None

    assert slots_due(Over(), us("11:00:00"), us("12:00:00")) == []
    assert cut_to_window(Over(), us("11:00:00"), us("12:00:00")) == us("11:00:00")


def test_naive_instants_are_utc() -> None:
    """Celery reads them in the same way."""
    assert as_us(datetime.fromisoformat(NOON).replace(tzinfo=None)) == us("12:00:00")
    assert as_us(None) == 0


# -- time zones and daylight saving --------------------------------------------------


def sent_by_celery(clock: FakeClock, schedule: Schedule) -> list[datetime]:
    """Return the minutes at which Celery's own scheduler sends within six hours."""
    broker = Broker()
    app = Project("project", broker="memory://", set_as_current=False)
    app.clock_of_test, app.broker_of_test, app.host = clock, broker, "plain"
    app.conf.update(beat_schedule=schedule(), timezone=BERLIN)
    scheduler = RecordingScheduler(app=app, max_interval=60)
    end = clock.monotonic() + DAY / 4
    while (left := end - clock.monotonic()) > 0:
        clock.advance(min(left, max(0.001, scheduler.tick())))
    return [
        datetime.fromtimestamp(sent.at, timezone.utc).replace(second=0, microsecond=0)
        for sent in broker.sent
    ]


@pytest.mark.parametrize("night", ["2026-03-28T23:30:00", "2026-10-24T23:30:00"])
@pytest.mark.parametrize(
    "fields",
    [
        {"hour": 2, "minute": 30},
        *(
            pytest.param(fields, marks=pytest.mark.long)
            for fields in (
                {"hour": 3, "minute": 0},
                {"minute": 0},
                {"minute": "*/15"},
                {"hour": 2, "minute": 30, "day_of_week": "sun"},
                {"hour": 2, "minute": 30, "day_of_month": "25,29"},
            )
        ),
    ],
    ids=lambda fields: "-".join(f"{name}={value}" for name, value in fields.items()),
)
def test_clocks_that_are_changed_at_night_change_nothing(
    night: str, fields: dict[str, Any]
) -> None:
    """The slots are those of plain Celery, though each beat lives for 15 minutes."""
    schedule, broker = crontabs(**fields), Broker()
    wall = datetime.fromisoformat(night).replace(tzinfo=ZoneInfo(BERLIN)).timestamp()
    expected = sent_by_celery(FakeClock(wall=wall), schedule)
    nodes = FakeNodes(3, clock=FakeClock(wall=wall))
    nodes.redlock()
    conf = {"timezone": BERLIN, "redlock_beat_ttl": 60, "redlock_beat_catchup": 120}
    for number in range(24):
        beat = Beat(f"{number}", nodes.another_client(), broker, schedule, conf=conf)
        run(15 * MINUTE, beat)
        beat.kill() if number % 2 else beat.stop()

    end = datetime.fromtimestamp(wall + DAY / 4, timezone.utc)
    assert [sent.due for sent in broker.sent if sent.due < end] == expected
    assert expected


def test_crontab_uses_the_zone_of_the_app(site: Site) -> None:
    """Half past nine in the evening in Tokyo is half past noon in UTC."""
    evening = crontabs(hour=21, minute=30)

    run(60 * MINUTE, site.start(evening, conf={"timezone": "Asia/Tokyo"}, beat_ttl=60))

    assert site.dues() == ["12:30:00"]


@pytest.mark.parametrize(
    ("hour", "expected"),
    [("*", ["13:00:00", "14:00:00", "15:00:00"]), ("23", ["14:00:00"])],
)
@pytest.mark.parametrize("zone", [None, ZoneInfo("UTC")])
def test_crontab_may_have_a_clock_of_its_own(
    site: Site, hour: str, expected: list[str], zone: ZoneInfo | None
) -> None:
    """Celery takes what a ``nowfun`` without a zone shows for UTC: here in Tokyo."""

    def in_tokyo() -> datetime:
        now = datetime.fromtimestamp(site.clock.wall(), ZoneInfo("Asia/Tokyo"))
        return now.replace(tzinfo=zone)

    schedule = crontabs(minute=0, hour=hour, nowfun=in_tokyo)
    for _ in range(4):
        beat = site.start(schedule)
        run(50 * MINUTE, beat)
        beat.stop()

    assert site.dues() == expected
