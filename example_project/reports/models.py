"""Customers, their orders, and reports on the orders."""

from __future__ import annotations

from django.db import models

__all__ = ["Customer", "Order", "Report"]


class Customer(models.Model):
    """A customer."""

    name = models.CharField(max_length=100, unique=True)
    city = models.CharField(max_length=100)

    class Meta:
        """Order: by name."""

        ordering = ("name",)

    def __str__(self) -> str:
        return str(self.name)


class Order(models.Model):
    """One order of a nightly import."""

    customer = models.ForeignKey(Customer, models.CASCADE, related_name="orders")
    day = models.DateField(db_index=True)
    amount = models.DecimalField(max_digits=9, decimal_places=2)

    def __str__(self) -> str:
        return f"{self.customer} {self.day}: {self.amount}"


class Report(models.Model):
    """The sums of a customer's orders in each of the last months.

    Attributes:
        months: ``[["2026-01", 1234.5], ...]``, the oldest first.
        fence: The fence of the lock that the writer held.
    """

    customer = models.ForeignKey(Customer, models.CASCADE, related_name="reports")
    made_at = models.DateTimeField(auto_now_add=True)
    months = models.JSONField()
    total = models.DecimalField(max_digits=12, decimal_places=2)
    fence = models.BigIntegerField()

    class Meta:
        """Order: the newest first."""

        ordering = ("-made_at",)

    def __str__(self) -> str:
        return f"{self.customer}, {self.made_at:%Y-%m-%d %H:%M}"
