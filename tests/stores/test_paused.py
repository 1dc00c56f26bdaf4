"""A process that is paused in a transaction of ours keeps no key for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from celery_redlock.errors import QuorumUnreachable
from celery_redlock.locks.redlock import Redlock
from celery_redlock.stores.needs import Needs
from celery_redlock.stores.postgresql import PostgreSQL
from tests.harness.waiting import until
from tests.stores.commands import TIMEOUT


@pytest.fixture
def paused(postgresql_store: str, redlock: Redlock, key: str) -> Iterator[PostgreSQL]:
    """Give the connection of a process that is paused between a read and a write.

    No other client may change the key meanwhile.
    """
    lock = redlock.keys.lock(key).encode()
    needs = Needs(exclusive={lock}, names={lock}, is_read=False)
    with closing(PostgreSQL(postgresql_store, TIMEOUT)) as store:
        begin = store._begin(needs, is_read=False, sees_ended=False)  # noqa: SLF001
        store._connection.wait(begin)  # noqa: SLF001
        yield store


@pytest.mark.usefixtures("paused")
def test_server_ends_the_transaction_of_a_paused_process(
    rival: Redlock, key: str
) -> None:
    """Else the key would be taken for as long as the connection lives."""

    def is_granted() -> bool:
        try:
            rival.release(rival.acquire(key))
        except QuorumUnreachable:
            return False
        return True

    until(is_granted)


@pytest.mark.usefixtures("paused")
def test_key_that_a_paused_process_is_about_to_change_is_told(
    rival: Redlock, key: str
) -> None:
    """No client has locked the table, so that is not what the error says."""
    with pytest.raises(QuorumUnreachable, match="another client is about to") as error:
        rival.acquire(key)

    assert "VACUUM" not in str(error.value)
