"""A Django model that refuses a late writer.

::

    class Invoice(FencedModel):
        total = models.DecimalField(...)

    with lock(redlock, f"invoice:{pk}") as lease:
        invoice = Invoice.objects.get(pk=pk)
        invoice.total = add_up(invoice)
        invoice.save(fence=lease)           # StaleFence: a later holder has written

A row stores the greatest fence that wrote it, and every save of a row is

    UPDATE ... SET total = 3, fence = :n WHERE id = 1 AND fence <= :n

The comparison is part of the write. However long this process is paused, it cannot
overwrite a row that a later holder has written. The present holder may write as often
as it likes. If the row has a greater fence, ``StaleFence`` is raised; nothing was
written.

==========================================  ======================================
``row.save(fence=lease)``                   under the lease's fence; a number does
``row.save()``                              under the fence that the row had when
                                            it was loaded: it is refused if a later
                                            holder has written since, and never
                                            lowers the fence (admin, forms, fixtures)
``Model(fence=lease.fence).save()``         a new row: there is no fence to compare
``rows.fenced(lease).update(total=3)``      one UPDATE of many rows; all or nothing
``rows.update()``, ``bulk_update()``,       as Django does them: unfenced, and they
``bulk_create()``, ``delete()``             refuse to set the column ``fence``
==========================================  ======================================

For changes that need several statements, raise the fence first. The rows stay locked
until the transaction ends, so that all statements run under the fence::

    with transaction.atomic():
        rows.fenced(lease).update()         # fence only; or StaleFence
        Invoice.objects.bulk_update(invoices, ["total"])

A refused save inside ``transaction.atomic()`` breaks the transaction, as any database
error in a save does: all changes of the late writer are rolled back.

The fence is never taken from the lock around the code. Fences of different keys cannot
be compared, so each write names its lock.

A deleted row has lost its fence. An instance that was loaded before is not inserted
again, but a new row with the same primary key is accepted from any writer. Mark rows as
deleted if that matters.

If everything that the lock protects is in this database, a row lock is better
(``select_for_update``): see "The row lock of your database" in the docs, under Safety.
"""

# ruff: noqa: SLF001  (Django's extension points have such names: _meta, _do_update)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, models, transaction
from django.db.models import Max

from celery_redlock.effects.fences import fence_number, stale
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_redlock.locks.lease import Lease

_SAVE_ARGS = ("force_insert", "force_update", "using", "update_fields")
_BULK_CREATE_ARGS = (
    *("batch_size", "ignore_conflicts", "update_conflicts"),
    *("update_fields", "unique_fields"),
)


def _refuse_to_set_fence(fields: Iterable[str]) -> None:
    if "fence" in fields:
        raise ConfigurationError(
            "The column `fence` cannot be set like others, which could lower it: use "
            "save(fence=...) or .fenced(...).update(...). Nothing was written."
        )


def _field(model: type[models.Model], name: str) -> Any:
    return model._meta.pk if name == "pk" else model._meta.get_field(name)


def _local_fields(model: type[models.Model]) -> list[Any]:
    return list(model._meta.concrete_model._meta.local_fields)


class FencedRows:
    """Rows to be written under one fence: the result of ``fenced``."""

    def __init__(self, rows: models.QuerySet, fence: int) -> None:
        self._rows = rows
        self._fence = fence

    def update(self, **values: Any) -> int:
        """Write these values to all of the rows, or to none.

        Without values it raises their fences, which locks the rows until the
        transaction ends.

        Returns:
            How many rows matched.

        Raises:
            StaleFence: At least one of the rows has a greater fence.
            ConfigurationError: The fence or a value is in another table (multi-table
                inheritance), so this cannot be one statement.

        After either error nothing was written.
        """
        _refuse_to_set_fence(values)
        _refuse_other_tables(self._rows.model, values)
        rows, fence = self._rows.all(), self._fence
        rows._for_write = True
        with transaction.atomic(using=rows.db):
            older = _in_one_table(rows).filter(fence__lte=fence)
            count = models.QuerySet.update(older, fence=fence, **values)
            newer = rows.filter(fence__gt=fence)
            latest = newer.aggregate(latest=Max("fence"))["latest"]
            if latest is not None:
                raise stale(f"The update of {rows.model.__name__} rows", fence, latest)
        return int(count)

    async def aupdate(self, **values: Any) -> int:
        """Update as ``update`` does, in a coroutine."""
        return await sync_to_async(self.update)(**values)


def _refuse_other_tables(model: type[models.Model], values: Iterable[str]) -> None:
    own = _local_fields(model)
    away = [name for name in ("fence", *values) if _field(model, name) not in own]
    if away:
        raise ConfigurationError(
            f"{', '.join(away)} of {model.__name__} belongs to the table of another "
            "model, so it cannot be one statement. Nothing was written. In a "
            "transaction, call .fenced(...).update() on the model that has the fence, "
            "then update the rest."
        )


def _in_one_table(rows: models.QuerySet) -> models.QuerySet:
    """Return the rows so that the UPDATE compares the fence in its outermost WHERE.

    After waiting for a row, a database repeats the conditions of the UPDATE, but not
    those of a subquery. Django moves all conditions into a subquery if the rows were
    selected by another table.
    """
    query = rows.query.chain()
    query.get_initial_alias()
    if query.count_active_tables() == 1:
        return rows
    keys = rows.order_by().values_list("pk", flat=True)
    if not transaction.get_connection(rows.db).features.update_can_self_select:
        keys = list(keys)
    return rows.model._base_manager.using(rows.db).filter(pk__in=keys)


class FencedQuerySet(models.QuerySet):
    """The query set of ``FencedModel.objects``.

    Your own manager gets it by ``Manager.from_queryset(FencedQuerySet)``.
    """

    def fenced(self, fence: Lease | int) -> FencedRows:
        """Select these rows for a write under a fence.

        Args:
            fence: The lease of the lock that protects them, or its fence.
        """
        return FencedRows(self, fence_number(fence))

    def update(self, **values: Any) -> int:
        """Update as Django does, without comparing fences. Refuses to set ``fence``."""
        _refuse_to_set_fence(values)
        return int(super().update(**values))

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable[Any], *args: Any, **options: Any) -> Any:
        """Insert as Django does, without comparing fences.

        With ``update_conflicts``, the ``update_fields`` must not contain ``fence``:
        Django cannot make that update conditional.
        """
        options.update(zip(_BULK_CREATE_ARGS, args, strict=False))
        _refuse_to_set_fence(options.get("update_fields") or ())
        return super().bulk_create(objs, **options)


class FencedModel(models.Model):
    """An abstract model whose rows refuse a late writer. See the module.

    Attributes:
        fence: The greatest fence that wrote the row; 0 before the first.
    """

    fence = models.BigIntegerField(default=0, editable=False)

    objects = models.Manager.from_queryset(FencedQuerySet)()

    class Meta:
        """No table of its own."""

        abstract = True

    def save(
        self, *args: Any, fence: Lease | int | None = None, **options: Any
    ) -> None:
        """Save as Django does, unless a later holder has written the row.

        Args:
            *args: As ``Model.save``.
            fence: The lease of the lock that protects the row, or its fence; by
                default the fence that the row had when it was loaded.
            **options: As ``Model.save``.

        Raises:
            StaleFence: The row has a greater fence. Nothing was written.
            DatabaseError: The row was deleted after it was loaded, or Django raises
                another error. Nothing was written.
            ConfigurationError: The value is not a fence, or the row was loaded without
                its fence (``only``, ``defer``). Nothing was written.
        """
        options.update(zip(_SAVE_ARGS, args, strict=False))
        if options.get("update_fields"):
            options["update_fields"] = {*options["update_fields"], "fence"}
        known = self.__dict__.get("fence")
        if fence is not None:
            self.fence = fence_number(fence)
        elif known is None:
            raise ConfigurationError(
                f"{self._name()} was loaded without its fence, so a later holder may "
                "have written it since. Nothing was written. Use save(fence=lease), or "
                "load it without only() or defer()."
            )
        try:
            super().save(**options)
        except BaseException:
            self.__dict__["fence"] = known
            if known is None:
                del self.__dict__["fence"]
            raise

    save.alters_data = True  # type: ignore[attr-defined]

    async def asave(self, *args: Any, **options: Any) -> None:
        """Save as ``save`` does, in a coroutine."""
        await sync_to_async(self.save)(*args, **options)

    asave.alters_data = True  # type: ignore[attr-defined]

    def _do_update(self, base_qs: Any, using: str, pk_val: Any, *args: Any) -> Any:
        """Add the condition to the UPDATE that Django is about to make.

        Django calls this once per table. The table with the fence is always written,
        since ``fence`` is among the fields, and in the same transaction as the others.
        """
        fenced = _field(type(self), "fence") in _local_fields(base_qs.model)
        rows = base_qs
        if fenced:
            rows = rows.filter(fence__lte=fence_number(self.fence))
        updated = super()._do_update(rows, using, pk_val, *args)
        if not updated and fenced:
            stored = base_qs.filter(pk=pk_val).values_list("fence", flat=True).first()
            if stored is not None:
                if stored > self.fence:
                    raise stale(f"The write of {self._name()}", self.fence, stored)
                return updated
        if not updated and (fenced or not base_qs.model._meta.parents):
            self._refuse_if_gone(using)
        return updated

    def _refuse_if_gone(self, using: str) -> None:
        if not self._state.adding and self._state.db == using:
            raise DatabaseError(
                f"{self._name()} was deleted after it was loaded. Nothing was written: "
                "a save would insert the deleted row again."
            )

    def _name(self) -> str:
        return f"{type(self).__name__} {self.pk!r}"
