"""Locks in PostgreSQL, etcd and ZooKeeper, beside what their drivers offer.

Each store is measured on servers of its own: one PostgreSQL, with and without fsync,
and three members of etcd and of ZooKeeper. All data is on the disk of the machine.

========== ============================== ============================================
store      lock of its driver             two writes
========== ============================== ============================================
PostgreSQL ``pg_try_advisory_lock`` and   two UPDATEs of a row, each in a transaction of
           ``pg_advisory_unlock``         its own
etcd       ``Lock`` of etcd3gw            a put and a delete of a key
ZooKeeper  ``Lock`` of kazoo              a create and a delete of a node
========== ============================== ============================================

*Two writes* are the least that a lock costs which a crash does not forget. The advisory
lock is in memory only: it ends with its connection. A task that does them in its body
is the most that a task with a lock can reach.

Each fence counter was raised before tasks are measured, as in a store that has run for
an hour. The first lock of a counter costs more, once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.groups import leases, tasks
from benchmarks.runner import PATIENT, Contender, interleave, median_cost, ratio
from benchmarks.workers import workers
from celery_redlock.devnodes import DevNodes, DevStore
from celery_redlock.errors import LockHeld, RedlockError
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts.keys import STRIPES, stripe_of
from celery_redlock.stores.connection import store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

US, PEER, WRITES = "celery-redlock", "the driver's lock", "two writes"
TTL = 30  # seconds
_HOLD = 60.0  # seconds; longer than all refusals of a store take
_LONG = 3600  # seconds; longer than a store is measured
_NAME = "benchmark"
_NUMBER = 1_234_567  # of the advisory lock
_ENOUGH = 20 * STRIPES  # keys: some for each counter
_AT_ONCE = 64  # keys of one lock


def measure(*, quick: bool) -> dict[str, Any]:
    """Return a row for each store, and why the others have none."""
    rows, missing = [], {}
    for name in _STORES:
        row = _row(name, quick=quick)
        if isinstance(row, str):
            missing[name] = row
        else:
            rows.append(row)
    return {"rows": rows, "missing": missing}


def _row(name: str, *, quick: bool) -> dict[str, Any] | str:
    """Return the figures of a store, or the reason why it cannot be measured."""
    kind, is_durable, connect = _STORES[name]
    try:
        with ExitStack() as stack:
            servers = stack.enter_context(DevStore(kind, durable=is_durable))
            (url,) = servers.urls
            peer = stack.enter_context(connect(url))
            row = {"name": name, **_measured(url, peer, quick=quick)}
            if is_durable:
                row["tasks"] = _tasks(url, quick=quick)
            return row
    except (ImportError, OSError, RedlockError) as error:
        return str(error).splitlines()[0][:200]


@dataclass(frozen=True, slots=True)
class _Peer:
    """The lock of a driver, and the least that two changes cost with it.

    Attributes:
        name: The name of its lock.
        take: Takes the lock.
        release: Releases it.
        refused: Fails to take a lock that another client has had before.
        write: Makes two changes, each durable by itself.
    """

    name: str
    take: Callable[[], object]
    release: Callable[[], object]
    refused: Callable[[], object]
    write: Callable[[], object]


# -- What is measured ------------------------------------------------------------------


def _measured(url: str, peer: _Peer, *, quick: bool) -> dict[str, Any]:
    rounds, count, size = (2, 10, 30) if quick else (15, 30, 1_000)
    store: Any = store_of(url)(url, PATIENT)
    server = store.info["store"]
    store.close()
    with closing(Redlock([url], node_timeout=PATIENT)) as redlock:
        redlock.check()
        cycles = interleave(
            [
                Contender(US, 1, _repeated(lambda: _cycle(redlock)), count),
                Contender(PEER, 1, _repeated(peer.take, peer.release), count),
                Contender(WRITES, 1, _repeated(peer.write), count),
            ],
            rounds=rounds,
        )
        redlock.acquire("refused", ttl=_HOLD)
        refusals = interleave(
            [
                Contender(US, 1, _repeated(lambda: _refused(redlock)), count),
                Contender(PEER, 1, _repeated(peer.refused), count),
            ],
            rounds=rounds,
        )
    return {
        "server": server,
        "servers": len(urlsplit(url).netloc.split(",")),
        "peer": peer.name,
        "cycle_us": {name: median_cost(c).wall for name, c in cycles.items()},
        "cycle_cpu_us": {name: median_cost(c).cpu for name, c in cycles.items()},
        "to_peer": ratio(cycles[US], cycles[PEER]),
        "to_writes": ratio(cycles[US], cycles[WRITES]),
        "refusal_us": {name: median_cost(c).wall for name, c in refusals.items()},
        "refusal_to_peer": ratio(refusals[US], refusals[PEER]),
        "leases": leases.hold([url], [], size),
    }


def _repeated(*steps: Callable[[], object]) -> Callable[[int], None]:
    def run(cycles: int) -> None:
        for _ in range(cycles):
            for step in steps:
                step()

    return run


def _cycle(redlock: Redlock) -> None:
    redlock.release(redlock.acquire(_NAME, TTL))


def _refused(redlock: Redlock) -> None:
    try:
        redlock.acquire("refused", TTL)
    except LockHeld:
        return
    raise SystemExit("The lock ended before all refusals were measured.")


def _tasks(url: str, *, quick: bool) -> dict[str, float]:
    """Return how many tasks with a lock run, beside those of plain Celery."""
    rounds, count = (1, 20) if quick else (7, 100)
    if not quick:
        _raise_counters(url)
    with DevNodes(1, initialize=False) as broker:
        os.environ["BENCHMARK_SERVERS"] = f"{broker.urls[0]} {url}"
        module = "benchmarks.groups.stores_app"
        sys.modules.pop(module, None)  # it reads the line above, for each store
        project = importlib.import_module(module)
        with workers(project, concurrency=tasks.PROCESSES):
            costs = interleave(
                [
                    tasks.contender(name, task, count)
                    for name, task in project.TASKS.items()
                ],
                rounds=rounds,
            )
        project.app.close()
    plain, ours, writes = costs["plain Celery"], costs[US], costs[WRITES]
    return {
        "plain_per_second": 1e6 / median_cost(plain).wall,
        "per_second": 1e6 / median_cost(ours).wall,
        "to_plain": ratio(plain, ours),
        "writes_to_plain": ratio(plain, writes),
    }


def _raise_counters(url: str) -> None:
    """Take a lock of each fence counter, many at once."""
    keys = {stripe_of(key): key for key in map(str, range(_ENOUGH))}
    names = list(keys.values())
    with closing(Redlock([url], node_timeout=PATIENT)) as redlock:
        for start in range(0, len(names), _AT_ONCE):
            redlock.release(redlock.acquire(names[start : start + _AT_ONCE]))


# -- The drivers -----------------------------------------------------------------------


@contextlib.contextmanager
def _psycopg(url: str) -> Iterator[_Peer]:
    import psycopg  # noqa: PLC0415  (may be absent)

    take = "SELECT pg_try_advisory_lock(%s)"
    with (
        psycopg.connect(url, autocommit=True) as connection,
        psycopg.connect(url, autocommit=True) as other,
    ):
        held = (_NUMBER + 1,)
        other.execute(take, held)
        connection.execute(
            "CREATE TABLE benchmark (name text PRIMARY KEY, value text, ends bigint)"
        )
        yield _Peer(
            "advisory lock, psycopg",
            lambda: connection.execute(take, (_NUMBER,)).fetchone(),
            lambda: connection.execute(
                "SELECT pg_advisory_unlock(%s)", (_NUMBER,)
            ).fetchone(),
            lambda: connection.execute(take, held).fetchone(),
            _updates(connection, _NAME),
        )


@contextlib.contextmanager
def _etcd3gw(url: str) -> Iterator[_Peer]:
    from etcd3gw.client import Etcd3Client  # noqa: PLC0415  (may be absent)

    host, _, port = urlsplit(url).netloc.partition(",")[0].partition(":")
    client, other = (Etcd3Client(host, int(port), api_path="/v3/") for _ in range(2))
    other.lock("refused", ttl=_LONG).acquire()
    taken = []

    def take() -> None:
        lock = client.lock(_NAME, ttl=TTL)
        lock.acquire()
        taken.append(lock)

    yield _Peer(
        "etcd3gw Lock",
        take,
        lambda: taken.pop().release(),
        lambda: client.lock("refused", ttl=TTL).acquire(),
        _puts(client, "two writes"),
    )
    for one in (client, other):
        one.session.close()


@contextlib.contextmanager
def _kazoo(url: str) -> Iterator[_Peer]:
    from kazoo.client import KazooClient  # noqa: PLC0415  (may be absent)

    with ExitStack() as stack:
        clients = [KazooClient(urlsplit(url).netloc) for _ in range(2)]
        for one in clients:
            one.start()
            stack.callback(one.close)
            stack.callback(one.stop)
        client, other = clients
        other.Lock("/benchmark/refused").acquire()
        lock = client.Lock(f"/benchmark/{_NAME}")
        refused = client.Lock("/benchmark/refused")
        yield _Peer(
            "kazoo Lock",
            lambda: lock.acquire(blocking=False),
            lock.release,
            lambda: refused.acquire(blocking=False),
            _creates(client, "two writes"),
        )


def _updates(connection: Any, name: str) -> Callable[[], None]:
    connection.execute("INSERT INTO benchmark VALUES (%s, 'token', 1)", (name,))

    def write() -> None:
        for value in ("another token", "token"):
            connection.execute(
                "UPDATE benchmark SET value = %s, ends = ends + 1 WHERE name = %s",
                (value, name),
            )

    return write


def _puts(client: Any, name: str) -> Callable[[], None]:
    def write() -> None:
        client.put(name, "token")
        client.delete(name)

    return write


def _creates(client: Any, name: str) -> Callable[[], None]:
    def write() -> None:
        client.create(f"/benchmark/{name}", b"token")
        client.delete(f"/benchmark/{name}")

    return write


def writer(url: str, name: str) -> Callable[[], None]:
    """Connect a process to a store that is measured; return what does two writes.

    Args:
        url: Of the store.
        name: Of what it writes, which no other process does.
    """
    parts = urlsplit(url)
    if parts.scheme == "postgresql":
        import psycopg  # noqa: PLC0415  (may be absent)

        return _updates(psycopg.connect(url, autocommit=True), name)
    if parts.scheme == "etcd":
        from etcd3gw.client import Etcd3Client  # noqa: PLC0415  (may be absent)

        host, _, port = parts.netloc.partition(",")[0].partition(":")
        return _puts(Etcd3Client(host, int(port), api_path="/v3/"), name)
    from kazoo.client import KazooClient  # noqa: PLC0415  (may be absent)

    client = KazooClient(parts.netloc)
    client.start()
    return _creates(client, name)


# Name -> the store, whether a commit waits for the disk, and the lock of its driver.
# Tasks are only measured with one that waits.
_STORES: dict[str, tuple[str, bool, Callable[[str], Any]]] = {
    "PostgreSQL, fsync on": ("postgresql", True, _psycopg),
    "PostgreSQL, fsync off": ("postgresql", False, _psycopg),
    "etcd": ("etcd", True, _etcd3gw),
    "ZooKeeper": ("zookeeper", True, _kazoo),
}
