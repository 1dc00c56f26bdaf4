"""A backlog: ten thousand jobs of a moment for ten permits, under ``retry``.

Eight worker processes with four threads each share the machine with the broker and
three nodes. All jobs are in the queue before a worker takes the first one. A permit
counts as used while the body of its job runs.
"""

from __future__ import annotations

import os
import time
from statistics import mean
from typing import Any

from benchmarks.runner import servers_cpu
from benchmarks.workers import IDLE, workers
from celery_redlock.devnodes import DevNodes

PROCESSES, THREADS = 8, 4
_BRIEF = 0.05  # seconds of a job
_QUEUE = "celery"
_LONGEST = 600.0  # seconds


def measure(*, quick: bool) -> dict[str, Any]:
    """Return how busy the permits were, and what the jobs cost the broker."""
    count, processes = (100, 2) if quick else (10_000, PROCESSES)
    with DevNodes(3) as nodes, DevNodes(1, initialize=False) as broker:
        os.environ["BENCHMARK_SERVERS"] = " ".join([*broker.urls, *nodes.urls])
        from benchmarks.groups import backlog_app as project  # noqa: PLC0415

        for number in range(count):
            project.job.delay(number, _BRIEF)
        options = {"pool": "threads", "concurrency": THREADS, "options": IDLE}
        with workers(project, processes, **options) as running:
            watched = {
                "workers": [worker.pid for worker in running],
                "nodes": [node.pid for node in nodes.nodes],
                "broker": [node.pid for node in broker.nodes],
            }
            before = {name: servers_cpu(pids) for name, pids in watched.items()}
            project.app.control.add_consumer(_QUEUE)
            deadline = time.monotonic() + _LONGEST
            while project.broker.llen(project.RUNS) < count:
                if time.monotonic() > deadline:
                    raise SystemExit("The workers have not come to an end.")
                time.sleep(0.1)
            cpu_ms = {
                name: (servers_cpu(pids) - before[name]) / count * 1000
                for name, pids in watched.items()
            }
        runs = [line.split() for line in project.broker.lrange(project.RUNS, 0, -1)]
        published = int(project.broker.get(project.PUBLICATIONS))
        project.app.close()
    ended = {int(number): float(end) for number, _, end in runs}
    began = min(float(begin) for _, begin, _ in runs)
    seconds = max(ended.values()) - began
    used = sum(float(end) - float(begin) for _, begin, end in runs)
    quarter = count // 4
    first = mean(ended[n] - began for n in range(quarter))
    last = mean(ended[n] - began for n in range(count - quarter, count))
    return {
        "jobs": count,
        "seconds": seconds,
        "busy": used / seconds / project.LIMIT,
        "publications": published / count,
        "cpu_ms": cpu_ms,
        "first_quarter": first,
        "last_quarter": last,
        "last_to_first": last / first,
    }
