"""Tasks with the policy ``buffer_one`` or ``cancel_running``.

The second argument tells the calls apart; the lock is on the first argument alone.
"""

from __future__ import annotations

from typing import Any

from celery_redlock import LockCancelled, singleton_task
from tests.worker.project.body import recorded, stage
from tests.worker.project.jobs import LATE


def hold(key: str, number: int) -> int:
    """Run until the gate opens, and return the number of the call."""
    with recorded(key):
        stage().note(key, "arguments", number=number)
        stage().wait(key)
    return number


def gated(name: str, **options: Any) -> None:
    """Define a task that runs until the gate of its key opens."""

    @singleton_task(name=name, key="{key}", **options)
    def run(key: str, number: int = 0) -> int:
        return hold(key, number)


BUFFER: dict[str, Any] = {"on_conflict": "buffer_one"}
REPLACE: dict[str, Any] = {"on_conflict": "cancel_running"}

gated("buffered", **BUFFER)
gated("buffered-first", buffer_keep="first", **BUFFER)
gated("buffered-late", retry_countdown=0.5, ttl=2, **BUFFER, **LATE)
gated("replacing", **REPLACE)
gated("replacing-late", ttl=2, **REPLACE, **LATE)


@singleton_task(name="replacing-deaf", key="{key}", cancel_grace=0.5, **REPLACE)
def replacing_deaf(key: str, number: int = 0) -> int:
    """Go on when it is cancelled, until its gate opens."""
    with recorded(key):
        while True:
            try:
                stage().wait(f"{key}-{number}")
            except LockCancelled:  # noqa: PERF203  (the point of this task)
                stage().note(key, "told", number=number)
            else:
                return number


@singleton_task(name="replacing-tidy", key="{key}", **REPLACE)
def replacing_tidy(key: str, number: int = 0) -> str:
    """Tidy up when it is cancelled, and tell how far it came."""
    with recorded(key):
        try:
            stage().wait(f"{key}-{number}")
        except LockCancelled:
            stage().wait(f"{key}-tidied")
            return f"half of {number}"
        return f"all of {number}"
