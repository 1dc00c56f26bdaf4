"""Rules that ask running workers: versions, nodes, calls without a lock, limits.

A worker that starts leaves these rules out: in a deploy each would ask all the others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.command import COMMAND
from celery_redlock.operations.doctor.rule import (
    ERROR,
    NOTE,
    WARNING,
    Case,
    Finding,
    LockTask,
    rule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Task

_COMPARED = {"lock_options": "lock options", "key_rule": "arguments or key"}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_CALLERS = ("celery.map", "celery.starmap")  # .chunks are calls of the latter
_TOLD = ("active", "reserved")


@rule(skipped_at_start=True)
def versions(case: Case) -> Iterator[Finding]:
    """Find running workers whose version of a task computes other keys, or differs."""
    differing: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    ours = {it.task.name: _described(it.task) for it in case.lock_tasks}
    for worker, tasks in case.workers.tasks.items() if ours else ():
        for name, described in tasks.items():
            theirs = _ADDRESS.sub("", described)
            for field, here in ours.get(name, {}).items():
                if f"{field}={here}" not in theirs:
                    differing[name, field, here].append(worker)
    for (name, field, here), workers in sorted(differing.items()):
        yield Finding(
            "other-version",
            NOTE,
            f"has other {_COMPARED[field]} in {', '.join(sorted(workers))} than here "
            f"({here})",
            "If a deploy goes on, let it end; else restart these workers. Runs of two "
            "versions whose keys differ may overlap.",
        ).of("Task", name)


def _described(task: Task) -> dict[str, str]:
    """Return the fields of a task that workers compare, as they tell them."""
    return {n: _ADDRESS.sub("", str(getattr(task, n))) for n in _COMPARED}


@rule(skipped_at_start=True)
def nodes(case: Case) -> Iterator[Finding]:
    """Find running workers whose locks are on other nodes.

    Servers that no deployment has used know of no other one. So nothing but the workers
    can tell, over the broker, that there are two.
    """
    ours = frozenset(case.redlock.labels)
    differing: dict[frozenset[str], list[str]] = defaultdict(list)
    names = {it.task.name for it in case.lock_tasks}
    for worker, told in case.workers.nodes(names).items() if names else ():
        for theirs in told - {ours}:
            differing[theirs].append(worker)
    for theirs, workers in sorted(differing.items(), key=lambda item: item[1]):
        severity, effect = WARNING, "nodes grant locks to the clients of one list only"
        if ours.isdisjoint(theirs):
            severity, effect = ERROR, "two may hold one lock"
        yield Finding(
            "other-nodes",
            severity,
            f"The locks of {', '.join(workers)} are on {', '.join(sorted(theirs))}, "
            f"and those of this app on {', '.join(sorted(ours))}: {effect}.",
            "Stop these workers, or give all clients one list. Move to other nodes "
            f"with `{COMMAND} reconfigure`, before any client has the new "
            "list.",
        )


@rule(skipped_at_start=True)
def called_by_others(case: Case) -> Iterator[Finding]:
    """Find lock tasks that running workers call for `.map`, `.starmap` or `.chunks`."""
    names = {it.task.name for it in case.lock_tasks}
    workers: dict[str, set[str]] = defaultdict(set)
    for what in _TOLD if names else ():
        for worker, requests in case.workers.told(what).items():
            for request in requests:
                inner = _inner(request)
                if inner in names:
                    workers[inner].add(worker)
    for name, found in sorted(workers.items()):
        yield Finding(
            "without-lock",
            WARNING,
            f"runs without its lock in {', '.join(sorted(found))}: .map, .starmap or "
            ".chunks calls its body as a plain function",
            "Use a group of its calls, where each must have its lock.",
        ).of("Task", name)


def _inner(request: Any) -> str:
    """Return the task that a call of one of Celery's own tasks calls, or ``""``."""
    match request:
        case {"name": name, "kwargs": {"task": {"task": str() as inner}}}:
            return inner if name in _CALLERS else ""
    return ""


@rule(skipped_at_start=True)
def processes(case: Case) -> Iterator[Finding]:
    """Find limits that are higher than the number of tasks that workers run at once."""
    limited = [(it, most) for it in case.lock_tasks if (most := _limit_of(it)) > 1]
    stats = case.workers.told("stats") if limited else {}
    at_once = sum(map(_tasks_at_once, stats.values()))
    for it, most in limited:
        if stats and most > at_once:
            yield Finding(
                "limit",
                NOTE,
                f"has a limit of {most}, and the running workers that answer run "
                f"{at_once} tasks at once: the limit has no effect on them",
                "Lower it, unless more workers start at times, or other code takes the "
                "same key.",
            ).of("Task", it.task.name)


def _limit_of(it: LockTask) -> int:
    """Return the limit of a task as it was given; 0 for none."""
    keys = it.options.keys
    return max(keys.values()) if isinstance(keys, Mapping) else it.options.limit or 0


def _tasks_at_once(stats: Mapping[str, Any]) -> int:
    """Return how many tasks a worker runs at once, at most."""
    most: int = (stats.get("autoscaler") or {}).get("max", 0)
    pool = stats.get("pool")
    now = pool.get("max-concurrency", 0) if isinstance(pool, Mapping) else 0
    return max(most, now)


@rule(skipped_at_start=True)
def broker(case: Case) -> Iterator[Finding]:
    """Find that the rules above could not ask. It is the last one of them."""
    if silence := case.workers.silence:
        yield Finding(
            "broker",
            NOTE,
            f"The running workers could not be asked: {silence}. Whether their "
            "versions, nodes and processes suit is not known.",
            case.workers.remedy,
        )
