"""Assign invoice numbers, one after the other, and each exactly once."""

from __future__ import annotations

import os
import signal

from django.db import transaction

from celery_redlock import Outbox, singleton_task
from invoices.models import Invoice, Series
from live.journal import recorded

__all__ = ["number_invoice", "outbox"]

outbox = Outbox("default")  # publishes a task if, and only if, the transaction commits


@singleton_task(
    key="invoice-numbers",
    on_conflict="retry",
    retry_countdown=1,
    exactly_once_in="default",  # one transaction with the record of the call
)
def number_invoice(invoice_id: int) -> str:
    """Give an invoice the next number of its year.

    All invoices share one key, and each needs its number. So a call that finds the
    lock held is republished, and not skipped. If the process is killed after the
    commit, the message comes again. The second copy finds the record, so this body does
    not run again, and no number is used up.
    """
    with recorded() as lease:
        invoice = Invoice.objects.get(pk=invoice_id)
        series, _ = Series.objects.get_or_create(year=invoice.made_at.year)
        series.last += 1
        series.save(fence=lease)  # raises StaleFence after a later holder
        invoice.number = f"{series.year}-{series.last:04}"
        invoice.save(update_fields=["number"])
    if invoice.kills_worker:
        transaction.on_commit(_kill_this_process)
    return str(invoice.number)


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
