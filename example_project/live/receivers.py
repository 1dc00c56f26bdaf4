"""Receivers of signals: they write renewals, conflicts and retries into the journal.

They run in workers. ``lock_renewed`` is sent in a thread of its own, the others in the
thread that runs the task.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.signals import task_retry
from django.db import connection
from django.db.models import F

from celery_redlock.policies import Raise, Skip
from celery_redlock.signals import lock_conflict, lock_renewed
from live.models import Run

if TYPE_CHECKING:
    from celery_redlock import Conflict, Lease


@lock_renewed.connect(weak=False)
def count_renewal(lease: Lease, **_: Any) -> None:
    """Count a renewal."""
    runs = Run.objects.filter(key=lease.key, fence=lease.fence)
    runs.update(renewals=F("renewals") + 1)
    connection.close()  # Django does not close the one of this thread


@lock_conflict.connect(weak=False)
def note_conflict(conflict: Conflict, decision: Any, **_: Any) -> None:
    """Record a call that does not run, with the holder of its lock."""
    if not isinstance(decision, (Skip, Raise)):
        return
    holder = conflict.holder
    since = holder and holder.started
    _note(
        key=conflict.key,
        task=conflict.task,
        task_id=conflict.task_id,
        state=Run.State.SKIPPED,
        holder=f"process {holder.pid} on {holder.host}" if holder else "",
        holder_since=datetime.fromtimestamp(since, timezone.utc) if since else None,
    )


@task_retry.connect(weak=False)
def note_retry(sender: Any, request: Any, reason: Any, **_: Any) -> None:
    """Record a call that is republished, with the reason."""
    _note(
        key=sender.lock_key(*request.args, **request.kwargs),
        task=sender.name,
        task_id=request.id,
        state=Run.State.RETRIED,
        note=str(getattr(reason, "exc", None) or reason),
    )


def _note(**facts: Any) -> None:
    now = datetime.now(timezone.utc)
    here = {"host": socket.gethostname(), "pid": os.getpid()}
    Run.objects.create(began_at=now, ended_at=now, **here, **facts)
