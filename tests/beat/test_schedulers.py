"""The schedulers that projects use, each wrapped in two beats of which one sends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from tests.beat.project import DATABASE
from tests.beat.support import Beats, MakeBeats, often, until
from tests.conftest import with_long
from tests.harness.processes import LocalBeat
from tests.harness.programs import end_of

StartBeat = Callable[[], LocalBeat]

INTERVAL = timedelta(seconds=1)  # the longest of the schedules below
DJANGO = "tests.beat.project.django_app"
ADD_TO_DATABASE = """
import tests.beat.project.django_app
from django.core.management import call_command
from django_celery_beat.models import IntervalSchedule, PeriodicTask
call_command("migrate", verbosity=0)
second, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
PeriodicTask.objects.create(name="in-database", task="t", interval=second)
"""
LAST_RUN = """
import tests.beat.project.django_app
from django_celery_beat.models import PeriodicTask
print(PeriodicTask.objects.get(name="often").last_run_at.isoformat())
"""


@pytest.fixture(
    params=with_long(["persistent", "django", "redbeat"], "persistent", "redbeat")
)
def inner(
    request: pytest.FixtureRequest, project: MakeBeats
) -> tuple[Beats, StartBeat]:
    """Give a project with one of the schedulers, and a function that starts a beat."""
    name = request.param
    if name == "django":
        beats = project(
            often(1),  # its intervals are whole seconds
            redlock_beat_scheduler="django_celery_beat.schedulers.DatabaseScheduler",
        )
        folder = request.getfixturevalue("tmp_path")
        beats.use(**{DATABASE: str(folder / "project.sqlite3")})
        in_django(beats, ADD_TO_DATABASE)
        return beats, lambda: beats.start(app=DJANGO)
    if name == "redbeat":
        pytest.importorskip("redbeat")
        beats = project(
            often(),
            redlock_beat_scheduler="redbeat.RedBeatScheduler",
            redbeat_key_prefix=f"{request.node.name}:",
        )
        broker = beats.broker_url
        return beats, lambda: beats.start(redbeat_redis_url=broker)
    beats = project(often())
    return beats, beats.start


def in_django(beats: Beats, program: str) -> str:
    """Run a program in the Django project and return what it printed."""
    line = (sys.executable, "-c", program)
    return end_of(*line, variables=beats.environment()).stdout.strip()


def dues(beats: Beats, entry: str = "often") -> list[datetime]:
    """Return the due times of the sent slots of an entry, in order."""
    return [sent.due for sent in beats.sent() if sent.entry == entry]


@pytest.mark.long
def test_standby_continues_where_the_leader_was_killed(
    inner: tuple[Beats, StartBeat],
) -> None:
    """Each later leader sends the next slots, and none twice."""
    beats, start = inner
    first = start()
    beats.until_sent(2, by=first)
    second = start()
    second.until_logged("Standing by")
    beats.until_sent(2, by=first)
    assert beats.sent_by(second) == []

    killed = beats.kill_between_slots(first)
    beats.until_sent(4, by=second)
    second.kill("SIGTERM")
    stopped = datetime.now(timezone.utc)
    third = start()
    beats.until_sent(2, by=third)

    sent = dues(beats)
    assert sent == sorted(set(sent))
    for beat, ended in ((second, killed), (third, stopped)):
        assert beats.sent_by(beat)[0].due <= ended + INTERVAL
    assert [beat.count("Traceback") for beat in beats.all] == [0, 0, 0]


@pytest.mark.long
@pytest.mark.parametrize("inner", ["django", "redbeat"], indirect=True)
def test_frozen_leader_with_shared_storage_stands_by(
    inner: tuple[Beats, StartBeat],
) -> None:
    """It sends nothing when it continues, and leads again when it is elected."""
    beats, start = inner
    first = start()
    beats.until_sent(1, by=first)
    second = start()
    second.until_logged("Standing by")
    beats.until_sent(2, by=first)
    beats.freeze_between_slots(first)
    beats.until_sent(2, by=second)
    before = beats.sent_by(first)

    first.resume()
    first.until_logged("Standing by: ")
    assert beats.sent_by(first) == before
    second.kill("SIGTERM")
    beats.until_sent(2, by=first)

    sent = dues(beats)
    assert sent == sorted(set(sent))
    assert [beat.count("Traceback") for beat in beats.all] == [0, 0]


@pytest.mark.long
@pytest.mark.parametrize("inner", ["django"], indirect=True)
def test_entries_of_the_database_are_sent_once(
    inner: tuple[Beats, StartBeat],
) -> None:
    """Entries from Django's admin are sent, too, and their last runs are saved."""
    beats, start = inner
    first = start()
    beats.until_sent(1, by=first)
    second = start()
    second.until_logged("Standing by")
    beats.until_sent(6, by=first)

    first.kill("SIGTERM")
    beats.until_sent(4, by=second)

    sent = dues(beats, "in-database")
    assert len(sent) >= 4
    assert sent == sorted(set(sent))
    second.kill("SIGTERM")
    last_run = datetime.fromisoformat(in_django(beats, LAST_RUN))
    assert dues(beats)[-1] <= last_run


@pytest.mark.long
@pytest.mark.parametrize("inner", ["redbeat"], indirect=True)
def test_lock_of_redbeat_is_not_used(inner: tuple[Beats, StartBeat]) -> None:
    """A second beat does not wait for that lock, and stops on SIGTERM."""
    beats, start = inner
    first = start()
    beats.until_sent(1, by=first)
    second = start()
    second.until_logged("Standing by")
    beats.until_sent(1, by=first)

    assert [beat.count("Acquired lock") for beat in (first, second)] == [0, 0]
    second.kill("SIGTERM")
    until(lambda: not second.is_running)
