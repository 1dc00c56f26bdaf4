"""Releases by one connection to PostgreSQL, and when a commit waits for the disk."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from celery_redlock.line.cancel_requests import ask_to_end
from celery_redlock.locks.redlock import Redlock
from celery_redlock.stores.postgresql import PostgreSQL as Store
from celery_redlock.stores.postgresql_statements import Statement, Statements, lock
from tests.harness.servers import PostgreSQL
from tests.harness.store_nodes import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.pq.abc import PGresult

    from celery_redlock.stores.connection import Waits

LONG = 40.0  # seconds: longer than the test


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Give the names of the statements of each round trip, as they are sent."""
    found: list[list[str]] = []
    carry_out = Statements.carry_out

    def seen(self: Statements, steps: Sequence[Statement]) -> Waits[list[PGresult]]:
        found.append([step.statement for step in steps])
        return carry_out(self, steps)

    monkeypatch.setattr(Statements, "carry_out", seen)
    return found


def value_of(connection: psycopg.Connection, key: str) -> bytes | None:
    """Return what is stored as the lock; None for nothing."""
    row = connection.execute(
        "SELECT value FROM redlock_keys WHERE name = %s AND field = ''",
        (f"redlock:lock:{key}".encode(),),
    ).fetchone()
    connection.rollback()
    return row[0] if row else None


def test_renewed_lock_is_released_in_one_round_trip(
    redlock: Redlock, connection: psycopg.Connection, key: str, trips: list[list[str]]
) -> None:
    """A renewal changes its end only."""
    lease = redlock.acquire(key, LONG)
    redlock.extend(lease)
    trips.clear()

    assert redlock.release(lease) == 1

    assert len(trips) == 1
    assert value_of(connection, key) is None


def test_lock_with_a_request_to_end_is_released(
    redlock: Redlock, rival: Redlock, connection: psycopg.Connection, key: str
) -> None:
    """The request is a part of its value, which another client has changed."""
    lease = redlock.acquire(key, LONG)
    before = value_of(connection, key)
    holder = rival.inspect(key).holder
    assert holder is not None
    ask_to_end(rival, key, holder, by="a newer call")
    assert value_of(connection, key) != before

    assert redlock.release(lease) == 1

    assert value_of(connection, key) is None


@pytest.mark.parametrize("is_known", [True, False])
def test_commit_of_a_release_does_not_wait_for_the_disk(
    redlock: Redlock,
    rival: Redlock,
    key: str,
    trips: list[list[str]],
    *,
    is_known: bool,
) -> None:
    """The commit of a grant does. Any connection can release the lock so."""
    redlock.release(redlock.acquire(key, LONG))
    trips.clear()
    lease = redlock.acquire(key, LONG)
    assert not any("lock and commit late" in steps for steps in trips)
    trips.clear()

    assert (redlock if is_known else rival).release(lease) == 1

    assert any("lock and commit late" in steps for steps in trips)


def test_plain_write_waits_for_the_disk(
    postgresql_store: str, key: str, trips: list[list[str]]
) -> None:
    """Only a script says that a crash may take its changes back."""
    with closing(Store(postgresql_store, 5.0)) as store:
        store.run([[b"SET", key.encode(), b"value", b"PX", b"1000"]])

    assert [step for step in trips[-1] if step == "commit"] == ["commit"]
    assert not any("lock and commit late" in steps for steps in trips)


@pytest.mark.parametrize(("commits_late", "setting"), [(True, b"off"), (False, b"on")])
def test_wait_for_the_disk_is_switched_off_for_one_transaction(
    postgresql_store: str, key: str, *, commits_late: bool, setting: bytes
) -> None:
    """By the statement that locks names, and until the transaction ends."""
    with closing(Store(postgresql_store, 5.0)) as store:
        statements, finish = store._statements, store._connection.wait  # noqa: SLF001

        def shown() -> bytes | None:
            found = statements._pg.exec_(b"SHOW synchronous_commit")  # noqa: SLF001
            return found.get_value(0, 0)

        locks = lock([key.encode()], [], is_late=commits_late)
        finish(statements.carry_out([Statement("begin"), locks]))
        assert shown() == setting
        finish(statements.carry_out([Statement("rollback")]))
        assert shown() == b"on"


def test_grant_after_a_release_waits_for_the_disk(
    redlock: Redlock, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release switches the wait off for its own transaction only."""
    shown: list[bytes | None] = []  # in the session, before each transaction
    carry_out = Statements.carry_out

    def seen(self: Statements, steps: Sequence[Statement]) -> Waits[list[PGresult]]:
        if self._pg.transaction_status == TransactionStatus.IDLE:
            setting = self._pg.exec_(b"SHOW synchronous_commit")
            shown.append(setting.get_value(0, 0))
        return carry_out(self, steps)

    monkeypatch.setattr(Statements, "carry_out", seen)
    for _ in range(2):
        redlock.release(redlock.acquire(key, LONG))

    assert set(shown) == {b"on"}


@pytest.mark.long
def test_release_of_a_lock_that_has_changed_is_no_error_in_the_log(key: str) -> None:
    """An operator who watches the log of the database sees nothing."""
    with postgresql(PostgreSQL) as server:
        Store.prepare(server.url, 5.0)
        with (
            closing(Redlock([server.url], node_timeout=5.0)) as redlock,
            psycopg.connect(server.url, autocommit=True) as connection,
        ):
            redlock.initialize()
            lease = redlock.acquire(key, LONG)
            connection.execute(
                "UPDATE redlock_keys SET value = 'other' WHERE name = %s",
                (f"redlock:lock:{key}".encode(),),
            )

            assert redlock.release(lease) == 0

        assert "ERROR" not in server.logs()
