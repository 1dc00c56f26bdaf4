"""The nightly import: beat sends it, and only one may run at a time."""

from __future__ import annotations

import random
import time
from decimal import Decimal

from django.conf import settings
from django.utils import timezone

from celery_redlock import singleton_task
from imports.models import Import
from live.journal import recorded
from reports.models import Customer, Order

__all__ = ["import_orders"]

FILES = 12  # for each import
KEPT = 2_000  # orders; the example runs the import all day


@singleton_task(key="import-orders")
def import_orders() -> int:
    """Fetch the orders of the day. A call that is due during another one is skipped."""
    began_at = timezone.now()
    with recorded() as lease:
        customers = list(Customer.objects.all())
        for _ in range(FILES):
            time.sleep(settings.IMPORT_SECONDS / FILES)
            lease.ensure()  # asks no node; raises LockLost if the lock is lost
            Order.objects.bulk_create(_orders(customers))
        old = Order.objects.order_by("-pk").values_list("pk", flat=True)[
            KEPT : KEPT + 1
        ]
        Order.objects.filter(pk__lte=max(old, default=0)).delete()
        done = Import.objects.create(began_at=began_at, orders=FILES, fence=lease.fence)
    return int(done.orders)


def _orders(customers: list[Customer]) -> list[Order]:
    if not customers:
        return []
    amount = Decimal(random.randrange(2_000, 90_000)) / 100  # noqa: S311  (a demo)
    customer = random.choice(customers)  # noqa: S311
    return [Order(customer=customer, day=timezone.localdate(), amount=amount)]
