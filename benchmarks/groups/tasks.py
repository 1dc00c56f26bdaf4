"""No-op tasks through a real prefork worker, from publishing to the result."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.runner import Contender, interleave, median_cost, ratio
from celery_redlock.devnodes import DevNodes
from celery_redlock.devnodes.processes import stop
from tests.harness.commands import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES = 2
_numbers = itertools.count()


def measure(*, quick: bool, nodes: int = 5) -> dict[str, Any]:
    """Return tasks per second, and the ratios to plain Celery and to two peers."""
    rounds, count = (1, 30) if quick else (11, 150)
    with DevNodes(nodes) as locks, DevNodes(1, initialize=False) as broker:
        os.environ["BENCHMARK_SERVERS"] = " ".join([*broker.urls, *locks.urls])
        from benchmarks.groups import tasks_app  # noqa: PLC0415  (reads the line above)

        pids = [broker.nodes[0].pid]
        with worker(tasks_app.app, tasks_app.__name__):
            contenders = [
                contender(name, task, count) for name, task in tasks_app.TASKS.items()
            ]
            costs = interleave(contenders, rounds=rounds, pids=pids)
        tasks_app.app.close()
    plain, us = costs["plain Celery"], costs["celery-redlock"]
    return {
        "per_second": {name: 1e6 / median_cost(c).wall for name, c in costs.items()},
        "to_plain": {name: ratio(plain, c) for name, c in costs.items()},
        "to_singleton": ratio(costs["celery-singleton"], us),
        "to_once": ratio(costs["celery-once"], us),
        "broker_us_per_task": median_cost(plain).servers,
        "client_us_per_task": {n: median_cost(c).cpu for n, c in costs.items()},
    }


def contender(name: str, task: Any, count: int) -> Contender:
    """Return a contender that sends calls of a task, and waits for their results."""

    def run(cycles: int) -> None:
        results = [task.delay(next(_numbers)) for _ in range(cycles)]
        for result in results:
            result.get(timeout=60)

    return Contender(name, 0 if name == "plain Celery" else 1, run, count)


@contextlib.contextmanager
def worker(app: Any, module: str) -> Iterator[None]:
    """Run a worker of this module while the block runs; it logs nothing of tasks."""
    with tempfile.TemporaryDirectory() as folder:
        process = Worker(
            module,
            "worker",
            folder=Path(folder),
            concurrency=PROCESSES,
            options=("--without-heartbeat", "-l", "ERROR"),
        )
        process.start()
        try:
            deadline = time.monotonic() + 30
            while not app.control.ping(timeout=0.5):
                if not process.is_running or time.monotonic() > deadline:
                    raise SystemExit(f"The worker did not start:\n{process.logs()}")
            yield
        finally:
            stop(process, within=20)
