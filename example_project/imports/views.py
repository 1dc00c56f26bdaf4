"""The page of the imports: their schedule, the beats, and the latest calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.shortcuts import render
from django.views.decorators.http import require_GET
from django_celery_beat.models import PeriodicTask

from celery_redlock import runtime_of
from celery_redlock.beat import election_key
from celery_redlock.records.standbys import leadership_of
from imports.models import Import
from imports.tasks import import_orders
from live.models import Run
from project import celery_app

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

__all__ = ["overview"]


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """Show the schedule, the beats and the latest imports."""
    redlock = runtime_of(celery_app).redlock
    calls = Run.objects.filter(key=import_orders.lock_key())
    context = {
        "beats": leadership_of(redlock, election_key(celery_app)),
        "calls": calls[:10],
        "imports": Import.objects.all()[:10],
        "schedules": PeriodicTask.objects.filter(task=import_orders.name),
        "skipped": calls.filter(state=Run.State.SKIPPED).count(),
    }
    return render(request, "imports/overview.html", context)
