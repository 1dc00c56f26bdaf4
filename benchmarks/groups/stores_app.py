"""The app of the worker of ``stores``: one task without a lock, and with one."""

from __future__ import annotations

import os

from celery import Celery

from celery_redlock import singleton_task

BROKER, *NODES = os.environ["BENCHMARK_SERVERS"].split()

app = Celery("stores", broker=BROKER, backend=BROKER)
app.conf.update(
    redlock_nodes=NODES, redlock_node_timeout=1.0, worker_prefetch_multiplier=16
)


def nothing(number: int) -> int:
    """Do nothing."""
    return number


TASKS = {
    "plain Celery": app.task(nothing, name="plain"),
    "celery-redlock": singleton_task(app=app, name="ours")(nothing),
}
