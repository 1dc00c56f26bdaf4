"""The examples of docs/explanation/why-it-is-safe.md, run as they are printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import LockLost, StaleFence
from celery_redlock.locking import watchdog_of
from celery_redlock.locks.redlock import Redlock
from tests.contrib import declared
from tests.contrib.storages import SOON, Shop, SqlAlchemyStorage, default_database

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "why-it-is-safe.md"
TTL = 4.0
SETTLE = "settle(redlock, bank, invoice_id)"


def example(signature: str, **names: Any) -> Callable[..., Any]:
    """Return the function of the page with this signature, with these names."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (code,) = [block for block in blocks if f"def {signature}:" in block]
    exec(compile(code, PAGE.name, "exec"), names)  # noqa: S102  (our own page)
    function: Callable[..., Any] = names[signature.partition("(")[0]]
    return function


@pytest.fixture
def invoices(postgres: str) -> Iterator[Any]:
    """Give Django's invoices, in the default database."""
    shop = Shop(postgres)
    with default_database(shop.alias):
        yield shop.Invoice.model


@pytest.fixture
def session(postgres: str) -> Iterator[Session]:
    """Give a session in PostgreSQL."""
    with Session(SqlAlchemyStorage(postgres).engine) as session:
        yield session


@pytest.fixture
def row(session: Session) -> declared.Invoice:
    """Give a row in PostgreSQL."""
    row = declared.Invoice()
    session.add(row)
    session.commit()
    return row


@pytest.fixture
def redlock(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give a lock service on real nodes."""
    service = Redlock(shared_nodes.urls, ttl=TTL, node_timeout=1.0)
    yield service
    watchdog_of(service).stop()
    service.close()


@pytest.fixture
def next_holder(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give another client of the same nodes."""
    service = Redlock(shared_nodes.urls, ttl=TTL, node_timeout=1.0)
    yield service
    service.close()


# -- ensure() and the fence --------------------------------------------------------


class Bank:
    """Counts its charges."""

    def __init__(self) -> None:
        self.charged: list[str] = []

    def charge(self, total: int, *, idempotency_key: str) -> None:
        """Take the money, once per key."""
        assert total
        self.charged.append(idempotency_key)


def test_settle_charges_and_writes(invoices: Any, redlock: Redlock) -> None:
    """The example charges, writes the row, and stores its fence."""
    row, bank = invoices.objects.create(), Bank()
    settle = example(SETTLE, Invoice=invoices, add_up=lambda _: 1)

    settle(redlock, bank, row.pk)

    row.refresh_from_db()
    assert row.paid
    assert row.fence > 0
    assert bank.charged == [f"invoice-{row.pk}"]


def test_settle_charges_nothing_without_the_lock(
    invoices: Any, redlock: Redlock, next_holder: Redlock
) -> None:
    """A holder whose lock has expired meanwhile is stopped before the side effect."""
    row, bank = invoices.objects.create(), Bank()

    def add_up(_: Any) -> int:
        watchdog_of(redlock).stop()
        next_holder.acquire(f"invoice:{row.pk}", wait=SOON)
        return 1

    settle = example(SETTLE, Invoice=invoices, add_up=add_up)
    with pytest.raises(LockLost):
        settle(redlock, bank, row.pk)

    row.refresh_from_db()
    assert bank.charged == []
    assert not row.paid


def test_settle_writes_nothing_when_paused_after_the_check(
    invoices: Any, redlock: Redlock, next_holder: Redlock
) -> None:
    """If the lock is lost after the check, the fence refuses the write."""
    row = invoices.objects.create()

    class SlowBank(Bank):
        def charge(self, total: int, *, idempotency_key: str) -> None:
            super().charge(total, idempotency_key=idempotency_key)
            watchdog_of(redlock).stop()
            lease = next_holder.acquire(f"invoice:{row.pk}", wait=SOON)
            invoices.objects.get(pk=row.pk).save(fence=lease)

    settle = example(SETTLE, Invoice=invoices, add_up=lambda _: 1)
    with pytest.raises(StaleFence):
        settle(redlock, SlowBank(), row.pk)

    row.refresh_from_db()
    assert not row.paid


# -- Row locks ---------------------------------------------------------------------


def test_django_row_lock_is_refused_at_once(invoices: Any, postgres: str) -> None:
    """A locked row is refused without waiting; a free row is granted."""
    row = invoices.objects.create()
    pay = example("pay(invoice_id)", Invoice=invoices)

    with transaction.atomic("postgresql"):
        invoices.objects.using("postgresql").select_for_update().get(pk=row.pk)
        assert not pay(row.pk)
    assert pay(row.pk)

    row.refresh_from_db()
    assert row.paid


def test_sqlalchemy_row_lock_is_refused_at_once(
    session: Session, row: declared.Invoice, postgres: str
) -> None:
    """A locked row is refused without waiting; a free row is granted."""
    pay = example("pay(session, invoice_id)", Invoice=declared.Invoice)

    with Session(SqlAlchemyStorage(postgres).engine) as other:
        other.get_one(declared.Invoice, row.id, with_for_update=True)
        assert not pay(session, row.id)
    assert pay(session, row.id)

    assert row.paid


def test_row_lock_ends_with_the_connection_of_its_holder(
    session: Session, row: declared.Invoice, postgres: str
) -> None:
    """A dead holder leaves no row lock behind."""
    pay = example("pay(session, invoice_id)", Invoice=declared.Invoice)

    other = SqlAlchemyStorage(postgres).engine.connect()
    other.execute(select(declared.Invoice).with_for_update())
    pid = other.scalar(text("SELECT pg_backend_pid()"))
    assert not pay(session, row.id)
    session.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    session.commit()

    assert pay(session, row.id)
    other.invalidate()
    other.close()
