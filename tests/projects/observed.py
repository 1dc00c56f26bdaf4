"""A project that Sentry watches: each event and check-in becomes a note."""

from __future__ import annotations

import sys
from typing import Any

import sentry_sdk
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import crontab
from sentry_sdk.integrations.celery import CeleryIntegration

from celery_redlock import current_lease, singleton_task
from celery_redlock.testing import lose_lock
from tests.projects.app import new_app, note


def note_event(event: Any, _: Any) -> None:
    """Note an event or a check-in, in place of sending it."""
    if event.get("type") == "check_in":
        note("check-in", entry=event["monitor_slug"], status=event["status"])
        return
    values = (event.get("exception") or {}).get("values") or [{}]
    text = (event.get("logentry") or {}).get("message")
    note("event", error=values[-1].get("type"), text=text)


if "worker" in sys.argv:  # it changes Celery for all tests of a process
    sentry_sdk.init(
        dsn="http://public@127.0.0.1:9/1",
        traces_sample_rate=1.0,
        integrations=[CeleryIntegration(monitor_beat_tasks=True)],
        before_send=note_event,
        before_send_transaction=lambda *_: None,
    )
app = new_app("observed")


@app.task(name="view")
def view(name: str, *args: Any) -> str:
    """Publish a call in a process that Sentry watches, and return its id."""
    return str(app.tasks[name].delay(*args).id)


@app.task(name="beat")
def beat(name: str) -> None:
    """Send a task as beat does, in a process that Sentry watches."""
    entry = ScheduleEntry(name=name, task=name, schedule=crontab(), app=app)
    Scheduler(app, lazy=True).apply_entry(entry)


@singleton_task(app=app, name="losing", key="losing:{number}")
def losing(number: int) -> None:
    """Lose the lock."""
    lease = current_lease()
    assert lease is not None
    lose_lock(losing, number)
    lease.ensure()


@singleton_task(app=app, name="refused", key="held", on_conflict="skip")
def refused() -> None:
    """Do nothing: the test holds the lock."""


@singleton_task(app=app, name="queued", unique_while="queued_or_running")
def queued() -> None:
    """Do nothing: the test holds the lock."""


@singleton_task(app=app, name="behind", on_conflict="retry")
def behind() -> None:
    """Run when the test releases the lock."""


@singleton_task(app=app, name="runs")
def runs() -> None:
    """Run at once."""


@singleton_task(app=app, name="fails")
def fails() -> None:
    """Fail, as the last call of the test."""
    raise ZeroDivisionError
