"""``manage.py seed``: the first customers, orders, users, and a schedule."""

from __future__ import annotations

import random
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import Permission, User
from django.core.management.base import BaseCommand
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from celery_redlock.effects.outbox import publish_outbox
from imports.tasks import import_orders
from reports.models import Customer, Order

CUSTOMERS = {
    "Bakery Almeida": "Porto",
    "Café Lindqvist": "Uppsala",
    "Hotel Bellevue": "Lausanne",
    "Moreau & Daughters": "Lyon",
    "Novak Bicycles": "Brno",
    "Okafor Textiles": "Lagos",
    "Sato Printing": "Kyoto",
    "Wójcik Gardens": "Kraków",
}
ORDERS = 120  # for each customer
EVERY = 10  # seconds; a real import would have a crontab


class Command(BaseCommand):
    """Add what the database does not have yet."""

    help = "Add customers, orders, users (admin, support) and a schedule."

    def handle(self, **_: Any) -> None:
        """Add the rows."""
        if not Customer.objects.exists():
            self._add_customers()
        self._add_users()
        interval, _ = IntervalSchedule.objects.get_or_create(
            every=EVERY, period=IntervalSchedule.SECONDS
        )
        PeriodicTask.objects.update_or_create(
            name="Nightly import",
            defaults={"task": import_orders.name, "interval": interval},
        )
        # What a process that was killed after its commit has not published.
        PeriodicTask.objects.update_or_create(
            name="Messages in the outbox",
            defaults={"task": publish_outbox.name, "interval": interval},
        )

    def _add_customers(self) -> None:
        dice, today = random.Random(7), timezone.localdate()  # noqa: S311  (a demo)
        for name, city in CUSTOMERS.items():
            customer = Customer.objects.create(name=name, city=city)
            Order.objects.bulk_create(
                Order(
                    customer=customer,
                    day=today - timedelta(days=dice.randrange(365)),
                    amount=Decimal(dice.randrange(2_000, 90_000)) / 100,
                )
                for _ in range(ORDERS)
            )

    def _add_users(self) -> None:
        if not User.objects.filter(username="admin").exists():
            User.objects.create_superuser("admin", password="admin")  # noqa: S106
        support, is_new = User.objects.get_or_create(
            username="support", defaults={"is_staff": True}
        )
        if is_new:
            support.set_password("support")
            support.save()
        # Support may view everything, and may not release locks.
        may = Permission.objects.filter(codename__startswith="view_")
        support.user_permissions.set(may)
