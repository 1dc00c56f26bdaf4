"""The pages of the customers: their reports, and the task that builds one now."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from celery_redlock import RedlockError, runtime_of
from live.models import Run
from project import celery_app
from reports.models import Customer
from reports.tasks import build_report

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

__all__ = ["build", "customers", "detail"]


@require_GET
def customers(request: HttpRequest) -> HttpResponse:
    """List all customers, with the newest report of each."""
    rows = [
        (customer, next(iter(customer.reports.all()), None))
        for customer in Customer.objects.prefetch_related("reports")
    ]
    return render(request, "reports/customers.html", {"rows": rows})


@require_GET
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a customer's report, the task that builds one now, and the latest calls."""
    customer = get_object_or_404(Customer, pk=pk)
    key = build_report.lock_key(customer.pk)
    report = customer.reports.first()
    context = {
        "customer": customer,
        "report": report,
        "bars": _bars(report.months) if report else [],
        "calls": Run.objects.filter(key=key)[:12],
        "asked": "asked" in request.GET,
        **_holder_of(key),
    }
    return render(request, "reports/detail.html", context)


@require_POST
def build(request: HttpRequest, pk: int) -> HttpResponse:
    """Publish a call for a report. If a task builds one now, name it."""
    customer = get_object_or_404(Customer, pk=pk)
    building = _holder_of(build_report.lock_key(customer.pk))
    build_report.delay(customer.pk)
    if building.get("holder"):
        messages.warning(
            request,
            f"The report is being built by {building['holder']} since "
            f"{building['since']:%H:%M:%S}. Your call will be skipped.",
        )
    else:
        messages.success(request, f"A call for a report on {customer} is published.")
    return redirect(f"{reverse('reports:detail', args=[pk])}?asked")


def _holder_of(key: str) -> dict[str, Any]:
    """Return the holder of a key: one request to all nodes."""
    try:
        seen = runtime_of(celery_app).redlock.inspect(key)
    except RedlockError as error:
        return {"trouble": str(error)}
    if seen.ballot.answered < seen.ballot.quorum:
        reasons = seen.ballot.reasons()
        return {"trouble": f"Unknown, because too few nodes answer: {reasons}."}
    if seen.holder is None:
        return {}
    since = datetime.fromtimestamp(seen.holder.started, tz=timezone.utc)
    return {"holder": seen.holder, "since": since}


def _bars(months: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Return the months with their heights in percent of the greatest."""
    greatest = max((amount for _, amount in months), default=0) or 1
    return [
        {"month": month, "amount": amount, "height": round(100 * amount / greatest)}
        for month, amount in months
    ]
