"""Fenced models of every kind that Django saves differently."""

from __future__ import annotations

import uuid

from django.db import models

from celery_redlock.contrib.django import FencedModel, FencedQuerySet


class Customer(models.Model):
    """A model that rows are selected by."""

    name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return str(self.name)


class Invoice(FencedModel):
    """A plain fenced model."""

    text = models.CharField(max_length=50, default="")
    note = models.CharField(max_length=50, default="")
    paid = models.BooleanField(default=False)
    customer = models.ForeignKey(Customer, models.CASCADE, null=True)

    def __str__(self) -> str:
        return str(self.text)


class DraftInvoice(Invoice):
    """A proxy of the same rows."""

    class Meta:
        """No table of its own."""

        proxy = True


class CreditNote(Invoice):
    """A model in two tables; the parent's has the fence."""

    reason = models.CharField(max_length=50, default="")


class Reminder(Customer, FencedModel):
    """A model in two tables; its own has the fence."""

    text = models.CharField(max_length=50, default="")

    objects = models.Manager.from_queryset(FencedQuerySet)()


class Receipt(FencedModel):
    """A model that knows its key before it is saved."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    text = models.CharField(max_length=50, default="")

    def __str__(self) -> str:
        return str(self.text)


class Ledger(FencedModel):
    """A model that is selected before it is written."""

    text = models.CharField(max_length=50, default="")

    class Meta:
        """Some databases with triggers need this."""

        select_on_save = True

    def __str__(self) -> str:
        return str(self.text)


ALL = (Customer, Invoice, CreditNote, Reminder, Receipt, Ledger)
