"""The page of the invoices: make one, and try a late write."""

from __future__ import annotations

import random
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

from django.contrib import messages
from django.db import transaction
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from celery_redlock import StaleFence
from invoices.models import Invoice, Series
from invoices.tasks import number_invoice
from reports.models import Customer

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

__all__ = ["late_write", "make", "overview"]


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """Show the latest invoices and the series."""
    context = {
        "invoices": Invoice.objects.select_related("customer")[:15],
        "series": Series.objects.order_by("-year"),
    }
    return render(request, "invoices/overview.html", context)


@require_POST
def make(request: HttpRequest) -> HttpResponse:
    """Make an invoice; a worker assigns its number after the commit."""
    with transaction.atomic():
        invoice = Invoice.objects.create(
            customer=Customer.objects.order_by("?").first(),
            amount=Decimal(random.randrange(2_000, 90_000)) / 100,  # noqa: S311
        )
        # A worker could run the task before the commit, when no invoice exists.
        transaction.on_commit(partial(number_invoice.delay, invoice.pk))
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
