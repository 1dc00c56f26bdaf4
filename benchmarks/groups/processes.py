"""The processor time of one task, by process, beside plain Celery."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks.runner import servers_cpu
from benchmarks.workers import workers
from celery_redlock.devnodes import DevNodes

if TYPE_CHECKING:
    from collections.abc import Callable

_US = 1_000_000
_READER = "publisher, reading results"
_numbers = itertools.count()


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the microseconds of one task in each process, by contender."""
    rounds, count = (1, 30) if quick else (9, 150)
    with DevNodes(5) as nodes, DevNodes(1, initialize=False) as broker:
        os.environ["BENCHMARK_SERVERS"] = " ".join([*broker.urls, *nodes.urls])
        from benchmarks.groups import processes_app  # noqa: PLC0415  (reads the line above)

        with workers(processes_app, concurrency=2) as (worker,):
            main = worker.pid
            watched: dict[str, Callable[[], float]] = {
                "publisher": time.process_time,
                _READER: time.process_time,
                "worker's main process": lambda: servers_cpu([main]),
                "its children": lambda: servers_cpu(_children_of(main)),
                "the five nodes": lambda: servers_cpu([n.pid for n in nodes.nodes]),
            }
            found: dict[str, dict[str, list[float]]] = {
                name: {process: [] for process in watched}
                for name in processes_app.TASKS
            }
            for number in range(-1, rounds):  # the first one warms up
                for name, task in processes_app.TASKS.items():
                    before = _read(watched)
                    results = [task.delay(next(_numbers)) for _ in range(count)]
                    published = time.process_time()
                    for result in results:
                        result.get(timeout=60)
                    after = _read(watched)
                    before[_READER], after["publisher"] = published, published
                    for process, used in after.items():
                        cost = (used - before[process]) / count * _US
                        if number >= 0:
                            found[name][process].append(cost)
        processes_app.app.close()
    cpu_us = {
        name: {process: statistics.median(costs) for process, costs in each.items()}
        for name, each in found.items()
    }
    plain, ours = cpu_us["plain Celery"], cpu_us["celery-redlock"]
    return {
        "cpu_us": cpu_us,
        "added": {name: ours[name] - plain[name] for name in plain},
    }


def _read(watched: dict[str, Callable[[], float]]) -> dict[str, float]:
    return {process: read() for process, read in watched.items()}


def _children_of(pid: int) -> list[int]:
    """Return the children of a process (Linux)."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:  # noqa: PTH123  (no file on a disk)
        return [int(child) for child in children.read().split()]
