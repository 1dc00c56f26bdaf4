"""The messages of an outbox in a database of SQLAlchemy.

::

    outbox_table(Base.metadata)       # Alembic's autogenerate finds the table
    outbox = Outbox(lambda: Session(engine))

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.send(ship, (order.pk,), session=session)

In the body of a task with ``exactly_once_in`` the session is that of the call.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Index,
    MetaData,
    String,
    Table,
    Text,
    delete,
    event,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.schema import BLANK_SCHEMA

from celery_redlock.contrib.sqlalchemy.records import (
    engine_of,
    new_session,
    open_session,
)
from celery_redlock.effects.call_records import from_row, in_utc, now
from celery_redlock.effects.outbox import OutboxMessage, Which
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from datetime import datetime

_NAME = "celery_redlock_message"
# In the ``info`` of a session: what to call, with the ids of messages.
_WRITTEN = "celery_redlock_written"  # after the commit
_COMMITTED = "celery_redlock_committed"  # when the session has no connection any more


def outbox_table(metadata: MetaData) -> Table:
    """Return the table of the outbox in this metadata; add a missing one.

    Call it where your models are defined, with their metadata: ``create_all`` and
    Alembic's autogenerate then create the table. It is in the default schema.
    """
    if _NAME in metadata.tables:
        return metadata.tables[_NAME]
    return Table(
        _NAME,
        metadata,
        Column("id", String(255), primary_key=True),
        Column("task", String(255), nullable=False),
        Column("body", Text, nullable=False),
        Column("content_type", String(100), nullable=False),
        Column("content_encoding", String(20), nullable=False),
        Column("written_at", DateTime(timezone=True), nullable=False),
        Column("taken_until", DateTime(timezone=True), nullable=True),
        Index(f"{_NAME}_written_at", "written_at"),
        schema=BLANK_SCHEMA,
    )


_TABLE = outbox_table(MetaData())
_COLUMNS = [_TABLE.c[field.name] for field in fields(OutboxMessage)]
_PLACE = tuple_(_TABLE.c.written_at, _TABLE.c.id)
_IN_ORDER = select(*_COLUMNS).order_by(_TABLE.c.written_at, _TABLE.c.id)


class SqlAlchemyMessages:
    """The messages in the database of a session: an `effects.outbox.MessageStore`.

    The callable returns a session, or a ``scoped_session``.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._new_session().close()  # which opens no connection

    def write(
        self, message: OutboxMessage, session: Any, then: Callable[[list[str]], None]
    ) -> None:
        """Write a message in the open transaction. After its commit, call ``then``."""
        if isinstance(session, scoped_session):
            session = session()
        session = session or open_session()
        if not isinstance(session, Session):
            raise ConfigurationError(
                "Outbox.send() does not know the transaction: its session is "
                f"{session!r}. Write session=<the session whose commit publishes the "
                "message>. Only in the body of a task with exactly_once_in it may be "
                "left out. For an AsyncSession write `await session.run_sync(lambda s: "
                "outbox.send(task, args, session=s))`."
            )
        self._refuse_other_database(session)
        session.execute(insert(_TABLE), asdict(message))
        session.info.setdefault(_WRITTEN, {}).setdefault(then, []).append(message.id)

    def _refuse_other_database(self, session: Session) -> None:
        """Refuse a session in whose database no process looks for messages."""
        own = self._made()
        if own is session:
            return
        ours, theirs = _place_of(own), _place_of(session)
        if any(a and b and a != b for a, b in zip(ours, theirs, strict=True)):
            here, there = (":".join(filter(None, one)) for one in (theirs, ours))
            raise ConfigurationError(
                f"Outbox.send() was called in a transaction of the database {here}, "
                f"and this outbox publishes from {there}: no process would find the "
                "message. Nothing was written. Use an Outbox of that database, or an "
                "engine with the same URL."
            )

    def take(self, most: int, until: datetime, which: Which) -> list[OutboxMessage]:
        """Return committed messages that no process has taken, and take them."""
        free = or_(_TABLE.c.taken_until.is_(None), _TABLE.c.taken_until <= now())
        rows = _IN_ORDER.where(free).limit(most).with_for_update(skip_locked=True)
        if which.after is not None:
            rows = rows.where(tuple_(which.after.written_at, which.after.id) < _PLACE)
        if which.ids is not None:
            rows = rows.where(_TABLE.c.id.in_(which.ids))
        if which.before is not None:
            rows = rows.where(_TABLE.c.written_at < which.before)
        with self._transaction() as session:
            if session.connection().dialect.name == "sqlite":
                # Begin with a write, as in `records`.
                nothing = update(_TABLE).where(_TABLE.c.id == "")
                session.execute(nothing.values(task=_TABLE.c.task))
            found_rows = session.execute(rows).mappings()
            found = [from_row(OutboxMessage, row) for row in found_rows]
            taken = _TABLE.c.id.in_([message.id for message in found])
            session.execute(update(_TABLE).where(taken).values(taken_until=until))
        return found

    def finish(
        self, done: Collection[str], kept: Collection[str], until: datetime
    ) -> None:
        """Delete the published messages, and free the others."""
        with self._transaction() as session:
            if done:
                session.execute(delete(_TABLE).where(_TABLE.c.id.in_(done)))
            if kept:
                ours = (_TABLE.c.id.in_(kept), _TABLE.c.taken_until == until)
                session.execute(update(_TABLE).where(*ours).values(taken_until=None))

    def waiting(self) -> tuple[int, datetime | None]:
        """Return how many messages there are, and when the oldest one was written."""
        asked = select(func.count(), func.min(_TABLE.c.written_at)).select_from(_TABLE)
        with self._new_session() as session, session.begin():
            count, oldest = session.execute(asked).one()
        return count, oldest and in_utc(oldest)

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        """Give a session in a transaction that others cannot make fail.

        That is READ COMMITTED. A stricter one fails if another process has changed a
        row since it began: then a published message would be published again.
        """
        with self._new_session() as session, session.begin():
            bind = session.get_bind()
            # A test of a project may give a connection in its own transaction.
            is_first = not (isinstance(bind, Connection) and bind.in_transaction())
            if is_first and bind.dialect.name == "postgresql":
                level = {"isolation_level": "READ COMMITTED"}
                session.connection(execution_options=level)
            yield session

    def _new_session(self) -> Session:
        """Return another session than the caller's, which may be in a transaction."""
        return new_session("Outbox(<a callable>)", self._made())

    def _made(self) -> Any:
        made = self._make()
        return made.session_factory() if isinstance(made, scoped_session) else made


def _place_of(session: Session) -> tuple[str, str, str]:
    """Return host, port and name of a session's database; ``""`` where not known."""
    if type(session).get_bind is not Session.get_bind:  # it may have several
        return "", "", ""
    url = engine_of("Outbox.send()", session).url
    name = url.database or ""
    if url.get_backend_name() == "sqlite" and name not in ("", ":memory:"):
        name = os.path.realpath(name.removeprefix("file:"))
    return url.host or "", str(url.port or ""), name


@event.listens_for(Session, "after_commit")
def _note_committed(session: Session) -> None:
    if _WRITTEN not in session.info or session.in_nested_transaction():
        return  # nothing to publish, or the end of a savepoint
    session.info[_COMMITTED] = session.info.pop(_WRITTEN)


@event.listens_for(Session, "after_transaction_end")
def _publish_committed(session: Session, ended: Any) -> None:
    """Publish when the session has given its connection back: publishing needs one."""
    if ended.parent is not None:
        return
    session.info.pop(_WRITTEN, None)  # they were rolled back
    for then, ids in session.info.pop(_COMMITTED, {}).items():
        then(ids)
