"""The state of nodes, locks and runs, as JSON for the live page.

The requests to the nodes are those of ``celery redlock top``: the status of each node,
and its locks. Nodes do not count renewals, so workers do.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from celery_redlock import runtime_of
from celery_redlock.beat import election_key
from celery_redlock.operations.inspect import NodeState
from celery_redlock.operations.scan import scan
from celery_redlock.records.standbys import leadership_of
from live.journal import close_gone, overlaps
from live.models import Run
from live.processes import processes
from project import celery_app

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.operations.inspect import NodeStatus
    from celery_redlock.operations.scan import SeenHolder

__all__ = ["LATEST", "WINDOW", "as_json", "look", "shared"]

WINDOW = timedelta(seconds=90)  # the timeline shows a minute of it
LATEST = 60  # runs in the list
_FRESH = 0.4  # seconds in which all browsers get the same answer


def shared(look: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Let all browsers get the same answer for a moment."""
    turn = threading.Lock()
    last: tuple[float, dict[str, Any]] = (-math.inf, {})

    @functools.wraps(look)
    def look_or_repeat() -> dict[str, Any]:
        nonlocal last
        with turn:
            if time.monotonic() - last[0] > _FRESH:
                last = time.monotonic(), look()
            return last[1]

    return look_or_repeat


@shared
def look() -> dict[str, Any]:
    """Return the present state of everything."""
    return {**_look_at_nodes(), **_look_at_runs()}


def _look_at_nodes() -> dict[str, Any]:
    redlock = runtime_of(celery_app).redlock
    seen = scan(redlock)
    nodes = seen.nodes
    voting = sum(node.state is NodeState.VOTES for node in nodes)
    renewals = {
        (run.key, run.pid): run.renewals
        for run in Run.objects.filter(state=Run.State.RUNNING)
    }
    beat = leadership_of(redlock, election_key(celery_app))
    shown = [
        _node(index, node, seen.counts[node.label]) for index, node in enumerate(nodes)
    ]
    shown = _servers_of_store(shown) or shown
    return {
        "quorum": len(shown) // 2 + 1,
        "voting": sum(node["votes"] for node in shown),
        "can_lock": voting >= nodes.quorum,
        "nodes": shown,
        "locks": [
            _lock(lock, len(nodes), renewals)
            for lock in sorted(
                seen.held + seen.possible, key=lambda lock: lock.holder.started
            )
            if not (lock.holder.keys or lock.holder.is_kept)  # see the app ``limits``
        ],
        "locks_known": nodes.most_can_tell,
        "beat": {
            "known": beat.leader is not None or nodes.most_can_tell,
            "leader": beat.leader and beat.leader.pid,
            "standbys": [standby.pid for standby in beat.standbys],
        },
    }


def _node(index: int, node: NodeStatus, locks: int) -> dict[str, Any]:
    site = processes()
    words = node.state.value
    if node.state is NodeState.QUARANTINED:
        words = f"restarted empty: will vote in {math.ceil(node.wait)} s"
    elif node.state is NodeState.NEW:
        words = "restarted empty: does not vote yet"
    elif node.state is NodeState.SILENT:
        words = node.reason
    return {
        "index": index,
        "name": node.label,
        "votes": node.state is NodeState.VOTES,
        "state": words,
        "locks": locks,
        "running": site.node_runs(index) if site else None,
    }


def _servers_of_store(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the servers of the store in place of it; nothing if there are nodes."""
    site = processes()
    servers = []
    for index, name in enumerate(site.store_servers if site else ()):
        (server,) = shown
        is_running = site is not None and site.node_runs(index)
        server = server | {"index": index, "name": name, "running": is_running}
        if not is_running:
            server |= {"votes": False, "state": "stopped", "locks": 0}
        servers.append(server)
    return servers


def _lock(
    lock: SeenHolder, nodes: int, renewals: dict[tuple[str, int], int]
) -> dict[str, Any]:
    holder = lock.holder
    return {
        "key": lock.key,
        "task": holder.task or "no task",
        "pid": holder.pid,
        "host": holder.host,
        "age": round(max(0.0, time.time() - holder.started), 1),
        "ttl_left": None if math.isinf(lock.ttl_left) else round(lock.ttl_left, 1),
        "renewals": renewals.get((lock.key, holder.pid)),
        "fence": str(holder.fence),  # too large for a number of JavaScript
        "votes": lock.votes,
        "nodes": nodes,
        "held": lock.is_held,  # null: that cannot be told
    }


def _look_at_runs() -> dict[str, Any]:
    close_gone()
    now = timezone.now()
    ours = Run.objects.exclude(key__contains="\n")  # calls with one key
    recent = list(ours.exclude(ended_at__lt=now - WINDOW)[:500])
    clashes = overlaps(recent)
    clashing = {run.pk for pair in clashes for run in pair}
    latest = list(ours[:LATEST])
    return {
        "now": now.timestamp(),
        "overlaps": len(clashes),
        "recent": [as_json(run) | {"overlaps": run.pk in clashing} for run in recent],
        "runs": [as_json(run) for run in latest],
    }


def as_json(run: Run) -> dict[str, Any]:
    """Return a run for the scripts of the pages."""
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
