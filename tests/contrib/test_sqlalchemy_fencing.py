"""What only SQLAlchemy does: flushes, sessions, inheritance, its own versioning."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, Integer, event, func, select, text, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    configure_mappers,
    mapped_column,
)
from sqlalchemy.orm.exc import StaleDataError

from celery_redlock.contrib.sqlalchemy import Fenced, fenced, update_fenced
from celery_redlock.errors import ConfigurationError, StaleFence
from tests.contrib.declared import CreditNote, Customer, Invoice, Reminder, Seat
from tests.contrib.storages import SqlAlchemyStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOON = 20.0


@pytest.fixture
def engine(database: str) -> Engine:
    """Give each kind of database in turn, with tables of all models."""
    return SqlAlchemyStorage(database).engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """Give a session."""
    with Session(engine) as session:
        yield session


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    """Give a list to which every statement is added as it is sent."""
    sent: list[str] = []

    def record(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(" ".join(statement.split()))

    event.listen(engine, "before_cursor_execute", record)
    return sent


def add(session: Session, row: Any) -> Any:
    """Store a row."""
    session.add(row)
    session.commit()
    return row


# -- Kinds of models ---------------------------------------------------------------

NEW: dict[str, Callable[[], Any]] = {
    "plain": lambda: Invoice(text="new", fence=5),
    "two tables, fence in the parent's": lambda: CreditNote(text="new", fence=5),
    "two tables, fence in its own": lambda: Reminder(text="new", fence=5),
    "composite key": lambda: Seat(train=str(time.time_ns()), number=1, fence=5),
}


@pytest.mark.parametrize("kind", NEW)
def test_each_kind_of_model_keeps_the_contract(session: Session, kind: str) -> None:
    """One table or two, one key or two: the late are refused, twice is fine."""
    row = add(session, NEW[kind]())

    for words in ("first", "second"):
        with fenced(session, 7):
            row.text = words
        session.commit()
    with pytest.raises(StaleFence, match=r"fence 6\b.* fence 7\b"), fenced(session, 6):
        row.text = "late"
    session.rollback()

    assert (row.text, row.fence) == ("second", 7)


def test_child_alone_compares_the_fence_of_the_parent(session: Session) -> None:
    """A change in the child's table only is refused all the same."""
    row = add(session, CreditNote(reason="new", fence=7))

    with pytest.raises(StaleFence), fenced(session, 6):
        row.reason = "late"
    session.rollback()
    assert row.reason == "new"

    with fenced(session, 8):
        row.reason = "next"
    session.commit()
    assert (row.reason, row.fence) == ("next", 8)


def test_parent_alone_compares_the_fence_of_the_child(session: Session) -> None:
    """A change in the parent's table only is refused all the same."""
    row = add(session, Reminder(name="new", fence=7))

    with pytest.raises(StaleFence), fenced(session, 6):
        row.name = "late"
    session.rollback()
    assert row.name == "new"

    with fenced(session, 8):
        row.name = "next"
    session.commit()
    assert (row.name, row.fence) == ("next", 8)


def test_model_with_its_own_mapper_args_must_take_ours() -> None:
    """A class that would not compare fences cannot be mapped."""

    class Base(DeclarativeBase):
        pass

    class Forgetful(Fenced, Base):
        __tablename__ = "forgetful"
        id: Mapped[int] = mapped_column(primary_key=True)
        revision: Mapped[int] = mapped_column(Integer)
        __mapper_args__ = {"version_id_col": revision}  # noqa: RUF012  (as users do)

    try:
        with pytest.raises(ConfigurationError, match=r"Forgetful would not compare"):
            configure_mappers()
    finally:
        Base.registry.dispose()


# -- The session -------------------------------------------------------------------


def test_flush_claims_and_compares(session: Session, statements: list[str]) -> None:
    """The claim is conditional, and so is the ORM's own UPDATE after it."""
    row = add(session, Invoice(text="new"))

    with fenced(session, 7):
        row.text = "first"

    claim, write = [sent for sent in statements if sent.startswith("UPDATE")]
    assert "fence <=" in claim.partition("WHERE")[2]
    assert "fence =" in write.partition("WHERE")[2]


def test_block_writes_what_changed_in_it(session: Session) -> None:
    """New, changed and deleted rows are under the fence; untouched ones are not."""
    changed, untouched = Invoice(text="new"), Invoice(text="new")
    add(session, changed)
    add(session, untouched)

    with fenced(session, 7):
        changed.text = "first"
        untouched.text = untouched.text
        made = Invoice(text="made")
        session.add(made)
    session.commit()

    assert [row.fence for row in (changed, made, untouched)] == [7, 7, 0]


def test_block_leaves_out_what_changed_before_it(session: Session) -> None:
    """What was pending is flushed as it is; after the block nothing is stamped."""
    before, after = Invoice(text="new"), Invoice(text="new")
    add(session, before)
    add(session, after)

    before.text = "before"
    with fenced(session, 7):
        pass
    after.text = "after"
    session.commit()

    assert (before.text, before.fence) == ("before", 0)
    assert (after.text, after.fence) == ("after", 0)


def test_block_that_raises_writes_nothing_later(session: Session) -> None:
    """An error in the block reaches the caller, and ends the stamping."""
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
    """Without the block, assigning the fence does the same for one row."""
    row = add(session, Invoice(text="new"))

    row.text, row.fence = "first", 7
    session.commit()
    row.text, row.fence = "late", 6
    with pytest.raises(StaleFence, match=r"fence 6\b.* fence 7\b"):
        session.commit()
    session.rollback()

    assert (row.text, row.fence) == ("first", 7)


def test_fence_alone_can_be_raised(session: Session) -> None:
    """Assigning nothing but the fence claims the row."""
    row = add(session, Invoice(text="new"))

    row.fence = 7
    session.commit()

    assert row.fence == 7


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
    """What a late writer changed besides goes with the refused row."""
    row, other = Invoice(text="new", fence=7), Invoice(text="new")
    add(session, other)
    add(session, row)

    with pytest.raises(StaleFence), fenced(session, 6):
        other.text = row.text = "by the late"
    session.rollback()

    assert (other.text, other.fence) == ("new", 0)


def test_write_compares_where_there_is_no_transaction(database: str) -> None:
    """Under AUTOCOMMIT the ORM's own UPDATE is refused, if not the claim."""
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


# -- Many rows -----------------------------------------------------------------------


def test_refused_update_rolls_back(session: Session) -> None:
    """After a refusal nothing of the transaction remains, as after a bad flush."""
    low, high = Invoice(text="new"), Invoice(text="new", fence=9)
    add(session, low)
    add(session, high)
    pks = [low.id, high.id]

    low.text = "by the late"
    chosen = update(Invoice).where(Invoice.id.in_(pks)).values(text="late")
    with pytest.raises(StaleFence):
        update_fenced(session, chosen, 7)
    session.commit()

    found = session.scalars(select(Invoice.text).where(Invoice.id.in_(pks)))
    assert list(found) == ["new", "new"]


def test_refused_update_in_a_savepoint_rolls_back_to_it(postgres: str) -> None:
    """In a savepoint, what was done before it remains."""
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
    """It raises the fence, and whatever follows in the transaction is under it."""
    row = add(session, Invoice(text="new"))
    mine = update(Invoice).where(Invoice.id == row.id)

    assert update_fenced(session, mine, 7) == 1
    session.execute(mine.values(text="first"))
    session.commit()

    assert (row.text, row.fence) == ("first", 7)


def test_loaded_rows_see_the_update(session: Session) -> None:
    """Rows of the session are as they are stored afterwards."""
    row = add(session, Invoice(text="new"))
    assert row.text == "new"

    mine = update(Invoice).where(Invoice.id == row.id)
    update_fenced(session, mine.values(text="first"), 7)

    assert (row.text, row.fence) == ("first", 7)


@pytest.mark.parametrize("entity", [CreditNote, Customer])
def test_update_of_a_table_without_fence_is_refused(
    session: Session, entity: Any
) -> None:
    """Where the fence is elsewhere, the error says what to do."""
    with pytest.raises(ConfigurationError, match="the class that has the fence first"):
        update_fenced(session, update(entity), 7)


# -- PostgreSQL ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["flush", "update"])
def test_writer_that_waited_for_a_row_is_compared_again(
    postgres: str, how: str
) -> None:
    """A late UPDATE that was queued behind the next holder's is refused."""
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
        deadline = time.monotonic() + SOON
        while not session.scalar(waiting) and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        session.commit()
        with pytest.raises(StaleFence) as refused:
            queued.result(SOON)

    assert (refused.value.fence, refused.value.latest) == (6, 7)
