"""The app of the worker of ``line``: jobs of one key that wait for their turn.

Each run notes its task, and when it began and ended by the clock of the machine.
"""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery, signals

from celery_redlock import singleton_task

BROKER, *NODES = os.environ["BENCHMARK_SERVERS"].split()
BEGUN = "benchmark:begun"  # list: number of each run that has begun
RUNS = "benchmark:runs"  # list: number, began, ended
PUBLICATIONS = "benchmark:publications"
HOLDERS = {"retry": 1, "limit=1": 1, "limit=2": 2, "limit=3": 3}

app = Celery("line", broker=BROKER, backend=BROKER)
app.conf.update(redlock_nodes=NODES, redlock_node_timeout=1.0)
broker = redis.Redis.from_url(BROKER)


def run(number: int, seconds: float) -> None:
    """Take a moment, and note when it was."""
    began = time.monotonic()
    broker.rpush(BEGUN, number)
    time.sleep(seconds)
    broker.rpush(RUNS, f"{number} {began} {time.monotonic()}")


def job(name: str, **options: Any) -> Any:
    """Return a task with one key for all its calls."""
    return singleton_task(app=app, name=name, key=name, **options)(run)


TASKS = {
    name: job(name, limit=holders) if name != "retry" else job(name, on_conflict=name)
    for name, holders in HOLDERS.items()
}


@app.task(name="plain")
def plain(published: float) -> float:
    """Return for how long this message has waited."""
    return time.monotonic() - published


def _count(sender: str = "", **_: Any) -> None:
    if sender != plain.name:
        broker.incr(PUBLICATIONS)


signals.before_task_publish.connect(_count, weak=False)
