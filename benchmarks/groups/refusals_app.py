"""The app of the workers of ``refusals``: one task for each policy, and two peers."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery, signals
from celery_once import QueueOnce
from celery_singleton import Singleton

from celery_redlock import singleton_task

BROKER, *NODES = os.environ["BENCHMARK_SERVERS"].split()
KEY = "refused"
PUBLICATIONS = "benchmark:publications"  # hash: task id -> how often it was published

app = Celery("benchmark", broker=BROKER, backend=BROKER)
app.conf.update(
    redlock_nodes=NODES,
    redlock_node_timeout=1.0,
    worker_prefetch_multiplier=16,
    singleton_backend_url=NODES[0],
    singleton_lock_expiry=600,
    ONCE={
        "backend": "celery_once.backends.Redis",
        "settings": {"url": NODES[0], "default_timeout": 600},
    },
)
broker = redis.Redis.from_url(BROKER)


def nothing(number: int = 0) -> int:
    """Do nothing."""
    return number


def refused(policy: str, **options: Any) -> Any:
    """Return a task whose calls are all duplicates of one holder."""
    options = {"key": KEY, "on_conflict": policy, **options}
    return singleton_task(app=app, name=policy, **options)(nothing)


HELD = {
    "skip": refused("skip"),
    "raise": refused("raise"),
    "retry": refused("retry", retry_countdown=600),
    "buffer_one": refused("buffer_one", retry_countdown=600),
}
PLAIN = app.task(nothing, name="plain")
TASKS = {
    "plain task": PLAIN,
    "distinct keys": singleton_task(app=app, name="ours")(nothing),
    **HELD,
}
AT_PUBLISH = {
    "unique_while": singleton_task(
        app=app, name="unique", key=KEY, unique_while="queued"
    )(nothing),
    "celery-singleton": app.task(nothing, name="singleton", base=Singleton),
    "celery-once": app.task(nothing, name="once", base=QueueOnce),
}


@singleton_task(app=app, name="brief", key="brief", on_conflict="retry")
def brief(seconds: float) -> None:
    """Run for a moment, one call at a time."""
    time.sleep(seconds)


def _count(headers: dict[str, Any], sender: str = "", **_: Any) -> None:
    if sender == brief.name:
        broker.hincrby(PUBLICATIONS, headers["id"], 1)


signals.before_task_publish.connect(_count, weak=False)
