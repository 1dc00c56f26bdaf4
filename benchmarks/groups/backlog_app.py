"""The app of the workers of ``backlog``: jobs of a moment, ten at a time.

Each run notes its number, and when it began and ended by the clock of the machine.
"""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery, signals

from celery_redlock import singleton_task

BROKER, *NODES = os.environ["BENCHMARK_SERVERS"].split()
LIMIT = 10
RUNS = "benchmark:runs"  # list: number, began, ended
PUBLICATIONS = "benchmark:publications"

app = Celery("backlog", broker=BROKER, backend=BROKER)
app.conf.update(
    redlock_nodes=NODES, redlock_node_timeout=1.0, worker_prefetch_multiplier=4
)
broker = redis.Redis.from_url(BROKER)


@singleton_task(app=app, name="job", key="imports", limit=LIMIT)
def job(number: int, seconds: float) -> None:
    """Take a moment, and note when it was."""
    began = time.monotonic()
    time.sleep(seconds)
    broker.rpush(RUNS, f"{number} {began} {time.monotonic()}")


def _count(**_: Any) -> None:
    broker.incr(PUBLICATIONS)


signals.before_task_publish.connect(_count, weak=False)
