"""Beats on fake nodes and a fake clock: days of schedules in no time."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import Celery
from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import crontab
from kombu.exceptions import OperationalError

from celery_redlock.beat import RedlockScheduler
from celery_redlock.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from celery.beat import ScheduleEntry

    from celery_redlock.testing import FakeClock, FakeNodes

    StartBeat = Callable[..., "Beat"]

__all__ = [
    "Beat",
    "Broker",
    "Project",
    "RecordingScheduler",
    "Sent",
    "at",
    "every",
    "minutely",
    "persistent",
    "run",
    "us",
]

NOON = "2026-11-21T12:00:00+00:00"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
TTL = 15.0
TICK = 0.001  # seconds that one takes: Celery's scheduler ticks on until it is time


def at(text: str) -> float:
    """Return an instant that is written in ISO 8601, in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def us(text: str) -> int:
    """Return an instant of that day in microseconds."""
    return round(at(f"2026-11-21T{text}+00:00") * 1_000_000)


def minutely() -> Mapping[str, Any]:
    """Return a schedule with one entry, due at each full minute."""
    return {"job": {"task": "proj.job", "schedule": crontab()}}


def every(seconds: float) -> Callable[[], Mapping[str, Any]]:
    """Return a schedule with one entry, due so long after its last run."""
    return lambda: {"job": {"task": "proj.job", "schedule": seconds}}


class Sent(NamedTuple):
    """One message that a beat has sent.

    Attributes:
        entry: The schedule entry.
        slot: The name of its slot, as it is on the message.
        at: When it was sent, in seconds since 1970.
        by: Who sent it.
    """

    entry: str
    slot: str
    at: float
    by: str

    @property
    def due(self) -> datetime:
        """When it was due, in UTC."""
        return datetime.fromisoformat(self.slot.rpartition("@")[2])


class Broker:
    """Where all beats of one test send to.

    Attributes:
        sent: What it got, oldest first.
        is_down: Whether it refuses everything.
        when_sent: Called after each message that it took.
    """

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.is_down = False
        self.when_sent: Callable[[], None] = lambda: None

    def dues(self, entry: str) -> list[str]:
        """Return when each message of an entry was due, without the date."""
        found = (sent for sent in self.sent if sent.entry == entry)
        return [sent.due.strftime("%H:%M:%S") for sent in found]


class Project(Celery):
    """An app whose time is that of a fake clock."""

    clock_of_test: Any
    broker_of_test: Broker
    host: str

    def now(self) -> datetime:
        """Return the present, where the app is."""
        wall = self.clock_of_test.wall_us() / 1e6
        return datetime.fromtimestamp(wall, tz=timezone.utc).astimezone(self.timezone)


class Producer:
    """Publishes to the broker of the test.

    Args:
        app: Who publishes.
    """

    def __init__(self, app: Project) -> None:
        self._app = app

    def publish(self, entry: ScheduleEntry) -> None:
        """Publish what an entry says."""
        broker = self._app.broker_of_test
        if broker.is_down:
            raise OperationalError("the broker is down")
        slot = (entry.options.get("headers") or {}).get("redlock", {}).get("slot", "")
        now = self._app.clock_of_test.wall_us() / 1e6
        broker.sent.append(Sent(entry.name, slot, now, self._app.host))
        broker.when_sent()


class RecordingScheduler(Scheduler):
    """A project's scheduler that sends to the broker of the test."""

    @property
    def producer(self) -> Producer:
        """What it publishes by."""
        return Producer(self.app)

    def apply_async(
        self, entry: ScheduleEntry, producer: Any = None, *_: Any, **__: Any
    ) -> None:
        """Send it."""
        (producer or self.producer).publish(entry)


class RecordingPersistentScheduler(RecordingScheduler, PersistentScheduler):
    """Celery's default scheduler, sending to the broker of the test."""


class Beat:
    """One beat process, as its loop sees it.

    Args:
        host: What it is called.
        nodes: The lock nodes, as this process sees them.
        broker: Where it sends to.
        schedule: Makes its ``beat_schedule``.
        conf: More of its configuration.
        options: Of the scheduler.

    Attributes:
        scheduler: Its scheduler.
        due_at: When it ticks next.
        frozen_until: Until then it does nothing.
    """

    def __init__(
        self,
        host: str,
        nodes: FakeNodes,
        broker: Broker,
        schedule: Callable[[], Mapping[str, Any]],
        *,
        conf: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.clock: Any = nodes.clock
        self.nodes = nodes
        app = Project("project", broker="memory://", set_as_current=False)
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
        """Go once round the loop of beat; return the pause that it takes then."""
        self.app.set_current()  # entries that come from a file know no other one
        pause = max(0.0, self.scheduler.tick())
        self.due_at = self.clock.monotonic() + max(pause, TICK)
        if pause and self.scheduler.should_sync():
            self.scheduler._do_sync()  # noqa: SLF001  (as the loop of beat does)
        return pause

    def freeze(self, seconds: float) -> None:
        """Stop the process (SIGSTOP) for so long."""
        self.due_at = max(self.due_at, self.clock.monotonic() + seconds)

    def stop(self) -> None:
        """End the process cleanly (SIGTERM)."""
        self.scheduler.close()
        self.scheduler.close()
        self.due_at = float("inf")

    def kill(self) -> None:
        """End the process (SIGKILL)."""
        self.due_at = float("inf")


def persistent(
    host: str, nodes: FakeNodes, broker: Broker, file: Path, **settings: Any
) -> Beat:
    """Return a beat with a schedule file."""
    conf = {
        "redlock_beat_scheduler": RecordingPersistentScheduler,
        **{f"redlock_{name}": value for name, value in settings.items()},
    }
    return Beat(
        host,
        nodes.another_client(),
        broker,
        lambda: {
            "minutely": {"task": "t", "schedule": crontab()},
            "daily": {"task": "t", "schedule": crontab(hour=12, minute=1)},
            "hourly": {"task": "t", "schedule": HOUR},
        },
        conf=conf,
        schedule_filename=str(file),
    )


def run(clock: FakeClock, beats: Sequence[Beat], seconds: float) -> None:
    """Let the beats tick whenever they want to, for so long."""
    end = clock.monotonic() + seconds
    while True:
        beat = min(beats, key=lambda beat: beat.due_at)
        if beat.due_at > end:
            break
        clock.advance(max(0.0, beat.due_at - clock.monotonic()))
        beat.tick()
        assert sum(beat.leads for beat in beats) <= 1
    clock.advance(max(0.0, end - clock.monotonic()))
