"""Tasks for schedules; each records its runs under the key that it is given."""

from __future__ import annotations

import threading
from typing import Any

from celery_redlock import singleton_task
from tests.beat.project import HELD, LONG
from tests.harness.stage import Stage
from tests.worker.project.body import hold, own_lease, recorded, stage


def long(name: str, **options: Any) -> None:
    """Define a task that runs longer than the schedule's interval."""

    @singleton_task(name=name, key="{key}", **options)
    def run(key: str) -> None:
        with recorded(key):
            threading.Event().wait(LONG)


long("beat-skip", on_conflict="skip")
long("beat-wait", on_conflict="wait", wait_timeout=2)
long("beat-buffer", on_conflict="buffer_one")


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
    with recorded(key):
        stage().note(key, "granted", since=Stage.now() - own_lease().age())
