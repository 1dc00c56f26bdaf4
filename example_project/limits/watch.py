"""The permits and runs of the tenants, as JSON for the page.

Nodes say how many permits are in use. The journal says, apart from that, how many
bodies ran at once, and how many started in a minute.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from celery_redlock import runtime_of
from limits.tasks import EACH, FETCHES, RATE, TENANTS
from live.journal import beyond, close_gone
from live.models import Run
from live.watch import LATEST, WINDOW, as_json, shared
from project import celery_app

if TYPE_CHECKING:
    from celery_redlock.locks.permits import Occupancy

__all__ = ["look"]

_MOST_REFUSED = 500  # marks on the timeline
_LIMIT_OF = {fetch.name: limit for limit, fetch in FETCHES.items()}
_GREATEST = FETCHES[max(FETCHES)]


@shared
def look() -> dict[str, Any]:
    """Return the present state of everything."""
    return {**_look_at_nodes(), **_look_at_runs()}


def _look_at_nodes() -> dict[str, Any]:
    """Ask for the permits of all tenants and of all starts, in one request."""
    limits = {
        (limit.key, bool(limit.period)): limit
        for tenant in TENANTS
        for limit in _GREATEST.lock_wanted(tenant)[1]
    }
    found = runtime_of(celery_app).redlock.permits_in_use((*limits.values(),))
    by_limit: dict[tuple[str, bool], Occupancy] = dict(
        zip(limits, found or [], strict=False)
    )
    starts = by_limit.get(("tenants", True))
    return {
        "known": found is not None,
        "in_all": _used(by_limit.get(("tenants", False))),
        "starts": _used(starts),
        "next_start": starts and round(starts.due()[0], 1),
        "tenants": [
            {"name": name, "used": _used(by_limit.get((f"tenant:{tenant}", False)))}
            for tenant, name in TENANTS.items()
        ],
    }


def _used(occupancy: Occupancy | None) -> int | None:
    """Return how many permits are in use; None if that cannot be told."""
    return None if occupancy is None else len(occupancy.held)


def _look_at_runs() -> dict[str, Any]:
    close_gone()
    now = timezone.now()
    ours = Run.objects.filter(task__in=_LIMIT_OF)
    recent = ours.exclude(ended_at__lt=now - WINDOW)
    bodies = list(recent.filter(fence__isnull=False))
    refused = list(recent.filter(fence__isnull=True)[:_MOST_REFUSED])
    in_all = beyond(bodies, lambda run: _LIMIT_OF[run.task])
    of_tenants = [
        beyond([run for run in bodies if _tenant_of(run) == tenant], lambda _: EACH)
        for tenant in TENANTS
    ]
    too_many = in_all.runs.union(*(one.runs for one in of_tenants))
    starts, period = int(RATE.partition("/")[0]), timedelta(minutes=1)
    began = sorted(run.began_at for run in bodies)
    too_often = sum(
        later - earlier < period
        for earlier, later in zip(began, began[starts:], strict=False)
    )
    return {
        "now": now.timestamp(),
        "most_at_once": in_all.most,
        "too_many": len(too_many),
        "too_often": too_often,
        "recent": [
            _run(run) | {"overlaps": run.pk in too_many} for run in bodies + refused
        ],
        "runs": [_run(run) for run in ours.filter(fence__isnull=False)[:LATEST]],
    }


def _run(run: Run) -> dict[str, Any]:
    tenant = TENANTS.get(_tenant_of(run), "?")
    return as_json(run) | {"key": tenant, "permits": run.key.split("\n")}


def _tenant_of(run: Run) -> int:
    """Return the tenant: a run has a permit of it, such as ``tenant:3##2``."""
    (key,) = [key for key in run.key.split("\n") if key.startswith("tenant:")]
    return int(key.partition("#")[0].removeprefix("tenant:"))
