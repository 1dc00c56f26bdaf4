"""The page of the limits: its data, and its buttons."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

from django.http import HttpResponseBadRequest, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from limits.tasks import EACH, FETCHES, IN_ALL, RATE, TENANTS
from limits.watch import look

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

__all__ = ["page", "publish", "state"]

_MOST = 50  # jobs in one request


@require_GET
def page(request: HttpRequest) -> HttpResponse:
    """Show the page; a script fills it."""
    context = {
        "each": EACH,
        "in_all": IN_ALL,
        "limits": FETCHES,
        "rate": RATE.partition("/")[0],
        "tenants": TENANTS,
    }
    return render(request, "limits/page.html", context)


@require_GET
def state(_request: HttpRequest) -> JsonResponse:
    """Return the present state as JSON."""
    return JsonResponse(look())


@require_POST
def publish(request: HttpRequest) -> HttpResponse:
    """Publish jobs for one tenant, or for all in turn."""
    try:
        jobs = min(_MOST, max(1, int(request.POST["jobs"])))
        fetch = FETCHES[int(request.POST["limit"])]
        tenant = int(request.POST["tenant"] or 0)
        tenants = {tenant: TENANTS[tenant]} if tenant else TENANTS
    except (KeyError, ValueError):
        return HttpResponseBadRequest("There is no such limit or tenant.")
    for number in islice(cycle(tenants), jobs):
        fetch.delay(number)
    owner = TENANTS[tenant] if tenant else "all tenants in turn"
    limit = request.POST["limit"]
    count = "1 job" if jobs == 1 else f"{jobs} jobs"
    done = f"Published {count} for {owner}, with a limit of {limit} in all."
    if "application/json" in request.headers.get("Accept", ""):
        return JsonResponse({"done": done})
    return redirect("limits:page")
