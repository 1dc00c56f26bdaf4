"""``lease.ensure(connection)``: no other client gets the lock before the commit."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row, scalar_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from celery_redlock.errors import ConfigurationError, LockHeld, LockLost
from celery_redlock.locks.lease import Lease
from celery_redlock.locks.redlock import Redlock
from tests.harness.waiting import until


def end_of(rival: Redlock, key: str) -> None:
    """Wait until no transaction keeps the lock any more."""

    def is_free() -> bool:
        try:
            rival.release(rival.acquire(key))
        except LockHeld:
            return False
        return True

    until(is_free)


def let_end(redlock: Redlock, lease: Lease, postgresql_store: str) -> None:
    """Let the ttl of a lock end in the database, past its holder.

    It can be done while a transaction keeps the row of the lock, as a renewal can.
    """
    end = "UPDATE redlock_keys SET expires_at = 0 WHERE name = %s"
    name = redlock.keys.lock(lease.key).encode()
    with psycopg.connect(postgresql_store) as operator:
        assert operator.execute(end, [name]).rowcount == 1


def test_transaction_keeps_others_out_after_the_ttl(
    redlock: Redlock,
    rival: Redlock,
    postgresql_store: str,
    connection: psycopg.Connection,
    key: str,
) -> None:
    """The lock is held until the commit, also if no renewal came for long."""
    lease = redlock.acquire(key)
    lease.ensure(connection)
    let_end(redlock, lease, postgresql_store)

    with pytest.raises(LockHeld):
        rival.acquire(key)

    connection.commit()
    end_of(rival, key)


def test_short_statement_timeout_of_a_role_makes_no_outage(
    redlock: Redlock, postgresql_store: str, connection: psycopg.Connection, key: str
) -> None:
    """A key that a transaction keeps is held, however long a role may wait for it."""
    lease = redlock.acquire(key)
    lease.ensure(connection)
    let_end(redlock, lease, postgresql_store)
    url = f"{postgresql_store}?options=-cstatement_timeout%3D50"

    with (
        closing(Redlock([url], node_timeout=5.0)) as hurried,
        pytest.raises(LockHeld),
    ):
        hurried.acquire(key)


@pytest.mark.parametrize(
    "options",
    [
        {"client_encoding": "SQL_ASCII"},  # texts are bytes
        {"row_factory": dict_row},
        {"row_factory": scalar_row},
        {"cursor_factory": psycopg.RawCursor},
        {"cursor_factory": psycopg.ClientCursor},
    ],
    ids=["ascii", "dicts", "scalars", "raw", "client"],
)
def test_each_kind_of_connection_will_do(
    redlock: Redlock,
    rival: Redlock,
    postgresql_store: str,
    key: str,
    options: dict[str, Any],
) -> None:
    """Its rows and its cursors are what the caller has chosen."""
    lease = redlock.acquire(key)
    with psycopg.connect(postgresql_store, **options) as connection:
        lease.ensure(connection)
        let_end(redlock, lease, postgresql_store)
        with pytest.raises(LockHeld):
            rival.acquire(key)
    end_of(rival, key)


def test_lock_that_another_client_has_is_lost(
    redlock: Redlock,
    rival: Redlock,
    postgresql_store: str,
    connection: psycopg.Connection,
    key: str,
) -> None:
    """The database says so, where the clock of the holder was stopped."""
    lease = redlock.acquire(key)
    let_end(redlock, lease, postgresql_store)
    end_of(rival, key)

    with pytest.raises(LockLost):
        lease.ensure(connection)


def test_renewal_does_not_wait_for_the_transaction(
    redlock: Redlock, connection: psycopg.Connection, key: str
) -> None:
    """It changes no key column."""
    lease = redlock.acquire(key)
    lease.ensure(connection)

    assert redlock.extend(lease)

    connection.rollback()
    assert redlock.release(lease)


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy(
    redlock: Redlock, rival: Redlock, postgresql_store: str, key: str, kind: str
) -> None:
    """A connection and a session of SQLAlchemy are known."""
    url = postgresql_store.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url)
    lease = redlock.acquire(key)
    with Session(engine) if kind == "session" else engine.connect() as given:
        given.begin()

        lease.ensure(given)

        let_end(redlock, lease, postgresql_store)
        with pytest.raises(LockHeld):
            rival.acquire(key)
        given.commit()
    engine.dispose()
    end_of(rival, key)


def test_connection_without_a_transaction_is_refused(
    redlock: Redlock, postgresql_store: str, key: str
) -> None:
    """A row lock would end with the statement."""
    lease = redlock.acquire(key)
    with (
        psycopg.connect(postgresql_store, autocommit=True) as connection,
        pytest.raises(ConfigurationError, match="no transaction"),
    ):
        lease.ensure(connection)
    redlock.release(lease)


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_transaction_that_reads_old_rows_is_refused(
    redlock: Redlock, connection: psycopg.Connection, key: str, level: str
) -> None:
    """It would judge by the lock as it was at its begin."""
    lease = redlock.acquire(key)
    connection.isolation_level = psycopg.IsolationLevel[level]

    with pytest.raises(ConfigurationError, match=level.replace("_", " ")):
        lease.ensure(connection)

    redlock.release(lease)


def test_asynchronous_connections_are_refused(
    redlock: Redlock, postgresql_store: str, key: str
) -> None:
    """`ensure` waits for the reply by itself."""
    lease = redlock.acquire(key)
    url = postgresql_store.replace("postgresql:", "postgresql+psycopg:")

    async def ensure() -> None:
        engine = create_async_engine(url)
        driver = await psycopg.AsyncConnection.connect(postgresql_store)
        async with driver, AsyncSession(engine) as session, engine.begin() as own:
            for given in (driver, session, own):
                with pytest.raises(ConfigurationError, match="Use a synchronous"):
                    lease.ensure(given)
        await engine.dispose()

    asyncio.run(ensure())
    redlock.release(lease)


def test_connection_to_another_database_is_refused(
    redlock: Redlock, postgresql_store: str, key: str
) -> None:
    """Its table, if it has one, belongs to another node."""
    lease = redlock.acquire(key)
    other = postgresql_store.replace("/postgres", "/template1")
    with (
        psycopg.connect(other) as connection,
        pytest.raises(ConfigurationError, match="another database"),
    ):
        lease.ensure(connection)
    redlock.release(lease)
