"""etcd: one transaction without competition; what others have changed; its HTTP."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from celery_redlock import Redlock
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.devnodes import StoreNode
from celery_redlock.operations.doctor import Finding, diagnose
from celery_redlock.scripts import (
    GRANTED,
    TAKEN,
    UNSYNCED,
)
from celery_redlock.stores import etcd
from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.etcd import Etcd
from celery_redlock.stores.etcd_member import EtcdMember, MemberError
from tests.harness.store_nodes import store_servers
from tests.harness.tcp import proxies
from tests.harness.waiting import until
from tests.nodes.support import run_python
from tests.stores.commands import (
    NOW_US,
    SLOW_MS,
    TIMEOUT,
    acquire_now,
    clients,
    extend,
    once_before,
    release,
    vote,
)

pytestmark = pytest.mark.long


@pytest.fixture
def connect(etcd_store: str) -> Iterator[Callable[[], Etcd]]:
    """Give a function that connects to the cluster."""
    with clients(Etcd, etcd_store) as connect:
        yield connect


def test_deletion_of_a_deployment_leaves_others_alone(
    connect: Callable[[], Etcd],
) -> None:
    """The command for operators names the keys of one prefix."""
    store = connect()
    for prefix in ("left", "leftover"):
        store.run([[b"SET", f"{prefix}:lock:k".encode(), b"token"]])
    *command, head = Etcd.emptied("left").split()
    assert command == ["etcdctl", "del", "--prefix"]

    store._call("/kv/deleterange", etcd._prefix(head.encode()))  # noqa: SLF001

    asked = [[b"SCAN", b"0", b"MATCH", b"left*", b"COUNT", b"100"]]
    ((_, names),) = connect().run(asked)
    assert names == [b"leftover:lock:k"]


def requests_of(
    monkeypatch: pytest.MonkeyPatch, store: Etcd, act: Callable[[], Any]
) -> list[str]:
    """Return what this asks for: a read, or a change and whether it was done."""
    sent: list[str] = []
    ask = store._ask  # noqa: SLF001  (what goes over the wire is the point)

    def noted(path: str, body: Any, **options: Any) -> Any:
        reply = ask(path, body, **options)
        is_read = path == "/kv/txn" and "compare" not in body
        sent.append(
            "read" if is_read else "done" if reply.get("succeeded") else "refused"
        )
        return reply

    with monkeypatch.context() as patched:
        patched.setattr(store, "_ask", noted)
        act()
    return sent


def ready(store: Etcd, name: bytes) -> bytes:
    """Return a ``meta`` that votes, and whose counter 3 was used by this client."""
    meta = name + b":meta"
    vote(store, meta)
    assert store.run([acquire_now(name + b":first", meta, b"t", b"3")])[0][0] == GRANTED
    return meta


# -- one transaction -------------------------------------------------------------------


def test_lock_that_no_other_client_wants_takes_one_transaction_each_way(
    connect: Callable[[], Etcd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has read the state of the node once reads nothing more of it."""
    store = connect()
    meta, lock = ready(store, b"alone"), b"alone"
    replies: list[Any] = []

    def act() -> None:
        for command in (
            acquire_now(lock, meta, b"ours", b"3"),
            extend(lock, meta, b"ours"),
            extend(lock, meta, b"ours"),
            release(lock, b"ours"),
            acquire_now(lock, meta, b"again", b"3"),
            release(lock, b"again"),
        ):
            replies.extend(store.run([command]))

    assert requests_of(monkeypatch, store, act) == ["done"] * 6
    statuses = [one[0] if isinstance(one, list) else one for one in replies]
    assert statuses == [GRANTED, GRANTED, GRANTED, 1, GRANTED, 1]
    assert replies[4][1] > replies[0][1]
    assert store.run([[b"GET", lock]]) == [None]


def test_counter_that_others_raised_costs_no_second_transaction(
    connect: Callable[[], Etcd],
    monkeypatch: pytest.MonkeyPatch,
    set_time: Callable[[int], None],
) -> None:
    """Keys of one stripe share a counter. It is compared, and need not be read."""
    store, others = connect(), connect()
    meta = ready(store, b"shared")
    set_time(NOW_US + 10)
    theirs = acquire_now(b"shared:theirs", meta, b"theirs", b"3")
    assert others.run([theirs]) == [[GRANTED, NOW_US + 10]]
    set_time(NOW_US + 20)
    replies: list[Any] = []
    ours = acquire_now(b"shared:ours", meta, b"ours", b"3")
    act = lambda: replies.extend(store.run([ours]))  # noqa: E731
    assert requests_of(monkeypatch, store, act) == ["done"]
    assert replies == [[GRANTED, NOW_US + 20]]


@pytest.mark.parametrize(
    "counter",
    [NOW_US + 5, NOW_US, 10**16, NOW_US * 10 - 10, 9 * 10**18, 9_999, 7],
)
def test_fence_is_above_a_counter_that_was_not_read(
    connect: Callable[[], Etcd], set_time: Callable[[int], None], counter: int
) -> None:
    """The time of this client may be behind, and a counter may have more digits."""
    store, others = connect(), connect()
    name = b"above:%d" % counter
    meta = ready(store, name)
    set_time(NOW_US + 1)
    others.run([[b"HSET", meta, b"3", b"%d" % counter]])
    ((status, fence),) = store.run([acquire_now(name, meta, b"ours", b"3")])
    assert status == GRANTED
    assert fence >= max(counter, NOW_US + 1)
    assert fence > counter or counter > 2**53  # Lua cannot count beyond
    assert others.run([[b"HGET", meta, b"3"]]) == [b"%d" % fence]


def test_lock_that_is_held_is_told_by_the_refused_transaction(
    connect: Callable[[], Etcd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time. Then the client knows the key, and asks with a read."""
    store, others = connect(), connect()
    meta, lock = ready(store, b"held"), b"held"
    others.run([acquire_now(lock, meta, b"theirs", b"4")])
    replies: list[Any] = []

    def act() -> None:
        replies.extend(store.run([acquire_now(lock, meta, b"ours", b"3")]))

    assert requests_of(monkeypatch, store, act) == ["refused"]
    assert requests_of(monkeypatch, store, act) == ["read"]
    assert [one[:2] for one in replies] == [[TAKEN, replies[0][1]]] * 2
    assert replies[0][1].startswith(b"theirs\n")
    others.run([release(lock, b"theirs")])
    assert requests_of(monkeypatch, store, act) == ["read", "done"]
    assert replies[2][0] == GRANTED


# -- what others have changed ----------------------------------------------------------


def test_batch_does_not_take_for_free_what_it_only_reads(
    connect: Callable[[], Etcd],
) -> None:
    """A key that is only read is not compared, and so it is read."""
    store, others = connect(), connect()
    meta = ready(store, b"beside")
    others.run([[b"SET", b"beside:read", b"there"]])
    granting = acquire_now(b"beside", meta, b"ours", b"3")
    reply, found = store.run([granting, [b"GET", b"beside:read"]])
    assert (reply[0], found) == (GRANTED, b"there")


def test_end_that_rests_on_an_old_time_is_written_again(
    connect: Callable[[], Etcd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit tells the time. With an older one, an end would be too early.

    So it may be after a virtual machine was paused, or the clock was set.
    """
    late, others = connect(), connect()
    meta, lock = ready(late, b"old"), b"old"
    others.run([[b"HSET", meta, b"3", b"%d" % 10**15]])
    now = SYSTEM_CLOCK.monotonic()
    clock = late._members[0].clock  # noqa: SLF001  (as it was before it was set)
    behind = clock.read(now).latest_us / 1e6 - 90.0
    clock.observe(now, now, behind, behind)
    sent = requests_of(
        monkeypatch, late, lambda: late.run([acquire_now(lock, meta, b"ours", b"3")])
    )
    assert sent == ["done", "read", "done"]
    (left,) = others.run([[b"PTTL", lock]])
    assert abs(left - 60_000) < SLOW_MS  # by the bounds of both clients


def test_time_that_was_not_told_for_long_is_read(
    connect: Callable[[], Etcd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds of a time widen, and the ends of locks with them."""
    store = connect()
    meta = ready(store, b"long")
    monkeypatch.setattr(etcd, "_TIME_KEPT", 0.0)
    act = lambda: store.run([acquire_now(b"long", meta, b"ours", b"3")])  # noqa: E731
    assert requests_of(monkeypatch, store, act) == ["read", "done"]


def test_client_remembers_a_limited_number_of_locks(
    connect: Callable[[], Etcd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ones that it wrote last."""
    monkeypatch.setattr(etcd, "_REMEMBERED", 3)
    store = connect()
    meta = ready(store, b"many")
    for number in range(5):
        store.run([acquire_now(b"many:%d" % number, meta, b"ours", b"3")])
    assert list(store._locks) == [b"many:2", b"many:3", b"many:4"]  # noqa: SLF001


# -- members ---------------------------------------------------------------------------


def test_doctor_says_that_a_member_was_removed() -> None:
    """To start it would be no help: the cluster refuses it for ever."""
    with store_servers("etcd") as cluster, closing(Redlock(cluster.urls)) as redlock:
        gone = cluster.nodes[2]
        with closing(Etcd(cluster.nodes[0].url, TIMEOUT)) as operator:
            members = operator._call("/cluster/member/list", {})["members"]  # noqa: SLF001
            (number,) = [it["ID"] for it in members if str(gone.port) in str(it)]

            def is_removed() -> bool:  # a cluster that has just begun refuses it
                with contextlib.suppress(StoreError):
                    operator._call("/cluster/member/remove", {"ID": number})  # noqa: SLF001
                return not gone.is_running

            until(is_removed, 30)

        def found() -> list[Finding]:
            found = diagnose(redlock, span=0.1)
            return [it for it in found if it.code == "unreachable"]

        until(lambda: len(found()) == 1, 30)
        (finding,) = found()

        assert f"has the member 127.0.0.1:{gone.port}, which " in finding.fact
        assert "lists 3 members, and the cluster has 2" in finding.fact
        assert finding.remedy.startswith(
            "If it was removed from the cluster, leave it out"
        )
        assert f'"name": "{redlock.labels[0]}"' in finding.remedy


# -- connections -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def member() -> Iterator[StoreNode]:
    """Give a cluster of one member that votes."""
    with store_servers("etcd", members=1) as cluster:
        yield cluster.nodes[0]


@pytest.fixture
def proxy(member: StoreNode) -> Iterator[Any]:
    """Give a proxy in front of the member."""
    targets: Any = [member]
    with proxies(targets) as (proxy,):
        yield proxy


def through(proxy: Any, timeout: float = TIMEOUT) -> Etcd:
    """Connect by the proxy."""
    url = proxy.url.replace("redis://", "etcd://").removesuffix("/0")
    return Etcd(url, timeout)


@pytest.mark.parametrize("is_granted_again", [True, False])
def test_acquire_whose_reply_is_lost_is_done_once(
    member: StoreNode, proxy: Any, key: str, *, is_granted_again: bool
) -> None:
    """The same token is granted again, unless the lock has another holder by now."""
    lock = key.encode()
    with closing(through(proxy)) as store, closing(Etcd(member.url, TIMEOUT)) as others:
        meta = ready(store, lock)
        replies: list[Any] = []
        ours = acquire_now(lock, meta, b"ours", b"3")
        asking = threading.Thread(target=lambda: replies.extend(store.run([ours])))
        proxy.hold_replies()
        asking.start()
        until(lambda: others.run([[b"GET", lock]]) != [None])
        if not is_granted_again:
            theirs = acquire_now(lock, meta, b"theirs", b"4")
            assert others.run([release(lock, b"ours"), theirs])[1][0] == GRANTED
        (value,) = others.run([[b"GET", lock]])
        proxy.drop()
        proxy.resume()
        asking.join()
        assert others.run([[b"GET", lock]]) == [value]
    ((status, told, *_),) = replies
    if is_granted_again:
        assert (status, b"%d" % told) == (GRANTED, value.split(b"\n")[1])
    else:
        assert (status, told) == (TAKEN, value)


class FullAtLast(BaseHTTPRequestHandler):
    """A member that may apply the next commit before it finds that it is full."""

    protocol_version = "HTTP/1.1"
    member: StoreNode
    applies: bool | None = None  # None: it has room

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_POST(self) -> None:
        """Ask the member; send its reply, or that it is full."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_refused = FullAtLast.applies is not None and b"request_put" in body
        status, reply = 429, b'{"message":"etcdserver: mvcc: database space exceeded"}'
        if not is_refused or FullAtLast.applies:
            where = self.member.url.replace("etcd://", "http://") + self.path
            request = urllib.request.Request(where, data=body)  # noqa: S310
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
                told = answer.read()
            if not is_refused:
                status, reply = 200, told
        self.send_response(status)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)


class DeniesMembers(FullAtLast):
    """A member that tells our user nothing of the others."""

    def do_POST(self) -> None:
        """Ask the member, unless that is for its cluster."""
        if not self.path.endswith("/cluster/member/list"):
            super().do_POST()
            return
        self.rfile.read(int(self.headers["Content-Length"]))
        reply = b'{"message":"etcdserver: permission denied"}'
        self.send_response(403)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)


def test_members_that_a_user_may_not_list_are_not_counted(
    member: StoreNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cluster of none, the doctor would say that its members were removed."""
    monkeypatch.setattr(FullAtLast, "member", member, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), DeniesMembers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with closing(Etcd(f"etcd://127.0.0.1:{server.server_port}", TIMEOUT)) as store:
        assert store.info["members"] == ""
        assert store.run([[b"GET", b"anything"]]) == [None]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("applies", [True, False])
def test_commit_for_which_there_was_no_room_may_be_done(
    member: StoreNode, key: str, monkeypatch: pytest.MonkeyPatch, *, applies: bool
) -> None:
    """A member may have written when it says that it is full; else that is certain."""
    monkeypatch.setattr(FullAtLast, "member", member, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), FullAtLast)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    lock = key.encode()
    with (
        closing(Etcd(f"etcd://127.0.0.1:{server.server_port}", TIMEOUT)) as store,
        closing(Etcd(member.url, TIMEOUT)) as others,
    ):
        meta = ready(store, lock)
        monkeypatch.setattr(FullAtLast, "applies", applies)
        ours = [acquire_now(lock, meta, b"ours", b"3")]
        if applies:
            with pytest.raises(StoreError, match="is full") as caught:
                store.run(ours)
            assert caught.value.may_be_done
        else:
            (refusal,) = store.run(ours)
            assert str(refusal).startswith("ERR it is full (NOSPACE)")
        assert (others.run([[b"GET", lock]]) != [None]) is applies
    server.shutdown()
    server.server_close()


def test_release_whose_reply_is_lost_spares_the_next_holder(
    member: StoreNode, proxy: Any, key: str
) -> None:
    """It is not known to be done, so it is tried again, and finds nothing of ours."""
    lock = key.encode()
    with closing(through(proxy)) as store, closing(Etcd(member.url, TIMEOUT)) as others:
        meta = ready(store, lock)
        store.run([acquire_now(lock, meta, b"ours", b"3")])
        replies: list[Any] = []
        act = lambda: replies.extend(store.run([release(lock, b"ours")]))  # noqa: E731
        asking = threading.Thread(target=act)
        proxy.hold_replies()
        asking.start()
        until(lambda: others.run([[b"GET", lock]]) == [None])
        others.run([acquire_now(lock, meta, b"theirs", b"4")])
        (value,) = others.run([[b"GET", lock]])
        proxy.drop()
        proxy.resume()
        asking.join()
        assert replies == [0]
        assert others.run([[b"GET", lock]]) == [value]


def test_nothing_is_remembered_across_connections(
    proxy: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster may have been restored from a backup meanwhile."""
    lock = key.encode()
    with closing(through(proxy)) as store:
        meta = ready(store, lock)
        store.run([acquire_now(lock, meta, b"ours", b"3")])
        proxy.drop()
        replies: list[Any] = []

        def act() -> None:
            for command in ([b"GET", b"another"], release(lock, b"ours")):
                replies.extend(store.run([command]))

        assert requests_of(monkeypatch, store, act) == ["read", "read", "done"]
        assert replies == [None, 1]


def test_member_that_freezes_is_asked_once(
    member: StoreNode, proxy: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs a process one time limit, and not one for each try and connection."""
    frozen, asked = proxy.url.split("/")[2], list[str]()
    url = f"etcd://{frozen},127.0.0.1:{member.port}"
    ask = EtcdMember.ask

    def noted(asks: EtcdMember, *args: Any, **options: Any) -> dict[str, Any]:
        asked.append(asks.name)
        return ask(asks, *args, **options)

    with closing(Etcd(url, 3.0)) as store:
        store.run([[b"SET", key.encode(), b"before"]])
        monkeypatch.setattr(EtcdMember, "ask", noted)
        proxy.hold_replies()
        store.run([[b"SET", key.encode(), b"meanwhile"]])
    with closing(Etcd(url, 3.0)) as later:
        assert later.run([[b"GET", key.encode()]]) == [b"meanwhile"]
    assert asked.count(frozen) == 1


def test_grant_of_a_cluster_that_was_made_anew_does_not_count(
    member: StoreNode, proxy: Any, key: str
) -> None:
    """It has the same keys, of the same revisions, and another id."""
    lock = key.encode()
    with store_servers("etcd", members=1) as another, closing(through(proxy)) as store:
        meta = ready(store, lock)
        (fields,) = store.run([[b"HGETALL", meta]])
        with closing(Etcd(another.urls[0], TIMEOUT)) as restored:
            restored.run([[b"HSET", meta, *fields]])
        proxy.target = another.nodes[0]
        proxy.drop()
        assert store.run([acquire_now(lock, meta, b"ours", b"3")]) == [[UNSYNCED, b""]]
        proxy.target = member
        proxy.drop()
        assert store.run([acquire_now(lock, meta, b"ours", b"3")])[0][0] == GRANTED


def test_reply_of_another_cluster_is_no_grant(
    member: StoreNode, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may send two requests on one connection to two clusters."""
    lock = key.encode()
    with closing(Etcd(member.url, TIMEOUT)) as store:
        meta = ready(store, lock)
        before = lambda: setattr(store, "_replid", b"1")  # noqa: E731
        once_before(monkeypatch, store, "_commit", before)
        with pytest.raises(StoreError, match="was replaced by another cluster"):
            store.run([acquire_now(lock, meta, b"ours", b"3")])


def test_interrupt_ends_a_request_that_gets_no_reply(proxy: Any, key: str) -> None:
    """Another thread ends it, long before its timeout, and it is not sent again."""
    lock = key.encode()
    with closing(through(proxy, timeout=600.0)) as store:
        meta = ready(store, lock)
        errors: list[StoreError] = []

        def ask() -> None:
            try:
                store.run([acquire_now(lock, meta, b"ours", b"3")])
            except StoreError as error:
                errors.append(error)

        asking = threading.Thread(target=ask)
        proxy.hold()
        asking.start()
        store.interrupt()
        store.interrupt()
        until(lambda: not asking.is_alive())
        assert "the connection is closed" in str(errors[0])


def test_child_that_interrupts_its_copy_leaves_the_parent_alone(
    etcd_store: str,
) -> None:
    """A fork that runs no hook has copies of all connections."""
    program = """
import os, sys
from celery_redlock.stores.etcd import Etcd
store = Etcd(sys.argv[1], 8.0)
connects = sum(member.connects for member in store._members)
pid = os.fork()
if not pid:
    store.interrupt()
    store.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert store.run([[b"GET", b"forked"]]) == [None]
print(sum(member.connects for member in store._members) - connects)
store.close()
"""
    assert run_python(program, etcd_store) == ["0"]


def test_interrupt_ends_a_listener(member: StoreNode, key: str) -> None:
    """Its connection is another one than that of the requests."""
    ours, theirs = socket.socketpair()
    with closing(Etcd(member.url, TIMEOUT)) as store, ours, theirs:
        messages = store.listen(key.encode(), ours)
        assert next(messages) == b""
        store.interrupt()
        with pytest.raises(StoreError, match="lost its connection"):
            next(messages)


def test_listener_of_a_member_that_hangs_ends(
    member: StoreNode, proxy: Any, key: str
) -> None:
    """Its lease is kept by another member, and no message would come any more."""
    hangs, (ours, theirs) = proxy.url.split("/")[2], socket.socketpair()
    url = f"etcd://{hangs},127.0.0.1:{member.port}"
    with closing(Etcd(url, 2.0)) as store, ours, theirs:
        messages = store.listen(key.encode(), ours)
        assert next(messages) == b""
        proxy.hold()

        def listen() -> None:
            with contextlib.suppress(StoreError):
                list(messages)

        listening = threading.Thread(target=listen, daemon=True)
        listening.start()
        until(lambda: not listening.is_alive())


def test_watch_that_etcd_has_ended_is_told(member: StoreNode, key: str) -> None:
    """As one from a revision that etcd has compacted: its stream stays open."""
    with closing(Etcd(member.url, TIMEOUT)) as store:
        for value in (b"1", b"2"):
            store.run([[b"SET", key.encode(), value]])
        revision = store._told_revision  # noqa: SLF001  (that of the second one)
        store._call("/kv/compaction", {"revision": revision})  # noqa: SLF001
        create = {"create_request": {"key": "AA==", "start_revision": "1"}}
        (asked,) = store._members  # noqa: SLF001
        with closing(asked.watch(create, "")) as watch:
            results = itertools.chain.from_iterable(iter(watch.read, None))
            with pytest.raises(MemberError, match="has ended our watch"):
                list(results)


def test_listener_whose_lease_has_ended_ends(
    member: StoreNode, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message comes to it any more: its process was paused for too long."""
    monkeypatch.setattr(etcd, "_LISTENER_TTL", 2)  # seconds
    ours, theirs = socket.socketpair()
    with closing(Etcd(member.url, TIMEOUT)) as store, ours, theirs:
        messages = store.listen(key.encode(), ours)
        assert next(messages) == b""
        for lease in store._call("/lease/leases", {})["leases"]:  # noqa: SLF001
            store._call("/lease/revoke", lease)  # noqa: SLF001  (as its end does)
        with pytest.raises(StoreError, match="has ended our lease"):
            next(messages)


def test_listener_gets_all_messages_and_lives_while_they_come(
    member: StoreNode, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is renewed also if there is never a pause between two messages."""
    monkeypatch.setattr(etcd, "_LISTENER_TTL", 0)  # which etcd makes two seconds
    channel = key.encode()
    ours, theirs = socket.socketpair()
    with (
        closing(Etcd(member.url, TIMEOUT)) as store,
        closing(Etcd(member.url, TIMEOUT)) as others,
        ours,
        theirs,
    ):
        messages = store.listen(channel, ours)
        assert next(messages) == b""
        asked: list[str] = []
        ask = store._ask  # noqa: SLF001  (what it asks for is the point)

        def noted(path: str, *args: Any, **options: Any) -> Any:
            asked.append(path)
            return ask(path, *args, **options)

        monkeypatch.setattr(store, "_ask", noted)
        texts = [b"%d" % number for number in range(3)] + [b"x" * 100_000]
        for text in texts:
            assert others.run([[b"PUBLISH", channel, text]]) == [1]
        assert [next(messages) for _ in texts] == texts
        assert "/lease/keepalive" in asked
        theirs.close()
        assert list(messages) == []
        assert others.run([[b"PUBLISH", channel, b"late"]]) == [0]


def test_what_speaks_no_http_is_told() -> None:
    """It is up, and the remedy is another port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"-ERR unknown command\r\n")
                sock.recv(1 << 16)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(StoreError, match="speaks no HTTP; is this the port"):
            Etcd(f"etcd://127.0.0.1:{listener.getsockname()[1]}", TIMEOUT)
        answering.join()
