"""Several tables of locks in one PostgreSQL: which of them is ours."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from celery_redlock.errors import QuorumUnreachable, RedlockError
from celery_redlock.locks.redlock import Redlock
from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.postgresql import PostgreSQL as Store
from celery_redlock.stores.postgresql_table import CREATE
from tests.harness.store_nodes import store_servers

IN_SHOP = "?options=-csearch_path%3Dshop"
IN_PUBLIC = "?options=-csearch_path%3Dpublic"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Give the URL, with two gaps, of a server with the users ours and theirs."""
    with store_servers("postgresql") as store:
        (url,) = store.urls
        with psycopg.connect(url, autocommit=True) as connection:
            for user in ("ours", "theirs"):
                connection.execute(f"CREATE ROLE {user} SUPERUSER LOGIN")
            connection.execute("CREATE ROLE plain LOGIN")
            connection.execute("ALTER ROLE theirs SET search_path TO shop")
        yield url.replace("redlock@", "{}@").replace("/postgres", "/{}")


@pytest.fixture
def database(server: str) -> str:
    """Give ``postgresql://{}host:port/name`` of a new database with the schema shop."""
    name = f"test_{secrets.token_hex(4)}"
    with psycopg.connect(server.format("ours", "postgres"), autocommit=True) as one:
        one.execute(f"CREATE DATABASE {name}")
    url = server.format("{}", name)
    with psycopg.connect(url.format("ours"), autocommit=True) as one:
        one.execute("CREATE SCHEMA shop")
    return url


def prepared(url: str) -> Redlock:
    """Make the table, let it vote, and return a service on it."""
    Store.prepare(url, 5.0)
    redlock = Redlock([url], node_timeout=5.0, connect_timeout=5.0)
    redlock.initialize()
    return redlock


def test_init_makes_no_second_table_of_the_name(database: str) -> None:
    """A user with another search_path would use another table, and get our locks."""
    Store.prepare(database.format("ours"), 5.0)
    with pytest.raises(StoreError, match="a table redlock_keys in the schema public"):
        Store.prepare(database.format("theirs"), 5.0)


def test_clients_with_another_search_path_do_not_hold_the_same_lock(
    database: str, key: str
) -> None:
    """Where two tables are, a client whose URL does not say which has no vote."""
    with closing(prepared(database.format("ours"))) as ours:
        lease = ours.acquire(key)
        with psycopg.connect(database.format("theirs"), autocommit=True) as one:
            one.execute(CREATE)  # as a migration does
        url = database.format("theirs")
        with closing(Redlock([url], node_timeout=5.0)) as theirs:
            with pytest.raises(RedlockError, match="in the schemas public, shop"):
                theirs.initialize()
            with pytest.raises(QuorumUnreachable, match="in the schemas public, shop"):
                theirs.acquire(key)
        ours.release(lease)


@pytest.mark.long
@pytest.mark.parametrize(("user", "path"), [("theirs", ""), ("plain", IN_PUBLIC)])
def test_table_that_our_user_does_not_see_is_not_to_be_made(
    database: str, user: str, path: str
) -> None:
    """It is there: another search_path, or no right to use its schema, hides it."""
    with closing(prepared(database.format("ours"))):
        with psycopg.connect(database.format("ours"), autocommit=True) as one:
            one.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        with pytest.raises(StoreError) as refused:
            Store(database.format(user) + path, 5.0)
    said = "has the table redlock_keys in the schema public, where our user does not s"
    assert str(refused.value).startswith(said)
    assert "redlock init" not in str(refused.value)


@pytest.mark.long
def test_url_says_which_of_two_tables_is_used(database: str, key: str) -> None:
    """Its search_path is a part of the name of the node, as the database is."""
    urls = [database.format("ours") + path for path in (IN_PUBLIC, IN_SHOP)]
    with closing(prepared(urls[0])) as one, closing(prepared(urls[1])) as other:
        leases = one.acquire(key), other.acquire(key)
        one.release(leases[0])
        other.release(leases[1])
    with closing(Redlock([urls[1].replace("ours", "theirs")])) as again:
        again.release(again.acquire(key))
    names = [Store.name_of(url) for url in urls]
    assert [name.rpartition("/")[2] for name in names] == ["public", "shop"]


def test_table_in_place_of_another_one_does_not_vote(database: str, key: str) -> None:
    """A dump that replaces the table lacks the last grants, so it waits."""
    url = database.format("ours")
    with closing(prepared(url)) as redlock:
        redlock.release(redlock.acquire(key))
        held = redlock.acquire(f"{key}:held", 60.0)
        assert [redlock.extend(held) for _ in range(2)] == [True, True]
        with psycopg.connect(url) as one:
            one.execute("ALTER TABLE redlock_keys RENAME TO dump")
            one.execute(CREATE)
            one.execute("INSERT INTO redlock_keys SELECT * FROM dump")
        assert [redlock.extend(held) for _ in range(2)] == [False, False]
        with pytest.raises(QuorumUnreachable, match="is in quarantine"):
            redlock.acquire(key)
