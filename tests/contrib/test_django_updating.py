"""What only Django does with many rows, and beside others in a transaction."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from celery_redlock.errors import ConfigurationError, StaleFence
from tests.contrib.storages import make_tables, use_django
from tests.contrib.support import SOON, stored
from tests.nodes.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

# -- transactions ------------------------------------------------------------------


def test_refused_save_condemns_the_transaction(shop: ModuleType, alias: str) -> None:
    """What a late writer did besides, in the same transaction, goes too."""
    rows = shop.Invoice.objects.using(alias)
    row, other = rows.create(text="new", fence=7), rows.create(text="new")

    with transaction.atomic(using=alias):
        other.text = "by the late"
        other.save(fence=6)
        with pytest.raises(StaleFence):
            row.save(fence=6)
        with pytest.raises(TransactionManagementError):
            rows.count()

    assert stored(other) == ("new", 0)


def test_raised_fence_protects_the_rest_of_the_transaction(
    shop: ModuleType, alias: str
) -> None:
    """`update()` without values is a claim, after which anything can be done."""
    rows = shop.Invoice.objects.using(alias)
    pks = [rows.create(text="new", fence=fence).pk for fence in (3, 5)]
    invoices = list(rows.filter(pk__in=pks))
    for invoice in invoices:
        invoice.text = "bulk"

    def write_all(fence: int) -> None:
        with transaction.atomic(using=alias):
            assert rows.filter(pk__in=pks).fenced(fence).update() == 2
            rows.bulk_update(invoices, ["text"])

    write_all(7)
    invoices[0].text = "late"
    with pytest.raises(StaleFence):
        write_all(6)

    found = rows.filter(pk__in=pks).values_list("text", "fence")
    assert list(found) == [("bulk", 7)] * 2


# -- many rows ---------------------------------------------------------------------


def test_update_of_many_rows_is_one_conditional_update(
    shop: ModuleType, alias: str
) -> None:
    """The fence is compared by the UPDATE that writes."""
    rows = shop.Invoice.objects.using(alias).filter(text="of nobody")

    with CaptureQueriesContext(connections[alias]) as queries:
        rows.fenced(7).update(note="x")

    (sql,) = [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]
    assert '"fence" <= 7' in sql.partition("WHERE")[2]


def test_update_of_rows_chosen_by_another_table(shop: ModuleType, alias: str) -> None:
    """Rows may be chosen by a join; the fence stays in the outermost WHERE."""
    customer = shop.Customer.objects.using(alias).create(name=f"joined on {alias}")
    rows = shop.Invoice.objects.using(alias)
    mine = rows.create(text="new", fence=5, customer=customer)
    other = rows.create(text="new", fence=9)
    chosen = rows.filter(customer__name=customer.name)

    with CaptureQueriesContext(connections[alias]) as queries:
        assert chosen.fenced(7).update(text="first") == 1
    with pytest.raises(StaleFence):
        chosen.fenced(6).update(text="late")

    (sql,) = [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]
    assert '"shop_invoice"."fence" <= 7' in sql  # in the subquery it is "U0"
    assert (stored(mine), stored(other)) == (("first", 7), ("new", 9))


@pytest.mark.parametrize("values", [{"text": "x"}, {"reason": "x"}, {}])
def test_update_of_two_tables_is_refused(
    shop: ModuleType, alias: str, values: dict[str, str]
) -> None:
    """Where it would not be one statement, the error says what to do."""
    rows = shop.CreditNote.objects.using(alias)
    row = rows.create(text="new", reason="new")

    with pytest.raises(ConfigurationError, match="on the model that has the fence"):
        rows.filter(pk=row.pk).fenced(7).update(**values)

    with transaction.atomic(using=alias):
        shop.Invoice.objects.using(alias).filter(pk=row.pk).fenced(7).update()
        rows.filter(pk=row.pk).update(text="x", reason="x")
    assert stored(row) == ("x", 7)


def test_update_of_the_parents_fields_is_refused(shop: ModuleType, alias: str) -> None:
    """Fields of a parent without fence are not written under one."""
    rows = shop.Reminder.objects.using(alias)

    with pytest.raises(ConfigurationError, match="name of Reminder belongs to"):
        rows.fenced(7).update(name="x")


def test_sliced_rows_are_refused(shop: ModuleType, alias: str) -> None:
    """A slice cannot be updated, with or without a fence."""
    with pytest.raises(TypeError, match="slice"):
        shop.Invoice.objects.using(alias)[:3].fenced(7).update(text="x")


def test_fence_is_not_set_like_other_columns(shop: ModuleType, alias: str) -> None:
    """No bulk operation can lower a fence by the way."""
    rows = shop.Invoice.objects.using(alias)
    row = rows.create(text="new", fence=7)
    row.fence = 3
    upsert = {"update_conflicts": True, "unique_fields": ["id"]}

    with pytest.raises(ConfigurationError, match="not set like others"):
        rows.update(fence=3)
    with pytest.raises(ConfigurationError, match="not set like others"):
        rows.fenced(8).update(fence=3)
    with pytest.raises(ConfigurationError, match="not set like others"):
        rows.bulk_update([row], ["fence"])
    with pytest.raises(ConfigurationError, match="not set like others"):
        rows.bulk_create([row], update_fields=["fence"], **upsert)

    assert stored(row) == ("new", 7)


def test_unfenced_bulk_operations_leave_the_fence_alone(
    shop: ModuleType, alias: str
) -> None:
    """update() and bulk_update() do what Django does, to other columns."""
    rows = shop.Invoice.objects.using(alias)
    row = rows.create(text="new", fence=7)

    rows.filter(pk=row.pk).update(text="plain")
    assert stored(row) == ("plain", 7)

    row.text = "bulk"
    rows.bulk_update([row], ["text"])
    assert stored(row) == ("bulk", 7)


# -- queued behind another writer --------------------------------------------------


@pytest.fixture
def busy(postgres: str) -> Iterator[Any]:
    """Give a manager of invoices in PostgreSQL, for two connections at once."""
    alias = use_django(postgres)
    make_tables(alias)
    from tests.contrib.shop.models import Invoice  # noqa: PLC0415  (set up now)

    yield Invoice.objects.using(alias)
    connections[alias].close()


def is_waiting(alias: str) -> bool:
    """Tell whether a connection of PostgreSQL waits for a lock."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("how", ["row", "rows", "joined rows"])
def test_writer_that_waited_for_a_row_is_compared_again(busy: Any, how: str) -> None:
    """A late UPDATE that was queued behind the next holder's is refused."""
    alias = busy.db
    customers = busy.model.customer.field.related_model.objects.using(alias)
    row = busy.create(text="new", fence=5, customer=customers.create())
    late = busy.get(pk=row.pk)
    late.text = "late"
    chosen = {"pk": row.pk}
    if how == "joined rows":
        chosen["customer__name"] = ""

    def write_late() -> None:
        try:
            if how == "row":
                late.save(fence=6)
            else:
                busy.filter(**chosen).fenced(6).update(text="late")
        finally:
            connections[alias].close()

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic(using=alias):
            row.text = "next"
            row.save(fence=7)
            queued = thread.submit(write_late)
            until(lambda: is_waiting(alias), SOON, what="the late writer to wait")
        with pytest.raises(StaleFence) as refused:
            queued.result(SOON)

    assert (refused.value.fence, refused.value.latest) == (6, 7)
    assert stored(row) == ("next", 7)
