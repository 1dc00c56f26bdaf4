"""The live page, what it reads every second, and its buttons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from live.models import Run
from live.stage import current_stage
from live.watch import look
from reports.models import Customer
from reports.tasks import build_report

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["kill", "page", "run", "state", "switch"]

_MOST = 50  # calls that one request may publish


@require_GET
def page(request: HttpRequest) -> HttpResponse:
    """Show the page; it fills itself."""
    context = {"customers": Customer.objects.all(), "on_stage": bool(current_stage())}
    return render(request, "live/live.html", context)


@require_GET
def state(_request: HttpRequest) -> JsonResponse:
    """Return what there is to show."""
    return JsonResponse(look())


@require_POST
def run(request: HttpRequest) -> HttpResponse:
    """Publish a report, once or often."""
    customer = get_object_or_404(Customer, pk=request.POST.get("customer"))
    times = min(_MOST, max(1, int(request.POST.get("times", "1"))))
    for _ in range(times):
        build_report.delay(customer.pk)
    return _done(request, f"{times} × {build_report.lock_key(customer.pk)} published")


@require_POST
def kill(request: HttpRequest) -> HttpResponse:
    """Kill the worker process that runs under a key, as a crash would."""
    stage, key = current_stage(), request.POST.get("key", "")
    if stage is None:
        raise Http404
    if not key:
        key = build_report.lock_key(int(request.POST["customer"]))
    victim = Run.objects.filter(key=key, state=Run.State.RUNNING).first()
    if victim is None or not stage.kill_child(victim.pid or 0, victim.parent_pid or 0):
        return _done(request, f"Nobody runs {key}: nothing was killed.")
    return _done(request, f"Killed process {victim.pid}, which ran {key}.")


@require_POST
def switch(request: HttpRequest, index: int, wanted: str) -> HttpResponse:
    """Stop or start a node."""
    stage = current_stage()
    if stage is None:
        raise Http404
    try:
        (stage.stop_node if wanted == "stop" else stage.start_node)(index)
    except IndexError as error:
        raise Http404 from error
    what = "is killed" if wanted == "stop" else "is back, with empty hands"
    return _done(request, f"Node {index + 1} {what}.")


def _done(request: HttpRequest, what: str) -> HttpResponse:
    """Answer the page's script with a sentence, and a browser without with the page."""
    if "application/json" in request.headers.get("Accept", ""):
        return JsonResponse({"done": what})
    return redirect("live:page")
