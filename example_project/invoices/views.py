"""The page of the invoices: make one, and try a late write."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import TYPE_CHECKING

from celery import states
from django.contrib import messages
from django.db import transaction
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST
from django_celery_results.models import TaskResult

from celery_redlock import StaleFence
from invoices.models import Invoice, Series
from invoices.tasks import number_invoice, outbox
from live.processes import processes
from reports.models import Customer

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

__all__ = ["late_write", "make", "overview"]


_MOST = 15  # invoices on the page


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """Show the latest invoices and the series."""
    invoices = list(Invoice.objects.select_related("customer")[:_MOST])
    ids = [invoice.task_id for invoice in invoices]
    results = TaskResult.objects.filter(task_id__in=ids, status=states.SUCCESS)
    done = {result.task_id for result in results}
    fates = [_fate(one, is_done=one.task_id in done) for one in invoices]
    context = {
        "invoices": zip(invoices, fates, strict=True),
        "series": Series.objects.order_by("-year"),
        "may_break": bool(processes()),
    }
    return render(request, "invoices/overview.html", context)


def _fate(invoice: Invoice, *, is_done: bool) -> str:
    """Say what has happened to the task of an invoice."""
    if not invoice.number:
        return ""
    if not invoice.kills_worker:
        return "numbered"
    if is_done:
        return "killed after its commit; the next copy was given this number"
    return "killed after its commit; its message comes again"


@require_POST
def make(request: HttpRequest) -> HttpResponse:
    """Make an invoice; a worker assigns its number after the commit."""
    with transaction.atomic():
        invoice = Invoice.objects.create(
            customer=Customer.objects.order_by("?").first(),
            amount=Decimal(random.randrange(2_000, 90_000)) / 100,  # noqa: S311
            kills_worker="kill" in request.POST and bool(processes()),
        )
        # A worker could run the task before the commit, when no invoice exists. And if
        # this process were killed after the commit, nothing would number the invoice.
        invoice.task_id = outbox.send(number_invoice, (invoice.pk,)).id
        invoice.save(update_fields=["task_id"])
    messages.success(request, f"An invoice for {invoice.customer} was made.")
    return redirect("invoices:overview")


@require_POST
def late_write(request: HttpRequest) -> HttpResponse:
    """Write with the fence of an earlier holder, as a paused process would."""
    series = Series.objects.order_by("-year").first()
    if series is None or not series.fence:
        messages.warning(request, "Make an invoice first: the series has no fence yet.")
        return redirect("invoices:overview")
    series.last += 1_000
    try:
        series.save(fence=series.fence - 1)
    except StaleFence as refused:
        messages.warning(request, f"The row refused the late write. {refused}")
    else:
        messages.error(request, "The row accepted a late write. This must not happen.")
    return redirect("invoices:overview")
