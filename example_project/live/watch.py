"""Look at nodes, locks and runs: what the live page shows, as JSON.

It asks the same questions as ``celery redlock top``: how each node stands, and which
locks they have. Renewals are the one thing that nodes do not know; workers count them.
"""

from __future__ import annotations

import math
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from celery_redlock import runtime_of
from celery_redlock.beat import election_key
from celery_redlock.core.examination import Standing, glance
from celery_redlock.core.survey import survey
from celery_redlock.leadership import leadership_of
from live.journal import close_gone, overlaps
from live.models import Run
from live.stage import current_stage
from project import celery_app

if TYPE_CHECKING:
    from celery_redlock.core.examination import Glance
    from celery_redlock.core.survey import SeenLock

__all__ = ["look"]

WINDOW = timedelta(seconds=90)  # the picture shows a minute of it
_LATEST = 60  # runs in the list
_FRESH = 0.4  # seconds for which one look serves all who ask

_turn = threading.Lock()
_last: tuple[float, dict[str, Any]] = (-math.inf, {})


def look() -> dict[str, Any]:
    """Return the present state of everything. Browsers share a look."""
    global _last  # noqa: PLW0603  (there is one stage to look at)
    with _turn:
        if time.monotonic() - _last[0] > _FRESH:
            _last = time.monotonic(), {**_look_at_nodes(), **_look_at_runs()}
        return _last[1]


def _look_at_nodes() -> dict[str, Any]:
    redlock = runtime_of(celery_app).redlock
    nodes = glance(redlock)
    seen = survey(
        redlock.addresses,
        redlock.guard.prefix,
        timeout=redlock.timing.connect_timeout,
    )
    voting = sum(node.standing is Standing.VOTES for node in nodes)
    fences = [lock.holder.fence for lock in seen.held]
    renewals = dict(
        Run.objects.filter(fence__in=fences, state=Run.State.RUNNING).values_list(
            "fence", "renewals"
        )
    )
    beat = leadership_of(redlock, election_key(celery_app))
    return {
        "quorum": seen.quorum,
        "voting": voting,
        "can_lock": voting >= seen.quorum,
        "nodes": [
            _node(index, node, seen.counts[node.label])
            for index, node in enumerate(nodes)
        ],
        "locks": [
            _lock(lock, len(nodes), renewals)
            for lock in sorted(seen.held, key=lambda lock: lock.holder.started)
        ],
        "beat": {
            "leader": beat.leader and beat.leader.pid,
            "standbys": [standby.pid for standby in beat.standbys],
        },
    }


def _node(index: int, node: Glance, locks: int) -> dict[str, Any]:
    stage = current_stage()
    words = node.standing.value
    if node.standing is Standing.QUARANTINED:
        words = f"restarted empty: will vote in {math.ceil(node.wait)} s"
    elif node.standing is Standing.NEW:
        words = "restarted empty: does not vote yet"
    elif node.standing is Standing.SILENT:
        words = node.reason
    return {
        "index": index,
        "name": node.label,
        "votes": node.standing is Standing.VOTES,
        "state": words,
        "locks": locks,
        "running": stage.node_runs(index) if stage else None,
    }


def _lock(lock: SeenLock, nodes: int, renewals: dict[int, int]) -> dict[str, Any]:
    holder = lock.holder
    return {
        "key": lock.key,
        "task": holder.task or "no task",
        "pid": holder.pid,
        "host": holder.host,
        "age": round(max(0.0, time.time() - holder.started), 1),
        "ttl_left": round(lock.ttl_left, 1),
        "renewals": renewals.get(holder.fence),
        "fence": str(holder.fence),  # a browser's numbers are too short for it
        "votes": lock.votes,
        "nodes": nodes,
    }


def _look_at_runs() -> dict[str, Any]:
    close_gone()
    now = timezone.now()
    recent = list(Run.objects.exclude(ended_at__lt=now - WINDOW)[:500])
    clashes = overlaps(recent)
    clashing = {run.pk for pair in clashes for run in pair}
    latest = list(Run.objects.all()[:_LATEST])
    return {
        "now": now.timestamp(),
        "overlaps": len(clashes),
        "recent": [_run(run) | {"overlaps": run.pk in clashing} for run in recent],
        "runs": [_run(run) for run in latest],
    }


def _run(run: Run) -> dict[str, Any]:
    since = run.holder_since
    return {
        "id": run.pk,
        "key": run.key,
        "task": run.task,
        "state": run.state,
        "began": run.began_at.timestamp(),
        "ended": run.ended_at and run.ended_at.timestamp(),
        "fence": run.fence and str(run.fence),
        "renewals": run.renewals,
        "pid": run.pid,
        "holder": run.holder,
        "holder_since": since and since.timestamp(),
        "note": run.note,
    }
