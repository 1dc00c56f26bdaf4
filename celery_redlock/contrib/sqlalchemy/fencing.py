"""A SQLAlchemy model that refuses a late writer.

::

    class Invoice(Fenced, Base):
        __tablename__ = "invoice"
        id: Mapped[int] = mapped_column(primary_key=True)
        total: Mapped[int]

    with lock(redlock, f"invoice:{pk}") as lease, Session(engine) as session:
        invoice = session.get(Invoice, pk)
        with fenced(session, lease):        # StaleFence: a later holder has written
            invoice.total = add_up(invoice)
        session.commit()

A row stores the greatest fence that wrote it. A flush writes it in two steps. Each is
conditional, and neither can lower the fence::

    UPDATE invoice SET fence = :n WHERE id = 1 AND fence <= :n    -- or StaleFence
    UPDATE invoice SET total = 3  WHERE id = 1 AND fence = :n

The first also locks the row until the transaction ends. The second is the ORM's own
(``version_id_col``), so that the write itself compares even without a transaction
(AUTOCOMMIT). DELETE is treated the same. The present holder may write as often as it
likes.

==========================================  ======================================
``with fenced(session, lease):``            all fenced rows written in the block,
                                            which ends with a flush
``invoice.fence = lease.fence``             the same, for one row
a flush without either                      under the fence that the row had when
                                            it was loaded: it is refused if a later
                                            holder has written since, and never
                                            lowers the fence. A row that a commit
                                            has expired is loaded by the flush
``update_fenced(session, stmt, lease)``     one UPDATE of many rows; all or nothing
``session.execute(update(Invoice)...)``     as SQLAlchemy does it: unfenced
==========================================  ======================================

You must guard an upsert yourself:
``on_conflict_do_update(..., where=Invoice.fence <= lease.fence)``, with ``fence`` among
its values. A change of a many-to-many collection alone writes no row of the model and
compares nothing. A deleted row has lost its fence. In an existing table, the migration
adds the column with ``server_default="0"``.

The fence is never taken from the lock around the code. Fences of different keys cannot
be compared, so each write names its lock.

If everything that the lock protects is in this database, a row lock is better
(``with_for_update``): see "The row lock of your database" in the docs, under Safety.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import BigInteger, event, func, inspect, select, update
from sqlalchemy.orm import Mapped, declared_attr, mapped_column, object_session
from sqlalchemy.orm.attributes import set_committed_value

from celery_redlock.effects.fences import fence_number, stale
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, CursorResult, Update
    from sqlalchemy.orm import Mapper, Session

    from celery_redlock.locks.lease import Lease


class Fenced:
    """A declarative mixin: rows of this class refuse a late writer.

    A class with ``__mapper_args__`` of its own must include those of the mixin:
    ``{**Fenced.mapper_args(cls), "polymorphic_on": ...}``. It cannot be mapped without.

    Attributes:
        fence: The greatest fence that wrote the row; 0 before the first.
    """

    fence: Mapped[int] = mapped_column(BigInteger, default=0)

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:  # noqa: N805  (required by SQLAlchemy)
        return Fenced.mapper_args(cls)

    @staticmethod
    def mapper_args(owner: Any) -> dict[str, Any]:
        """Return the arguments that make UPDATE and DELETE compare the fence."""
        inherited = any(
            issubclass(base, Fenced) and hasattr(base, "__mapper__")
            for base in owner.__mro__[1:]
        )
        if inherited:
            return {}
        return {"version_id_col": owner.fence, "version_id_generator": False}


@contextmanager
def fenced(session: Session, fence: Lease | int) -> Iterator[None]:
    """Write all fenced rows that change in this block under one fence.

    Changes from before the block are flushed first, without this fence. The block ends
    with a flush; it does not commit. With an ``AsyncSession``, use it inside
    ``run_sync``.

    Args:
        session: The session of the rows.
        fence: The lease of the lock that protects them, or its fence.

    Raises:
        StaleFence: A row has a greater fence. As after any error in a flush, the
            session's transaction has ended, and nothing of it was written.
        ConfigurationError: The value is not a fence. Nothing was written.
    """
    number = fence_number(fence)

    def stamp(session: Session, *_: object) -> None:
        for target in (*session.new, *session.dirty, *session.deleted):
            if isinstance(target, Fenced) and _is_written(session, target):
                target.fence = number

    session.flush()
    event.listen(session, "before_flush", stamp)
    try:
        yield
        session.flush()
    finally:
        event.remove(session, "before_flush", stamp)


def update_fenced(session: Session, statement: Update, fence: Lease | int) -> int:
    """Execute an UPDATE of fenced rows under a fence: all of them, or none.

    Args:
        session: The session whose transaction to use.
        statement: ``update(Invoice).where(...).values(...)``. Without values it
            raises the fences, which locks the rows until the transaction ends.
        fence: The lease of the lock that protects them, or its fence.

    Returns:
        How many rows matched.

    Raises:
        StaleFence: At least one of the rows has a greater fence. As after an error
            in a flush, the session's transaction (or savepoint) is rolled back.
        ConfigurationError: The value is not a fence, or the statement writes a table
            without one. Nothing was written.
    """
    number = fence_number(fence)
    entity = statement.entity_description["entity"]
    table = statement.entity_description["table"]
    column = getattr(inspect(entity), "version_id_col", None)
    if not issubclass(entity, Fenced) or column is None or column.table is not table:
        raise ConfigurationError(
            f"The table of {entity.__name__} has no fence for the UPDATE to compare. "
            "Nothing was written. Update the class that has the fence first, without "
            "values, then the rest."
        )
    guarded = statement.where(entity.fence <= number).values(fence=number)
    greatest = select(func.max(entity.fence)).where(entity.fence > number)
    if statement.whereclause is not None:
        greatest = greatest.where(statement.whereclause)
    matched = session.execute(guarded)
    latest = session.scalar(greatest)
    if latest is not None:
        transaction = session.get_nested_transaction() or session.get_transaction()
        if transaction is not None:
            transaction.rollback()
        raise stale(f"The update of {entity.__name__} rows", number, latest)
    return int(cast("CursorResult[Any]", matched).rowcount)


def _is_written(session: Session, target: Any) -> bool:
    return target not in session.dirty or session.is_modified(
        target, include_collections=False
    )


@event.listens_for(Fenced, "mapper_configured", propagate=True)
def _refuse_unversioned(mapper: Mapper[Any], cls: type) -> None:
    """Refuse a class that does not compare fences, before it can write."""
    compares = mapper.version_id_col is mapper.columns.get("fence")
    if not compares or mapper.version_id_generator is not False:
        raise ConfigurationError(
            f"{cls.__name__} does not compare fences: it has __mapper_args__ of its "
            "own. Make them a `@declared_attr.directive` that returns "
            "`{**Fenced.mapper_args(cls), ...}`, without another version_id_col."
        )


@event.listens_for(Fenced, "before_update", propagate=True)
def _claim_if_written(mapper: Mapper[Any], connection: Connection, target: Any) -> None:
    session = object_session(target)
    if session is not None and _is_written(session, target):
        _claim(mapper, connection, target)


@event.listens_for(Fenced, "before_delete", propagate=True)
def _claim(mapper: Mapper[Any], connection: Connection, target: Any) -> None:
    """Raise the row's fence to the target's, and lock the row; or refuse."""
    column: Any = mapper.version_id_col
    state = inspect(target)
    if "fence" not in state.dict and "fence" not in state.expired_attributes:
        raise ConfigurationError(
            f"{type(target).__name__} {state.identity} was loaded without its fence, "
            "so a later holder may have written it since. Nothing was written. Write "
            "it in `with fenced(session, lease):`, or load it without load_only() or "
            "defer()."
        )
    number = fence_number(target.fence)
    keys, identity = column.table.primary_key, state.identity
    row = [key == value for key, value in zip(keys, identity, strict=True)]
    claim = update(column.table).where(*row, column <= number).values({column: number})
    if connection.execute(claim).rowcount == 0:
        latest = connection.scalar(select(column).where(*row))
        if latest is None:
            return  # the row is gone: the ORM raises an error
        name = ", ".join(map(repr, identity))
        raise stale(f"The write of {type(target).__name__} {name}", number, latest)
    set_committed_value(target, "fence", number)
