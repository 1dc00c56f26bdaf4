"""Tasks for schedules; each records its runs under the key that it is given."""

from __future__ import annotations

import threading

from celery_redlock import singleton_task
from tests.beat.project import HELD, LONG
from tests.worker.project.body import recorded


def work(seconds: float) -> None:
    """Take some time."""
    threading.Event().wait(seconds)


@singleton_task(name="beat-skip", key="{key}", on_conflict="skip")
def long_skip(key: str) -> None:
    """Run longer than the schedule's interval."""
    with recorded(key):
        work(LONG)


@singleton_task(name="beat-wait", key="{key}", on_conflict="wait", wait_timeout=2)
def long_wait(key: str) -> None:
    """Run longer than the schedule's interval."""
    with recorded(key):
        work(LONG)


@singleton_task(name="beat-quick", key="{key}")
def quick(key: str) -> None:
    """Run and end."""
    with recorded(key):
        pass


@singleton_task(name="beat-held", key="{key}", hold_at_least=HELD)
def quick_held(key: str) -> None:
    """Run and end, and keep the lock for longer than clocks may differ."""
    with recorded(key):
        pass
