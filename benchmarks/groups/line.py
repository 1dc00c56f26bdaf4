"""The line at a key: how soon the next call starts, and what a storm costs the others.

A worker with four processes works off jobs of a moment that were published while long
runs held their key. Then one job comes after a hundred that will never run: revoked,
expired, purged. At last ten thousand duplicates meet one run, while a call of a plain
task is published into their queue twice a second.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.workers import workers
from celery_redlock.devnodes import DevNodes
from celery_redlock.devnodes.processes import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.commands import Worker

NODES = 5
_PROCESSES = 4
_BRIEF = 0.01  # seconds of a job
_LONGEST = 150.0  # seconds that jobs may take when the long runs have ended


class Run(NamedTuple):
    """A run of a job; the long ones have numbers below zero."""

    began: float
    ended: float
    number: int


def measure(*, quick: bool) -> dict[str, Any]:
    """Return how jobs wait behind runs and behind ghosts, and what a storm costs."""
    long, jobs, storm = (2.0, 10, 100) if quick else (30.0, 100, 10_000)
    with DevNodes(NODES) as nodes, DevNodes(1, initialize=False) as broker:
        os.environ["BENCHMARK_SERVERS"] = " ".join([*broker.urls, *nodes.urls])
        from benchmarks.groups import line_app as project  # noqa: PLC0415

        found = {
            "jobs": jobs,
            "behind": {
                name: _behind(project, name, jobs, long) for name in project.TASKS
            },
            "after": {
                end.__name__[1:]: _after_ghosts(project, end, jobs)
                for end in (_revoked, _expired, _purged)
            },
            "storm": _storm(project, storm, long),
        }
        project.app.close()
    return found


def _behind(project: Any, name: str, count: int, long: float) -> dict[str, float]:
    """Return how jobs run that were published while all permits were in use."""
    task, holders = project.TASKS[name], project.HOLDERS[name]
    with _worker(project):
        for number in range(holders):
            task.delay(-1 - number, long)
        _until(lambda: project.broker.llen(project.BEGUN) == holders, _LONGEST)
        for number in range(count):
            task.delay(number, _BRIEF)
        _until(lambda: len(_runs(project)) == holders + count, long + _LONGEST)
    runs = _runs(project)
    freed = max(run.ended for run in runs if run.number < 0)
    brief = [run for run in runs if run.number >= 0]
    published = int(project.broker.get(project.PUBLICATIONS))
    project.broker.flushall()
    gaps = [
        after.began - before
        for before, after in zip(
            [freed, *(run.ended for run in brief)], brief, strict=False
        )
    ]
    return {
        "run": len(brief),
        "seconds": max((run.ended for run in brief), default=freed) - freed,
        "first_ms": gaps[0] * 1000 if gaps else _LONGEST * 1000,
        "hand_over_ms": median(gaps) * 1000 if gaps else _LONGEST * 1000,
        "publications": published / (count + holders),
    }


def _after_ghosts(
    project: Any, end: Callable[[Any, Worker, list[Any]], None], count: int
) -> float:
    """Return the seconds that a job waits for a free permit, behind ended ones."""
    task = project.TASKS["limit=1"]
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(_worker(project))
        task.delay(-1, 15.0)
        _until(lambda: project.broker.llen(project.BEGUN) == 1, _LONGEST)
        ghosts = [
            task.apply_async((number, _BRIEF), expires=8.0 if end is _expired else None)
            for number in range(count)
        ]
        time.sleep(3.0)  # until all have been refused once
        end(project, worker, ghosts)
        if not worker.is_running:
            project.broker.delete(project.BEGUN)
            stack.enter_context(_worker(project))
        else:
            _until(lambda: len(_runs(project)) == 1, _LONGEST)
        task.delay(-2, 3.0)
        _until(lambda: project.broker.llen(project.BEGUN) > worker.is_running, _LONGEST)
        task.delay(count, _BRIEF)
        _until(lambda: any(run.number == count for run in _runs(project)), 900.0)
    *_, before, job = _runs(project)
    project.broker.flushall()
    return job.began - before.ended


def _revoked(project: Any, _worker: Worker, ghosts: list[Any]) -> None:
    project.app.control.revoke([ghost.id for ghost in ghosts])


def _expired(_project: Any, _worker: Worker, _ghosts: list[Any]) -> None:
    time.sleep(5.0)


def _purged(project: Any, worker: Worker, _ghosts: list[Any]) -> None:
    """Have the worker give its messages back to the queue, and purge that."""
    stop(worker, within=30)
    project.app.control.purge()


def _storm(project: Any, count: int, long: float) -> dict[str, float]:
    """Return what so many duplicates of one run cost, and how others wait."""
    task = project.TASKS["retry"]
    with _worker(project) as worker:
        memory = _memory_of(worker)
        task.delay(-1, long)
        _until(lambda: project.broker.llen(project.BEGUN) == 1, _LONGEST)
        for number in range(count):
            task.delay(number, 0.0)
        began, others = time.monotonic(), []
        while len(_runs(project)) <= count and time.monotonic() - began < 4 * _LONGEST:
            others.append(project.plain.delay(time.monotonic()))
            time.sleep(0.5)
        used = _memory_of(worker) - memory
        waits = [other.get(timeout=_LONGEST) for other in others]
        lines = worker.logs().count("\n")
    run = len(_runs(project)) - 1
    published = int(project.broker.get(project.PUBLICATIONS))
    project.broker.flushall()
    return {
        "run": run,
        "publications": published / count,
        "log_lines": lines / count,
        "kB_per_call": used / count,
        "other_p50": median(waits),
        "other_p99": quantiles(waits, n=100)[98],
    }


def _runs(project: Any) -> list[Run]:
    """Return the runs that have ended, as they began."""
    lines = [line.split() for line in project.broker.lrange(project.RUNS, 0, -1)]
    return sorted(
        Run(float(began), float(ended), int(number)) for number, began, ended in lines
    )


def _memory_of(process: Worker) -> int:
    """Return the resident memory of the main process, in kB (Linux)."""
    status = Path(f"/proc/{process.pid}/status").read_text("ascii")
    return int(status.partition("VmRSS:")[2].split()[0])


def _until(is_so: Callable[[], Any], seconds: float) -> None:
    """Wait until something is so, and no longer than these seconds."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)


@contextlib.contextmanager
def _worker(project: Any) -> Iterator[Worker]:
    """Run a worker that logs all it does."""
    options = {"concurrency": _PROCESSES, "options": ("--without-heartbeat",)}
    with workers(project, **options) as (worker,):
        yield worker
    project.broker.delete(project.BEGUN)
