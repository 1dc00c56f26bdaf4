"""Records of calls in a database of SQLAlchemy, for tasks with ``exactly_once_in=``.

::

    record_table(Base.metadata)       # Alembic's autogenerate finds the table

    @singleton_task(key="invoice:{pk}", exactly_once_in=lambda: Session(engine))
    def number_invoice(pk):
        session = current_session()
        session.get_one(Invoice, pk).number = next_number(session)
        # no commit: the package commits the effects and the record together

The callable makes the session of one call, or returns a ``scoped_session``. The session
is closed when the call has ended. A body that commits, rolls back or closes it is
refused. It may use savepoints (``begin_nested``).
"""

from __future__ import annotations

import contextlib
import logging
from contextvars import ContextVar
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Index,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    delete,
    event,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.schema import BLANK_SCHEMA

from celery_redlock.effects.call_records import (
    CONTROLLED,
    CallRecord,
    check_in_transaction,
    from_row,
)
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from sqlalchemy import CursorResult, Engine

log = logging.getLogger(__name__)

_WHAT = "exactly_once_in"
_NAME = "celery_redlock_call"
_IS_GUARDED = "celery_redlock_is_guarded"  # in the ``info`` of a session

_session: ContextVar[Session | None] = ContextVar(
    "celery_redlock_session", default=None
)


def record_table(metadata: MetaData) -> Table:
    """Return the table of the records in this metadata; add a missing one.

    Call it where your models are defined, with their metadata: ``create_all`` and
    Alembic's autogenerate then create the table. It is in the default schema.
    """
    if _NAME in metadata.tables:
        return metadata.tables[_NAME]
    moment = DateTime(timezone=True)
    return Table(
        _NAME,
        metadata,
        Column("id", String(64), primary_key=True),
        Column("task", String(255), nullable=False),
        Column("task_id", String(255), nullable=False),
        Column("key", Text, nullable=False),
        Column("fence", BigInteger, nullable=False),
        Column("state", String(20), nullable=False),
        Column("result", Text, nullable=False),
        Column("content_type", String(100), nullable=False),
        Column("content_encoding", String(20), nullable=False),
        Column("recorded_at", moment, nullable=False),
        Column("keep_until", moment, nullable=False),
        Index(f"{_NAME}_task_id", "task_id"),
        Index(f"{_NAME}_keep_until", "keep_until"),
        schema=BLANK_SCHEMA,
    )


_TABLE = record_table(MetaData())
_IS_IT = _TABLE.c.id == bindparam("record_id")
# Built once: that takes longer than the database needs for them.
_FIND = select(*[_TABLE.c[field.name] for field in fields(CallRecord)]).where(_IS_IT)
_LOCK = update(_TABLE).where(_IS_IT).values(fence=_TABLE.c.fence)
_INSERT = insert(_TABLE)


def current_session() -> Session:
    """Return the session of the call that runs here, whose effects happen once.

    Raises:
        ConfigurationError: No task with ``exactly_once_in`` of this kind runs here.
    """
    session = open_session()
    if session is None:
        raise ConfigurationError(
            "There is no session of a call here. current_session() is for the body of "
            "a task with exactly_once_in=<a callable> that runs in a worker."
        )
    return session


def open_session() -> Session | None:
    """Return the session of the call that runs here, or None."""
    return _session.get()


def new_session(what: str, made: Any) -> Session:
    """Return the session that a callable has made, if it can be used.

    One in a transaction is refused, and one without an engine. ``what`` says to whom
    the callable was given, as it was written.
    """
    session = made() if isinstance(made, scoped_session) else made
    if not isinstance(session, Session):
        kind = f"{type(session).__module__}.{type(session).__qualname__}"
        hint = ""
        if type(session).__name__.lower().startswith("async"):
            hint = " A body is a plain function, so its session is not async."
        raise ConfigurationError(
            f"{what} has returned a {kind}; it must return a sqlalchemy.orm.Session."
            f"{hint}"
        )
    if session.in_transaction():
        raise ConfigurationError(
            f"{what} has returned a session that is in a transaction already. End that "
            "transaction, or return a new session."
        )
    if type(session).get_bind is Session.get_bind:  # one of a project may need more
        engine = engine_of(what, session)
        if engine.dialect.is_async:
            raise ConfigurationError(
                f"{what} has returned a session with the engine of an AsyncEngine, "
                "which works in coroutines only. Write Session(create_engine(url)), "
                "with the same URL."
            )
    return session


def engine_of(what: str, session: Session) -> Engine:
    """Return the engine by which a session reaches the tables of this package.

    Raises:
        ConfigurationError: It has engines for models only, and these tables have none.
    """
    try:
        return session.get_bind().engine
    except UnboundExecutionError as error:
        raise ConfigurationError(
            f"The session of {what} has no engine for the tables of this package: "
            "`binds` names models, and these tables have none. Write Session(engine, "
            "binds=...), with the engine of the database of the effects."
        ) from error


class SqlAlchemyRecords:
    """The records in the database of a session: an `effects.call_records.RecordStore`.

    The callable returns a session, or a ``scoped_session``.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        new_session(_WHAT, make()).close()  # which opens no connection

    @contextlib.contextmanager
    def transaction(
        self,
        record_id: str,
        *,
        may_be_nested: bool = False,  # noqa: ARG002  (a new session is in none)
    ) -> Iterator[CallRecord | None]:
        """Run the block in a transaction, with the record of this id; then commit."""
        session, found = self._begin(record_id)
        token = _session.set(session)
        try:
            yield found
            session.commit()
        except BaseException:
            _roll_back(session)
            raise
        finally:
            _session.reset(token)
            session.close()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Refuse a commit of the session."""
        session = current_session()
        begun = session.get_transaction()
        session.info[_IS_GUARDED] = True
        try:
            yield
        finally:
            del session.info[_IS_GUARDED]
        if session.get_transaction() is not begun:
            raise ConfigurationError(
                "The body of a task with exactly_once_in has rolled back or closed its "
                f"session. {CONTROLLED} Leave that out, and do not write `with "
                "current_session():`. For a part that may fail, use begin_nested(). To "
                "discard everything, raise an error."
            )
        check_in_transaction(session.connection().connection.dbapi_connection)

    def write(self, record: CallRecord, over: CallRecord | None) -> None:
        """Write a record in the transaction, in place of an outdated one."""
        session, values = current_session(), asdict(record)
        session.flush()
        if over is not None:
            same = (_TABLE.c.id == over.id, _TABLE.c.recorded_at == over.recorded_at)
            replaced = session.execute(update(_TABLE).where(*same).values(values))
            if cast("CursorResult[Any]", replaced).rowcount:
                return
        session.execute(_INSERT, values)

    def delete_older(self, than: datetime, most: int) -> int:
        """Delete at most ``most`` records whose time ended before ``than``."""
        with (
            contextlib.closing(new_session(_WHAT, self._make())) as session,
            session.begin(),
        ):
            old = _TABLE.c.keep_until < than
            ids = session.scalars(select(_TABLE.c.id).where(old).limit(most)).all()
            gone = session.execute(delete(_TABLE).where(_TABLE.c.id.in_(ids), old))
            return int(cast("CursorResult[Any]", gone).rowcount)

    def _begin(self, record_id: str) -> tuple[Session, CallRecord | None]:
        for is_last in (False, True):
            session = new_session(_WHAT, self._make())
            try:
                session.begin()  # it may have autobegin=False
                _refuse_autocommit(session)
                return session, _find(session, record_id)
            except DBAPIError as error:
                with contextlib.closing(session):
                    _roll_back(session)
                    if not error.connection_invalidated or is_last:
                        _refuse_missing_table(session, error)
                        raise
            except BaseException:
                session.close()
                raise
        raise AssertionError  # the loop ends in a return or an error


def _roll_back(session: Session) -> None:
    """Roll back after an error, which stays the one that is raised.

    If the server has gone, SQLAlchemy raises an error from here. The server rolls back
    by itself when it misses the connection, which is not used again.
    """
    try:
        session.rollback()
    except SQLAlchemyError as error:
        log.warning("A transaction could not be rolled back (%s).", error.args[0])
        session.invalidate()


def _refuse_autocommit(session: Session) -> None:
    """Refuse a connection that commits each statement by itself."""
    connection = session.connection()
    level = connection.get_execution_options().get("isolation_level")
    # SQLAlchemy has no public name for the level of an engine.
    level = level or getattr(connection.dialect, "_on_connect_isolation_level", "")
    if level == "AUTOCOMMIT":
        raise ConfigurationError(
            "exactly_once_in has returned a session with isolation_level="
            f'"AUTOCOMMIT", which commits each statement by itself. {CONTROLLED} '
            "Use a session with transactions."
        )


def _find(session: Session, record_id: str) -> CallRecord | None:
    if session.connection().dialect.name == "sqlite":
        # One writer at a time: a transaction that begins with a SELECT fails when it
        # writes after another one has. One that begins with a write waits its turn.
        session.execute(_LOCK, {"record_id": record_id})
    row = session.execute(_FIND, {"record_id": record_id}).mappings().first()
    return None if row is None else from_row(CallRecord, row)


def _refuse_missing_table(session: Session, error: Exception) -> None:
    with contextlib.suppress(DBAPIError), session.begin():
        if inspect(session.connection()).has_table(_NAME):
            return
        raise ConfigurationError(
            f"The table {_NAME} is not in the database of exactly_once_in. Nothing "
            "was done. Call record_table(Base.metadata) of celery_redlock.contrib."
            "sqlalchemy where your models are, and create the table: with a migration "
            "of Alembic, or Base.metadata.create_all(engine)."
        ) from error


@event.listens_for(Session, "before_commit")
def _refuse_commit(session: Session) -> None:
    """Refuse a commit of a body. One listener for all sessions: each one costs time."""
    if _IS_GUARDED not in session.info or session.in_nested_transaction():
        return  # another session, or the end of a savepoint
    raise ConfigurationError(
        f"The body of a task with exactly_once_in has called commit(). {CONTROLLED} "
        "Leave it out. For a part that may fail, use begin_nested()."
    )
