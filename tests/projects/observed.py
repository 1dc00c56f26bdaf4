"""A project that reports its errors to Sentry: each event becomes a note."""

from __future__ import annotations

import sys
from typing import Any

import sentry_sdk

from celery_redlock import current_lease, singleton_task
from celery_redlock.testing import lose_lock
from tests.projects.app import new_app, note


def note_event(event: Any, _: Any) -> None:
    """Note an event, in place of sending it."""
    values = (event.get("exception") or {}).get("values") or [{}]
    text = (event.get("logentry") or {}).get("message")
    note("event", error=values[-1].get("type"), text=text)


if "worker" in sys.argv:  # it changes Celery for all tests of a process
    sentry_sdk.init(
        dsn="http://public@127.0.0.1:9/1",
        traces_sample_rate=1.0,
        before_send=note_event,
        before_send_transaction=lambda *_: None,
    )
app = new_app("observed")


@app.task(name="view")
def view(name: str, *args: Any) -> str:
    """Publish a call in a process that Sentry watches, and return its id."""
    return str(app.tasks[name].delay(*args).id)


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


@singleton_task(app=app, name="fails")
def fails() -> None:
    """Fail, as the last call of the test."""
    raise ZeroDivisionError
