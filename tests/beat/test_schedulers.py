"""The schedulers that projects use, wrapped: each in two beats of which one sends."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.beat.project import DATABASE
from tests.beat.support import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.beat.support import Beats, LocalBeat

    StartBeat = Callable[[], LocalBeat]

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


def schedule(seconds: float) -> dict[str, object]:
    """Return a schedule with one entry that is due so often."""
    return {"often": {"task": "beat-quick", "schedule": seconds, "args": ["often"]}}


@pytest.fixture(params=["persistent", "django", "redbeat"])
def inner(
    request: pytest.FixtureRequest, project: Callable[..., Beats]
) -> tuple[Beats, StartBeat]:
    """Give a project with a scheduler of its own, and how its beats are started."""
    name = request.param
    if name == "django":
        beats = project(
            schedule(1),  # its intervals are whole seconds
            redlock_beat_scheduler="django_celery_beat.schedulers.DatabaseScheduler",
        )
        folder = request.getfixturevalue("tmp_path")
        beats.use(**{DATABASE: str(folder / "project.sqlite3")})
        in_django(beats, ADD_TO_DATABASE)
        return beats, lambda: beats.start(app=DJANGO)
    if name == "redbeat":
        pytest.importorskip("redbeat")
        beats = project(
            schedule(0.5),
            redlock_beat_scheduler="redbeat.RedBeatScheduler",
            redbeat_key_prefix=f"{request.node.name}:",
        )
        broker = beats.broker_url
        return beats, lambda: beats.start(redbeat_redis_url=broker)
    beats = project(schedule(0.5))
    return beats, beats.start


def in_django(beats: Beats, program: str) -> str:
    """Run a program in the Django project and return what it printed."""
    return subprocess.run(  # noqa: S603  (our own)
        [sys.executable, "-c", program],
        env={**os.environ, **beats.environment()},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def dues(beats: Beats, entry: str = "often") -> list[datetime]:
    """Return when the slots of this entry were due that were sent, in order."""
    named = (sent.slot.rpartition("@") for sent in beats.sent())
    return [datetime.fromisoformat(due) for name, _, due in named if name == entry]


def test_standby_goes_on_where_the_leader_was_killed(
    inner: tuple[Beats, StartBeat],
) -> None:
    """One sends; the next one sends each slot after that, and none again."""
    beats, start = inner
    first = start()
    beats.until_sent(2, by=first)
    second = start()
    second.until_logged("Standing by")
    beats.until_sent(2, by=first)
    assert beats.sent_by(second) == []

    beats.kill_between_slots(first)
    beats.until_sent(4, by=second)
    second.kill("SIGTERM")
    third = start()
    beats.until_sent(2, by=third)

    sent = dues(beats)
    assert sent == sorted(set(sent))
    gaps = [(b - a).total_seconds() for a, b in pairwise(sent)]
    assert max(gaps) < 4
    assert [beat.count("Traceback") for beat in beats.all] == [0, 0, 0]


@pytest.mark.parametrize("inner", ["django", "redbeat"], indirect=True)
def test_frozen_leader_with_shared_storage_stands_by(
    inner: tuple[Beats, StartBeat],
) -> None:
    """It sends nothing when it comes back, and leads again when it is elected."""
    beats, start = inner
    first, second = start(), start()
    beats.until_sent(2, by=first)
    beats.freeze_between_slots(first)
    beats.until_sent(2, by=second)
    before = beats.sent_by(first)

    first.unpause()
    first.until_logged("Standing by: ")
    assert beats.sent_by(first) == before
    second.kill("SIGTERM")
    beats.until_sent(2, by=first)

    sent = dues(beats)
    assert sent == sorted(set(sent))
    assert [beat.count("Traceback") for beat in beats.all] == [0, 0]


@pytest.mark.parametrize("inner", ["django"], indirect=True)
def test_entries_of_the_database_are_sent_by_one(
    inner: tuple[Beats, StartBeat],
) -> None:
    """What was added in Django's admin goes the same way; last runs are kept there."""
    beats, start = inner
    first, second = start(), start()
    beats.until_sent(6, by=first)

    first.kill("SIGTERM")
    beats.until_sent(4, by=second)

    sent = dues(beats, "in-database")
    assert len(sent) >= 4
    assert sent == sorted(set(sent))
    second.kill("SIGTERM")
    last_run = datetime.fromisoformat(in_django(beats, LAST_RUN))
    assert dues(beats)[-1] <= last_run


@pytest.mark.parametrize("inner", ["redbeat"], indirect=True)
def test_lock_of_redbeat_is_not_used(inner: tuple[Beats, StartBeat]) -> None:
    """A second beat does not wait for it, and stops when it is told to."""
    beats, start = inner
    first, second = start(), start()
    beats.until_sent(1, by=first)

    assert [beat.count("Acquired lock") for beat in (first, second)] == [0, 0]
    second.kill("SIGTERM")
    until(lambda: second.status == "exited")
