"""The journal: when the bodies of tasks begin and end.

The live page draws its timeline from this journal alone. The locks play no part in it,
so the page would show an overlap.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from celery import current_task
from django.utils import timezone

from celery_redlock import LockLost, current_lease
from live.models import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery_redlock import Lease

__all__ = ["Beyond", "beyond", "close_gone", "overlaps", "recorded"]


@contextmanager
def recorded(task: str = "") -> Iterator[Lease]:
    """Record the block, which holds a lock, and give its lease.

    Args:
        task: The name for the journal if no task runs.
    """
    lease = current_lease()
    if lease is None:
        raise RuntimeError("No lock is held here, so the run was not recorded.")
    request = current_task.request if current_task else None
    close_gone(lease.key)
    run = Run.objects.create(
        key=lease.key,
        task=current_task.name if current_task else task,
        task_id=(request and request.id) or "",
        state=Run.State.RUNNING,
        began_at=timezone.now(),
        fence=lease.fence,
        host=socket.gethostname(),
        pid=os.getpid(),
        parent_pid=os.getppid(),
    )
    state, note = Run.State.DONE, ""
    try:
        yield lease
    except LockLost as error:
        state, note = Run.State.LOST, str(error)
        raise
    except BaseException as error:
        state, note = Run.State.FAILED, f"{type(error).__name__}: {error}"
        raise
    finally:
        still = Run.objects.filter(pk=run.pk, state=Run.State.RUNNING)
        still.update(state=state, note=note, ended_at=timezone.now())


def close_gone(key: str = "") -> None:
    """Mark runs as killed if their process is gone."""
    running = Run.objects.filter(state=Run.State.RUNNING, host=socket.gethostname())
    if key:
        running = running.filter(key=key)
    for run in running:
        if not _exists(run.pid):
            ended = Run.objects.filter(pk=run.pk, state=Run.State.RUNNING)
            ended.update(state=Run.State.KILLED, ended_at=timezone.now())


def _exists(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def overlaps(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of bodies of one key that ran at the same time."""
    found, bodies = [], [run for run in runs if run.fence is not None]
    bodies.sort(key=lambda run: (run.key, run.began_at))
    for index, run in enumerate(bodies):
        for later in bodies[index + 1 :]:
            if later.key != run.key:
                break
            if run.ended_at is None or later.began_at < run.ended_at:
                found.append((run, later))
    return found


class Beyond(NamedTuple):
    """The number of bodies that ran at once, and those that were too many.

    Attributes:
        most: The greatest number of bodies at one moment.
        runs: The keys of the runs that began when as many ran as may.
    """

    most: int
    runs: set[int]


def beyond(bodies: Iterable[Run], limit_of: Callable[[Run], int]) -> Beyond:
    """Compare the number of bodies that ran at once with their limit.

    Runs may have different limits, as while a deploy changes one. Then the greatest of
    those that run counts.
    """
    most, found = 0, set()
    running: list[Run] = []
    for run in sorted(bodies, key=lambda run: run.began_at):
        running = [
            one
            for one in running
            if one.ended_at is None or run.began_at < one.ended_at
        ]
        running.append(run)
        most = max(most, len(running))
        if len(running) > max(map(limit_of, running)):
            found.add(run.pk)
    return Beyond(most, found)
