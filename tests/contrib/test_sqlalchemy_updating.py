"""What only SQLAlchemy does with many rows, and behind another writer."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from celery_redlock.contrib.sqlalchemy import fenced, update_fenced
from celery_redlock.errors import ConfigurationError, StaleFence
from tests.contrib.declared import CreditNote, Customer, Invoice, Seat
from tests.contrib.storages import SqlAlchemyStorage
from tests.contrib.support import SOON, add
from tests.nodes.support import until

# -- update_fenced -----------------------------------------------------------------


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


# -- queued behind another writer --------------------------------------------------


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
        until(lambda: session.scalar(waiting), SOON, what="the late writer to wait")
        session.commit()
        with pytest.raises(StaleFence) as refused:
            queued.result(SOON)

    assert (refused.value.fence, refused.value.latest) == (6, 7)
