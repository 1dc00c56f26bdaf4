"""The way of a refused call through Celery's tracer, at no more than the cost of a run.

Celery's tracer copies and formats the traceback of every exception that ends a call,
the positions of all its own instructions included. For ``Ignore`` it does so twice. A
refusal has no use for a traceback, and there may be thousands of refusals for one run::

    SingletonTask.__call__ raises the refusal, without context
        ──► Celery's tracer hands it to ``RefusalInfo``, which replaces its traceback
            ──► Celery formats one line, and goes on as for each call

``RefusalInfo`` is the `TraceInfo` that ``celery.app.trace.build_tracer`` takes as an
argument. Celery passes none, so the descriptor `RefusalTracer` sets it in the tracer of
each task that locks. A tracer that has no such place is left as it is: then refusals
cost more, and end in the same way.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task


class RefusalTracer:
    """The attribute ``__trace__`` of a task, which Celery sets."""

    def __get__(
        self, task: Task, owner: type | None = None
    ) -> Callable[..., Any] | None:
        return vars(task).get("_redlock_trace") if task is not None else None

    def __set__(self, task: Task, tracer: Callable[..., Any] | None) -> None:
        if tracer is not None:
            _set_info(tracer)
        vars(task)["_redlock_trace"] = tracer


def _set_info(tracer: Callable[..., Any]) -> None:
    """Let a tracer that Celery has built use `RefusalInfo`, also if it is wrapped."""
    # Only workers have a tracer: publishers are spared this import.
    from celery.app.trace import TraceInfo  # noqa: PLC0415

    from celery_redlock.task.trace_info import RefusalInfo  # noqa: PLC0415

    built = inspect.unwrap(tracer)
    code, closure = getattr(built, "__code__", None), getattr(built, "__closure__", ())
    cells = dict(zip(code.co_freevars, closure or (), strict=True)) if code else {}
    info = cells.get("Info")
    if info is not None and info.cell_contents is TraceInfo:
        info.cell_contents = RefusalInfo
