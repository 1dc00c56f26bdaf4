"""Invoices, and the series from which they get their numbers."""

from __future__ import annotations

from django.db import models

from celery_redlock.contrib.django import FencedModel
from reports.models import Customer

__all__ = ["Invoice", "Series"]


class Series(FencedModel):
    """The numbers of a year. Its row refuses a writer who is late.

    ``fence``, the greatest that wrote it, comes with FencedModel.
    """

    year = models.PositiveSmallIntegerField(unique=True)
    last = models.PositiveIntegerField(default=0)

    class Meta:
        """A word that is its own plural."""

        verbose_name_plural = "series"

    def __str__(self) -> str:
        return f"{self.year}: {self.last}"


class Invoice(models.Model):
    """What a customer is to pay. It has a number once a worker gave it one."""

    customer = models.ForeignKey(Customer, models.CASCADE, related_name="invoices")
    amount = models.DecimalField(max_digits=9, decimal_places=2)
    made_at = models.DateTimeField(auto_now_add=True)
    number = models.CharField(max_length=20, unique=True, null=True)  # noqa: DJ001  (none yet)

    class Meta:
        """The newest first."""

        ordering = ("-made_at", "-id")

    def __str__(self) -> str:
        return str(self.number or f"invoice {self.pk}, no number yet")
