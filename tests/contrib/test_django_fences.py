"""Fenced models of Django: all its ways to save one row, or many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core import serializers
from django.db import DatabaseError, connections, models, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from celery_redlock.errors import ConfigurationError, StaleFence
from tests.contrib.storages import SOON, Row, Shop, set_up_django
from tests.nodes.support import until

KINDS = ["Invoice", "DraftInvoice", "CreditNote", "Reminder", "Receipt", "Ledger"]


def updates(queries: CaptureQueriesContext) -> list[str]:
    """Return the UPDATE statements."""
    return [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]


def stored(row: Any) -> Row:
    """Read a row as it is stored now."""
    rows = type(row).objects.using(row._state.db)  # noqa: SLF001  (documented)
    return Row(*rows.values_list("text", "fence").get(pk=row.pk))


@pytest.fixture(params=KINDS)
def rows(request: pytest.FixtureRequest, shop: Shop) -> Any:
    """Give the manager of each kind of model that Django saves differently."""
    return getattr(shop, request.param)


# -- every kind of model -----------------------------------------------------------


def test_each_kind_of_model_keeps_the_contract(rows: Any) -> None:
    """A late write is refused, a second one is not: with two tables, keys, proxies."""
    row = rows.create(text="new", fence=5)
    late = rows.get(pk=row.pk)

    row.text = "first"
    row.save(fence=7)
    row.text = "second"
    row.save(fence=7)
    late.text = "late"
    with pytest.raises(StaleFence, match=r"fence 6\b.* fence 7\b"):
        late.save(fence=6)

    assert stored(row) == ("second", 7)


def test_each_kind_of_model_refuses_a_row_that_is_gone(rows: Any) -> None:
    """A loaded row is not inserted again after it was deleted."""
    row = rows.create(text="new")
    rows.filter(pk=row.pk).delete()

    with pytest.raises(DatabaseError, match="deleted after it was loaded"):
        row.save(fence=7)

    assert not rows.filter(pk=row.pk).exists()


def test_save_is_one_conditional_update(rows: Any) -> None:
    """The UPDATE that writes compares the fence, and no other UPDATE writes it."""
    row = rows.create(text="new")

    with CaptureQueriesContext(connections[rows.db]) as queries:
        row.save(fence=7)

    (with_fence,) = [sql for sql in updates(queries) if '"fence" = 7' in sql]
    assert '"fence" <= 7' in with_fence.partition("WHERE")[2]


# -- arguments of save() -----------------------------------------------------------


def test_update_fields_write_the_fence_too(shop: Shop) -> None:
    """A save of some fields compares and stores the fence, and nothing else."""
    rows = shop.Invoice
    row = rows.create(text="new", note="new")
    row.text, row.note = "first", "not saved"

    row.save(fence=7, update_fields=["text"])

    again = rows.get(pk=row.pk)
    assert (again.text, again.note, again.fence) == ("first", "new", 7)
    with pytest.raises(StaleFence):
        again.save(fence=6, update_fields=["text"])


@pytest.mark.parametrize(
    ("kind", "column", "options"),
    [("CreditNote", "reason", {"update_fields": ["reason"]}), ("Reminder", "name", {})],
    ids=["child's column, fence in the parent's", "parent's column, fence in its own"],
)
def test_one_table_alone_compares_the_fence_in_the_other(
    shop: Shop, kind: str, column: str, options: dict[str, Any]
) -> None:
    """If the table without the fence is written first, its write is rolled back."""
    rows = getattr(shop, kind)
    row = rows.create(**{column: "new"}, fence=7)
    setattr(row, column, "late")

    with pytest.raises(StaleFence):
        row.save(fence=6, **options)
    assert getattr(rows.get(pk=row.pk), column) == "new"

    row.save(fence=7, **options)
    assert getattr(rows.get(pk=row.pk), column) == "late"


def test_no_update_fields_write_nothing(shop: Shop) -> None:
    """An empty list of fields saves nothing, as in Django."""
    row = shop.Invoice.create(text="new")

    row.save(fence=7, update_fields=[])

    assert stored(row) == ("new", 0)


def test_force_update_and_force_insert_are_under_the_fence(shop: Shop) -> None:
    """Both work as in Django, under the fence."""
    row = shop.Receipt.model(text="new")
    row.save(using=shop.alias, fence=5, force_insert=True)
    row.save(fence=7, force_update=True)

    with pytest.raises(StaleFence):
        row.save(fence=6, force_update=True)

    assert stored(row) == ("new", 7)


def test_new_instance_of_a_stored_row_is_compared(shop: Shop) -> None:
    """An instance that was not loaded cannot overwrite the row without a fence."""
    row = shop.Invoice.create(text="new", fence=7)

    with pytest.raises(StaleFence):
        shop.Invoice.model(pk=row.pk, text="blind").save(using=shop.alias)
    shop.Invoice.model(pk=row.pk, text="fenced").save(using=shop.alias, fence=8)

    assert stored(row) == ("fenced", 8)


def test_refused_save_keeps_the_fence_of_the_instance(shop: Shop) -> None:
    """After a refusal the instance is as it was loaded."""
    row = shop.Invoice.create(text="new", fence=7)

    with pytest.raises(StaleFence):
        row.save(fence=6)

    assert row.fence == 7


def test_row_loaded_without_its_fence_needs_one(shop: Shop) -> None:
    """A row that was loaded without its fence is saved with a fence only."""
    pk = shop.Invoice.create(text="new", fence=7).pk
    row = shop.Invoice.only("text").get(pk=pk)
    row.text = "first"

    with pytest.raises(ConfigurationError, match="loaded without its fence"):
        row.save()
    with pytest.raises(StaleFence):
        row.save(fence=6)
    with pytest.raises(ConfigurationError, match="loaded without its fence"):
        row.save()
    row.save(fence=7)

    assert stored(row) == ("first", 7)


# -- saved by others ---------------------------------------------------------------


def test_fixture_does_not_lower_a_fence(shop: Shop) -> None:
    """An old dump is refused if the rows were written since."""
    row = shop.Invoice.create(text="old", fence=5)
    dump = serializers.serialize("json", [row])
    row.text = "newer"
    row.save(fence=7)

    (old,) = serializers.deserialize("json", dump, using=shop.alias)
    with pytest.raises(StaleFence):
        old.save(using=shop.alias)

    assert stored(row) == ("newer", 7)


def test_asave_and_aupdate_compare(shop: Shop) -> None:
    """The async methods keep the contract."""

    async def story() -> Any:
        row = await shop.Invoice.acreate(text="new", fence=5)
        row.text = "first"
        await row.asave(fence=7)
        with pytest.raises(StaleFence):
            await row.asave(fence=6)
        chosen = shop.Invoice.filter(pk=row.pk)
        assert await chosen.fenced(8).aupdate(text="second") == 1
        with pytest.raises(StaleFence):
            await chosen.fenced(7).aupdate(text="late")
        again = await chosen.aget()
        return again.text, again.fence

    assert asyncio.run(story()) == ("second", 8)


def test_update_or_create_does_not_overwrite_blindly(shop: Shop) -> None:
    """``update_or_create`` keeps the fence of the row."""
    row = shop.Invoice.create(text="new", fence=7)

    shop.Invoice.update_or_create(pk=row.pk, defaults={"text": "edited"})

    assert stored(row) == ("edited", 7)


# -- the model ---------------------------------------------------------------------


def test_model_is_abstract_and_its_column_plain() -> None:
    """The mixin adds one BIGINT column that forms do not show."""
    set_up_django()
    from celery_redlock.contrib.django import FencedModel  # noqa: PLC0415  (set up now)

    field = FencedModel._meta.get_field("fence")  # noqa: SLF001  (documented)

    assert FencedModel._meta.abstract  # noqa: SLF001  (documented)
    assert isinstance(field, models.BigIntegerField)
    assert (field.default, field.editable, field.null) == (0, False, False)


# -- transactions ------------------------------------------------------------------


def test_refused_save_breaks_the_transaction(shop: Shop) -> None:
    """The other changes in the transaction are rolled back too."""
    rows = shop.Invoice
    row, other = rows.create(text="new", fence=7), rows.create(text="new")

    with transaction.atomic(using=shop.alias):
        other.text = "late"
        other.save(fence=6)
        with pytest.raises(StaleFence):
            row.save(fence=6)
        with pytest.raises(TransactionManagementError):
            rows.count()

    assert stored(other) == ("new", 0)


def test_raised_fence_protects_the_rest_of_the_transaction(shop: Shop) -> None:
    """After `update()` without values, all statements are under the fence."""
    rows = shop.Invoice
    pks = [rows.create(text="new", fence=fence).pk for fence in (3, 5)]
    invoices = list(rows.filter(pk__in=pks))
    for invoice in invoices:
        invoice.text = "bulk"

    def write_all(fence: int) -> None:
        with transaction.atomic(using=shop.alias):
            assert rows.filter(pk__in=pks).fenced(fence).update() == 2
            rows.bulk_update(invoices, ["text"])

    write_all(7)
    invoices[0].text = "late"
    with pytest.raises(StaleFence):
        write_all(6)

    found = rows.filter(pk__in=pks).values_list("text", "fence")
    assert list(found) == [("bulk", 7)] * 2


# -- many rows ---------------------------------------------------------------------


def test_update_of_rows_selected_by_another_table(shop: Shop) -> None:
    """Rows may be selected by a join; the fence stays in the outermost WHERE."""
    customer = shop.Customer.create(name=f"joined on {shop.alias}")
    rows = shop.Invoice
    mine = rows.create(text="new", fence=5, customer=customer)
    other = rows.create(text="new", fence=9)
    chosen = rows.filter(customer__name=customer.name)

    with CaptureQueriesContext(connections[shop.alias]) as queries:
        assert chosen.fenced(7).update(text="first") == 1
    with pytest.raises(StaleFence):
        chosen.fenced(6).update(text="late")

    (sql,) = updates(queries)
    assert '"shop_invoice"."fence" <= 7' in sql  # in the subquery it is "U0"
    assert (stored(mine), stored(other)) == (("first", 7), ("new", 9))


@pytest.mark.parametrize("values", [{"text": "x"}, {"reason": "x"}, {}])
def test_update_of_two_tables_is_refused(shop: Shop, values: dict[str, str]) -> None:
    """If it cannot be one statement, the error says what to do."""
    rows = shop.CreditNote
    row = rows.create(text="new", reason="new")

    with pytest.raises(ConfigurationError, match="on the model that has the fence"):
        rows.filter(pk=row.pk).fenced(7).update(**values)

    with transaction.atomic(using=shop.alias):
        shop.Invoice.filter(pk=row.pk).fenced(7).update()
        rows.filter(pk=row.pk).update(text="x", reason="x")
    assert stored(row) == ("x", 7)


def test_update_of_the_parents_fields_is_refused(shop: Shop) -> None:
    """Fields of a parent without a fence cannot be written under one."""
    with pytest.raises(ConfigurationError, match="name of Reminder belongs to"):
        shop.Reminder.fenced(7).update(name="x")


def test_sliced_rows_are_refused(shop: Shop) -> None:
    """A slice cannot be updated, with or without a fence."""
    with pytest.raises(TypeError, match="slice"):
        shop.Invoice[:3].fenced(7).update(text="x")


def test_fence_is_not_set_like_other_columns(shop: Shop) -> None:
    """No bulk operation can lower a fence."""
    rows = shop.Invoice
    row = rows.create(text="new", fence=7)
    row.fence = 3
    upsert = {"update_conflicts": True, "unique_fields": ["id"]}

    with pytest.raises(ConfigurationError, match="cannot be set like others"):
        rows.update(fence=3)
    with pytest.raises(ConfigurationError, match="cannot be set like others"):
        rows.fenced(8).update(fence=3)
    with pytest.raises(ConfigurationError, match="cannot be set like others"):
        rows.bulk_update([row], ["fence"])
    with pytest.raises(ConfigurationError, match="cannot be set like others"):
        rows.bulk_create([row], update_fields=["fence"], **upsert)
    with pytest.raises(ConfigurationError, match="cannot be set like others"):
        rows.bulk_create([row], None, False, True, ["fence"], ["id"])  # noqa: FBT003

    assert stored(row) == ("new", 7)


def test_unfenced_bulk_operations_leave_the_fence_alone(shop: Shop) -> None:
    """update() and bulk_update() work as in Django for other columns."""
    rows = shop.Invoice
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
    with contextlib.closing(Shop(postgres)) as shop:
        yield shop.Invoice


def is_waiting(alias: str) -> bool:
    """Tell whether a connection of PostgreSQL waits for a lock."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("how", ["row", "rows", "joined rows"])
def test_writer_that_waited_for_a_row_is_compared_again(busy: Any, how: str) -> None:
    """A late UPDATE that waited for the next holder's is refused."""
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
