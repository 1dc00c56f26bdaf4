"""Workers of the groups: real ones, in processes of their own."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_redlock.devnodes.processes import stop
from tests.harness.commands import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANSWER_WITHIN = 120.0  # seconds
_END_WITHIN = 20.0  # seconds
QUIET = ("--without-heartbeat", "-l", "ERROR")
IDLE = (*QUIET, "-Q", "none-yet")  # until it is told to take calls


@contextlib.contextmanager
def workers(project: Any, count: int = 1, **options: Any) -> Iterator[list[Worker]]:
    """Run workers of a module while the block runs, which begins when all answer.

    The options are those of `Worker`. By default the workers log nothing of tasks.
    """
    options = {"options": QUIET, **options}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        running = [
            Worker(project.__name__, f"worker-{number}", folder=Path(folder), **options)
            for number in range(count)
        ]
        for worker in running:
            stack.callback(stop, worker, within=_END_WITHIN)
            worker.start()
        deadline = time.monotonic() + _ANSWER_WITHIN
        while len(project.app.control.ping(timeout=0.5)) < count:
            if time.monotonic() > deadline or not all(
                one.is_running for one in running
            ):
                logs = "\n".join(worker.logs() for worker in running)
                raise SystemExit(f"The workers did not start:\n{logs}")
        yield running
