"""Days and nights, and the two on which clocks are changed."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.beat.support import (
    DAY,
    MINUTE,
    Beat,
    Broker,
    Project,
    RecordingScheduler,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


BERLIN = ZoneInfo("Europe/Berlin")


def plain_celery(
    clock: FakeClock,
    schedule: Callable[[], Mapping[str, Any]],
    zone: str,
    seconds: float,
) -> list[datetime]:
    """Return the minutes at which Celery's own scheduler sends, undisturbed."""
    broker = Broker()
    app = Project("project", broker="memory://", set_as_current=False)
    app.clock_of_test, app.broker_of_test, app.host = clock, broker, "plain"
    app.conf.update(beat_schedule=schedule(), timezone=zone)
    scheduler = RecordingScheduler(app=app, max_interval=60)
    end = clock.monotonic() + seconds
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
        {"hour": 3, "minute": 0},
        {"minute": 0},
        {"minute": "*/15"},
        {"hour": 2, "minute": 30, "day_of_week": "sun"},
        {"hour": 2, "minute": 30, "day_of_month": "25,29"},
    ],
    ids=lambda fields: "-".join(f"{name}={value}" for name, value in fields.items()),
)
def test_clocks_that_are_changed_at_night_change_nothing(
    night: str, fields: dict[str, Any]
) -> None:
    """The slots are those that plain Celery sends, with beats killed all the time."""

    def schedule() -> Mapping[str, Any]:
        return {"job": {"task": "t", "schedule": crontab(**fields)}}

    wall = datetime.fromisoformat(night).replace(tzinfo=BERLIN).timestamp()
    zone, broker = "Europe/Berlin", Broker()
    expected = plain_celery(FakeClock(wall=wall), schedule, zone, DAY / 4)
    clock = FakeClock(wall=wall)
    nodes = FakeNodes(3, clock=clock)
    nodes.redlock()
    conf = {"timezone": zone, "redlock_beat_ttl": 60, "redlock_beat_catchup": 120}
    for number in range(24):
        beat = Beat(f"{number}", nodes.another_client(), broker, schedule, conf=conf)
        run(clock, [beat], 15 * MINUTE)
        beat.kill() if number % 2 else beat.stop()

    end = datetime.fromtimestamp(wall + DAY / 4, timezone.utc)
    assert [sent.due for sent in broker.sent if sent.due < end] == expected
    assert expected


def test_crontab_of_the_apps_own_zone(
    nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """Noon in Tokyo is at three in UTC."""
    conf = {"timezone": "Asia/Tokyo", "redlock_beat_ttl": 60}

    def schedule() -> Mapping[str, Any]:
        return {"job": {"task": "t", "schedule": crontab(hour=12, minute=0)}}

    run(clock, [Beat("a", nodes, broker, schedule, conf=conf)], DAY)

    assert broker.dues("job") == ["03:00:00"]
