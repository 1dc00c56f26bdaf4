"""The app of the worker of ``stores``: a task without a lock, with one, two writes."""

from __future__ import annotations

import os
from functools import lru_cache

from celery import Celery

from benchmarks.groups.stores import writer
from celery_redlock import singleton_task

BROKER, *NODES = os.environ["BENCHMARK_SERVERS"].split()

app = Celery("stores", broker=BROKER, backend=BROKER)
app.conf.update(
    redlock_nodes=NODES, redlock_node_timeout=1.0, worker_prefetch_multiplier=16
)


def nothing(number: int) -> int:
    """Do nothing."""
    return number


_writer = lru_cache(writer)


def two_writes(number: int) -> int:
    """Write what a lock must write at least."""
    _writer(NODES[0], f"of process {os.getpid()}")()
    return number


TASKS = {
    "plain Celery": app.task(nothing, name="plain"),
    "celery-redlock": singleton_task(app=app, name="ours")(nothing),
    "two writes": app.task(two_writes, name="two_writes"),
}
