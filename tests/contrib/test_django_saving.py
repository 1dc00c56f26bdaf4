"""What only Django does: its many ways to save one row, each compares the fence."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from django.core import serializers
from django.db import DatabaseError, connections, models
from django.test.utils import CaptureQueriesContext

from celery_redlock.errors import ConfigurationError, StaleFence
from tests.contrib.support import stored

if TYPE_CHECKING:
    from types import ModuleType


KINDS = ["Invoice", "DraftInvoice", "CreditNote", "Reminder", "Receipt", "Ledger"]


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, shop: ModuleType) -> Any:
    """Give each model that differs in how Django saves it."""
    return getattr(shop, request.param)


# -- every kind of model -----------------------------------------------------------


def test_each_kind_of_model_keeps_the_contract(model: Any, alias: str) -> None:
    """One table or two, own keys, proxies: the late are refused, twice is fine."""
    rows = model.objects.using(alias)
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


def test_each_kind_of_model_refuses_a_row_that_is_gone(model: Any, alias: str) -> None:
    """A loaded row is not inserted again after somebody deleted it."""
    rows = model.objects.using(alias)
    row = rows.create(text="new")
    rows.filter(pk=row.pk).delete()

    with pytest.raises(DatabaseError, match="deleted after it was loaded"):
        row.save(fence=7)

    assert not rows.filter(pk=row.pk).exists()


def test_save_is_one_conditional_update(model: Any, alias: str) -> None:
    """The fence is compared by the UPDATE that writes, and no other writes it."""
    row = model.objects.using(alias).create(text="new")

    with CaptureQueriesContext(connections[alias]) as queries:
        row.save(fence=7)

    updates = [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]
    with_fence = [sql for sql in updates if '"fence" = 7' in sql]
    assert len(with_fence) == 1
    assert '"fence" <= 7' in with_fence[0].partition("WHERE")[2]


# -- arguments of save() -----------------------------------------------------------


def test_update_fields_write_the_fence_too(shop: ModuleType, alias: str) -> None:
    """A save of some fields compares and stores the fence, and nothing else."""
    rows = shop.Invoice.objects.using(alias)
    row = rows.create(text="new", note="new")
    row.text, row.note = "first", "not saved"

    row.save(fence=7, update_fields=["text"])

    again = rows.get(pk=row.pk)
    assert (again.text, again.note, again.fence) == ("first", "new", 7)
    with pytest.raises(StaleFence):
        again.save(fence=6, update_fields=["text"])


def test_update_fields_of_the_child_compare_the_fence_of_the_parent(
    shop: ModuleType, alias: str
) -> None:
    """A save that changes only the child's table is refused all the same."""
    rows = shop.CreditNote.objects.using(alias)
    row = rows.create(reason="new", fence=7)
    row.reason = "late"

    with pytest.raises(StaleFence):
        row.save(fence=6, update_fields=["reason"])
    assert rows.get(pk=row.pk).reason == "new"

    row.save(fence=7, update_fields=["reason"])
    assert rows.get(pk=row.pk).reason == "late"


def test_refused_child_leaves_the_parent_as_it_was(
    shop: ModuleType, alias: str
) -> None:
    """Where the parent is written first, its write goes with the refused one."""
    rows = shop.Reminder.objects.using(alias)
    row = rows.create(name="new", fence=7)
    row.name = "late"

    with pytest.raises(StaleFence):
        row.save(fence=6)

    assert rows.get(pk=row.pk).name == "new"


def test_no_update_fields_write_nothing(shop: ModuleType, alias: str) -> None:
    """An empty list of fields saves nothing, as in Django."""
    row = shop.Invoice.objects.using(alias).create(text="new")

    row.save(fence=7, update_fields=[])

    assert stored(row) == ("new", 0)


def test_force_update_and_force_insert_are_under_the_fence(
    shop: ModuleType, alias: str
) -> None:
    """Both do what they do in Django, under the fence."""
    row = shop.Receipt(text="new")
    row.save(using=alias, fence=5, force_insert=True)
    row.save(fence=7, force_update=True)

    with pytest.raises(StaleFence):
        row.save(fence=6, force_update=True)

    assert stored(row) == ("new", 7)


def test_new_instance_of_a_stored_row_is_compared(shop: ModuleType, alias: str) -> None:
    """Who never loaded the row cannot overwrite it without a fence."""
    row = shop.Invoice.objects.using(alias).create(text="new", fence=7)

    with pytest.raises(StaleFence):
        shop.Invoice(pk=row.pk, text="blind").save(using=alias)
    shop.Invoice(pk=row.pk, text="told").save(using=alias, fence=8)

    assert stored(row) == ("told", 8)


def test_refused_save_keeps_the_fence_of_the_instance(
    shop: ModuleType, alias: str
) -> None:
    """After a refusal the instance is as it was loaded."""
    row = shop.Invoice.objects.using(alias).create(text="new", fence=7)

    with pytest.raises(StaleFence):
        row.save(fence=6)

    assert row.fence == 7


def test_row_loaded_without_its_fence_needs_one(shop: ModuleType, alias: str) -> None:
    """Without the fence that it was loaded with, a row is saved under one or not."""
    pk = shop.Invoice.objects.using(alias).create(text="new", fence=7).pk
    row = shop.Invoice.objects.using(alias).only("text").get(pk=pk)
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


def test_fixture_does_not_lower_a_fence(shop: ModuleType, alias: str) -> None:
    """Loading an old dump over rows that were written since is refused."""
    row = shop.Invoice.objects.using(alias).create(text="old", fence=5)
    dump = serializers.serialize("json", [row])
    row.text = "newer"
    row.save(fence=7)

    (old,) = serializers.deserialize("json", dump, using=alias)
    with pytest.raises(StaleFence):
        old.save(using=alias)

    assert stored(row) == ("newer", 7)


def test_asave_and_aupdate_compare(shop: ModuleType, alias: str) -> None:
    """What is awaited keeps the contract."""

    async def story() -> Any:
        row = await shop.Invoice.objects.using(alias).acreate(text="new", fence=5)
        row.text = "first"
        await row.asave(fence=7)
        with pytest.raises(StaleFence):
            await row.asave(fence=6)
        chosen = shop.Invoice.objects.using(alias).filter(pk=row.pk)
        assert await chosen.fenced(8).aupdate(text="second") == 1
        with pytest.raises(StaleFence):
            await chosen.fenced(7).aupdate(text="late")
        again = await chosen.aget()
        return again.text, again.fence

    assert asyncio.run(story()) == ("second", 8)


def test_update_or_create_does_not_overwrite_blindly(
    shop: ModuleType, alias: str
) -> None:
    """What Django saves by itself keeps the fence of the row."""
    rows = shop.Invoice.objects.using(alias)
    row = rows.create(text="new", fence=7)

    rows.update_or_create(pk=row.pk, defaults={"text": "edited"})

    assert stored(row) == ("edited", 7)


# -- the model ---------------------------------------------------------------------


def test_model_is_abstract_and_its_column_plain() -> None:
    """The mixin adds one BIGINT column that forms do not show."""
    from celery_redlock.contrib.django import FencedModel  # noqa: PLC0415  (set up now)

    field = FencedModel._meta.get_field("fence")  # noqa: SLF001  (documented)

    assert FencedModel._meta.abstract  # noqa: SLF001  (documented)
    assert isinstance(field, models.BigIntegerField)
    assert (field.default, field.editable, field.null) == (0, False, False)
