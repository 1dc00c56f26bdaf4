"""Fetch the orders of ten tenants: a few at once, and not too often.

The service behind allows three connections for each tenant, eight in all, and thirty
calls a minute. All three are options of the task.
"""

from __future__ import annotations

import random
import time
from typing import Any

from django.conf import settings

from celery_redlock import singleton_task
from live.journal import recorded

__all__ = ["EACH", "FETCHES", "IN_ALL", "RATE", "TENANTS"]

TENANTS = {
    1: "Alder Books",
    2: "Birch Bikes",
    3: "Cedar Coffee",
    4: "Dogwood Toys",
    5: "Elm Lamps",
    6: "Fir Shoes",
    7: "Ginkgo Tea",
    8: "Hazel Hats",
    9: "Iris Glass",
    10: "Juniper Gin",
}
EACH, IN_ALL, RATE = 3, 8, "30/m"
STEPS = 10


def _fetch_with(limit: int) -> Any:
    """Return the task as it would be deployed with this limit in all."""

    @singleton_task(
        name=f"limits.tasks.fetch_{limit}",
        keys={"tenant:{tenant}": EACH, "tenants": limit},
        rate=RATE,  # of each key, and so of "tenants": in all
    )
    def fetch(tenant: int) -> str:
        """Fetch the orders of a tenant. A call that must wait is republished."""
        seconds = settings.FETCH_SECONDS * random.uniform(0.7, 1.3)  # noqa: S311
        with recorded() as lease:
            for _ in range(STEPS):
                time.sleep(seconds / STEPS)  # a slow service
                lease.ensure()  # asks no node; raises LockLost if a permit is lost
        return TENANTS[tenant]

    return fetch


# A project has one of these, and a deploy changes the number in it. The page has ten,
# so that a slider can choose: their keys are the same, and so are their permits.
FETCHES = {limit: _fetch_with(limit) for limit in range(1, 11)}
