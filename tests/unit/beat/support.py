"""Simulated beats on fake nodes and a fake clock: days of schedules in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from itertools import chain, count
from string import ascii_lowercase
from typing import Any, NamedTuple

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, ScheduleEntry, Scheduler
from celery.schedules import crontab
from kombu.exceptions import OperationalError

from celery_redlock.app.runtime import runtime_of
from celery_redlock.beat import RedlockScheduler
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.election.support import run

Schedule = Callable[[], Mapping[str, Any]]

NOON = "2026-11-21T12:00:00+00:00"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
TTL = 15.0
TICK = 0.001  # seconds that one tick takes


def at(text: str) -> float:
    """Return an instant that is written in ISO 8601, in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def us(text: str) -> int:
    """Return an instant of that day in microseconds."""
    return round(at(f"2026-11-21T{text}+00:00") * 1_000_000)


def crontabs(*names: str, **fields: Any) -> Schedule:
    """Return a schedule with a crontab for each name; by default each minute, "job"."""
    return lambda: {
        name: {"task": "t", "schedule": crontab(**fields)} for name in names or ("job",)
    }


def every(seconds: float) -> Schedule:
    """Return a schedule with one entry, due this long after its last run."""
    return lambda: {"job": {"task": "t", "schedule": seconds}}


class Sent(NamedTuple):
    """One message that a beat has sent.

    Attributes:
        entry: The schedule entry.
        slot: The name of its slot, from the header of the message.
        at: When it was sent, in seconds since 1970.
        by: The name of the beat that sent it.
    """

    entry: str
    slot: str
    at: float
    by: str

    @property
    def due(self) -> datetime:
        """When the slot was due, in UTC."""
        return datetime.fromisoformat(self.slot.rpartition("@")[2])


class Broker:
    """The broker of all beats of one test.

    Attributes:
        sent: The messages that it accepted, oldest first.
        is_down: Whether it refuses every message.
        when_sent: Called after each message that it accepted.
    """

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.is_down = False
        self.when_sent: Callable[[], None] = lambda: None


class Project(Celery):
    """An app that reads the time from a fake clock."""

    clock_of_test: Any
    broker_of_test: Broker
    host: str

    def now(self) -> datetime:
        """Return the present, in the time zone of the app."""
        wall = self.clock_of_test.wall()
        return datetime.fromtimestamp(wall, tz=timezone.utc).astimezone(self.timezone)


class Producer:
    """Publishes to the broker of the test."""

    def __init__(self, app: Project) -> None:
        self._app = app

    def publish(self, entry: ScheduleEntry) -> None:
        """Publish the message of an entry."""
        broker = self._app.broker_of_test
        if broker.is_down:
            raise OperationalError("the broker is down")
        slot = (entry.options.get("headers") or {}).get("redlock", {}).get("slot", "")
        now = self._app.clock_of_test.wall()
        broker.sent.append(Sent(entry.name, slot, now, self._app.host))
        broker.when_sent()


class RecordingScheduler(Scheduler):
    """A project's scheduler that sends to the broker of the test."""

    @property
    def producer(self) -> Producer:
        """The producer of the test."""
        return Producer(self.app)

    def apply_async(
        self, entry: ScheduleEntry, producer: Any = None, *_: Any, **__: Any
    ) -> None:
        """Publish the message of an entry."""
        (producer or self.producer).publish(entry)


class RecordingPersistentScheduler(RecordingScheduler, PersistentScheduler):
    """Celery's default scheduler, sending to the broker of the test."""


class Beat:
    """One beat process, driven by the test instead of beat's loop.

    Args:
        host: The name of the process.
        nodes: This process's client of the lock nodes.
        broker: The broker that it sends to.
        schedule: Makes its ``beat_schedule``.
        conf: More configuration of its app.
        name: The name of its app.
        options: Options of the scheduler.
    """

    def __init__(  # noqa: PLR0913  (called in one place)
        self,
        host: str,
        nodes: FakeNodes,
        broker: Broker,
        schedule: Schedule,
        *,
        conf: Mapping[str, Any] | None = None,
        name: str = "project",
        **options: Any,
    ) -> None:
        self.clock: Any = nodes.clock
        self.nodes = nodes
        app = Project(name, broker="memory://", set_as_current=False)
        app.clock_of_test, app.broker_of_test, app.host = self.clock, broker, host
        app.conf.update(
            {
                "beat_schedule": schedule(),
                "redlock_nodes": nodes.urls,
                "redlock_beat_scheduler": RecordingScheduler,
                "redlock_beat_ttl": TTL,
                **(conf or {}),
            }
        )
        runtime_of(app).use(nodes.redlock())
        self.app = app
        self.scheduler = RedlockScheduler(app=app, **options)
        self.due_at = self.clock.monotonic()

    @property
    def leads(self) -> bool:
        """Whether it leads at this moment."""
        term = self.scheduler.elector.term
        return term is not None and term.is_valid()

    def tick(self) -> float:
        """Run one round of beat's loop; return the pause after it."""
        self.app.set_current()  # entries from a schedule file use the current app
        pause = max(0.0, self.scheduler.tick())
        self.due_at = self.clock.monotonic() + max(pause, TICK)
        if pause and self.scheduler.should_sync():
            self.scheduler._do_sync()  # noqa: SLF001  (as the loop of beat does)
        return pause

    def freeze(self, seconds: float) -> None:
        """Stop the process (SIGSTOP) for this long."""
        self.due_at = max(self.due_at, self.clock.monotonic() + seconds)

    def stop(self) -> None:
        """End the process cleanly (SIGTERM)."""
        self.scheduler.close()
        self.scheduler.close()
        self.due_at = float("inf")

    def kill(self) -> None:
        """End the process (SIGKILL)."""
        self.due_at = float("inf")


class Site:
    """Beats of one project, with their nodes and their broker."""

    def __init__(self, clock: FakeClock, log: pytest.LogCaptureFixture) -> None:
        self.clock = clock
        self.log = log
        self.nodes = FakeNodes(5, clock=clock)
        self.nodes.redlock()  # from now on they vote
        self.broker = Broker()
        self._names = chain(ascii_lowercase, map("beat-{}".format, count()))

    def start(
        self,
        schedule: Schedule | None = None,
        conf: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        on: FakeNodes | None = None,
        **settings: Any,
    ) -> Beat:
        """Start a beat: the first is named "a", the next "b"."""
        own = {f"redlock_{name}": value for name, value in settings.items()}
        return Beat(
            next(self._names),
            (on or self.nodes).another_client(),
            self.broker,
            schedule or crontabs(),
            conf={**(conf or {}), **own},
            **(options or {}),
        )

    @property
    def sent(self) -> list[Sent]:
        """The messages that the broker accepted, oldest first."""
        return self.broker.sent

    def senders(self) -> list[str]:
        """Return the name of the beat that sent each message."""
        return [sent.by for sent in self.sent]

    def dues(self) -> list[str]:
        """Return when each message was due, without the date."""
        return [sent.due.strftime("%H:%M:%S") for sent in self.sent]

    def run_without_broker(self, seconds: float, *beats: Beat) -> None:
        """Let beats tick for this long while the broker refuses every message."""
        self.broker.is_down = True
        run(seconds, *beats)
        self.broker.is_down = False
