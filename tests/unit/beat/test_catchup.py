"""Missed slots are sent within the catch-up window, and stale files change nothing."""

from __future__ import annotations

import shelve
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedstate
from django.db.models import Q

from celery_redlock.testing import FakeNodes
from tests.unit.beat.support import (
    DAY,
    HOUR,
    MINUTE,
    NOON,
    Beat,
    RecordingPersistentScheduler,
    RecordingScheduler,
    Site,
    at,
    crontabs,
    every,
)
from tests.unit.election.support import run

StartWithFile = Callable[..., Beat]


@pytest.mark.parametrize(
    ("catchup", "expected"),
    [
        (0, []),
        (60, ["12:10:00"]),
        (200, ["12:07:00", "12:08:00", "12:09:00", "12:10:00"]),
        (timedelta(hours=1), [f"12:{n:02}:00" for n in range(2, 11)]),
    ],
)
def test_slots_that_were_missed_are_sent_within_the_window(
    site: Site, catchup: Any, expected: list[str]
) -> None:
    """The oldest slot is sent first; older slots are not sent at all."""
    first = site.start(beat_catchup=catchup)
    run(MINUTE, first)
    first.stop()
    site.clock.advance(9 * MINUTE)

    second = site.start(beat_catchup=catchup)
    run(10, second)
    assert site.dues()[1:] == expected

    second.stop()
    run(10, site.start(beat_catchup=catchup))
    assert site.dues()[1:] == expected


@pytest.mark.parametrize(
    ("minutes", "what"),
    [
        (2, " is not sent: no beat has sent it"),
        (9, " and 7 later slots of it are not sent: no beat has sent them"),
        (300, " and 99 or more later slots of it are not sent"),
    ],
)
def test_missed_slots_that_are_too_old_are_logged(
    site: Site, minutes: int, what: str
) -> None:
    """The line names the first one, their number, and the setting that decides."""
    first = site.start()
    run(MINUTE, first)
    first.stop()
    site.clock.advance(minutes * MINUTE)

    run(1, site.start())

    (line,) = site.log.messages
    assert f"job@2026-11-21T12:02:00+00:00{what}" in line
    assert "redlock_beat_catchup (60 s) is over" in line


class OfTheseHours(RecordingScheduler):
    """A scheduler that leaves out the crontabs of other hours: see Django's."""

    def _get_crontab_exclude_query(self) -> Q:
        return Q(hour="4")

    def setup_schedule(self) -> None:
        """Read the rows."""
        super().setup_schedule()
        if self._get_crontab_exclude_query():
            self.schedule.clear()


def test_missed_slot_of_another_hour_is_logged(site: Site) -> None:
    """An entry of the night is due no more when beats are back in the morning."""
    nightly = crontabs(hour=12, minute=30)
    first = site.start(nightly, beat_scheduler=OfTheseHours)
    run(MINUTE, first)
    first.stop()
    site.clock.advance(6 * HOUR)

    run(MINUTE, site.start(nightly, beat_scheduler=OfTheseHours))

    (line,) = site.log.messages
    assert "job@2026-11-21T12:30:00+00:00 is not sent: no beat has sent it" in line


def test_interval_is_sent_once_after_a_gap_of_several_steps(site: Site) -> None:
    """An interval counts from its last run, so it misses one slot at most."""
    first = site.start(every(10.0))
    run(12, first)
    first.kill()

    run(35, site.start(every(10.0)))

    first_sent, overdue, following, *_ = site.sent
    assert site.dues()[:2] == ["12:00:20", "12:00:30"]
    assert overdue.at - first_sent.at > 12
    assert following.at - overdue.at == pytest.approx(10, abs=0.1)


def test_interval_continues_where_the_last_leader_left_it(site: Site) -> None:
    """Each six minutes stays each six minutes, though no leader lives so long."""
    period = 6 * MINUTE
    for _ in range(32):
        beat = site.start(every(period))
        run(MINUTE, beat)
        beat.stop()

    sent_at = [sent.at - at(NOON) for sent in site.sent]
    gaps = [b - a for a, b in pairwise(sent_at)]
    assert [round(first) for first in sent_at[:1]] == [period + 10]
    assert len(sent_at) == 5
    assert all(period <= gap < period + 1 for gap in gaps)


def test_interval_that_was_missed_too_long_ago_keeps_its_step(site: Site) -> None:
    """Ten seconds past the tenth minute stays ten seconds past it."""
    step = 10 * MINUTE
    first = site.start(every(step))
    run(step + 1, first)
    first.stop()
    site.clock.advance(2.5 * step)

    run(step, site.start(every(step)))

    assert site.dues() == ["12:10:10", "12:40:10"]


def test_entry_that_never_ran_is_sent_at_once_if_its_scheduler_wants_that(
    site: Site,
) -> None:
    """The scheduler sets a last run that is decades ago."""

    class Never(RecordingScheduler):
        def setup_schedule(self) -> None:
            super().setup_schedule()
            self.schedule["job"].last_run_at = datetime(1996, 1, 1, tzinfo=timezone.utc)

    for catchup in (0, 60):
        beat = site.start(beat_scheduler=Never, beat_catchup=catchup)
        run(5, beat)
        beat.stop()

    assert [(sent.by, sent.due.year) for sent in site.sent] == [("a", 1996)]


# -- schedule files ------------------------------------------------------------------


def entries() -> Mapping[str, Any]:
    """Return a schedule with three entries."""
    return {
        "minutely": {"task": "t", "schedule": crontab()},
        "daily": {"task": "t", "schedule": crontab(hour=12, minute=1)},
        "hourly": {"task": "t", "schedule": HOUR},
    }


@pytest.fixture
def start_with_file(site: Site, tmp_path: Path) -> StartWithFile:
    """Give a function that starts a beat with a schedule file of this name."""
    return lambda name, **options: site.start(
        entries,
        beat_scheduler=RecordingPersistentScheduler,
        options={"schedule_filename": str(tmp_path / name)},
        **options,
    )


def test_stale_schedule_file_does_not_fire_everything_again(
    site: Site, start_with_file: StartWithFile
) -> None:
    """A beat that led three days ago continues from today."""
    old = start_with_file("old")
    run(MINUTE, old)
    old.stop()
    site.clock.advance(3 * DAY)
    new = start_with_file("new")
    run(10 * MINUTE, new)
    new.stop()
    before = len(site.sent)

    again = start_with_file("old")
    run(5, again)
    assert len(site.sent) == before

    run(2 * MINUTE, again)
    assert [sent.entry for sent in site.sent[before:]] == ["minutely"] * 2


def test_stale_schedule_file_without_any_record_sends_the_window_only(
    site: Site, start_with_file: StartWithFile
) -> None:
    """The first start with election, with a file of last week, sends no flood."""
    plain = start_with_file("file")
    run(1, plain)
    plain.stop()
    nodes = FakeNodes(5, clock=site.clock)
    nodes.redlock()
    site.clock.advance(7 * DAY + HOUR / 2)

    run(5, start_with_file("file", on=nodes))

    assert [sent.entry for sent in site.sent] == ["minutely"]  # 12:30, in the window


def test_schedule_file_is_opened_by_the_leader_only(
    site: Site, start_with_file: StartWithFile, tmp_path: Path
) -> None:
    """Two beats in one folder use one file one after the other, without damage."""
    first, second = start_with_file("file"), start_with_file("file")
    run(MINUTE, first, second)
    first.stop()
    run(MINUTE, first, second)
    second.stop()

    with shelve.open(str(tmp_path / "file")) as stored:  # noqa: S301  (our own)
        assert set(stored["entries"]) > {"minutely", "daily", "hourly"}
    assert [sent.by for sent in site.sent if sent.entry == "minutely"] == ["a", "b"]


class Clocked(BaseSchedule):
    """A schedule with one instant, as django-celery-beat has it."""

    def __init__(self, instant: float, app: Celery) -> None:
        super().__init__(app=app)
        self._instant = datetime.fromtimestamp(instant, tz=timezone.utc)

    def remaining_estimate(self, _: datetime) -> timedelta:
        """Return the time until the instant; below zero after it."""
        left: timedelta = self._instant - self.now()
        return left

    def is_due(self, _: datetime) -> schedstate:
        """Tell that it is due from its instant on."""
        left = self.remaining_estimate(self.now()).total_seconds()
        return schedstate(is_due=left <= 0, next=left if left > 0 else HOUR)


class EditedScheduler(RecordingScheduler):
    """A scheduler whose entries are edited while it runs, as in Django's admin."""

    def schedules_equal(self, *_: Any) -> bool:
        """Look at all entries with each tick."""
        return False


def entries_of(beat: Beat) -> dict[str, Any]:
    """Return the entries of a leader, which a test may edit."""
    entries: Any = beat.scheduler.schedule
    return cast("dict[str, Any]", entries)


@pytest.mark.parametrize(
    ("last_run", "expected"),
    [
        (NOON, ["12:11:00", "12:12:00"]),  # RedBeat leaves it
        ("2026-11-21T12:11:10+00:00", ["12:12:00"]),  # Django: when it was enabled
    ],
)
def test_entry_that_is_enabled_again_does_not_send_the_slots_between(
    site: Site, last_run: str, expected: list[str]
) -> None:
    """After ten minutes in which it was disabled, it sends what the window allows."""
    beat = site.start(beat_scheduler=EditedScheduler)
    run(MINUTE, beat)
    entries = entries_of(beat)
    paused = entries.pop("job")
    run(10 * MINUTE, beat)

    entries["job"] = paused
    paused.last_run_at = datetime.fromisoformat(last_run)
    run(MINUTE, beat)

    assert site.dues() == ["12:01:00", *expected]


class EnabledLate(RecordingScheduler):
    """A scheduler with a row that was enabled at eleven past noon: see Django's."""

    def setup_schedule(self) -> None:
        """Take the last change of the row as its last run, as `ModelEntry` does."""
        super().setup_schedule()
        self._dirty: set[str] = set()
        entry: Any = self.schedule["job"]
        changed = datetime(2026, 11, 21, 12, 11, 10, tzinfo=timezone.utc)
        row = {"model": SimpleNamespace(date_changed=changed)}
        entry.__class__ = type("Row", (ScheduleEntry,), row)
        entry.last_run_at = changed


class Rows:
    """The rows of a database: that of the job was last written at noon."""

    def values_list(self, *_: str) -> list[tuple[str, datetime]]:
        """Return the rows."""
        return [("job", datetime(2026, 11, 21, 12, 0, 10, tzinfo=timezone.utc))]


class WrittenAtTheStart(RecordingScheduler):
    """A scheduler that writes the settings into its rows, of which none has run."""

    Model = SimpleNamespace(_default_manager=Rows())

    def setup_schedule(self) -> None:
        """Change the row now, and take that for its last run: see Django's."""
        super().setup_schedule()
        self._dirty: set[str] = set()
        entry: Any = self.schedule["job"]
        now = entry.default_now()
        row = {"model": SimpleNamespace(date_changed=now)}
        entry.__class__ = type("Row", (ScheduleEntry,), row)
        entry.last_run_at = now


def test_slot_of_a_row_that_each_leader_writes_is_sent_by_the_next_one(
    site: Site,
) -> None:
    """Its last change is the beginning of the term, and no user has enabled it then."""
    first = site.start(beat_scheduler=WrittenAtTheStart)
    run(30, first)
    first.stop()
    site.clock.advance(30)

    run(20, site.start(beat_scheduler=WrittenAtTheStart))

    assert site.dues() == ["12:01:00"]


class StillDisabled(RecordingScheduler):
    """A scheduler with an entry that is disabled, which RedBeat has."""

    def setup_schedule(self) -> None:
        """Disable the entry."""
        super().setup_schedule()
        self.schedule["job"].enabled = False

    def is_due(self, _: ScheduleEntry) -> Any:
        """Look at the entry again later."""
        return schedstate(is_due=False, next=5.0)


@pytest.mark.parametrize(
    ("scheduler", "expected"), [(EnabledLate, ["12:12:00"]), (StillDisabled, [])]
)
def test_slots_while_an_entry_was_disabled_are_not_missed(
    site: Site, scheduler: type, expected: list[str]
) -> None:
    """A beat that starts sends none of them, and warns of none."""
    first = site.start()
    run(MINUTE, first)
    first.stop()
    site.clock.advance(10 * MINUTE + 20)

    run(MINUTE, site.start(beat_scheduler=scheduler))

    assert site.dues() == ["12:01:00", *expected]
    assert site.log.messages == []


def test_entry_that_gets_another_schedule_does_not_send_that_of_the_past(
    site: Site,
) -> None:
    """An entry of each day becomes one of each minute at ten past noon."""
    daily = crontabs(minute=0, hour=12, day_of_month="*")
    beat = site.start(daily, beat_scheduler=EditedScheduler)
    run(10 * MINUTE, beat)
    assert site.sent == []

    entries_of(beat)["job"].schedule = crontab(app=beat.app)
    run(MINUTE, beat)

    assert site.dues() == ["12:10:00", "12:11:00"]


class InRedis(EditedScheduler):
    """A scheduler that has its entries elsewhere, as RedBeat, where they are edited."""

    class Entry(ScheduleEntry):
        """An entry that is found by its key."""

        stored: ClassVar[dict[str, Any]]

        @classmethod
        def generate_key(cls, app: Celery, name: str) -> str:
            """Return the key of an entry."""
            return f"{app.main}:{name}"

        @classmethod
        def from_key(cls, key: str, app: Celery) -> ScheduleEntry:
            """Return what is stored, or raise a ``KeyError``."""
            entry: ScheduleEntry = cls.stored[key.removeprefix(f"{app.main}:")]
            return entry

    def setup_schedule(self) -> None:
        """Store the entries."""
        super().setup_schedule()
        self.Entry.stored = self.schedule


@pytest.mark.parametrize("scheduler", [EditedScheduler, InRedis])
def test_entry_that_was_removed_while_the_broker_was_away_is_not_sent(
    site: Site, scheduler: type
) -> None:
    """The slot that the broker refused is not sent when the broker is back."""
    schedule = crontabs("kept", "removed", minute=1)
    beat = site.start(schedule, beat_scheduler=scheduler)
    run(30, beat)
    site.run_without_broker(30, beat)

    del entries_of(beat)["removed"]
    run(MINUTE, beat)

    assert [sent.entry for sent in site.sent] == ["kept"]


def test_entry_that_was_disabled_while_the_broker_was_away_is_not_sent(
    site: Site,
) -> None:
    """RedBeat keeps a disabled entry in its schedule."""
    beat = site.start(crontabs(minute=1), beat_scheduler=InRedis)
    run(30, beat)
    site.run_without_broker(30, beat)

    entries_of(beat)["job"].enabled = False
    run(MINUTE, beat)

    assert site.sent == []


def test_fixed_instant_that_has_passed_when_its_entry_is_made_is_sent(
    site: Site,
) -> None:
    """It is sent once, however long ago it was, as Celery's own beat sends it."""
    beat = site.start(dict, beat_scheduler=EditedScheduler)
    run(HOUR, beat)

    entries_of(beat)["job"] = ScheduleEntry(
        name="job",
        task="t",
        schedule=Clocked(at(NOON), beat.app),
        last_run_at=beat.app.now(),
        app=beat.app,
    )
    run(MINUTE, beat)
    beat.stop()
    run(MINUTE, site.start(dict))

    assert site.dues() == ["12:00:00"]
