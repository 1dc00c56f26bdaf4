"""The finished imports."""

from __future__ import annotations

from django.db import models

__all__ = ["Import"]


class Import(models.Model):
    """One import that has ended."""

    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(auto_now_add=True)
    orders = models.PositiveIntegerField()
    fence = models.BigIntegerField()

    class Meta:
        """Order: the newest first."""

        ordering = ("-ended_at",)

    def __str__(self) -> str:
        return f"{self.orders} orders, {self.ended_at:%Y-%m-%d %H:%M:%S}"
