"""No-op tasks through a real prefork worker, from publishing to the result."""

from __future__ import annotations

import itertools
import os
from typing import Any

from benchmarks.runner import Contender, interleave, median_cost, ratio
from benchmarks.workers import workers
from celery_redlock.devnodes import DevNodes

PROCESSES = 2
_numbers = itertools.count()


def measure(*, quick: bool, nodes: int = 5) -> dict[str, Any]:
    """Return tasks per second, and the ratios to plain Celery and to two peers."""
    rounds, count = (1, 30) if quick else (11, 150)
    with DevNodes(nodes) as locks, DevNodes(1, initialize=False) as broker:
        os.environ["BENCHMARK_SERVERS"] = " ".join([*broker.urls, *locks.urls])
        from benchmarks.groups import tasks_app  # noqa: PLC0415  (reads the line above)

        pids = [broker.nodes[0].pid]
        with workers(tasks_app, concurrency=PROCESSES):
            contenders = [
                contender(name, task, count) for name, task in tasks_app.TASKS.items()
            ]
            costs = interleave(contenders, rounds=rounds, pids=pids)
        tasks_app.app.close()
    plain, us = costs["plain Celery"], costs["celery-redlock"]
    return {
        "rows": {
            name: {
                "per_second": 1e6 / median_cost(cost).wall,
                "to_plain": ratio(plain, cost),
                "client_us": median_cost(cost).cpu,
            }
            for name, cost in costs.items()
        },
        "to_singleton": ratio(costs["celery-singleton"], us),
        "to_once": ratio(costs["celery-once"], us),
        "broker_us_per_task": median_cost(plain).servers,
    }


def contender(name: str, task: Any, count: int) -> Contender:
    """Return a contender that sends calls of a task, and waits for their results."""

    def run(cycles: int) -> None:
        results = [task.delay(next(_numbers)) for _ in range(cycles)]
        for result in results:
            result.get(timeout=60)

    return Contender(name, 0 if name == "plain Celery" else 1, run, count)
