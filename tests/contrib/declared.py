"""Fenced SQLAlchemy models."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column

from celery_redlock.contrib.sqlalchemy import Fenced, outbox_table, record_table


class Base(DeclarativeBase):
    """The base of all models."""


class Invoice(Fenced, Base):
    """A plain fenced model, and the base of one."""

    __tablename__ = "invoice"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(default="invoice")
    text: Mapped[str] = mapped_column(default="")
    paid: Mapped[bool] = mapped_column(default=False)

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:  # noqa: N805  (SQLAlchemy's way)
        return {
            **Fenced.mapper_args(cls),
            "polymorphic_on": "kind",
            "polymorphic_identity": cls.__name__,
        }


class CreditNote(Invoice):
    """A model in two tables; the parent's has the fence."""

    __tablename__ = "credit_note"

    id: Mapped[int] = mapped_column(ForeignKey("invoice.id"), primary_key=True)
    reason: Mapped[str] = mapped_column(default="")


class Customer(Base):
    """A plain model, and the base of a fenced one."""

    __tablename__ = "customer"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(default="")


class Reminder(Fenced, Customer):
    """A model in two tables; its own has the fence."""

    __tablename__ = "reminder"

    id: Mapped[int] = mapped_column(ForeignKey("customer.id"), primary_key=True)
    text: Mapped[str] = mapped_column(default="")


class Seat(Fenced, Base):
    """A model whose key has two parts."""

    __tablename__ = "seat"

    train: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(default="")


record_table(Base.metadata)
outbox_table(Base.metadata)
