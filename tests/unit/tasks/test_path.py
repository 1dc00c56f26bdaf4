"""The modules through which one call of a task without a conflict passes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from celery import Celery

import celery_redlock.task
from celery_redlock import runtime_of, singleton_task
from celery_redlock.devnodes import DevNodes
from celery_redlock.testing import FakeNodes
from tests.unit.tasks.support import Worker

PACKAGE = Path(celery_redlock.task.__file__).parents[1]
MOST_MODULES = 19
# Below `task`, a call needs these and no others.
BELOW = (
    *("app.", "options.", "locking", "locks."),
    *("members.", "wire.", "stores.", "scripts.", "basics."),
)


def modules_called_by(do: Callable[[], object]) -> list[str]:
    """Return the modules of the package whose functions are called, in order.

    The collector may not end objects of other tests meanwhile.
    """
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            found.setdefault(".".join(parts))

    gc.disable()
    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
        gc.enable()
    return list(found)


def test_call_without_a_conflict_leads_through_19_modules(
    start_nodes: Callable[..., DevNodes], nodes: FakeNodes
) -> None:
    """From ``__call__`` to a real node and back, with all connections open.

    The docstring of `task` names each module of `task` in its reading order.
    """
    app = Celery("path", broker="memory://", set_as_current=False)
    app.conf.update(
        result_backend="cache+memory://",
        redlock_nodes=start_nodes(1).urls,
        redlock_node_timeout=4.0,  # a node that is late would be logged
    )

    @singleton_task(app=app, shared=False, name="job")
    def job(number: int) -> int:
        return number

    worker = Worker(app, nodes)
    for number in range(3):
        assert worker.run(job, number).result == number
    modules = modules_called_by(lambda: worker.run(job, 4))
    runtime_of(app).stop()
    runtime_of(app).redlock.close()
    app.close()

    order: Any = celery_redlock.task.__doc__
    in_task = [name.removeprefix("task.") for name in modules if "task." in name]
    assert in_task[0] == "singleton_task"
    assert [name for name in in_task if f"`{name}`" not in order] == []
    others = [name for name in modules if not name.startswith("task.")]
    assert [name for name in others if not name.startswith(BELOW)] == []
    assert len(modules) <= MOST_MODULES, "\n".join(modules)
