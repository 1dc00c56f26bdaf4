"""ZooKeeper: what comes between a snapshot and its commit; forks; its URL."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.scripts import (
    FREE,
    GRANTED,
    TAKEN,
    UNSYNCED,
)
from celery_redlock.stores import zookeeper
from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.server_clock import ServerClock, ServerTime
from celery_redlock.stores.zookeeper import ZooKeeper
from tests.harness.tcp import proxies
from tests.harness.waiting import until
from tests.nodes.support import run_python
from tests.stores.commands import (
    SLOW_MS,
    TIMEOUT,
    acquire,
    clients,
    extend,
    once_before,
    release,
    script,
    vote,
)

pytestmark = pytest.mark.long


@pytest.fixture
def connect(zookeeper_store: str) -> Iterator[Callable[[], ZooKeeper]]:
    """Give a function that connects to the ensemble."""
    with clients(ZooKeeper, zookeeper_store) as connect:
        yield connect


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "arguments", "reply"),
    [("release", [b"0"], 0), ("request_cancel", [b"me"], [2, b"theirs\n2\n", 60000])],
)
def test_late_commit_spares_the_next_lock_of_that_name(
    connect: Callable[[], ZooKeeper],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    arguments: list[bytes],
    reply: Any,
) -> None:
    """A lock that was released and taken by another holder since is left alone.

    Both locks are znodes of version 0.
    """
    late, others = connect(), connect()
    always = ServerTime(1_000_000_000, 1_000_000_000)
    monkeypatch.setattr(ServerClock, "read", lambda *_: always)
    lock, queue = b"late:%b" % name.encode(), b"late:%b:queue" % name.encode()
    keys = [lock, queue] if name == "release" else [lock]
    others.run([[b"SET", lock, b"ours\n1\n", b"PX", b"60000"]])

    def act() -> None:
        others.run([[b"DEL", lock]])
        others.run([[b"SET", lock, b"theirs\n2\n", b"PX", b"60000"]])

    once_before(monkeypatch, late, "_commit", act)
    assert late.run([script(name, keys, b"ours", *arguments)]) == [reply]
    assert others.run([[b"GET", lock]]) == [b"theirs\n2\n"]


@pytest.mark.long
def test_sweep_spares_the_next_lock_of_that_name(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock is left alone that was taken since the sweep read an ended one."""
    late, others = connect(), connect()
    lock = b"late:swept"
    others.run([[b"SET", lock, b"ended", b"PX", b"1"]])
    until(lambda: late.run([[b"GET", lock]]) == [None], what="its end, by both clocks")
    path = zookeeper._path(lock, b"")  # noqa: SLF001  (which shard it is in)
    shard = int(path.split("/")[3], 16)
    monkeypatch.setattr(zookeeper, "_SWEEP_EVERY", 0.0)
    monkeypatch.setattr(zookeeper, "_ENDED_MS", -60_000)
    monkeypatch.setattr(late, "_sweeps", shard - 1)
    monkeypatch.setattr(zookeeper, "_SWEPT", 10_000)

    def act() -> None:
        monkeypatch.setattr(zookeeper, "_SWEEP_EVERY", 60.0)
        others.run([[b"DEL", lock]])
        others.run([[b"SET", lock, b"theirs"]])

    once_before(monkeypatch, late, "_delete", act)
    late._sweep()  # noqa: SLF001  (as after a commit)
    assert others.run([[b"GET", lock]]) == [b"theirs"]


@pytest.mark.long
def test_batch_reads_a_hash_whole_if_one_of_its_commands_does(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command on a whole hash sees all fields, also beside one on a part of it."""
    late, others = connect(), connect()
    meta = b"late:meta"
    others.run([[b"HSET", meta, b"3", b"100", b"7", b"1"]])
    act = lambda: others.run([[b"HSET", meta, b"7", b"900"]])  # noqa: E731
    once_before(monkeypatch, late, "_commit", act)
    part = script("raise_fence", [b"late:none", meta], b"ours", b"", b"9", b"3")
    seen = late.run([[b"HGETALL", meta], part, [b"HSET", meta, b"8", b"1"]])[0]
    assert dict(zip(seen[::2], seen[1::2], strict=True))[b"7"] == b"900"


MEMBERS: dict[str, tuple[list[bytes], int, bytes]] = {
    "comes": ([b"ZADD", b"inside:comes", b"1", b"new"], 2, b"1"),
    "changes": ([b"ZADD", b"inside:changes", b"7", b"old"], 1, b"7"),
    "goes": (
        script("leave_backlog", [b"inside:goes", b"inside:back"], b"other", b"0"),
        1,
        b"1",
    ),
}


@pytest.mark.parametrize("change", MEMBERS)
def test_commit_notices_a_changed_member_of_a_sorted_set(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The version of the head stands for all members."""
    late, others = connect(), connect()
    name = b"inside:%b" % change.encode()
    others.run([[b"ZADD", name, b"1", b"old"]])
    if change == "goes":
        others.run([[b"ZADD", name, b"1", b"other"]])
    command, count, score = MEMBERS[change]
    once_before(monkeypatch, late, "_commit", lambda: others.run([command]))
    read = [[b"ZCARD", name], [b"ZSCORE", name, b"old"]]
    replies = late.run([*read, [b"ZADD", name, b"9", b"ours"]])
    assert replies == [count, score, 1]


def test_commit_notices_a_new_counter_of_a_hash(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter that was not there when the hash was read has no version to check."""
    late, others = connect(), connect()
    meta = b"inside:meta"
    others.run([[b"HSET", meta, b"floor", b"1"]])
    act = lambda: others.run([[b"HSET", meta, b"3", b"900"]])  # noqa: E731
    once_before(monkeypatch, late, "_commit", act)
    replies = late.run([[b"HGETALL", meta], [b"HSET", meta, b"floor", b"2"]])
    assert replies == [[b"floor", b"1", b"3", b"900"], 0]


@pytest.mark.long
def test_first_field_of_a_hash_that_is_read_in_part(
    connect: Callable[[], ZooKeeper],
) -> None:
    """A script that reads fields of a hash may be the one that makes it."""
    store = connect()
    lock, meta = b"first:lock", b"first:meta"
    store.run([[b"SET", lock, b"ours\n1\n", b"PX", b"60000"]])
    raised = script("raise_fence", [lock, meta], b"ours", b"me", b"9", b"3")
    assert store.run([raised]) == [[1, 9]]
    assert store.run([[b"HGET", meta, b"3"]]) == [b"9"]


# -- what a session remembers ----------------------------------------------------------


def requests_of(
    monkeypatch: pytest.MonkeyPatch, store: ZooKeeper, act: Callable[[], Any]
) -> list[str]:
    """Return the types of the requests that this sends to the ensemble."""
    sent: list[str] = []
    client = store._client  # noqa: SLF001  (what goes over the wire is the point)
    call = client._call  # noqa: SLF001

    def counted(request: Any, reply: Any) -> Any:
        sent.append(type(request).__name__)
        return call(request, reply)

    monkeypatch.setattr(client, "_call", counted)
    act()
    monkeypatch.setattr(client, "_call", call)
    return sent


def test_holder_extends_and_releases_in_one_request(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session wrote the lock itself, and the transaction checks it."""
    store = connect()
    meta, lock = b"known:meta", b"known"
    vote(store, meta)
    replies: list[Any] = []

    def act() -> None:
        for command in (
            acquire(lock, meta, b"ours", b"3"),
            extend(lock, meta, b"ours"),
            extend(lock, meta, b"ours"),
            release(lock, b"ours"),
        ):
            replies.extend(store.run([command]))

    sent = requests_of(monkeypatch, store, act)
    assert replies == [[GRANTED, 8], [GRANTED, 0], [GRANTED, 0], 1]
    assert sent == ["Sync", *["GetData"] * 3, *["Transaction"] * 4]
    assert store.run([[b"GET", lock]]) == [None]


def test_session_reads_no_counter_that_no_other_one_raises(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing else to take a free lock, and in the end not even that."""
    store, others = connect(), connect()
    meta, lock = b"again:meta", b"again"
    vote(others, meta)
    store.run([[b"SET", b"again:other", b"x"]])  # which tells the time
    replies: list[Any] = []

    def act() -> None:
        replies.extend(store.run([acquire(lock, meta, b"ours", b"3")]))
        replies.extend(store.run([release(lock, b"ours")]))

    counter = zookeeper._STEADY - 1  # noqa: SLF001  (times)
    for reads in (["Sync", *["GetData"] * 3], *[["GetData"]] * counter, [], []):
        sent = requests_of(monkeypatch, store, act)
        assert sent == [*reads, "Transaction", "Transaction"]
    assert replies == [n for f in range(8, 11 + counter) for n in ([GRANTED, f], 1)]


@pytest.mark.parametrize("taken", [True, False])
def test_lock_that_others_take_meanwhile_is_read(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    """A session does not try again without a read what has failed once."""
    store, others = connect(), connect()
    name = b"meanwhile:%d" % taken
    meta, theirs = name + b":meta", name if taken else name + b":theirs"
    vote(store, meta)
    make_steady(store, name, meta)
    others.run([acquire(theirs, meta, b"theirs", b"3")])
    replies: list[Any] = []
    act = lambda: replies.extend(store.run([acquire(name, meta, b"ours", b"3")]))  # noqa: E731
    # What is read after a write that was refused is the newest, without a sync.
    newest, read = ["GetData"] * 3, ["Sync", *["GetData"] * 3]
    granted = [] if taken else ["Transaction"]
    sent = requests_of(monkeypatch, store, act)
    assert sent == ["Transaction", *newest, *granted]
    if not taken:
        assert replies == [[GRANTED, 13]]
        return
    assert requests_of(monkeypatch, store, act) == [*read, "SetData", *read[1:]]
    assert [one[:2] for one in replies] == [[TAKEN, b"theirs\n12\nme"]] * 2
    others.run([release(name, b"theirs")])
    assert requests_of(monkeypatch, store, act) == [*read, "Transaction"]
    assert replies[2] == [GRANTED, 13]


def test_session_reads_a_counter_that_it_shares_with_others(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that fails is a write: after the first one it assumes nothing of it."""
    store, others = connect(), connect()
    meta, lock = b"shares:meta", b"shares"
    vote(store, meta)
    ours = acquire(lock, meta, b"ours", b"3")
    act = lambda: store.run([ours])  # noqa: E731
    first: list[str] = []
    make_steady(store, lock, meta)
    for _ in range(4):
        others.run([acquire(b"shares:theirs", meta, b"theirs", b"3")])
        others.run([release(b"shares:theirs", b"theirs")])
        first.append(requests_of(monkeypatch, store, act)[0])
        store.run([release(lock, b"ours")])
    assert first == ["Transaction", "GetData", "GetData", "GetData"]


@pytest.mark.parametrize("stripe", [b"3", b"4"])
def test_counter_that_was_made_anew_with_its_version_is_not_the_old_one(
    connect: Callable[[], ZooKeeper], stripe: bytes
) -> None:
    """The node was reset. A refused client has read that, and has written nothing.

    It need not have read this counter.
    """
    store, others = connect(), connect()
    meta = b"reset:meta:%b" % stripe
    vote(store, meta)
    make_steady(store, b"reset", meta)
    others.run([acquire(b"reset:theirs", meta, b"theirs", b"4")])
    store.run([acquire(b"reset:theirs", meta, b"ours", b"4")])  # now it reads this key
    make_anew(others, meta)
    store.run([acquire(b"reset:theirs", meta, b"ours", stripe)])
    assert store.run([acquire(b"reset", meta, b"ours", b"3")]) == [[GRANTED, 901]]


def test_counter_that_is_made_anew_after_it_was_read_is_read_again(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one has the version of the one that was read. Its head was not read."""
    store, others = connect(), connect()
    lock, meta = b"remade", b"remade:meta"
    vote(others, meta)
    store.run([acquire(lock, meta, b"ours", b"3")])
    store.run([release(lock, b"ours")])
    once_before(monkeypatch, store, "_commit", lambda: make_anew(others, meta))
    replies: list[Any] = []
    act = lambda: replies.extend(store.run([acquire(lock, meta, b"ours", b"3")]))  # noqa: E731
    assert requests_of(monkeypatch, store, act)[:2] == ["GetData", "Transaction"]
    assert replies == [[GRANTED, 901]]


def test_counter_of_a_server_that_is_behind_is_read_again(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fence is granted twice."""
    behind, others = connect(), connect()
    lock, meta = b"lags", b"lags:meta"
    vote(others, meta)
    behind.run([acquire(lock, meta, b"ours", b"3")])
    behind.run([release(lock, b"ours")])
    client = behind._client  # noqa: SLF001  (to answer as a server that is behind)
    read, early = client.get_async, {}
    early[path_of_counter(meta)] = read(path_of_counter(meta))
    until(lambda: all(one.ready() for one in early.values()))
    others.run([acquire(b"lags:theirs", meta, b"theirs", b"3")])
    monkeypatch.setattr(
        client, "get_async", lambda path: early.pop(path, None) or read(path)
    )
    assert behind.run([acquire(lock, meta, b"ours", b"3")]) == [[GRANTED, 10]]
    assert not early


@pytest.mark.parametrize("when", ["_read", "_snapshot"])
def test_break_between_a_read_and_its_commit_is_noticed(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The session reads again what the new server has, behind a write of its own.

    The lock is held. The first write was refused before the break, and tells nothing of
    a server that was restored from a backup.
    """
    store, others = connect(), connect()
    lock = b"breaks:%b" % when.encode()
    meta = lock + b":meta"
    vote(others, meta)
    others.run([acquire(lock, meta, b"theirs", b"3")])
    store.run([acquire(b"breaks:known", meta, b"ours", b"3")])

    def break_it() -> None:
        breaks = store._breaks  # noqa: SLF001
        store._client._connection._socket.shutdown(socket.SHUT_RDWR)  # noqa: SLF001
        until(lambda: store._breaks > breaks and store._client.connected)  # noqa: SLF001

    once_before(monkeypatch, store, when, break_it)
    replies: list[Any] = []
    act = lambda: replies.extend(store.run([acquire(lock, meta, b"ours", b"3")]))  # noqa: E731
    sent = requests_of(monkeypatch, store, act)
    replid = "GetData"
    if when == "_read":
        assert sent[:3] == ["GetData", replid, "Sync"]
    else:
        assert sent[:4] == ["GetData", "Transaction", replid, "SetData"]
    assert [one[:2] for one in replies] == [[TAKEN, b"theirs\n8\nme"]]


def test_counter_of_another_memory_is_read_after_a_break(
    connect: Callable[[], ZooKeeper],
) -> None:
    """A backup may have the same versions, with other data."""
    store, others = connect(), connect()
    meta = b"backup:meta"
    vote(store, meta)
    make_steady(store, b"backup", meta)
    path = path_of_counter(meta)
    client: Any = others._client  # noqa: SLF001  (as a backup has it)
    data, stat = client.get(path)
    client.delete(path)
    client.create(path, data.replace(b"11", b"900"))
    for _ in range(stat.version):
        client.set(path, data.replace(b"11", b"900"))
    store._client._connection._socket.shutdown(socket.SHUT_RDWR)  # noqa: SLF001
    until(lambda: store._breaks and store._client.connected)  # noqa: SLF001
    store.run([acquire(b"backup:first", meta, b"ours", b"4")])
    assert store.run([acquire(b"backup", meta, b"ours", b"3")]) == [[GRANTED, 901]]


def make_steady(store: ZooKeeper, lock: bytes, meta: bytes) -> None:
    """Have a session raise the counter 3, from 7 to 11, until it does not read it."""
    assert zookeeper._STEADY == 4  # noqa: SLF001  (times)
    for _ in range(4):
        store.run([acquire(lock, meta, b"ours", b"3")])
        store.run([release(lock, b"ours")])


def make_anew(store: ZooKeeper, meta: bytes) -> None:
    """Make the node's hash anew, with 900 in the counter 3, and its old version."""
    version = raised(store, meta)
    store.run([[b"DEL", meta]])
    vote(store, meta)
    for _ in range(version):
        store.run([[b"HSET", meta, b"3", b"900"]])
    assert raised(store, meta) == version


def raised(store: ZooKeeper, meta: bytes) -> int:
    """Return how often the counter 3 was changed since it was made."""
    version: int = store._client.get(path_of_counter(meta))[1].version  # noqa: SLF001
    return version


def path_of_counter(meta: bytes) -> str:
    """Return the path of the counter 3."""
    return zookeeper._path(meta, b".3")  # noqa: SLF001


def test_batch_is_read_if_one_of_its_scripts_asks_for_more(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder of a lock that has ended is told whether an operator released it."""
    holder = connect()
    meta, ended, lock = b"more:meta", b"more:ended", b"more:lock"
    vote(holder, meta)
    now_us = 1_000_000_000
    monkeypatch.setattr(ServerClock, "read", lambda *_: ServerTime(now_us, now_us))
    assert holder.run([acquire(ended, meta, b"ours", b"3")]) == [[GRANTED, 8]]
    now_us += 61_000_000
    assert holder.run([acquire(lock, meta, b"ours", b"3")]) == [[GRANTED, 9]]
    replies: list[Any] = []

    def act() -> None:
        both = [extend(one, meta, b"ours") for one in (lock, ended)]
        replies.extend(holder.run(both))

    assert requests_of(monkeypatch, holder, act)[0] == "Sync"
    assert replies == [[GRANTED, 0], [FREE]]


def test_session_remembers_nothing_across_a_break(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ensemble may have been restored from a backup meanwhile."""
    store = connect()
    meta, lock = b"break:meta", b"break"
    vote(store, meta)
    store.run([acquire(lock, meta, b"ours", b"3")])
    store._client._connection._socket.shutdown(socket.SHUT_RDWR)  # noqa: SLF001
    until(lambda: store._breaks)  # noqa: SLF001
    until(lambda: store._client.connected)  # noqa: SLF001
    act = lambda: store.run([release(lock, b"ours")])  # noqa: E731
    sent = requests_of(monkeypatch, store, act)
    replid, time = "GetData", "SetData"
    assert sent == [replid, "Sync", "GetData", "GetData", time, "Transaction"]


def test_session_reads_the_replid_again_after_a_break(
    connect: Callable[[], ZooKeeper],
) -> None:
    """It may be connected to an ensemble that was made anew, and has forgotten."""
    store, other = connect(), connect()
    meta = b"anew:meta"
    vote(store, meta)
    replid = other._client.get(zookeeper._ID)[0]  # noqa: SLF001
    other._client.set(zookeeper._ID, b"made-anew")  # noqa: SLF001
    try:
        assert store.run([acquire(b"anew:1", meta, b"a", b"3")])[0][0] == GRANTED
        store._client._connection._socket.shutdown(socket.SHUT_RDWR)  # noqa: SLF001
        until(lambda: store._breaks and store._client.connected)  # noqa: SLF001
        reply = store.run([acquire(b"anew:2", meta, b"b", b"3")])[0]
    finally:
        other._client.set(zookeeper._ID, replid)  # noqa: SLF001
    assert reply[0] == UNSYNCED


def test_session_remembers_a_limited_number_of_keys(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys that it wrote last."""
    monkeypatch.setattr(zookeeper, "_REMEMBERED", 3)
    store = connect()
    meta = b"many:meta"
    vote(store, meta)
    for number in range(5):
        store.run([acquire(b"many:%d" % number, meta, b"ours", b"3")])
    kept = [meta, b"many:3", b"many:4"]
    assert list(store._memory) == kept  # noqa: SLF001  (no reply depends on it)


@pytest.mark.long
def test_child_has_its_own_session(zookeeper_store: str) -> None:
    """A forked child locks by itself, and its end leaves the parent's session alone."""
    program = """
import os, sys
from celery_redlock.locks.redlock import Redlock
redlock = Redlock(sys.argv[1:], node_timeout=8.0, connect_timeout=8.0)
lease = redlock.acquire("of the parent")
pid = os.fork()
if not pid:
    assert redlock.release(redlock.acquire("of the child"))
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert redlock.extend(lease)
assert redlock.release(lease) == 1
print("done")
redlock.close()
"""
    assert run_python(program, zookeeper_store) == ["done"]


def test_reads_behind_a_broken_connection_are_done_again(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that answers them was not asked to catch up, and may be behind."""
    store = connect()
    store.run([[b"SET", b"broken", b"kept"]])
    client = store._client  # noqa: SLF001  (to break its connection)
    sync, asked = client.sync_async, list[str]()

    def sync_and_break(path: str) -> Any:
        asked.append(path)
        reply = sync(path)
        if len(asked) == 1:
            client._connection._socket.shutdown(socket.SHUT_RDWR)  # noqa: SLF001
            until(lambda: store._breaks)  # noqa: SLF001  (kazoo connects again at once)
        return reply

    monkeypatch.setattr(client, "sync_async", sync_and_break)
    assert store.run([[b"GET", b"broken"]]) == [b"kept"]
    assert len(asked) == 2


@pytest.mark.parametrize("is_held", [True, False])
def test_server_that_is_behind_refuses_nothing(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch, *, is_held: bool
) -> None:
    """A refusal rests on no reply of a server that is behind.

    A leader tells its followers to commit before it does, and obeys no ``sync``. So a
    client of the leader may read what was so before: here, the first time it asks.
    """
    behind, others = connect(), connect()
    lock, meta = b"behind:%d" % is_held, b"behind:meta"
    vote(others, meta)
    take, give = acquire(lock, meta, b"theirs", b"3"), release(lock, b"theirs")
    client = behind._client  # noqa: SLF001  (to answer as a server that is behind)
    read, early = client.get_async, dict[str, Any]()
    if is_held:
        others.run([take])
    monkeypatch.setattr(
        client, "get_async", lambda path: early.setdefault(path, read(path))
    )
    ours = acquire(lock, meta, b"ours", b"4") if is_held else give
    behind.run([ours])
    others.run([give if is_held else take])
    monkeypatch.setattr(
        client, "get_async", lambda path: early.pop(path, None) or read(path)
    )
    assert behind.run([ours]) == ([[GRANTED, 8]] if is_held else [1])
    assert not early


def test_server_that_hangs_costs_a_process_one_wait(
    zookeeper_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts a connection. The same session, and each later one, has another."""
    works = zookeeper_store.rpartition(",")[2]
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        url = f"zookeeper://127.0.0.1:{hangs.getsockname()[1]},{works}"
        monkeypatch.setitem(zookeeper._FIRST, ZooKeeper.name_of(url), 0)  # noqa: SLF001
        for _ in range(5):
            ZooKeeper(url, TIMEOUT).close()
        hangs.settimeout(0)
        hangs.accept()[0].close()
        with pytest.raises(BlockingIOError):
            hangs.accept()


def test_listener_ends_while_no_server_answers(zookeeper_store: str) -> None:
    """The servers may be gone for ever, after a move to another store."""
    server: Any = SimpleNamespace(port=int(zookeeper_store.rpartition(":")[2]))
    ours, theirs = socket.socketpair()
    with proxies([server]) as (proxy,), ours, theirs:
        url = proxy.url.replace("redis://", "zookeeper://").removesuffix("/0")
        with closing(ZooKeeper(url, 2.0)) as store:
            messages = store.listen(b"gone", ours)
            assert next(messages) == b""
            proxy.cut()
            until(lambda: store._breaks)  # noqa: SLF001
            theirs.close()

            def listen() -> None:
                with suppress(StoreError):
                    list(messages)

            listening = threading.Thread(target=listen, daemon=True)
            listening.start()
            until(lambda: not listening.is_alive())


def test_prepare_keeps_the_replid(
    connect: Callable[[], ZooKeeper], zookeeper_store: str
) -> None:
    """Another one would be an ensemble that has forgotten all locks."""
    before = connect().run([[b"INFO"]])

    ZooKeeper.prepare(zookeeper_store, TIMEOUT)

    assert connect().run([[b"INFO"]]) == before


def set_ahead(store: ZooKeeper, seconds: float) -> None:
    """Let a client have read the time before the leader's clock was set."""
    store.run([[b"GET", b"ahead"]])
    now = SYSTEM_CLOCK.monotonic()
    ahead = store._clock.read(now).latest_us / 1e6 + seconds  # noqa: SLF001
    store._clock.observe(now, now, ahead, ahead)  # noqa: SLF001


def test_end_that_rests_on_an_old_time_is_written_again(
    connect: Callable[[], ZooKeeper],
) -> None:
    """Each commit tells the time. With an older one, an end would be too early.

    So it may be after a virtual machine was paused, or when another server leads. A
    reply that takes long tells the time less exactly, and the lock may end late.
    """
    late, others = connect(), connect()
    lock, meta = b"old:lock", b"old:meta"
    vote(others, meta)
    set_ahead(late, -90.0)
    ((status, _),) = late.run([acquire(lock, meta, b"ours", b"3")])
    assert status == GRANTED
    (left,) = others.run([[b"PTTL", lock]])
    assert abs(left - 60_000) < SLOW_MS


def test_lock_is_not_taken_by_a_time_before_the_clock_was_set_back(
    connect: Callable[[], ZooKeeper],
) -> None:
    """A client that finds an ended lock asks for the time before it takes the lock."""
    holder, late = connect(), connect()
    lock, meta = b"back:lock", b"back:meta"
    vote(holder, meta)
    set_ahead(late, 90.0)
    assert holder.run([acquire(lock, meta, b"ours", b"3")]) == [[GRANTED, 8]]
    ((status, *_),) = late.run([acquire(lock, meta, b"theirs", b"3")])
    assert status == TAKEN
    assert holder.run([release(lock, b"ours")]) == [1]


def test_sweep_asks_for_the_time_before_it_deletes(
    connect: Callable[[], ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that a client takes for ended, by an old time, is left alone."""
    holder, late = connect(), connect()
    lock = b"back:swept"
    holder.run([[b"SET", lock, b"ours", b"PX", b"60000"]])
    monkeypatch.setattr(zookeeper, "_SWEEP_EVERY", 0.0)
    monkeypatch.setattr(zookeeper, "_SWEPT", 10_000)
    for _ in range(zookeeper._SHARDS):  # noqa: SLF001
        set_ahead(late, 600.0)
        late._sweep()  # noqa: SLF001  (as after a commit)
    assert holder.run([[b"GET", lock]]) == [b"ours"]
