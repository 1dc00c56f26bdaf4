"""Receivers of the signals: each records its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock import signals
from tests.worker.project.body import stage

if TYPE_CHECKING:
    from celery_redlock import Lease
    from celery_redlock.policies import Conflict


def on_acquired(lease: Lease, task_id: str, **_: Any) -> None:
    """Record the acquire of a lock."""
    stage().note(lease.key, "signal-acquired", task_id=task_id)


def on_renewed(lease: Lease, task_id: str, **_: Any) -> None:
    """Record the renewal of a lock."""
    stage().note(lease.key, "signal-renewed", task_id=task_id)


def on_lost(lease: Lease, task_id: str, **_: Any) -> None:
    """Record the loss of a lock."""
    stage().note(lease.key, "signal-lost", task_id=task_id)


def on_released(lease: Lease, task_id: str, **_: Any) -> None:
    """Record the release of a lock."""
    stage().note(lease.key, "signal-released", task_id=task_id)


def on_conflict(conflict: Conflict, decision: object, **_: Any) -> None:
    """Record the decision on a conflict."""
    stage().note(
        conflict.key,
        "signal-conflict",
        task_id=conflict.task_id,
        decision=type(decision).__name__,
    )


def on_cancelled(lease: Lease, task_id: str, cancelled_by: str, **_: Any) -> None:
    """Record the cancel request to the holder."""
    by = {"cancelled_by": cancelled_by}
    stage().note(lease.key, "signal-cancelled", task_id=task_id, **by)


signals.lock_cancelled.connect(on_cancelled)
signals.lock_acquired.connect(on_acquired)
signals.lock_renewed.connect(on_renewed)
signals.lock_lost.connect(on_lost)
signals.lock_released.connect(on_released)
signals.lock_conflict.connect(on_conflict)
