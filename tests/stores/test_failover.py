"""Crashes and fail-overs of PostgreSQL: what is kept, and what is waited for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from celery_redlock.errors import LockHeld, QuorumUnreachable
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.doctor import diagnose
from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.postgresql import PostgreSQL as Store
from celery_redlock.wire.quorum import VoteKind
from tests.harness.standby import hold_commits
from tests.harness.store_nodes import postgresql
from tests.harness.waiting import until
from tests.nodes.support import granted
from tests.stores.cluster import Primary, Publisher, Standby, Upgraded

SHORT: dict[str, Any] = {"ttl": 0.5, "max_ttl": 0.5, "node_timeout": 0.15}


@pytest.fixture
def primary() -> Iterator[Primary]:
    """Give a server that this test may crash."""
    with postgresql(Primary) as server:
        Store.prepare(server.url, 5.0)
        yield server


def service(server: Primary, *, user: str = "redlock", **options: Any) -> Redlock:
    """Return a service on this server, under the one name that clients agree on."""
    url = server.url.replace("redlock@", f"{user}@")
    node = {"url": url, "name": "database"}
    return Redlock([node], **{"node_timeout": 5.0, **options})


def votes_after_quarantine(redlock: Redlock) -> bool:
    """Wait until the server votes; tell whether it has waited for that."""
    kinds = set()

    def votes() -> bool:
        vote = redlock.check().ballot.votes[0]
        kinds.add(vote.kind if vote else None)
        return vote is not None and vote.kind is VoteKind.GRANTED

    until(votes)
    return VoteKind.QUARANTINED in kinds


def test_lock_outlives_a_crash_of_the_server(primary: Primary, key: str) -> None:
    """A grant was on disk before it was told, and the server votes at once."""
    with closing(service(primary)) as redlock, closing(service(primary)) as rival:
        redlock.initialize()
        lease = redlock.acquire(key)

        primary.crash()
        primary.start()

        until(lambda: redlock.inspect(key).holder is not None)
        with pytest.raises(LockHeld):
            rival.acquire(key)
        assert redlock.extend(lease)
        assert redlock.release(lease)
        assert rival.acquire(key).fence > lease.fence


@pytest.mark.long
def test_lock_outlives_a_crash_after_a_reload(primary: Primary, key: str) -> None:
    """A client that is connected goes on waiting for the disk."""
    with closing(service(primary)) as redlock, closing(service(primary)) as rival:
        redlock.initialize()
        redlock.release(redlock.acquire(key))
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_commit = off")
            connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
            connection.execute("SELECT pg_reload_conf()")
            shown = "SHOW synchronous_commit"
            until(lambda: connection.execute(shown).fetchone() == ("off",))
            # It shows when the process of our connection has reloaded, too.
            redlock.release(redlock.acquire(f"{key}:other"))
        lease = redlock.acquire(key)

        primary.crash()
        primary.start()

        until(lambda: redlock.inspect(key).holder is not None)
        with pytest.raises(LockHeld):
            rival.acquire(key)
        assert redlock.release(lease)


def test_restored_table_repeats_no_fence(primary: Primary, key: str) -> None:
    """Nothing tells that old rows came back. Both hold the lock, and one write wins."""
    with closing(service(primary)) as redlock, closing(service(primary)) as rival:
        redlock.initialize()
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE old AS SELECT * FROM redlock_keys")
            first = redlock.acquire(key)
            connection.execute("DELETE FROM redlock_keys")
            connection.execute("INSERT INTO redlock_keys SELECT * FROM old")

        assert rival.acquire(key).fence > first.fence


@pytest.mark.long
def test_database_without_an_encoding_is_understood(primary: Primary) -> None:
    """Its texts come as bytes, unless the client asks for an encoding."""
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII' "
            "LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        url = primary.url.replace("/postgres", "/ascii")
        Store.prepare(url, 5.0)
        connection.execute(
            "ALTER DATABASE ascii SET default_transaction_read_only TO on"
        )
    with closing(Redlock([url], node_timeout=5.0)) as redlock:
        codes = [finding.code for finding in diagnose(redlock)]

    assert "read-only" in codes


@pytest.mark.long
def test_restart_costs_no_acquire(primary: Primary, key: str) -> None:
    """An idle connection that the server closed is noticed before it is used."""
    with closing(service(primary)) as redlock:
        redlock.initialize()
        redlock.release(redlock.acquire(key))
        for number in range(2):
            primary.crash()
            primary.start()
            idle_since = redlock.clock.monotonic()
            until(lambda: redlock.clock.monotonic() - idle_since > 0.6)  # noqa: B023

            # Of another key: a crash may forget a release.
            redlock.release(redlock.acquire(f"{key}:{number}"))  # and not wait=...


def test_promoted_standby_waits_until_all_locks_have_ended(
    primary: Primary, key: str
) -> None:
    """It may lack what the primary granted last. Its fences are greater even so."""
    with closing(service(primary, **SHORT)) as redlock:
        redlock.initialize()
        standby = Standby(primary)
        try:
            standby.start()
            with closing(service(standby, **SHORT)) as other:
                ballot = other.check().ballot
                assert ballot.votes[0] is not None
                assert "is a standby" in ballot.votes[0].reason
            lease = granted(redlock, key)
            primary.crash()

            standby.promote()

            with closing(service(standby, **SHORT)) as after:
                assert votes_after_quarantine(after)
                assert granted(after, key).fence > lease.fence
        finally:
            standby.stop()


@pytest.mark.long
def test_upgraded_server_waits_until_all_locks_have_ended(
    primary: Primary, key: str
) -> None:
    """``pg_upgrade`` copies the table with all oids, to a server of another name."""
    with closing(service(primary, **SHORT)) as redlock:
        redlock.initialize()
        lease = granted(redlock, key)
    primary.stop()
    upgraded = Upgraded(primary)
    try:
        upgraded.start()
        with closing(service(upgraded, **SHORT)) as after:
            assert votes_after_quarantine(after)
            assert granted(after, key).fence > lease.fence
    finally:
        upgraded.stop()


@pytest.mark.long
def test_server_that_gets_our_table_from_another_one_has_no_vote(key: str) -> None:
    """A client there that deletes an ended lock would delete that of a call here."""
    with postgresql(Publisher) as old, postgresql(Primary) as new:
        for server in (old, new):
            Store.prepare(server.url, 5.0)
        with (
            closing(service(old, **SHORT)) as redlock,
            closing(service(new, **SHORT, user="plain")) as after,
            psycopg.connect(old.url, autocommit=True) as source,
            psycopg.connect(new.url, autocommit=True) as target,
        ):
            target.execute("CREATE ROLE plain LOGIN")
            target.execute(Store.grants.format(user="plain"))
            redlock.initialize()
            lease = granted(redlock, key)
            source.execute("CREATE PUBLICATION everything FOR ALL TABLES")
            target.execute(
                f"CREATE SUBSCRIPTION moving CONNECTION '{old.url}' "
                "PUBLICATION everything"
            )
            copied = "SELECT 1 FROM redlock_keys WHERE field = '.identity'"
            until(lambda: target.execute(copied).fetchone())

            (reason,) = after.check().problems

            assert "gets the table redlock_keys by the subscription moving" in reason
            target.execute("ALTER SUBSCRIPTION moving DISABLE")
            assert votes_after_quarantine(after)
            assert granted(after, key).fence > lease.fence
            target.execute("ALTER SUBSCRIPTION moving SET (slot_name = NONE)")
            target.execute("DROP SUBSCRIPTION moving")


@pytest.mark.long
@pytest.mark.parametrize("commits", ["on", "off", "local", "remote_write"])
def test_grant_waits_for_the_synchronous_standby(
    primary: Primary, key: str, commits: str
) -> None:
    """Also where other transactions do not. Here the standby never comes."""
    with closing(service(primary, **SHORT)) as redlock:
        redlock.initialize()
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE redlock SET synchronous_commit = {commits}")
        hold_commits(connection)

        with (
            closing(service(primary, **SHORT)) as redlock,
            pytest.raises(QuorumUnreachable, match="had not answered"),
        ):
            redlock.acquire(key)


@pytest.mark.long
def test_grant_whose_wait_for_the_standby_is_cancelled_does_not_count(
    primary: Primary, key: str
) -> None:
    """PostgreSQL tells that it is committed: the standby, once promoted, has none."""
    with closing(service(primary)) as redlock:
        redlock.initialize()
    waits = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
        "WHERE wait_event = 'SyncRep' AND application_name = 'celery-redlock'"
    )
    with (
        psycopg.connect(primary.url, autocommit=True) as connection,
        closing(service(primary)) as redlock,
        ThreadPoolExecutor() as threads,
    ):
        connection.execute("ALTER ROLE redlock SET client_min_messages = error")
        redlock.check()
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
        connection.execute("SELECT pg_reload_conf()")
        shown = "SHOW synchronous_standby_names"
        until(lambda: connection.execute(shown).fetchone() == ("absent",))

        acquiring = threads.submit(redlock.acquire, key)

        def has_ended() -> bool:
            connection.execute(waits)
            return acquiring.done()

        until(has_ended)

        with pytest.raises(QuorumUnreachable, match="without its synchronous standby"):
            acquiring.result()


@pytest.mark.long
def test_doctor_tells_of_standbys(primary: Primary) -> None:
    """A user who may not know their kind is told so, and not that there are none."""
    asynchronous = "has 1 standby that it does not wait for"
    unknown = "does not tell our user whether they are standbys that it waits for"
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE plain LOGIN")
        connection.execute(Store.grants.format(user="plain"))
        with closing(service(primary)) as redlock:
            redlock.initialize()
        standby = Standby(primary)
        try:
            standby.start()
            streams = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
            until(lambda: connection.execute(streams).fetchone())
            for user, fact in (("redlock", asynchronous), ("plain", unknown)):
                with closing(service(primary, user=user)) as redlock:
                    found = {one.code: one.fact for one in diagnose(redlock)}
                assert fact in found["async-standbys"]
        finally:
            standby.stop()


@pytest.mark.long
def test_doctor_takes_no_receiver_of_changes_for_a_standby() -> None:
    """An archive of the WAL and a stream of changes cannot be promoted."""
    with (
        postgresql(Publisher) as server,
        psycopg.connect(server.url, autocommit=True) as connection,
        closing(service(server)) as redlock,
    ):
        Store.prepare(server.url, 5.0)
        redlock.initialize()
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        stream = ("--create-slot", "--start", "--slot=stream", "--file=-")
        plugin = ("--plugin=pgoutput", "-o", "proto_version=1")
        published = ("-o", "publication_names=everything")
        receivers = [
            ("pg_receivewal", "-d", server.url, "--directory=.", "-s", "1"),
            ("pg_recvlogical", "-d", server.url, *stream, *plugin, *published),
        ]
        told = "SELECT count(*) FROM pg_stat_replication WHERE write_lsn IS NOT NULL"
        with ExitStack() as running:
            for words in receivers:
                running.callback(server.begin(*words))
            until(lambda: connection.execute(told).fetchone() == (2,))

            codes = [one.code for one in diagnose(redlock)]

    assert "async-standbys" not in codes


@pytest.mark.long
@pytest.mark.parametrize("way", ["restart", "reload"])
def test_planned_restart_changes_nothing(primary: Primary, key: str, way: str) -> None:
    """The server is the same one: no quarantine."""
    with closing(service(primary)) as redlock:
        redlock.initialize()
        lease = redlock.acquire(key)

        if way == "restart":
            primary.signal(signal.SIGINT)
            primary.wait()
            primary.start()
        else:
            primary.signal(signal.SIGHUP)

        until(lambda: redlock.inspect(key).holder is not None)
        assert redlock.check().problems == []
        assert redlock.release(lease)


def test_connection_that_breaks_in_the_second_try_is_told(
    postgresql_store: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is locked for long, so the request is tried again; then the server ends."""
    name = f"redlock:{key}".encode()
    with (
        closing(Store(postgresql_store, 5.0)) as store,
        psycopg.connect(postgresql_store) as other,
    ):
        store.run([[b"SET", name, b"x"]])
        ours = store._connection.info.backend_pid  # noqa: SLF001  (the one to end)
        again = store._read_blocked  # noqa: SLF001

        def end_and_try_again(*it: Any) -> Any:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [ours])
            return again(*it)

        monkeypatch.setattr(store, "_read_blocked", end_and_try_again)
        other.execute("SELECT * FROM redlock_keys WHERE name = %s FOR UPDATE", [name])

        with pytest.raises(StoreError, match="lost its connection"):
            store.run([[b"SET", name, b"y"]])
