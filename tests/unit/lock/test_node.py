"""One node: connecting, the conversation, and how a connection ends."""

from __future__ import annotations

import itertools
import logging
import selectors
import ssl
import threading
from typing import Any
from unittest import mock

import pytest

from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts import INSPECT, RELEASE
from celery_redlock.testing import FakeClock
from celery_redlock.wire.quorum import LOST_SCRIPTS
from tests.harness.threads import threads_started_here
from tests.unit.lock.sockets import (
    CONNECT_TIMEOUT,
    SOON,
    Connection,
    Sock,
    Stage,
    commands,
    encoded,
    let_connect,
    release,
    request,
    said,
)

# -- connecting ------------------------------------------------------------------------


READ = selectors.EVENT_READ


def test_node_that_was_never_tried_fails_at_once(clock: FakeClock) -> None:
    """Its vote fails, without a wait."""
    stage, asked = Stage(clock), request()

    stage.ask(asked)

    assert said(asked) == "is not connected"
    assert stage.address.tries == 0


def test_connecting_does_not_block(clock: FakeClock, connection: Connection) -> None:
    """It happens in a thread of its own."""
    stage = Stage(clock, connection)
    stage.address.gate.clear()

    assert not stage.maintain()
    assert not stage.maintain()

    assert stage.node.is_connecting
    assert stage.node.facts is None
    assert stage.node._connector.is_busy  # noqa: SLF001
    stage.address.gate.set()
    stage.arrive()
    assert stage.address.tries == 1


def test_first_request_waits_for_the_connection(
    clock: FakeClock, connection: Connection
) -> None:
    """Requests are sent as soon as there is a connection, in their order."""
    stage = Stage(clock, connection)
    stage.address.gate.clear()
    stage.maintain()
    first = stage.sends("a")
    stage.sends("b")

    stage.address.gate.set()
    stage.arrive()

    sent = commands(connection.sock.sent)
    assert [command[3] for command in sent] == [b"a", b"b"]
    assert said(first) is None


def test_new_connection_is_taken_once(stage: Stage, sock: Sock) -> None:
    """The node knows its server; the socket never blocks and is watched."""
    assert stage.node.facts is not None
    assert stage.node.facts.run_id == "run"
    assert stage.selector.registered == {sock: (READ, stage.node)}
    assert sock.timeout == 0
    assert not stage.node.needs_maintenance
    assert not stage.maintain()


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ConnectionRefusedError("Connection refused"), "refused the connection"),
        (TimeoutError("timed out"), "cannot be connected to: timed out"),
        (OSError("No route to host."), "cannot be connected to: No route to host"),
    ],
)
def test_request_fails_with_the_reason_of_the_missing_connection(
    clock: FakeClock, failure: Exception, reason: str
) -> None:
    """So do requests that waited, and requests that come later."""
    stage = Stage(clock, failure)
    stage.maintain()
    first, second = request(), request()
    stage.ask(first)

    stage.arrive()
    stage.ask(second)

    assert (said(first), said(second)) == (reason, reason)
    assert not stage.node.is_connecting


def test_connecting_is_tried_again_with_longer_and_longer_pauses(
    clock: FakeClock,
) -> None:
    """The pause is 0.1 s, doubled, at most 2 s."""
    stage = Stage(clock)
    tried_at = []
    for _ in range(1000):
        before = stage.address.tries
        stage.arrive()
        if stage.address.tries > before:
            tried_at.append(clock.monotonic() - 1000.0)
        clock.advance(0.01)

    pauses = [later - sooner for sooner, later in itertools.pairwise(tried_at)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2], abs=0.011)


def test_connection_that_is_made_for_long_is_not_waited_for(
    clock: FakeClock, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """A name service that hangs collects no requests: they fail, as do later ones."""
    caplog.set_level(logging.INFO)
    stage, reason = Stage(clock, connection), "has not let us connect for 10 s"
    stage.address.gate.clear()
    stage.maintain()
    first = stage.sends()
    clock.advance(9.9)
    stage.maintain()
    assert said(first) is None

    clock.advance(0.1)
    stage.maintain()
    second = stage.sends()

    assert (said(first), said(second)) == (reason, reason)
    stage.address.gate.set()
    stage.arrive()
    assert caplog.messages == [f"Node node {reason}.", "Node node is connected again."]
    assert said(stage.sends()) is None
    assert len(commands(connection.sock.sent)) == 1


def test_request_long_after_an_outage_waits_for_the_connection(
    clock: FakeClock, connection: Connection
) -> None:
    """A refusal of long ago says nothing about now."""
    stage = Stage(clock, ConnectionRefusedError("refused"), connection)
    stage.arrive()
    stage.address.gate.clear()

    clock.advance(3600.0)
    stage.maintain()

    assert stage.node.is_connecting
    stage.sends()
    stage.address.gate.set()
    stage.arrive()
    assert len(commands(connection.sock.sent)) == 1


def test_request_during_an_outage_fails_at_once(clock: FakeClock) -> None:
    """It does not wait for the next try."""
    stage = Stage(clock)
    stage.arrive()
    stage.address.gate.clear()
    clock.advance(0.2)
    stage.maintain()
    asked = request()

    stage.ask(asked)

    assert not stage.node.is_connecting
    assert said(asked) == "refused the connection"
    stage.address.gate.set()


def test_connect_thread_ends_when_it_is_done(clock: FakeClock) -> None:
    """No thread waits for a node that is down."""
    stage = Stage(clock)
    ended = threading.Event()
    connector: Any = stage.node._connector  # noqa: SLF001
    connect = connector._connect  # noqa: SLF001

    def connect_and_end(attempt: object) -> None:
        connect(attempt)
        ended.set()  # the last thing that the thread does

    with (
        threads_started_here() as started,
        mock.patch.object(connector, "_connect", connect_and_end),
    ):
        stage.maintain()
        let_connect(stage.node)

    assert started == [connect_and_end]
    assert ended.wait(SOON)


# -- the conversation ------------------------------------------------------------------


BOTH = selectors.EVENT_READ | selectors.EVENT_WRITE


def test_replies_belong_to_the_requests_in_their_order(stage: Stage) -> None:
    """A late reply is never taken for the reply to a later request."""
    first, second = stage.sends("a"), stage.sends("b")
    stage.answers([2, b"t", 1])
    assert (said(first), said(second)) == ([2, b"t", 1], None)
    stage.answers([3])

    assert said(second) == [3]


def test_requests_that_are_sent_together_are_one_send(stage: Stage, sock: Sock) -> None:
    """A hundred renewals cost one system call."""
    stage.ask(*(request(f"k{number}") for number in range(100)))

    assert sock.sends == 1
    assert len(commands(sock.sent)) == 100


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_reply_that_comes_in_pieces_is_one(stage: Stage, size: int) -> None:
    """The network may split it anywhere."""
    first, second = request("a"), request("b")
    stage.ask(first, second)
    data = encoded([2, b"token\nfacts", 900]) + encoded([3])

    for start in range(0, len(data), size):
        assert said(second) is None
        stage.reads(data[start : start + size])

    assert (said(first), said(second)) == ([2, b"token\nfacts", 900], [3])


def test_reply_longer_than_a_read_is_read_to_its_end(stage: Stage) -> None:
    """One call reads all bytes that have come."""
    asked = stage.sends()
    stage.answers([2, b"x" * 200_000, 1])

    assert said(asked)[2] == 1


def test_tls_that_has_more_in_its_buffer_is_read_to_its_end(clock: FakeClock) -> None:
    """A TLS socket may hold bytes that no selector sees: it is read until empty."""

    class Tls(Sock):
        """A socket that returns one record at a time."""

        def pending(self) -> int:
            return 0

        def recv(self, size: int) -> bytes:
            if not self.incoming:
                raise ssl.SSLWantReadError
            return super().recv(size)

    connection = Connection()
    connection._sock = Tls()  # noqa: SLF001  (it is a stand-in of this test)
    stage = Stage(clock, connection)
    stage.arrive()
    first, second = request("a"), request("b")
    stage.ask(first, second)
    connection.sock.replies([3])
    stage.answers([2, b"t", 1])

    assert (said(first), said(second)) == ([3], [2, b"t", 1])
    assert stage.node.facts


def test_read_without_data_is_harmless(stage: Stage) -> None:
    """A selector may be wrong."""
    asked = stage.sends()

    stage.node.receive()
    stage.answers([3])

    assert said(asked) == [3]


def test_command_that_does_not_fit_is_sent_when_there_is_room(
    stage: Stage, sock: Sock
) -> None:
    """Later commands wait behind it."""
    sock.room = 10
    first, second = request("a"), request("b")

    stage.ask(first)
    sock.room = 5
    stage.ask(second)
    assert stage.selector.registered[sock][0] == BOTH
    assert len(sock.sent) == 10
    sock.room = 100
    stage.node.flush()
    assert stage.selector.registered[sock][0] == BOTH
    sock.room = 1 << 20
    stage.node.flush()

    assert stage.selector.registered[sock][0] == READ
    assert bytes(sock.sent) == first.packed_source() + second.packed()


def test_socket_that_takes_nothing_is_waited_for(stage: Stage, sock: Sock) -> None:
    """The whole command is sent once, later."""
    sock.room = 0
    asked = stage.sends()
    stage.node.flush()
    assert said(asked) is None

    sock.room = 1 << 20
    stage.node.flush()

    assert bytes(sock.sent) == asked.packed_source()


def test_node_that_takes_no_more_bytes_is_dropped(stage: Stage, sock: Sock) -> None:
    """At four megabytes of unsent commands the connection is closed."""
    sock.room = 0
    requests = [request("k" * 1_000_000) for _ in range(5)]

    for asked in requests:
        stage.ask(asked)

    assert sock.is_closed
    reason = "accepts no more data"
    assert [said(asked) for asked in requests] == [reason] * 5


# -- forgotten scripts -----------------------------------------------------------------


NOSCRIPT = ErrorReply("NOSCRIPT No matching script. Please use EVAL.")


def test_forgotten_script_is_sent_with_its_source(stage: Stage, sock: Sock) -> None:
    """After a restart, or SCRIPT FLUSH, the request is answered all the same."""
    asked = stage.sends()
    stage.answers(NOSCRIPT)
    assert said(asked) is None
    stage.answers([3])

    assert commands(sock.sent)[1][:2] == [b"EVAL", INSPECT.source.encode()]
    assert said(asked) == [3]


def test_forgotten_script_does_not_overtake_a_later_command(
    stage: Stage, sock: Sock
) -> None:
    """An acquire that runs after its own release would lock for a whole ttl."""
    stage.sends("before")
    acquire, freed = request(), release(stage.clock)
    stage.ask(acquire)
    stage.ask(freed)
    stage.answers([3], NOSCRIPT, 0)

    assert said(acquire) == LOST_SCRIPTS
    assert said(freed) == 0
    assert len(commands(sock.sent)) == 3
    stage.sends("after")
    assert commands(sock.sent)[3][:2] == [b"EVAL", INSPECT.source.encode()]


def test_forgotten_script_is_brought_by_the_last_of_several_requests(
    stage: Stage, sock: Sock
) -> None:
    """Those before it fail, as none may run after a later one."""
    first, second = stage.sends("a"), stage.sends("b")
    stage.answers(NOSCRIPT, NOSCRIPT, [3])

    assert commands(sock.sent)[2][0] == b"EVAL"
    assert (said(first), said(second)) == (LOST_SCRIPTS, [3])


def test_release_whose_script_was_forgotten_is_sent_again(
    stage: Stage, sock: Sock
) -> None:
    """Also where it could not be sent at once, because of a later request."""
    freed = release(stage.clock)
    stage.ask(freed)
    stage.sends("later")
    stage.answers(NOSCRIPT, [3])
    stage.clock.advance(0.25)
    stage.node.send_backlog()

    assert said(freed) == LOST_SCRIPTS
    assert commands(sock.sent)[2][:2] == [b"EVAL", RELEASE.source.encode()]
    stage.answers(1)
    assert not stage.node.has_pending


def test_release_goes_by_its_sha_to_a_node_that_has_the_scripts(
    clock: FakeClock,
) -> None:
    """The source of it would be most of the bytes of a lock."""
    connection = Connection(loads_scripts=True)
    stage = Stage(clock, connection)
    stage.arrive()

    stage.ask(release(clock))

    (sent,) = commands(connection.sock.sent)
    assert sent[:2] == [b"EVALSHA", RELEASE.sha.encode()]


def test_first_use_of_a_script_brings_its_source(stage: Stage, sock: Sock) -> None:
    """A user who may not load scripts still leaves no lock: the reply may be unread."""
    stage.sends("a")
    stage.ask(release(stage.clock))
    stage.sends("b")
    stage.ask(release(stage.clock))

    sent = [command[:2] for command in commands(sock.sent)]
    assert sent == [
        [b"EVAL", INSPECT.source.encode()],
        [b"EVAL", RELEASE.source.encode()],
        [b"EVALSHA", INSPECT.sha.encode()],
        [b"EVALSHA", RELEASE.sha.encode()],
    ]


def test_release_brings_its_source_to_a_node_that_forgot_its_scripts(
    clock: FakeClock,
) -> None:
    """It is sent once more with it; the next one goes by its SHA."""
    connection = Connection(loads_scripts=True)
    stage, first = Stage(clock, connection), release(clock)
    stage.arrive()
    stage.ask(first)
    stage.answers(NOSCRIPT)

    stage.ask(release(clock, key="other"))

    words = [command[0] for command in commands(connection.sock.sent)]
    assert words == [b"EVALSHA", b"EVAL", b"EVALSHA"]
    stage.answers(1, 0)
    assert said(first) == 1


# -- suspects --------------------------------------------------------------------------


def test_suspect_still_gets_requests(stage: Stage) -> None:
    """Its late replies are entered in their requests, and end the suspicion."""
    first, second = request("a"), request("b")
    stage.ask(first)
    stage.node.mark_suspect(stage.clock.monotonic())
    suspected = [stage.node.suspect]
    stage.ask(second)
    for _ in range(2):
        stage.answers([3])
        suspected.append(stage.node.suspect)

    assert suspected == [True, True, False]  # until no reply is outstanding
    assert (said(first), said(second)) == ([3], [3])


def test_suspect_that_hangs_is_connected_to_anew(
    stage: Stage, connection: Connection
) -> None:
    """After a long silence a second connection replaces the first."""
    again = stage.next_connection()
    out = stage.sends()
    stage.node.mark_suspect(stage.clock.monotonic())
    stage.clock.advance(CONNECT_TIMEOUT)
    stage.arrive()
    assert stage.address.tries == 1

    stage.clock.advance(0.01)
    stage.arrive()

    assert connection.is_disconnected
    assert said(out) == "did not answer for too long, and has a new connection now"
    assert not stage.node.suspect
    assert list(stage.selector.registered) == [again.sock]


def test_suspect_that_answers_in_time_keeps_its_connection(
    stage: Stage, connection: Connection
) -> None:
    """It answered while the second connection was made, which is closed."""
    again = stage.next_connection()
    out = stage.sends()
    stage.node.mark_suspect(stage.clock.monotonic())
    stage.clock.advance(CONNECT_TIMEOUT + 0.01)
    connection.sock.replies([3])

    stage.arrive()

    assert said(out) == [3]
    assert again.is_disconnected
    assert not connection.is_disconnected
    assert list(stage.selector.registered) == [connection.sock]


def test_suspect_is_dropped_in_the_end(stage: Stage, connection: Connection) -> None:
    """If no second connection can be made: after ten seconds."""
    out = stage.sends()
    stage.node.mark_suspect(stage.clock.monotonic())

    stage.clock.advance(10.0)
    stage.arrive()
    assert said(out) is None
    stage.clock.advance(0.01)
    stage.arrive()

    assert said(out) == "has been silent for 10 s"
    assert connection.is_disconnected


def test_node_without_connection_is_no_suspect(clock: FakeClock) -> None:
    """Only a node with a connection can be late."""
    stage = Stage(clock)

    stage.node.mark_suspect(stage.clock.monotonic())

    assert not stage.node.suspect


# -- the end of a connection -----------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (b"", "closed the connection"),
        (ConnectionResetError("reset by peer"), "lost its connection: reset by peer"),
        (b"HTTP/1.1 400\r\n", "does not speak the protocol of Redis"),
        (b"$4\r\nPONG\r\n", "does not speak the protocol of Redis: b'PONG'"),
        (b"$x\r\n", "does not speak the protocol of Redis"),
    ],
    ids=["eof", "reset", "http", "nonsense", "length"],
)
def test_connection_that_ends_fails_all_open_requests(
    stage: Stage, sock: Sock, end: Any, reason: str
) -> None:
    """They fail with the reason; the socket is closed and not watched."""
    first, second, later = request("a"), request("b"), request("c")
    stage.ask(first, second)
    stage.answers([3])

    stage.reads(end)
    stage.ask(later)

    assert said(first) == [3]
    assert said(second).startswith(reason)
    assert said(later).startswith(reason)
    assert sock.is_closed
    assert stage.selector.registered == {}
    assert stage.node.facts is None


def test_reply_to_no_request_ends_the_connection(stage: Stage, sock: Sock) -> None:
    """It would be taken for the reply to the next request."""
    asked, later = request("a"), request("b")
    stage.ask(asked)
    stage.answers([3], [3])
    stage.ask(later)

    assert said(asked) == [3]
    assert said(later).startswith("sent a reply to no request")
    assert sock.is_closed
    assert stage.selector.registered == {}
    assert stage.node.facts is None


def test_send_that_fails_ends_the_connection(stage: Stage, sock: Sock) -> None:
    """The request fails, and the open requests before it."""
    first, second = request("a"), request("b")
    stage.ask(first)
    sock.failure = BrokenPipeError("Broken pipe")

    stage.ask(second)

    assert said(first) == said(second) == "lost its connection: Broken pipe"
    assert sock.is_closed


def test_flush_that_fails_ends_the_connection(stage: Stage, sock: Sock) -> None:
    """So do requests whose bytes are sent later."""
    sock.room = 1
    asked = stage.sends()
    sock.failure = ConnectionResetError("reset by peer")

    stage.node.flush()

    assert said(asked) == "lost its connection: reset by peer"


def test_connection_is_made_anew_after_its_end(stage: Stage) -> None:
    """The next use makes a new one, without a pause."""
    again = stage.next_connection()
    stage.clock.advance(1.0)
    stage.reads(b"")
    asked = request()

    stage.maintain()
    assert stage.node.is_connecting
    stage.ask(asked)
    stage.arrive()

    assert bytes(again.sock.sent) == asked.packed_source()


@pytest.mark.parametrize("where", ["send", "receive", "flush"])
def test_connection_torn_by_an_interruption_is_never_used_again(
    stage: Stage, sock: Sock, where: str
) -> None:
    """A time limit may interrupt between any two lines: the bytes sent are unknown."""
    before, interrupted, after = request("a"), request("b"), request("c")
    stage.ask(before)
    if where == "receive":
        sock.incoming.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            stage.node.receive()
    else:
        if where == "flush":
            sock.room = 1
            stage.ask(interrupted)
        sock.failure = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            stage.ask(interrupted) if where == "send" else stage.node.flush()
    sock.failure = None
    sock.replies([3], [3])

    torn, stage.node = stage.node, stage.node.anew("was interrupted")
    torn.cut()
    stage.ask(after)

    assert said(before) == said(after) == "was interrupted"
    assert sock.is_closed
    assert b"$1\r\nc\r\n" not in sock.sent
    assert stage.node.needs_maintenance


# -- closing, forking ------------------------------------------------------------


def test_close_fails_open_requests_and_drops_pending_releases(
    stage: Stage, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The next use connects again. The log tells of no loss: the node is there."""
    caplog.set_level(logging.INFO)
    asked = release(stage.clock)
    stage.ask(asked)

    stage.node.close()
    stage.node.close()

    assert caplog.messages == []
    assert said(asked) == "was closed"
    assert connection.is_disconnected
    assert stage.selector.registered == {}
    assert not stage.node.has_pending
    assert stage.node.needs_maintenance


def test_forked_child_does_not_touch_the_connection_of_its_parent(
    stage: Stage, connection: Connection
) -> None:
    """It sends no goodbye, and enters no failure in the parent's requests."""
    asked = stage.sends()

    stage.node.forget_parent()

    assert not connection.is_disconnected
    assert connection.sock.is_closed  # its own copy of the descriptor
    assert said(asked) is None
    assert (stage.node.facts, list(stage.node.pending)) == (None, [])
    assert stage.node.needs_maintenance


# -- servers without a vote ------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "role", "reason"),
    [
        (
            *("redis_mode:cluster", "master"),
            "belongs to a Redis Cluster; use independent masters",
        ),
        (
            *("server_mode:cluster", "master"),  # as Valkey says it
            "belongs to a Redis Cluster; use independent masters",
        ),
        (
            *("redis_mode:sentinel", "master"),
            "runs in sentinel mode; use an independent master",
        ),
        (
            *("redis_mode:standalone", "slave"),
            "is a replica of m:7; use independent masters",
        ),
    ],
)
def test_server_of_the_wrong_kind_has_no_vote(
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    role: str,
    reason: str,
) -> None:
    """It gets no request; requests fail with the reason, which is logged once."""
    wrong = [Connection(mode=mode) for _ in range(2)]
    for connection in wrong:
        connection.role = role
    stage = Stage(clock, *wrong)
    asked = request()

    stage.arrive()
    stage.ask(asked)
    stage.clock.advance(2.0)
    stage.arrive()

    assert said(asked) == reason
    assert wrong[0].sock.sent == b""
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in errors] == [
        f"Node node {reason}. It does not vote."
    ]


def test_server_of_the_wrong_kind_that_is_checked_again_is_not_called_late(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its new connection is logged as what it is, and once a minute."""
    caplog.set_level(logging.INFO, "celery_redlock.wire.node_log")
    wrong = [Connection() for _ in range(4)]
    for connection in wrong:
        connection.role = "slave"
    stage = Stage(clock, *wrong)

    for _ in wrong:
        stage.arrive()
        clock.advance(2.0)

    assert stage.address.tries == 4
    assert caplog.messages[1:] == ["Node node is asked again whether it may vote."]


def test_server_of_the_wrong_kind_is_checked_again(clock: FakeClock) -> None:
    """A promoted replica votes after two seconds at most."""
    replica, master = Connection(), Connection()
    replica.role = "slave"
    stage = Stage(clock, replica, master)
    stage.arrive()
    clock.advance(1.0)
    stage.arrive()
    assert stage.address.tries == 1

    clock.advance(1.0)
    stage.arrive()
    stage.sends()

    assert replica.is_disconnected
    assert len(commands(master.sock.sent)) == 1
