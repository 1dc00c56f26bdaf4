"""What only SQLAlchemy does: flushes, sessions, inheritance, its own versioning."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, Integer, event
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    configure_mappers,
    mapped_column,
)
from sqlalchemy.orm.exc import StaleDataError

from celery_redlock.contrib.sqlalchemy import Fenced, fenced
from celery_redlock.errors import ConfigurationError, StaleFence
from tests.contrib.declared import CreditNote, Invoice, Reminder, Seat
from tests.contrib.storages import SqlAlchemyStorage
from tests.contrib.support import add

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    """Give a list to which every statement is added as it is sent."""
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


@pytest.mark.parametrize(
    ("model", "column"),
    [(CreditNote, "reason"), (Reminder, "name")],
    ids=["child's column, fence in the parent's", "parent's column, fence in its own"],
)
def test_one_table_alone_compares_the_fence_in_the_other(
    session: Session, model: Any, column: str
) -> None:
    """A change in the table that has no fence is refused all the same."""
    row = add(session, model(**{column: "new"}, fence=7))

    with pytest.raises(StaleFence), fenced(session, 6):
        setattr(row, column, "late")
    session.rollback()
    assert getattr(row, column) == "new"

    with fenced(session, 8):
        setattr(row, column, "next")
    session.commit()
    assert (getattr(row, column), row.fence) == ("next", 8)


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
