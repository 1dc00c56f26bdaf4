"""``lease.ensure(connection)``: no other client gets the lock before the commit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from celery_redlock.errors import ConfigurationError, LockHeld, LockLost
from tests.harness.waiting import until

if TYPE_CHECKING:
    from celery_redlock.locks.redlock import Redlock

SHORT = 0.3  # seconds; the service does not renew by itself


def end_of(rival: Redlock, key: str) -> None:
    """Wait until no transaction keeps the lock any more."""

    def is_free() -> bool:
        try:
            rival.release(rival.acquire(key))
        except LockHeld:
            return False
        return True

    until(is_free)


def until_ended(lease: Any) -> None:
    """Wait until the ttl of a lease has ended in the database, too."""
    until(lambda: lease.clock.monotonic() > lease.started_at + lease.ttl + 0.1)


def short(redlock: Redlock, key: str) -> Any:
    """Take the lock for a short time. Nothing renews it."""
    object.__setattr__(redlock.timing, "node_timeout", SHORT / 4)
    lease = redlock.acquire(key, ttl=SHORT)
    object.__setattr__(redlock.timing, "node_timeout", 5.0)
    return lease


def test_transaction_keeps_others_out_after_the_ttl(
    redlock: Redlock, rival: Redlock, connection: psycopg.Connection, key: str
) -> None:
    """The lock is held until the commit, also if no renewal came for long."""
    lease = short(redlock, key)
    lease.ensure(connection)
    until_ended(lease)

    with pytest.raises(LockHeld):
        rival.acquire(key)

    connection.commit()
    end_of(rival, key)


def test_lock_that_another_client_has_is_lost(
    redlock: Redlock, rival: Redlock, connection: psycopg.Connection, key: str
) -> None:
    """The database says so, where the clock of the holder was stopped."""
    lease = short(redlock, key)
    until_ended(lease)
    end_of(rival, key)
    object.__setattr__(lease, "until", lease.clock.monotonic() + 60)

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
    lease = short(redlock, key)
    with Session(engine) if kind == "session" else engine.connect() as given:
        given.begin()

        lease.ensure(given)

        until_ended(lease)
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
