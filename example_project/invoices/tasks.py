"""Assign invoice numbers, one after the other."""

from __future__ import annotations

import time

from django.db import transaction

from celery_redlock import singleton_task
from invoices.models import Invoice, Series
from live.journal import recorded

__all__ = ["number_invoice"]

SECONDS = 1.5


@singleton_task(key="invoice-numbers", on_conflict="retry", retry_countdown=1)
def number_invoice(invoice_id: int) -> str:
    """Give an invoice the next number of its year.

    All invoices share one key, and each needs its number. So a call that finds the
    lock held is republished, and not skipped.
    """
    with recorded() as lease:
        time.sleep(SECONDS)  # a slow answer of the tax office
        with transaction.atomic():
            invoice = Invoice.objects.get(pk=invoice_id)
            if invoice.number:
                return str(invoice.number)  # an earlier run was killed after this
            series, _ = Series.objects.get_or_create(year=invoice.made_at.year)
            series.last += 1
            series.save(fence=lease)  # raises StaleFence after a later holder
            invoice.number = f"{series.year}-{series.last:04}"
            invoice.save(update_fields=["number"])
    return str(invoice.number)
