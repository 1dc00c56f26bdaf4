"""Duplicates by the thousand: the cost of refusing them, for each policy.

Each policy gets a worker of its own with four processes. Its messages are in the queue
before the worker may take them, and the lock is held by another client all the time.
Behind them stands one call of a plain task.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from celery.app.trace import build_tracer
from celery_once import AlreadyQueued
from kombu.utils.uuid import uuid

from benchmarks.workers import IDLE, workers
from celery_redlock.app.runtime import runtime_of
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.lease import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PROCESSES = 4
ROUNDS = 3
_BRIEF = 0.05  # seconds of a run
_QUEUE = "celery"
_LONGEST = 600.0  # seconds for one policy


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the rates of all policies, a storm's drain, and calls in a row."""
    count, storm, calls = (40, 100, 12) if quick else (1_500, 10_000, 400)
    with DevNodes(2) as nodes, DevNodes(1, initialize=False) as broker:
        os.environ["BENCHMARK_SERVERS"] = " ".join([*broker.urls, *nodes.urls])
        from benchmarks.groups import refusals_app as project  # noqa: PLC0415

        redlock = runtime_of(project.app).redlock
        holder = Holder.here(task="holder", task_id="holder", started=1.0)
        with _held(redlock, project.KEY, holder):
            rounds = [
                {
                    name: _drained(project, task, count)
                    for name, task in project.TASKS.items()
                }
                for _ in range(1 if quick else ROUNDS)
            ]
            storms = {
                name: _drained(project, task, storm)
                for name, task in {**project.TASKS, **project.AT_PUBLISH}.items()
                if name != "distinct keys"
            }
            in_process = {
                name: _as_another_client(_in_process, project, task, count)
                for name, task in project.TASKS.items()
                if name in ("distinct keys", "skip", "raise")
            }
            at_publish = {
                name: _published_per_second(task, count)
                for name, task in project.AT_PUBLISH.items()
            }
        in_a_row = _in_a_row(project, calls)
        project.app.close()
    return {
        "rows": {
            name: _medians([rows[name] for rows in rounds])
            | {
                "to_run": median(
                    rows[name]["per_second"] / rows["distinct keys"]["per_second"]
                    for rows in rounds
                )
            }
            for name in rounds[0]
        },
        "storm": {"calls": storm, "rows": storms},
        "storm_ratio": storms["skip"]["seconds"] / storms["plain task"]["seconds"],
        "at_publish": at_publish,
        "in_process_ms": in_process,
        "in_a_row": in_a_row,
    }


@contextlib.contextmanager
def _held(redlock: Any, key: str, holder: Holder) -> Iterator[None]:
    from celery_redlock.locking import lock  # noqa: PLC0415

    with lock(redlock, key, holder=holder):
        yield


def _medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {figure: median(row[figure] for row in rows) for figure in rows[0]}


def _drained(project: Any, task: Any, count: int) -> dict[str, float]:
    """Return how fast a worker has handled so many calls of a task."""
    with workers(project, concurrency=PROCESSES, options=IDLE) as (worker,):
        ids = _published(task, count)
        last = project.PLAIN.delay()
        used, began = _cpu(worker.pid), time.monotonic()
        project.app.control.add_consumer(_QUEUE)
        _until(lambda: last.state == "SUCCESS")
        waited = time.monotonic() - began
        _until(lambda: _handled(project, ids) == len(ids))
        seconds = time.monotonic() - began
        cpu = _cpu(worker.pid) - used
    project.broker.flushall()
    return {
        "per_second": count / seconds,
        "seconds": seconds,
        "cpu_ms": cpu / count * 1000,
        "other_waits": waited,
        "sent": len(ids),
    }


def _in_a_row(project: Any, calls: int) -> dict[str, float]:
    """Return how long calls on one key take together, under ``retry``."""
    with workers(project, concurrency=PROCESSES, options=IDLE):
        ids = [project.brief.delay(_BRIEF).id for _ in range(calls)]
        began = time.monotonic()
        project.app.control.add_consumer(_QUEUE)
        _until(lambda: _handled(project, ids, state=b'"SUCCESS"') == calls)
        seconds = time.monotonic() - began
    published = project.broker.hvals(project.PUBLICATIONS)
    project.broker.flushall()
    return {
        "calls": calls,
        "seconds": seconds,
        "to_ideal": seconds / (calls * _BRIEF),
        "most_publications": max(map(int, published)),
    }


def _as_another_client(measured: Callable[..., float], *args: Any) -> float:
    """Return what is measured in a thread: the one with the lock is not refused."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(measured, *args).result()


def _in_process(project: Any, task: Any, count: int) -> float:
    """Return the least CPU of a call in this process, of several rounds, in ms."""
    task = project.app.tasks[task.name]
    task.__trace__ = build_tracer(task.name, task, app=project.app)
    costs = []
    for _ in range(9):
        began = time.process_time()
        for number in range(count // 9):
            task_id = uuid()
            request = {"id": task_id, "delivery_info": {}, "is_eager": False}
            task.__trace__(task_id, [number], {}, request)
        costs.append((time.process_time() - began) / (count // 9) * 1000)
    return min(costs)


def _published(task: Any, count: int) -> list[str]:
    """Publish so many calls of one key, and return the ids of those that were sent.

    Only the task that runs has a key for each call.
    """
    ids: dict[str, None] = {}
    for number in range(count):
        with contextlib.suppress(AlreadyQueued):
            ids[task.delay(number if task.name == "ours" else 0).id] = None
    return [*ids]


def _published_per_second(task: Any, count: int) -> float:
    """Return the refusals per second of a publisher, for one call that waits."""
    task.delay()
    began = time.monotonic()
    _published(task, count)
    return count / (time.monotonic() - began)


def _handled(project: Any, ids: Sequence[str], state: bytes = b"") -> int:
    """Return how many of the calls have a state in the result backend."""
    metas = project.broker.mget([f"celery-task-meta-{task_id}" for task_id in ids])
    return sum(meta is not None and state in meta for meta in metas)


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONGEST
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit("The worker has not come to an end.")
        time.sleep(0.02)


def _cpu(group: int) -> float:
    """Return the seconds of CPU of all processes of a group so far (Linux)."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / float(os.sysconf("SC_CLK_TCK"))
