"""Bodies of lock tasks that run without their lock, because another task calls them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from celery_redlock.operations.doctor.deploys import told_by_workers
from celery_redlock.operations.doctor.rule import ERROR, WARNING, Case, Finding, rule
from celery_redlock.options.lock_options import LockOptions

if TYPE_CHECKING:
    from collections.abc import Iterator


_CALLERS = ("celery.map", "celery.starmap")  # .chunks are calls of the latter
_TOLD = ("active", "reserved")


@rule(offline=True, skipped_at_start=True)
def tasks_above(case: Case) -> Iterator[Finding]:
    """Find tasks whose function is a lock task, as `@app.task` above one makes them."""
    for name, task in sorted(case.app.tasks.items()) if case.app else ():
        inner: Any = getattr(task, "run", None)
        if isinstance(getattr(inner, "lock_options", None), LockOptions):
            yield Finding(
                "without-lock",
                ERROR,
                f"runs the body of the task {inner.name} without its lock, and no "
                "worker starts with it",
                "Apply @singleton_task alone, and no @app.task or @shared_task above "
                "it.",
            ).of("Task", name)


# A worker that starts leaves this out: each would ask all the others.
@rule(skipped_at_start=True)
def called_by_others(case: Case) -> Iterator[Finding]:
    """Find lock tasks that running workers call for `.map`, `.starmap` or `.chunks`."""
    names = {it.task.name for it in case.lock_tasks}
    workers: dict[str, set[str]] = defaultdict(set)
    for what in _TOLD if names else ():
        for worker, requests in told_by_workers(case.app, what).items():
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
