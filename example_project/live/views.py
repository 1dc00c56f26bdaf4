"""The live page: its data, and the actions of its buttons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from live.models import Run
from live.processes import processes
from live.watch import look
from reports.models import Customer
from reports.tasks import build_report

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["kill", "page", "run", "state", "switch"]

_MOST = 50  # calls in one request


@require_GET
def page(request: HttpRequest) -> HttpResponse:
    """Show the page; a script fills it."""
    context = {"customers": Customer.objects.all(), "may_break": bool(processes())}
    return render(request, "live/live.html", context)


@require_GET
def state(_request: HttpRequest) -> JsonResponse:
    """Return the present state as JSON."""
    return JsonResponse(look())


@require_POST
def run(request: HttpRequest) -> HttpResponse:
    """Publish calls for a report."""
    customer = get_object_or_404(Customer, pk=request.POST.get("customer"))
    times = min(_MOST, max(1, int(request.POST.get("times", "1"))))
    for _ in range(times):
        build_report.delay(customer.pk)
    key = build_report.lock_key(customer.pk)
    calls = "1 call" if times == 1 else f"{times} calls"
    return _done(request, f"Published {calls} with the key {key}.")


@require_POST
def kill(request: HttpRequest) -> HttpResponse:
    """Kill the worker process that holds the lock of a key."""
    site, key = processes(), request.POST.get("key", "")
    if site is None:
        raise Http404
    if not key:
        key = build_report.lock_key(int(request.POST["customer"]))
    victim = Run.objects.filter(key=key, state=Run.State.RUNNING).first()
    if victim is None or not site.kill_child(victim.pid or 0, victim.parent_pid or 0):
        return _done(request, f"No worker process runs {key}, so none was killed.")
    return _done(request, f"Process {victim.pid} was killed. It ran {key}.")


@require_POST
def switch(request: HttpRequest, index: int, wanted: str) -> HttpResponse:
    """Stop or start a node."""
    site = processes()
    if site is None:
        raise Http404
    try:
        (site.stop_node if wanted == "stop" else site.start_node)(index)
    except IndexError as error:
        raise Http404 from error
    memory = "what it had on disk" if site.store_servers else "an empty memory"
    what = "was killed" if wanted == "stop" else f"runs again, with {memory}"
    noun = "Server" if site.store_servers else "Node"
    return _done(request, f"{noun} {index + 1} {what}.")


def _done(request: HttpRequest, what: str) -> HttpResponse:
    """Send a sentence to the page's script, and the page to other browsers."""
    if "application/json" in request.headers.get("Accept", ""):
        return JsonResponse({"done": what})
    return redirect("live:page")
