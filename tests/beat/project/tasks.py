"""Tasks for schedules; each records its runs under the key that it is given."""

from __future__ import annotations

import threading

from celery_redlock import current_lease, singleton_task
from tests.beat.project import HELD, LONG
from tests.harness.stage import Stage
from tests.worker.project.body import hold, recorded, stage


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


@singleton_task(name="beat-buffer", key="{key}", on_conflict="buffer_one")
def long_buffer(key: str) -> None:
    """Run longer than the schedule's interval."""
    with recorded(key):
        work(LONG)


@singleton_task(name="beat-quick", key="{key}")
def quick(key: str) -> None:
    """Run and end."""
    with recorded(key):
        pass


@singleton_task(name="beat-gated", key="{key}")
def gated(key: str) -> None:
    """Run until the test lets it end."""
    hold(key)


@singleton_task(name="beat-held", key="{key}", hold_at_least=HELD)
def quick_held(key: str) -> None:
    """Run and end, and keep the lock for longer than two clocks differ."""
    lease = current_lease()
    with recorded(key):
        stage().note(key, "granted", since=Stage.now() - (lease.age() if lease else 0))
