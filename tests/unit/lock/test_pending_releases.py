"""Releases to resend when a node reconnects."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts import RELEASE
from celery_redlock.testing import FakeClock
from celery_redlock.wire.pending_releases import PendingReleases
from celery_redlock.wire.requests import ScriptRequest, majority_answered
from tests.unit.lock.sockets import (
    CONNECT_TIMEOUT,
    Connection,
    Net,
    Sock,
    Stage,
    commands,
    encoded,
    let_connect,
    release,
    request,
    said,
)


def release_of(token: str, until: float = 60.0) -> ScriptRequest:
    """Return a release that is resent until then."""
    return ScriptRequest(
        RELEASE,
        ["redlock:lock:k"],
        [token, 0],
        labels=["a", "b"],
        done_when=majority_answered,
        resend_until=until,
    )


def sent(pending: PendingReleases, now: float) -> list[object]:
    """Return the tokens that are sent now."""
    return [due.call[2][0] for due in pending.due(now)]


def test_release_is_sent_twice_a_second_apart() -> None:
    """The node may find the acquire in an old buffer after the first release."""
    pending = PendingReleases()
    pending.add(release_of("t"), now=10.0)

    assert sent(pending, 10.0) == ["t"]
    assert sent(pending, 10.9) == []
    assert pending
    assert sent(pending, 11.0) == ["t"]
    assert not pending
    assert sent(pending, 12.0) == []


class _Finalised:
    """A part of a cycle: the collector calls its finaliser at an allocation."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function, self._cycle = function, self

    def __del__(self) -> None:
        self._function()


def test_finaliser_may_add_a_release_while_the_due_ones_are_listed() -> None:
    """The thread that sends them meets no error, and each of them is sent."""
    pending = PendingReleases()
    tokens = [f"t{number}" for number in range(2 * gc.get_threshold()[0])]
    for token in tokens:
        pending.add(release_of(token), now=10.0)
    gc.collect()  # the next one comes after fewer allocations than there are releases
    _Finalised(lambda: pending.add(release_of("late"), now=10.0))

    told = sent(pending, 10.0)

    gc.collect()
    told += [one for one in sent(pending, 10.1) if one not in told]
    assert sorted(map(str, told)) == sorted(["late", *tokens])


def test_release_is_dropped_at_its_end() -> None:
    """After one max_ttl there is nothing left to release."""
    pending = PendingReleases()
    pending.add(release_of("t", until=20.0), now=10.0)

    assert sent(pending, 20.0) == []
    assert not pending


def test_request_without_an_end_is_not_kept() -> None:
    """Only a request that must arrive is resent."""
    pending = PendingReleases()

    pending.add(release_of("t", until=0.0), now=10.0)
    pending.add(release_of("t", until=10.0), now=10.0)

    assert not pending


def test_release_is_kept_once() -> None:
    """The same release, failed again and again, is one entry."""
    pending = PendingReleases()
    for _ in range(3):
        pending.add(release_of("t"), now=10.0)
    pending.add(release_of("u"), now=10.0)

    assert sent(pending, 10.0) == ["t", "u"]


def test_release_that_fails_again_is_sent_twice_again() -> None:
    """A release that did not arrive does not count."""
    pending = PendingReleases()
    pending.add(release_of("t"), now=10.0)
    assert sent(pending, 10.0) == ["t"]
    pending.add(release_of("t"), now=10.5)

    assert sent(pending, 10.6) == ["t"]
    assert sent(pending, 11.0) == []
    assert sent(pending, 11.6) == ["t"]
    assert not pending


def test_old_releases_are_dropped_when_new_ones_come() -> None:
    """A node that never comes back costs no memory."""
    pending = PendingReleases()
    for number in range(100):
        pending.add(release_of(f"t{number}", until=number + 2.0), now=float(number))

    assert sent(pending, 100.0) == ["t99"]


def test_oldest_of_too_many_releases_are_dropped() -> None:
    """A node that refuses each of them, for as long as it is up, costs no memory."""
    pending = PendingReleases()
    for number in range(10_005):
        pending.add_refused(release_of(f"t{number}"), now=10.0)

    told = sent(pending, 10.25)

    assert (len(told), told[0], told[-1]) == (10_000, "t5", "t10004")


def test_many_releases_are_looked_at_ten_times_a_second() -> None:
    """A request to a node that owes them does not pay for each of them."""
    pending = PendingReleases()
    for number in range(200):
        pending.add_refused(release_of(f"t{number}"), now=10.0)
    assert sent(pending, 10.1) == []
    pending.add(release_of("u"), now=10.1)

    assert sent(pending, 10.19) == []
    assert sent(pending, 10.21) == ["u"]


def test_release_that_ends_while_others_are_sent_is_dropped() -> None:
    """Time goes on meanwhile, and a release may end; one that fails is kept."""
    pending = PendingReleases()
    pending.add(release_of("b", until=10.5), now=10.0)
    pending.add(release_of("a"), now=10.0)
    pending.add(release_of("c", until=10.5), now=10.0)
    pending.add(release_of("d", until=10.5), now=10.0)

    for due in pending.due(10.4):
        pending.add(due, now=10.6)

    assert sent(pending, 10.7) == ["a"]


def test_refused_release_is_sent_once_more_after_a_pause_that_doubles() -> None:
    """A node that refuses has read all that came before, so once is enough."""
    pending = PendingReleases()
    request, now, pauses = release_of("t", until=30.0), 10.0, []
    pending.add_refused(request, now)

    while pending:
        began = now
        while pending and not (due := list(pending.due(now))):
            now += 0.125
        if pending or now < 30.0:
            pauses.append(now - began)
            pending.add_refused(due[0], now)

    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]


def test_many_refused_releases_are_sent_a_hundred_a_second() -> None:
    """A node may refuse them for an hour, and each process sends them again."""
    pending, asked = PendingReleases(), 0
    for number in range(2_000):
        pending.add_refused(release_of(str(number), until=3_600.0), now=0.0)

    for now in range(1, 301):
        for due in list(pending.due(float(now))):
            pending.add_refused(due, float(now))
            asked += now > 100

    assert asked / 200 == pytest.approx(100, rel=0.05)


def test_refusal_of_the_first_send_leaves_the_second() -> None:
    """The reason for it remains: an old buffer may hold an acquire."""
    pending = PendingReleases()
    pending.add(release_of("t"), now=10.0)
    (first,) = pending.due(10.0)
    pending.add_refused(first, now=10.5)

    assert sent(pending, 10.9) == []
    assert sent(pending, 11.0) == ["t"]
    assert sent(pending, 11.9) == []
    assert sent(pending, 12.0) == ["t"]
    assert not pending


# -- on a node -------------------------------------------------------------------------


def test_release_that_did_not_arrive_is_sent_on_the_next_connection(
    stage: Stage,
) -> None:
    """It is sent again a second later: old buffers may hold an acquire."""
    again = stage.next_connection()
    freed = release(stage.clock)
    stage.ask(freed)
    stage.reads(b"")
    assert said(freed) == "closed the connection"
    assert stage.node.has_pending

    stage.maintain()
    stage.clock.advance(0.2)
    stage.arrive()
    assert bytes(again.sock.sent) == freed.packed_source()
    stage.clock.advance(0.9)
    stage.node.send_backlog()
    assert bytes(again.sock.sent) == freed.packed_source()
    stage.clock.advance(0.1)
    stage.node.send_backlog()

    assert bytes(again.sock.sent) == freed.packed_source() + freed.packed()
    assert not stage.node.has_pending


def test_release_that_did_not_arrive_comes_before_requests_that_wait(
    stage: Stage,
) -> None:
    """The next call in this process may ask for the lock that is released."""
    again = stage.next_connection()
    freed = release(stage.clock)
    stage.ask(freed)
    stage.reads(b"")
    stage.clock.advance(0.2)
    stage.maintain()
    waits = stage.sends("later")
    assert said(waits) is None

    stage.arrive()

    assert bytes(again.sock.sent) == freed.packed_source() + waits.packed_source()


def test_releases_whose_connection_ends_while_the_next_one_is_made_wait_for_it(
    stage: Stage, sock: Sock
) -> None:
    """The first fails with the connection, and the others wait; none is sent for ever.

    The simulator's seed 4033830: a node was late, a second connection was being made,
    and the first ended while releases were sent again.
    """
    freed = [release(stage.clock, key=key) for key in ("a", "b")]
    stage.ask(*freed)
    stage.answers(ErrorReply("BUSY"), ErrorReply("BUSY"))
    stage.sends("late")
    again = stage.next_connection()
    stage.node.mark_suspect(stage.clock.monotonic())
    stage.clock.advance(CONNECT_TIMEOUT + 0.01)
    stage.maintain()  # begins the second connection
    let_connect(stage.node)
    sock.failure = ConnectionResetError("reset")

    stage.node.send_backlog()

    stage.clock.advance(0.5)
    stage.arrive()
    assert [command[3] for command in commands(again.sock.sent)] == [b"a", b"b"]


PASSING = ["BUSY", "LOADING", "NOREPLICAS", "OOM", "READONLY", "NOPERM"]


@pytest.mark.parametrize("word", PASSING)
def test_release_that_a_node_refuses_is_sent_again(
    stage: Stage, sock: Sock, word: str
) -> None:
    """An error may pass. Otherwise the lock stays for the rest of its ttl."""
    freed = release(stage.clock)
    stage.ask(freed)
    stage.answers(ErrorReply(f"{word} not now"))
    stage.node.send_backlog()
    before = [stage.node.has_pending, stage.node.needs_maintenance, len(sock.sent)]

    stage.clock.advance(0.25)
    stage.node.send_backlog()
    stage.answers(1)

    assert freed.ballot.reasons() == f"node-0 answered {word} not now"
    assert before == [True, True, len(freed.packed_source())]
    assert bytes(sock.sent) == freed.packed_source() + freed.packed()
    assert not stage.node.has_pending


@pytest.mark.parametrize(
    "end", [b"", encoded(ErrorReply("BUSY not now"))], ids=["eof", "refusal"]
)
def test_acquire_is_not_sent_again(stage: Stage, end: bytes) -> None:
    """Its try is over when its connection ends, or when its node refuses it."""
    stage.ask(request())
    stage.reads(end)

    assert not stage.node.has_pending


def test_release_is_not_kept_for_a_node_that_was_away_all_the_time(
    clock: FakeClock,
) -> None:
    """The node cannot have granted, so a long outage collects no releases."""
    stage = Stage(clock)
    stage.arrive()
    began = clock.monotonic()
    clock.advance(1.0)

    stage.ask(release(clock, resend_since=began))
    assert not stage.node.has_pending
    stage.ask(release(clock, resend_since=0.0))
    assert stage.node.has_pending


def test_release_is_kept_for_a_node_that_went_away_since(stage: Stage) -> None:
    """The node may have granted before it went."""
    began = stage.clock.monotonic()
    stage.clock.advance(1.0)
    stage.reads(b"")
    stage.clock.advance(1.0)

    stage.ask(release(stage.clock, resend_since=began))

    assert stage.node.has_pending


def test_broadcast_resends_the_releases_of_its_nodes(net: Net) -> None:
    """They are sent with the next poll, once the node is back."""
    freed = net.request(
        script=RELEASE,
        done_when=majority_answered,
        resend_until=net.clock.monotonic() + 60.0,
    )
    net.broadcast.send(freed)
    pending = [net.broadcast.has_pending]
    net.socks[0].incoming.append(b"")
    net.broadcast.drain()
    pending.append(net.broadcast.has_pending)

    back = Connection("a")
    net.addresses[0].coming.append(back)
    for _ in range(3):
        net.clock.advance(0.6)
        net.broadcast.drain()
        let_connect(*net.nodes)
        net.broadcast.drain()

    assert [*pending, net.broadcast.has_pending] == [False, True, False]
    assert [command[3] for command in commands(back.sock.sent)] == [b"k"] * 2
