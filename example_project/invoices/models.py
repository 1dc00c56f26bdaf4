"""Invoices, and the series that their numbers come from."""

from __future__ import annotations

from django.db import models

from celery_redlock.contrib.django import FencedModel
from reports.models import Customer

__all__ = ["Invoice", "Series"]


class Series(FencedModel):
    """The numbers of a year. The row refuses a late writer.

    `FencedModel` adds the field ``fence``: the greatest fence of any writer.
    """

    year = models.PositiveSmallIntegerField(unique=True)
    last = models.PositiveIntegerField(default=0)

    class Meta:
        """The plural of series is series."""

        verbose_name_plural = "series"

    def __str__(self) -> str:
        return f"{self.year}: {self.last}"


class Invoice(models.Model):
    """An invoice. A worker assigns its number.

    Attributes:
        task_id: The id of the task that assigns it.
        kills_worker: Whether the process is killed right after it has done so.
    """

    customer = models.ForeignKey(Customer, models.CASCADE, related_name="invoices")
    amount = models.DecimalField(max_digits=9, decimal_places=2)
    made_at = models.DateTimeField(auto_now_add=True)
    number = models.CharField(max_length=20, unique=True, null=True)  # noqa: DJ001  (none yet)
    task_id = models.CharField(max_length=255, default="")
    kills_worker = models.BooleanField(default=False)

    class Meta:
        """Order: the newest first."""

        ordering = ("-made_at", "-id")

    def __str__(self) -> str:
        return str(self.number or f"invoice {self.pk}, no number yet")
