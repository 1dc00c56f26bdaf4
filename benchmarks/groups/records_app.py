"""The app of the worker of ``records``: one UPDATE, with and without a record."""

from __future__ import annotations

import os

from celery import Celery
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, update
from sqlalchemy.orm import Session

from celery_redlock import singleton_task
from celery_redlock.contrib.sqlalchemy import current_session, record_table

BROKER, *NODES = os.environ["BENCHMARK_SERVERS"].split()
ROWS = 500

app = Celery("records", broker=BROKER, backend=BROKER)
app.conf.update(
    redlock_nodes=NODES, redlock_node_timeout=1.0, worker_prefetch_multiplier=16
)
engine = create_engine(os.environ["BENCHMARK_DATABASE"])
metadata = MetaData()
counter = Table(
    "counter",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("value", Integer, nullable=False),
)
record_table(metadata)


def create_rows() -> None:
    """Create the tables, and the rows that the tasks update."""
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        rows = [{"id": number, "value": 0} for number in range(ROWS)]
        session.execute(insert(counter), rows)


def add_one(session: Session, number: int) -> None:
    """Add one to a row."""
    row = counter.c.id == number % ROWS
    session.execute(update(counter).where(row).values(value=counter.c.value + 1))


def in_a_transaction(number: int) -> int:
    """Add one in a transaction."""
    with Session(engine) as session, session.begin():
        add_one(session, number)
    return number


def with_a_record(number: int) -> int:
    """Add one in the transaction of the call's record."""
    add_one(current_session(), number)
    return number


TASKS = {
    "a transaction": singleton_task(app=app, name="bare")(in_a_transaction),
    "exactly_once_in": singleton_task(
        app=app, name="once", exactly_once_in=lambda: Session(engine)
    )(with_a_record),
}
