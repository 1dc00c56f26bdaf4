"""Fenced models of SQLAlchemy: flushes, sessions, inheritance, many rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, Integer, event, func, select, text, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    configure_mappers,
    load_only,
    mapped_column,
)
from sqlalchemy.orm.exc import StaleDataError

from celery_redlock.contrib.sqlalchemy import Fenced, fenced, update_fenced
from celery_redlock.errors import ConfigurationError, StaleFence
from tests.contrib.declared import CreditNote, Customer, Invoice, Reminder, Seat
from tests.contrib.storages import SOON, SqlAlchemyStorage
from tests.nodes.support import until


def add(session: Session, row: Any, *more: Any) -> Any:
    """Store rows, and return the first."""
    session.add_all([row, *more])
    session.commit()
    return row


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    """Give the list of statements that were sent."""
    sent: list[str] = []

    def record(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(" ".join(statement.split()))

    event.listen(engine, "before_cursor_execute", record)
    return sent


# -- kinds of models ---------------------------------------------------------------


NEW: dict[str, Callable[[], Any]] = {
    "plain": lambda: Invoice(text="new", fence=5),
    "two tables, fence in the parent's": lambda: CreditNote(text="new", fence=5),
    "two tables, fence in its own": lambda: Reminder(text="new", fence=5),
    "composite key": lambda: Seat(train=str(time.time_ns()), number=1, fence=5),
}


@pytest.mark.parametrize("kind", NEW)
def test_each_kind_of_model_keeps_the_contract(session: Session, kind: str) -> None:
    """A late write is refused, a second one is not: with two tables or two keys."""
    row = add(session, NEW[kind]())

    for words in ("first", "second"):
        with fenced(session, 7):
            row.text = words
        session.commit()
    with pytest.raises(StaleFence, match=r"fence 6\b.* fence 7\b"), fenced(session, 6):
        row.text = "late"
    session.rollback()

    assert (row.text, row.fence) == ("second", 7)


@pytest.mark.parametrize(
    ("model", "column"),
    [(CreditNote, "reason"), (Reminder, "name")],
    ids=["child's column, fence in the parent's", "parent's column, fence in its own"],
)
def test_one_table_alone_compares_the_fence_in_the_other(
    session: Session, model: Any, column: str
) -> None:
    """A change in the table without the fence is refused too."""
    row = add(session, model(**{column: "new"}, fence=7))

    with pytest.raises(StaleFence), fenced(session, 6):
        setattr(row, column, "late")
    session.rollback()
    assert getattr(row, column) == "new"

    with fenced(session, 8):
        setattr(row, column, "next")
    session.commit()
    assert (getattr(row, column), row.fence) == ("next", 8)


def test_model_with_its_own_mapper_args_must_include_ours() -> None:
    """A class that does not compare fences cannot be mapped."""

    class Base(DeclarativeBase):
        pass

    class Forgetful(Fenced, Base):
        __tablename__ = "forgetful"
        id: Mapped[int] = mapped_column(primary_key=True)
        revision: Mapped[int] = mapped_column(Integer)
        __mapper_args__ = {"version_id_col": revision}  # noqa: RUF012  (as users do)

    try:
        with pytest.raises(ConfigurationError, match=r"Forgetful does not compare"):
            configure_mappers()
    finally:
        Base.registry.dispose()


# -- the session -------------------------------------------------------------------


def test_flush_claims_and_compares(session: Session, statements: list[str]) -> None:
    """The claim is conditional, and so is the ORM's own UPDATE after it."""
    row = add(session, Invoice(text="new"))

    with fenced(session, 7):
        row.text = "first"

    claim, write = [sent for sent in statements if sent.startswith("UPDATE")]
    assert "fence <=" in claim.partition("WHERE")[2]
    assert "fence =" in write.partition("WHERE")[2]


def test_block_writes_what_changed_in_it(session: Session) -> None:
    """New and changed rows are under the fence; unchanged rows are not."""
    changed, untouched = Invoice(text="new"), Invoice(text="new")
    add(session, changed, untouched)

    with fenced(session, 7):
        changed.text = "first"
        untouched.text = untouched.text
        made = Invoice(text="made")
        session.add(made)
    session.commit()

    assert [row.fence for row in (changed, made, untouched)] == [7, 7, 0]


def test_block_leaves_out_what_changed_before_it(session: Session) -> None:
    """Pending changes are flushed without the fence, and so are later ones."""
    before, after = Invoice(text="new"), Invoice(text="new")
    add(session, before, after)

    before.text = "before"
    with fenced(session, 7):
        pass
    after.text = "after"
    session.commit()

    assert (before.text, before.fence) == ("before", 0)
    assert (after.text, after.fence) == ("after", 0)


def test_block_that_raises_writes_nothing_later(session: Session) -> None:
    """An error in the block reaches the caller. Later writes have no fence."""
    row = add(session, Invoice(text="new"))

    def half_a_block() -> None:
        with fenced(session, 7):
            row.text = "half"
            raise InterruptedError

    with pytest.raises(InterruptedError):
        half_a_block()
    session.rollback()
    row.text = "later"
    session.commit()

    assert (row.text, row.fence) == ("later", 0)


def test_fence_can_be_set_by_hand(session: Session) -> None:
    """An assigned fence does the same for one row, without the block."""
    row = add(session, Invoice(text="new"))

    row.text, row.fence = "first", 7
    session.commit()
    row.text, row.fence = "late", 6
    with pytest.raises(StaleFence, match=r"fence 6\b.* fence 7\b"):
        session.commit()
    session.rollback()

    assert (row.text, row.fence) == ("first", 7)


def test_fence_alone_can_be_raised(session: Session) -> None:
    """An assignment of nothing but the fence claims the row."""
    row = add(session, Invoice(text="new"))

    row.fence = 7
    session.commit()

    assert row.fence == 7


def test_row_loaded_without_its_fence_needs_one(session: Session) -> None:
    """The flush would load the fence of a later holder, and write under that."""
    number = add(session, Invoice(text="new", fence=7)).id
    row = session.get_one(Invoice, number)
    row.text = "after a commit"
    session.commit()
    session.expunge_all()
    row = session.get_one(Invoice, number, options=[load_only(Invoice.text)])

    row.text = "late"
    with pytest.raises(ConfigurationError, match="loaded without its fence"):
        session.commit()
    session.rollback()
    session.expunge_all()
    row = session.get_one(Invoice, number, options=[load_only(Invoice.text)])
    with fenced(session, 7):
        row.text = "mine"
    session.commit()

    assert (row.text, row.fence) == ("mine", 7)


def test_delete_compares_too(session: Session) -> None:
    """A late holder deletes nothing; the present one does."""
    row = add(session, Invoice(text="new", fence=7))

    with pytest.raises(StaleFence), fenced(session, 6):
        session.delete(row)
    session.rollback()
    assert row.text == "new"

    with fenced(session, 7):
        session.delete(row)
    session.commit()
    assert session.get(Invoice, row.id) is None


def test_refused_flush_writes_nothing_else(session: Session) -> None:
    """The other changes of a late writer are rolled back too."""
    row, other = Invoice(text="new", fence=7), Invoice(text="new")
    add(session, other, row)

    with pytest.raises(StaleFence), fenced(session, 6):
        other.text = row.text = "late"
    session.rollback()

    assert (other.text, other.fence) == ("new", 0)


def test_write_compares_where_there_is_no_transaction(database: str) -> None:
    """Under AUTOCOMMIT, the ORM's own UPDATE is refused after the claim."""
    engine = SqlAlchemyStorage(database).engine
    loose = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(engine) as session:
        pk = add(session, Invoice(text="new")).id

    overtaken: list[str] = []

    def overtake(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("UPDATE invoice SET text") and not overtaken:
            overtaken.append(statement)
            with Session(engine) as other, fenced(other, 9):
                other.get_one(Invoice, pk).text = "next"
                other.commit()

    with Session(loose) as session:
        row = session.get_one(Invoice, pk)
        event.listen(loose, "before_cursor_execute", overtake)
        with pytest.raises(StaleDataError), fenced(session, 7):
            row.text = "late"
    with Session(engine) as session:
        row = session.get_one(Invoice, pk)
        assert (row.text, row.fence) == ("next", 9)


# -- update_fenced -----------------------------------------------------------------


def test_refused_update_rolls_back(session: Session) -> None:
    """A refusal rolls the transaction back, as an error in a flush does."""
    low, high = Invoice(text="new"), Invoice(text="new", fence=9)
    add(session, low, high)
    pks = [low.id, high.id]

    low.text = "late"
    chosen = update(Invoice).where(Invoice.id.in_(pks)).values(text="late")
    with pytest.raises(StaleFence):
        update_fenced(session, chosen, 7)
    session.commit()

    found = session.scalars(select(Invoice.text).where(Invoice.id.in_(pks)))
    assert list(found) == ["new", "new"]


def test_refused_update_in_a_savepoint_rolls_back_to_it(postgres: str) -> None:
    """In a savepoint, changes from before it remain."""
    with Session(SqlAlchemyStorage(postgres).engine) as session:
        row = add(session, Invoice(text="new", fence=9))
        chosen = update(Invoice).where(Invoice.id == row.id).values(text="late")

        row.text = "before"
        session.flush()
        with pytest.raises(StaleFence), session.begin_nested():
            update_fenced(session, chosen, 7)
        session.commit()

        assert (row.text, row.fence) == ("before", 9)


def test_update_of_all_rows_needs_no_condition(session: Session) -> None:
    """Without WHERE, all rows of the table are written, or none."""
    add(session, Seat(train=str(time.time_ns()), number=1, fence=1))
    latest = session.scalar(select(func.max(Seat.fence))) or 0

    with pytest.raises(StaleFence):
        update_fenced(session, update(Seat).values(text="late"), latest - 1)
    assert update_fenced(session, update(Seat).values(text="all"), latest) > 0
    session.commit()

    assert set(session.scalars(select(Seat.text))) == {"all"}


def test_update_without_values_is_a_claim(session: Session) -> None:
    """It raises the fence for all later statements of the transaction."""
    row = add(session, Invoice(text="new"))
    mine = update(Invoice).where(Invoice.id == row.id)

    assert update_fenced(session, mine, 7) == 1
    session.execute(mine.values(text="first"))
    session.commit()

    assert (row.text, row.fence) == ("first", 7)


def test_loaded_rows_see_the_update(session: Session) -> None:
    """The session's rows have the new values."""
    row = add(session, Invoice(text="new"))
    assert row.text == "new"

    mine = update(Invoice).where(Invoice.id == row.id)
    update_fenced(session, mine.values(text="first"), 7)

    assert (row.text, row.fence) == ("first", 7)


@pytest.mark.parametrize("entity", [CreditNote, Customer])
def test_update_of_a_table_without_fence_is_refused(
    session: Session, entity: Any
) -> None:
    """If another table has the fence, the error says what to do."""
    with pytest.raises(ConfigurationError, match="the class that has the fence first"):
        update_fenced(session, update(entity), 7)


# -- queued behind another writer --------------------------------------------------


@pytest.mark.parametrize("how", ["flush", "update"])
def test_writer_that_waited_for_a_row_is_compared_again(
    postgres: str, how: str
) -> None:
    """A late UPDATE that waited for the next holder's is refused."""
    engine = SqlAlchemyStorage(postgres).engine
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with Session(engine) as session:
        pk = add(session, Invoice(text="new", fence=5)).id

    def write_late() -> None:
        with Session(engine) as session:
            row = session.get_one(Invoice, pk)
            if how == "flush":
                with fenced(session, 6):
                    row.text = "late"
            else:
                chosen = update(Invoice).where(Invoice.id == pk)
                update_fenced(session, chosen.values(text="late"), 6)

    with ThreadPoolExecutor(1) as thread, Session(engine) as session:
        with fenced(session, 7):
            session.get_one(Invoice, pk).text = "next"
        queued = thread.submit(write_late)
        until(lambda: session.scalar(waiting), SOON, what="the late writer to wait")
        session.commit()
        with pytest.raises(StaleFence) as refused:
            queued.result(SOON)

    assert (refused.value.fence, refused.value.latest) == (6, 7)
