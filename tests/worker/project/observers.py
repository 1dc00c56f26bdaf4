"""Receivers of the signals: each records its arguments.

They are for all apps of a process. In one that has imported this project, other tests
run, too, which have no stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from celery_redlock import Lease, signals
from celery_redlock.policies import Conflict
from tests.worker.project.body import STAGE, stage


def record(key: str, event: str, **facts: Any) -> None:
    """Note an event on the stage, if there is one."""
    if STAGE in os.environ:
        stage().note(key, event, **facts)


def on_event(event: str) -> Callable[..., None]:
    """Return a receiver that records what happened to a lock."""

    def note(lease: Lease, task_id: str, **_: Any) -> None:
        record(lease.key, event, task_id=task_id)

    return note


def on_conflict(conflict: Conflict, decision: object, **_: Any) -> None:
    """Record the decision on a conflict."""
    record(
        conflict.key,
        "signal-conflict",
        task_id=conflict.task_id,
        decision=type(decision).__name__,
    )


def on_force_released(lease: Lease, task_id: str, released_by: str, **_: Any) -> None:
    """Record the release by an operator."""
    by = {"released_by": released_by}
    record(lease.key, "signal-force-released", task_id=task_id, **by)


def on_cancelled(lease: Lease, task_id: str, cancelled_by: str, **_: Any) -> None:
    """Record the cancel request to the holder."""
    by = {"cancelled_by": cancelled_by}
    record(lease.key, "signal-cancelled", task_id=task_id, **by)


for _name in ("acquired", "renewed", "lost", "released"):
    _signal = getattr(signals, f"lock_{_name}")
    _signal.connect(on_event(f"signal-{_name}"), weak=False)
signals.lock_cancelled.connect(on_cancelled)
signals.lock_force_released.connect(on_force_released)
signals.lock_conflict.connect(on_conflict)
