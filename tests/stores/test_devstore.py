"""`DevStore`: servers that break on request, forget nothing, and end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from celery_redlock.devnodes import STORES, DevStore
from celery_redlock.devnodes.stores.postgresql import PostgreSQL
from celery_redlock.errors import (
    ConfigurationError,
    LockHeld,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.locks import renewal_schedule as schedule
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.operations.doctor import diagnose
from celery_redlock.testing import freeze
from tests.harness.store_nodes import store_servers
from tests.harness.waiting import until

CLUSTERS = [
    pytest.param(kind, marks=pytest.mark.long)
    for kind in STORES
    if kind != "postgresql"
]
ALL = ["postgresql", *CLUSTERS]
A_TTL = 60.0  # seconds
# Seconds in which another leader is elected.
PATIENT: Any = {"node_timeout": 8.0, "connect_timeout": 8.0}


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[DevStore]:
    """Give a running store of the kind that the test names."""
    with store_servers(request.param) as store:
        yield store


@pytest.mark.parametrize("store", CLUSTERS, indirect=True)
def test_one_url_names_three_members(store: DevStore) -> None:
    """They are processes of their own, and a second start changes nothing."""
    (url,) = store.urls
    assert [f"127.0.0.1:{node.port}" for node in store.nodes] == (
        url.partition("://")[2].split(",")
    )
    pids = {node.pid for node in store.nodes}
    assert len(pids) == 3

    store.start()

    assert {node.pid for node in store.nodes} == pids
    assert store.urls == [url]


@pytest.mark.parametrize("store", CLUSTERS, indirect=True)
def test_doctor_names_the_members_that_do_not_answer(store: DevStore) -> None:
    """One that is frozen accepts connections, and the others grant locks."""
    with closing(Redlock(store.urls, connect_timeout=2.0)) as redlock:
        member = f"127.0.0.1:{store.nodes[1].port}"
        expected = f"Node {redlock.labels[0]} has the member {member}, which "

        def facts() -> list[str]:
            found = diagnose(redlock, span=0.1)
            return [it.fact for it in found if it.code == "unreachable"]

        with freeze(store, 1):  # another member may have to be elected first
            until(lambda: [one.startswith(expected) for one in facts()] == [True])
        until(lambda: not facts())


@pytest.mark.parametrize("store", CLUSTERS, indirect=True)
def test_killed_member_of_a_cluster_comes_back(store: DevStore) -> None:
    """The others decide in the meantime, and it has its port and its data."""
    with closing(Redlock(store.urls, **PATIENT)) as redlock:
        lease = redlock.acquire("kept")
        port = store.nodes[0].port
        store.nodes[0].kill()
        assert not store.nodes[0].is_running
        assert redlock.extend(lease)
        store.nodes[0].restart()
        assert store.nodes[0].port == port
        store.nodes[1].kill()
        assert redlock.extend(lease)


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_store_forgets_nothing_when_all_servers_are_killed(store: DevStore) -> None:
    """It grants no lock until a majority runs again, and then knows the locks."""
    with closing(Redlock(store.urls, **PATIENT)) as redlock:
        redlock.acquire("kept", ttl=60.0)
    for node in store.nodes:
        node.kill()
    for node in store.nodes:
        node.start()
    with (
        closing(Redlock(store.urls, **PATIENT)) as redlock,
        pytest.raises(LockHeld),
    ):
        redlock.acquire("kept")


@pytest.mark.long
@pytest.mark.parametrize("store", ALL, indirect=True)
def test_paused_store_grants_nothing(store: DevStore) -> None:
    """Its connections stay, and after the block it grants locks as before."""
    with closing(Redlock(store.urls, node_timeout=1.0)) as redlock:
        redlock.check()
        with freeze(store), pytest.raises(QuorumUnreachable):
            redlock.acquire("frozen")
        redlock.release(redlock.acquire("later", wait=30.0))


@pytest.mark.long
@pytest.mark.parametrize("store", ALL, indirect=True)
def test_release_of_a_store_that_stalls_is_sent_until_it_answers(
    store: DevStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other call of the process is needed, and the lock does not last its ttl."""
    monkeypatch.setattr(schedule, "_LONGEST_SLEEP", A_TTL)
    with (
        closing(Redlock(store.urls, ttl=A_TTL)) as redlock,
        closing(Redlock(store.urls, **PATIENT)) as others,
    ):
        watchdog = Watchdog(redlock)
        lease = redlock.acquire("k", wait=A_TTL / 2)
        with freeze(store):
            watchdog.start()
            assert redlock.release(lease) == 0
            watchdog.resend_releases()
            transport = redlock.transport
            until(lambda: not transport.has_unanswered, what="a lost connection")

        others.release(others.acquire("k", wait=A_TTL / 2))
        watchdog.stop()


@pytest.mark.long
@pytest.mark.parametrize("kind", ALL)
def test_stopped_store_leaves_nothing_and_can_start_again(kind: str) -> None:
    """The second time, it is a new deployment."""
    store = store_servers(kind)
    for _ in range(2):
        with store, closing(Redlock(store.urls, **PATIENT)) as redlock:
            redlock.acquire("kept")
            processes = [psutil.Process(node.pid) for node in store.nodes]
            store.nodes[-1].pause()
        assert not any(process.is_running() for process in processes)


@pytest.mark.long
@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_store_cannot_restart_empty(store: DevStore) -> None:
    """The error says so, and the server runs on."""
    with pytest.raises(ConfigurationError, match="forgets nothing"):
        store.nodes[0].restart(keep_memory=False)

    assert store.nodes[0].is_running


def test_server_that_does_not_run_cannot_be_paused() -> None:
    """The error names it."""
    store = store_servers("etcd")

    with pytest.raises(RedlockError, match="is not running"):
        store.nodes[0].pause()


def test_unknown_store_is_refused() -> None:
    """The error lists the stores."""
    with pytest.raises(ConfigurationError, match="postgresql, etcd, zookeeper"):
        DevStore("consul")


@pytest.mark.long
def test_postgresql_starts_again_beside_children_of_a_dead_server() -> None:
    """One of them hangs, and keeps the shared memory of the server that was killed."""
    with store_servers("postgresql", initialize=False) as store:
        (node,) = store.nodes
        children = psutil.Process(node.pid).children()
        children[0].suspend()
        node.signal(signal.SIGKILL)
        node.wait()

        node.start()

        assert node.is_running
        assert not psutil.pid_exists(children[0].pid) or (
            children[0].status() == psutil.STATUS_ZOMBIE
        )


@pytest.mark.long
def test_postgresql_needs_no_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often name one that is not installed."""
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")

    with store_servers("postgresql", initialize=False) as store:
        assert store.nodes[0].is_running


def test_postgresql_that_makes_no_database_says_why() -> None:
    """The error has what its program printed, and nothing is left."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # it runs as another user
        program = Path(folder, "initdb")
        program.write_text("#!/bin/sh\necho no room\nexit 3\n")
        program.chmod(0o755)
        server = PostgreSQL(Path(folder))

        with pytest.raises(RedlockError, match=r"(?s)ended with code 3.*no room"):
            server.start()

    server.remove()
