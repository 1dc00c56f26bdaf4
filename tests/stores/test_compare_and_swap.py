"""Stores that compare what they have read: what others change until the commit."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.scripts import GRANTED, MISCONFIGURED, TAKEN
from celery_redlock.stores.connection import store_of
from tests.stores.changes import (
    CHANGED,
    MEANWHILE,
    assert_noticed,
    change_meanwhile,
)
from tests.stores.commands import (
    NOW_US,
    VIEW,
    acquire,
    acquire_now,
    clients,
    extend,
    once_before,
    release,
    vote,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.stores.connection import Command, Store

pytestmark = pytest.mark.long


class Site:
    """A lock in a store, its holder, and another client."""

    def __init__(self, kind: str, connect: Callable[[], Store], lock: bytes) -> None:
        self.lock, self.meta = lock, lock + b":meta"
        self.ours, self.others = connect(), connect()
        self._kind = kind
        # Without a read, once a client knows the lock.
        self._acquire = acquire_now if kind == "etcd" else acquire

    def take(self, token: bytes, lock: bytes = b"", stripe: bytes = b"3") -> Command:
        """Return the command that takes the lock, or another one."""
        return self._acquire(lock or self.lock, self.meta, token, stripe)

    def know(self) -> None:
        """Let our client take the lock without a read from now on."""
        vote(self.ours, self.meta)
        for _ in range(3):
            self.ours.run([self.take(b"before")])
            self.ours.run([release(self.lock, b"before")])

    def set_ahead(self) -> None:
        """Let our client have read the time before the clock was set back by 90 s."""
        self.ours.run([[b"GET", self.lock + b":none"]])
        ours: Any = self.ours
        clock = ours._clock if self._kind == "zookeeper" else ours._members[0].clock  # noqa: SLF001
        now = SYSTEM_CLOCK.monotonic()
        ahead = clock.read(now).latest_us / 1e6 + 90.0
        clock.observe(now, now, ahead, ahead)


@pytest.fixture(params=["etcd", "zookeeper"])
def site(request: pytest.FixtureRequest, key: str) -> Iterator[Site]:
    """Give a lock in each store in turn, on a node that votes."""
    url = request.getfixturevalue(f"{request.param}_store")
    with clients(store_of(url), url) as connect:
        site = Site(request.param, connect, key.encode())
        vote(site.others, site.meta)
        yield site


# -- a grant ---------------------------------------------------------------------------

both_ways = pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])


def take_after(
    site: Site, act: Callable[[], Any], patch: pytest.MonkeyPatch, *, is_known: bool
) -> list[Any]:
    """Take the lock; what the grant rests on was read before this act."""
    if is_known:
        site.know()
        act()
    else:
        once_before(patch, site.ours, "_commit", act)
    return site.ours.run([site.take(b"ours")])


@both_ways
@pytest.mark.parametrize("field", CHANGED)
def test_grant_counts_on_each_field_of_the_state(
    site: Site, monkeypatch: pytest.MonkeyPatch, field: str, *, is_known: bool
) -> None:
    """A field that decides whether the node votes has changed since it was read."""
    (verb, _, *words), reply = CHANGED[field]
    act = lambda: site.others.run([[verb, site.meta, *words]])  # noqa: E731
    assert take_after(site, act, monkeypatch, is_known=is_known) == [reply]
    is_there = site.others.run([[b"GET", site.lock]]) != [None]
    assert is_there == (reply[0] == GRANTED)


@both_ways
def test_grant_sees_that_the_state_was_made_anew(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """It has all fields and the version that it had, and another view."""

    def make_anew() -> None:
        for view in (VIEW, b"another"):
            site.others.run([[b"DEL", site.meta]])
            vote(site.others, site.meta, view)

    replies = take_after(site, make_anew, monkeypatch, is_known=is_known)
    assert replies == [[MISCONFIGURED, b"another"]]


@both_ways
def test_two_clients_cannot_both_be_granted_a_key(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """The other one commits just before the first, who takes the key for free."""
    if is_known:
        site.know()
    theirs = site.take(b"theirs", stripe=b"4")  # else the counters conflict
    once_before(monkeypatch, site.ours, "_commit", lambda: site.others.run([theirs]))
    ((status, value, _),) = site.ours.run([site.take(b"ours")])
    assert (status, value.split(b"\n")[0]) == (TAKEN, b"theirs")


@both_ways
def test_grants_of_two_stripes_do_not_conflict(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """Each counter is a key of its own. The state of the node stays as it was read."""
    if is_known:
        site.know()
    theirs = site.take(b"theirs", site.lock + b":other", b"4")
    once_before(monkeypatch, site.ours, "_commit", lambda: site.others.run([theirs]))
    act = lambda: site.ours.run([site.take(b"ours")])  # noqa: E731
    sent = requests_of(monkeypatch, site.ours, act)
    assert sent == (["write"] if is_known else ["read", "write"])


@pytest.mark.parametrize("method", ["scan", "_commit"])
def test_scan_in_a_batch_leaves_the_checks_of_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A grant beside it is refused where another client has taken the lock."""
    theirs = site.take(b"theirs", stripe=b"4")  # else the counters conflict
    once_before(monkeypatch, site.ours, method, lambda: site.others.run([theirs]))
    scan = [b"SCAN", b"0", b"MATCH", site.lock + b"*"]
    reply, _ = site.ours.run([site.take(b"ours"), scan])
    assert reply[0] == TAKEN
    assert site.others.run([theirs])[0][0] == GRANTED


# -- a renewal, and a release ----------------------------------------------------------


@pytest.mark.parametrize("ours", ["extend", "release"])
@pytest.mark.parametrize("change", MEANWHILE)
def test_holder_notices_what_others_changed_since(
    site: Site, set_time: Callable[[int], None], change: str, ours: str
) -> None:
    """A client does not use its memory after another one has changed the keys."""
    renewal = extend(site.lock, site.meta, b"ours")
    assert site.ours.run([site.take(b"ours")])[0][0] == GRANTED
    assert site.ours.run([renewal]) == [[GRANTED, 0]]
    change_meanwhile(site.others, change, site.lock)
    if change == "ended":
        set_time(NOW_US + 2_000)
    assert_noticed(site.ours, site.others, change, site.lock, ours)


@pytest.mark.parametrize("token", [b"ours", b"theirs"])
def test_no_reply_comes_from_memory_alone(
    site: Site, set_time: Callable[[int], None], token: bytes
) -> None:
    """A client reads what it would refuse by what it remembers.

    It remembers a lock that has ended by now, and that another client has extended or
    taken.
    """
    assert site.ours.run([site.take(b"ours")])[0][0] == GRANTED
    if token == b"theirs":
        site.others.run([release(site.lock, b"ours")])
    set_time(NOW_US + 40_000_000)
    site.others.run([site.take(token)])
    set_time(NOW_US + 70_000_000)
    assert site.ours.run([release(site.lock, token)]) == [1]


def test_lock_of_our_own_has_not_ended_by_a_time_before_the_clock_was_set_back(
    site: Site,
) -> None:
    """Another holder of the same client asks for the time before it takes the lock."""
    site.know()
    assert site.ours.run([site.take(b"ours")])[0][0] == GRANTED
    site.set_ahead()
    assert site.ours.run([site.take(b"theirs")])[0][0] == TAKEN
    assert site.others.run([release(site.lock, b"ours")]) == [1]


def test_lost_lock_is_not_assumed_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read after a refusal replaces what the client remembers."""
    renewal = extend(site.lock, site.meta, b"ours")
    site.ours.run([site.take(b"ours")])
    for change in (
        [b"DEL", site.lock],
        [b"SET", site.lock, b"theirs\n1\nx", b"PX", b"60000"],
    ):
        site.others.run([change])
    replies: list[Any] = []

    def act() -> None:
        replies.extend(site.ours.run([renewal]))

    sent = [requests_of(monkeypatch, site.ours, act) for _ in range(2)]
    assert [reply[:2] for reply in replies] == [[TAKEN, b"theirs\n1\nx"]] * 2
    assert [requests.count("write") for requests in sent] == [1, 0]


def test_change_of_the_state_is_read_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next grant rests on what the client has read after the refusal."""
    site.know()
    site.others.run([[b"HSET", site.meta, b"floor", b"6"]])
    sent: list[list[str]] = []
    for _ in range(2):
        act = lambda: site.ours.run([site.take(b"ours")])  # noqa: E731
        sent.append(requests_of(monkeypatch, site.ours, act))
        site.ours.run([release(site.lock, b"ours")])
    assert sent == [["write", "read", "write"], ["write"]]


def test_lock_that_was_released_after_a_read_is_taken_without_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that holds a lock from before it connected again reads it once."""
    site.know()
    taken = site.others.run([site.take(b"ours", stripe=b"4")])
    assert taken[0][0] == GRANTED
    renewal = extend(site.lock, site.meta, b"ours")
    assert site.ours.run([renewal]) == [[GRANTED, 0]]
    for command in (release(site.lock, b"ours"), site.take(b"ours")):
        act = lambda: site.ours.run([command])  # noqa: B023, E731
        assert requests_of(monkeypatch, site.ours, act) == ["write"]


def test_release_does_not_assume_twice_that_no_client_waits(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock whose last release had a waiter is released with a read."""
    queue = site.lock + b":queue"
    sent: list[list[str]] = []
    for is_waited_for in (True, True, False, False):
        site.ours.run([site.take(b"ours")])
        if is_waited_for:
            site.others.run([[b"ZADD", queue, b"1", b"gone/1"]])
        act = lambda: site.ours.run([release(site.lock, b"ours")])  # noqa: E731
        sent.append(requests_of(monkeypatch, site.ours, act))
        left = site.others.run([[b"GET", site.lock], [b"ZCARD", queue]])
        assert left == [None, 0]
    assert [requests[0] for requests in sent] == ["write", "read", "read", "write"]
    assert sent[3] == ["write"]


def test_client_remembers_no_listener(site: Site) -> None:
    """Each process that listens has another channel, and there is no end of them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        messages = site.others.listen(site.lock, ours)
        assert next(messages) == b""
        assert site.ours.run([[b"PUBLISH", site.lock, b"woken"]]) == [1]
        assert next(messages) == b"woken"
        theirs.close()
        assert list(messages) == []
    site.ours.run([[b"GET", site.lock]])
    store: Any = site.ours
    assert not store._listeners  # noqa: SLF001  (no reply depends on it)


def requests_of(
    monkeypatch: pytest.MonkeyPatch, store: Any, act: Callable[[], Any]
) -> list[str]:
    """Return the reads of this act, and its tries to write, in their order."""
    sent: list[str] = []
    with monkeypatch.context() as patched:
        for method, what in (("_snapshot", "read"), ("_commit", "write")):
            real = getattr(store, method)

            def noted(
                *args: Any, real: Any = real, what: str = what, **options: Any
            ) -> Any:
                sent.append(what)
                return real(*args, **options)

            patched.setattr(store, method, noted)
        act()
    return sent


# -- many commands at once -------------------------------------------------------------


@pytest.mark.parametrize("names", ["ascii", "é"])
def test_batch_that_is_too_large_for_a_transaction_is_carried_out(
    site: Site, names: str
) -> None:
    """Leases with long keys, which are all due at once: 1 MB is the limit."""
    tail = (names * 8000).encode()[:8000]
    locks = [b"%b:%d:%b" % (site.lock, number, tail) for number in range(100)]

    taken = site.ours.run([site.take(b"ours", lock) for lock in locks])
    assert [status for status, _ in taken] == [GRANTED] * 100
    renewals = [extend(lock, site.meta, b"ours") for lock in locks]
    assert site.ours.run(renewals) == [[GRANTED, 0]] * 100
    assert site.ours.run([release(lock, b"ours") for lock in locks]) == [1] * 100
