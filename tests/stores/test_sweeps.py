"""Keys that have ended are deleted by the clients, and no others are."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

from celery_redlock.stores import etcd, zookeeper
from celery_redlock.stores import postgresql as pg
from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.needs import Needs
from celery_redlock.stores.zookeeper import ZooKeeper
from tests.conftest import missing
from tests.harness.servers import Etcd
from tests.harness.store_nodes import store_servers
from tests.harness.waiting import until


def _fill(store: Any) -> None:
    """Store twelve keys that end soon, between twelve that do not."""
    store.run([[b"SET", b"redlock:short%d" % n, b"x", b"PX", b"1"] for n in range(12)])
    store.run([[b"SET", b"redlock:long%d" % n, b"x"] for n in range(12)])
    ended = [[b"GET", b"redlock:short%d" % n] for n in range(12)]
    until(lambda: not any(store.run(ended)))


def _sweep_all(store: Any) -> None:
    for _ in range(12):
        store.run([[b"SET", b"redlock:long0", b"y"]])


def test_postgresql_is_swept(
    postgresql_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of ended keys are deleted, some at a time, and all others stay."""
    monkeypatch.setattr(pg, "_SWEEP_EVERY", 0.0)
    monkeypatch.setattr(pg, "_SWEPT", 5)
    with closing(pg.PostgreSQL(postgresql_store, 5.0)) as store:
        _fill(store)
        _sweep_all(store)
        rows = store._connection.execute(  # noqa: SLF001  (what no client is told)
            "SELECT name FROM redlock_keys WHERE substr(name, 1, 8) = 'redlock:'::bytea"
        ).fetchall()
    names = {name for (name,) in rows}
    assert not {name for name in names if name.startswith(b"redlock:short")}
    assert {b"redlock:long%d" % n for n in range(12)} <= names


@pytest.mark.long
def test_error_of_a_sweep_hides_no_commit_of_postgresql(
    own_postgresql: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock was granted, and then the database does not let the sweep delete."""
    url = f"postgresql://redlock@127.0.0.1:{own_postgresql}/postgres"
    pg.PostgreSQL.prepare(url, 5.0)
    monkeypatch.setattr(pg, "_SWEEP_EVERY", 0.0)
    with closing(pg.PostgreSQL(url, 5.0)) as store:
        _fill(store)
        store._connection.execute("""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN RAISE 'not today'; END $$;
            CREATE TRIGGER refuse BEFORE DELETE ON redlock_keys
            FOR EACH ROW WHEN (OLD.expires_at IS NOT NULL)
            EXECUTE FUNCTION refuse()
        """)  # noqa: SLF001
        store.run([[b"SET", b"redlock:short", b"x", b"PX", b"1"]])
        for _ in range(2):
            assert store.run([[b"SET", b"redlock:lock", b"ours"]]) == [b"OK"]
        assert store.run([[b"GET", b"redlock:lock"]]) == [b"ours"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "error"), [("etcd", StoreError("lost")), ("zookeeper", ConnectionLoss())]
)
def test_error_of_a_sweep_hides_no_commit(
    name: str,
    error: Exception,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lock was granted, and the connection breaks while the sweep asks."""
    url = request.getfixturevalue(f"{name}_store")
    module, make = (etcd, etcd.Etcd) if name == "etcd" else (zookeeper, ZooKeeper)
    monkeypatch.setattr(module, "_SWEEP_EVERY", 0.0)
    with closing(make(url, 5.0)) as store:
        sweeps = []

        def breaks() -> None:
            sweeps.append(store)
            raise error

        monkeypatch.setattr(store, "_sweep", breaks)
        assert store.run([[b"SET", b"sweep:lock", b"ours"]]) == [b"OK"]
        assert store.run([[b"GET", b"sweep:lock"]]) == [b"ours"]
        assert sweeps


@pytest.mark.long
def test_etcd_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended keys behind the first part that a sweep reads are deleted, too."""
    if not shutil.which("etcd"):
        missing("etcd is not installed: on Debian, apt-get install etcd-server")
    monkeypatch.setattr(etcd, "_SWEEP_EVERY", 0.0)
    monkeypatch.setattr(etcd, "_SWEPT", 5)
    monkeypatch.setattr(etcd, "_ENDED_MS", 0)
    cluster = Etcd(members=1)
    try:
        cluster.start()
        with closing(etcd.Etcd(cluster.url, 5.0)) as store:
            _fill(store)
            _sweep_all(store)
            kept = store._begin([etcd._prefix(etcd._CELLS)])  # noqa: SLF001
    finally:
        cluster.remove()
    assert {cell.name for cell in kept} == {b"redlock:long%d" % n for n in range(12)}


@pytest.mark.long
def test_zookeeper_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ended keys of all parts are deleted, with their members."""
    monkeypatch.setattr(zookeeper, "_SWEEP_EVERY", 0.0)
    monkeypatch.setattr(zookeeper, "_ENDED_MS", 0)
    with (
        store_servers("zookeeper") as cluster,
        closing(zookeeper.ZooKeeper(cluster.urls[0], 5.0)) as store,
    ):
        needs = Needs(names={b"redlock:shorthash"})
        keys = store._snapshot(needs, is_newest=False)  # noqa: SLF001  (no command of ours does this)
        keys.hset(b"redlock:shorthash", {b"a": b"1", b"b": b"2"})
        keys.pexpire(b"redlock:shorthash", 1)
        assert store._commit(keys, needs)  # noqa: SLF001
        _fill(store)
        for _ in range(2):
            _sweep_all(store)
        kept = set(store._names(range(zookeeper._SHARDS)))  # noqa: SLF001
    assert {name for name in kept if name.startswith(b"redlock:short")} == set()
    assert {b"redlock:long%d" % n for n in range(12)} <= kept
