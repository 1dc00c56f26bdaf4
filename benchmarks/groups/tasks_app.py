"""The app of the worker of ``tasks``: one task in four ways."""

from __future__ import annotations

import os

from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

from celery_redlock import singleton_task

BROKER, *NODES = os.environ["BENCHMARK_SERVERS"].split()

app = Celery("benchmark", broker=BROKER, backend=BROKER)
app.conf.update(
    redlock_nodes=NODES,
    redlock_node_timeout=1.0,
    singleton_backend_url=NODES[0],
    singleton_lock_expiry=60,
    worker_prefetch_multiplier=16,
    ONCE={
        "backend": "celery_once.backends.Redis",
        "settings": {"url": NODES[0], "default_timeout": 60},
    },
)


def nothing(number: int) -> int:
    """Do nothing."""
    return number


TASKS = {
    "plain Celery": app.task(nothing, name="plain"),
    "celery-redlock": singleton_task(app=app, name="ours")(nothing),
    "celery-singleton": app.task(nothing, name="singleton", base=Singleton),
    "celery-once": app.task(nothing, name="once", base=QueueOnce),
}
