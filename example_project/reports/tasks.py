"""Reports: for each customer only one is built at a time."""

from __future__ import annotations

import time
from datetime import date, timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.db.models import Sum
from django.db.models.functions import TruncMonth
from django.utils import timezone

from celery_redlock import singleton_task
from live.journal import recorded
from reports.models import Customer, Report

if TYPE_CHECKING:
    from celery_redlock import Lease

__all__ = ["build_report", "write_report"]

MONTHS = 12


@singleton_task(key="report:{customer_id}")
def build_report(customer_id: int) -> int:
    """Build a report. A duplicate is skipped, and its result names the holder."""
    with recorded() as lease:
        return write_report(customer_id, lease)


def write_report(customer_id: int, lease: Lease) -> int:
    """Add up the orders of a customer, and store the sums.

    Args:
        customer_id: The customer.
        lease: The lock that the caller holds.

    Returns:
        The key of the report.
    """
    customer = Customer.objects.get(pk=customer_id)
    sums = dict(
        customer.orders.annotate(month=TruncMonth("day"))
        .values_list("month")
        .annotate(Sum("amount"))
    )
    months = []
    for first in _last_months():
        time.sleep(settings.REPORT_SECONDS / MONTHS)  # pretends to work hard
        lease.ensure()  # asks no node; raises LockLost if the lock is lost
        months.append([f"{first:%Y-%m}", float(sums.get(first, 0))])
    report = Report.objects.create(
        customer=customer,
        months=months,
        total=sum(sums.get(first, 0) for first in _last_months()),
        fence=lease.fence,
    )
    return int(report.pk)


def _last_months() -> list[date]:
    first = timezone.localdate().replace(day=1)
    months = [first]
    while len(months) < MONTHS:
        months.append((months[-1] - timedelta(days=1)).replace(day=1))
    return months[::-1]
