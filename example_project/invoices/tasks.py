"""Number invoices: one after the other, none lost, and no late writer."""

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

    All invoices share one key, and each must get its turn: so a call that finds the
    lock held is put back into its queue and not skipped.
    """
    with recorded() as lease:
        time.sleep(SECONDS)  # as if the tax office had to be asked
        with transaction.atomic():
            invoice = Invoice.objects.get(pk=invoice_id)
            if invoice.number:
                return str(invoice.number)  # it is run again after a kill
            series, _ = Series.objects.get_or_create(year=invoice.made_at.year)
            series.last += 1
            series.save(fence=lease)  # StaleFence, should somebody have come after us
            invoice.number = f"{series.year}-{series.last:04}"
            invoice.save(update_fields=["number"])
    return str(invoice.number)
