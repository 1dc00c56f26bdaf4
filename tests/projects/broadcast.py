"""A project with a queue of which each worker gets all messages."""

from __future__ import annotations

from typing import Any

import kombu
from kombu.common import Broadcast

from celery_redlock import singleton_task
from tests.projects.app import new_app, note

_kombu: Any = kombu  # has no types
_broadcast: Any = Broadcast
QUEUES = [_kombu.Queue("celery"), _broadcast("caches")]
app = new_app("broadcast", task_queues=QUEUES, task_acks_late=True)


@singleton_task(app=app, name="clear", on_conflict="retry", retry_countdown=0.1)
def clear(name: str) -> None:
    """Clear a cache."""
    note("clear", name=name)


@app.task(name="plain")
def plain(name: str) -> None:
    """Clear a cache of this worker, without a lock."""
    note("plain", name=name)
