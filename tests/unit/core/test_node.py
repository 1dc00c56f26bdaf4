"""One master: one ordered conversation, and connecting in the background."""

from __future__ import annotations

import _thread
import itertools
import logging
import selectors
import ssl
from typing import TYPE_CHECKING, Any, cast

import pytest

from celery_redlock.core.node import Node
from celery_redlock.core.scripts import INSPECT, RELEASE
from celery_redlock.core.wire import ErrorReply
from tests.unit.core.wires import (
    Address,
    Connection,
    Selector,
    Sock,
    arrive,
    commands,
    encoded,
    let_connect,
    question,
)
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from celery_redlock.core.question import Question
    from celery_redlock.testing import FakeClock

READ = selectors.EVENT_READ
BOTH = selectors.EVENT_READ | selectors.EVENT_WRITE
NOSCRIPT = ErrorReply("NOSCRIPT No matching script. Please use EVAL.")
CONNECT_TIMEOUT = 1.0


class Stage:
    """A node, its next connections, and the one that it has."""

    def __init__(self, clock: FakeClock, *coming: Connection | Exception) -> None:
        self.clock = clock
        self.address = Address(*coming)
        self.selector = Selector()
        self.node = Node(
            cast("Any", self.address), clock=clock, connect_timeout=CONNECT_TIMEOUT
        )

    def arrive(self) -> None:
        """Let a connection be tried, and take what comes of it."""
        arrive(self.node, self.selector)

    def ask(self, *questions: Question) -> None:
        """Send these questions together."""
        self.node.send(questions, 0)


@pytest.fixture
def connection() -> Connection:
    """Give the connection that the node has."""
    return Connection()


@pytest.fixture
def sock(connection: Connection) -> Sock:
    """Give the socket of the node's connection."""
    return connection.sock


@pytest.fixture
def stage(clock: FakeClock, connection: Connection) -> Stage:
    """Give a node that is connected."""
    stage = Stage(clock, connection)
    stage.arrive()
    assert stage.node.facts
    return stage


def said(asked: Question) -> Any:
    """Return what the node said: its reply, or why there is none; None while out."""
    vote = asked.ballot.votes[0]
    if asked.replies[0] is None and vote is not None:
        return vote.reason
    return asked.replies[0]


def release(clock: FakeClock, **options: Any) -> Question:
    """Return a release that insists."""
    until = clock.monotonic() + 60.0
    return question(script=RELEASE, insist_until=until, **options)


# -- connecting ------------------------------------------------------------------


def test_node_that_was_never_tried_answers_at_once(clock: FakeClock) -> None:
    """A failed vote, and nobody waits."""
    stage, asked = Stage(clock), question()

    stage.ask(asked)

    assert said(asked) == "is not connected"
    assert stage.address.tries == 0


def test_connecting_does_not_block(clock: FakeClock, connection: Connection) -> None:
    """It happens in a thread of its own, however long it takes."""
    stage = Stage(clock, connection)
    stage.address.gate.clear()

    assert not stage.node.tend(cast("Any", stage.selector))
    assert not stage.node.tend(cast("Any", stage.selector))

    assert stage.node.is_arriving
    assert stage.node.facts is None
    assert stage.node._connector.is_busy  # noqa: SLF001
    stage.address.gate.set()
    stage.arrive()
    assert stage.address.tries == 1


def test_first_question_waits_for_the_connection(
    clock: FakeClock, connection: Connection
) -> None:
    """It is sent as soon as there is one, in the order of asking."""
    stage = Stage(clock, connection)
    stage.address.gate.clear()
    stage.node.tend(cast("Any", stage.selector))
    first, second = question("a"), question("b")
    stage.ask(first)
    stage.ask(second)

    stage.address.gate.set()
    stage.arrive()

    sent = commands(connection.sock.sent)
    assert [command[3] for command in sent] == [b"a", b"b"]
    assert said(first) is None


def test_connection_that_is_made_is_told_once(stage: Stage, sock: Sock) -> None:
    """Who it is, and that it never blocks; its socket is watched for replies."""
    assert stage.node.facts is not None
    assert (stage.node.facts.run_id, stage.node.facts.version) == ("run", "7.0")
    assert stage.selector.registered == {sock: (READ, stage.node)}
    assert sock.timeout == 0
    assert not stage.node.wants_tending
    assert not stage.node.tend(cast("Any", stage.selector))


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ConnectionRefusedError("Connection refused"), "refused the connection"),
        (TimeoutError("timed out"), "cannot be connected to: timed out"),
        (OSError("No route to host."), "cannot be connected to: No route to host"),
    ],
)
def test_question_learns_why_there_is_no_connection(
    clock: FakeClock, failure: Exception, reason: str
) -> None:
    """Those that waited, and those that come later."""
    stage = Stage(clock, failure)
    stage.node.tend(cast("Any", stage.selector))
    first, second = question(), question()
    stage.ask(first)

    stage.arrive()
    stage.ask(second)

    assert (said(first), said(second)) == (reason, reason)
    assert not stage.node.is_arriving


def test_connecting_is_tried_again_with_a_longer_pause_each(clock: FakeClock) -> None:
    """0.1 s, doubled, at most 2 s: a node that is down is not stormed."""
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


def test_outage_that_is_over_delays_nobody(
    clock: FakeClock, connection: Connection
) -> None:
    """What was refused long ago says nothing now: the question waits again."""
    stage = Stage(clock, ConnectionRefusedError("refused"), connection)
    stage.arrive()
    stage.address.gate.clear()

    clock.advance(3600.0)
    stage.node.tend(cast("Any", stage.selector))

    assert stage.node.is_arriving
    asked = question()
    stage.ask(asked)
    stage.address.gate.set()
    stage.arrive()
    assert len(commands(connection.sock.sent)) == 1


def test_outage_that_lasts_keeps_nobody_waiting(clock: FakeClock) -> None:
    """While it is tried again and again, each question fails at once."""
    stage = Stage(clock)
    stage.arrive()
    stage.address.gate.clear()
    clock.advance(0.2)
    stage.node.tend(cast("Any", stage.selector))
    asked = question()

    stage.ask(asked)

    assert not stage.node.is_arriving
    assert said(asked) == "refused the connection"
    stage.address.gate.set()


# -- what kind of server ---------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "role", "reason"),
    [
        ("cluster", "master", "belongs to a Redis Cluster; use independent masters"),
        ("sentinel", "master", "runs in sentinel mode; use an independent master"),
        ("standalone", "slave", "is a replica of m:7; use independent masters"),
    ],
)
def test_server_of_the_wrong_kind_has_no_vote(
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    role: str,
    reason: str,
) -> None:
    """It is asked nothing; questions learn why, and the log says it once."""
    wrong = [Connection(mode=mode) for _ in range(2)]
    for connection in wrong:
        connection.role = role
    stage = Stage(clock, *wrong)
    asked = question()

    stage.arrive()
    stage.ask(asked)
    clock.advance(2.0)
    stage.arrive()

    assert said(asked) == reason
    assert wrong[0].sock.sent == b""
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in errors] == [
        f"Node node {reason}. It does not vote."
    ]


def test_server_of_the_wrong_kind_is_looked_at_again(clock: FakeClock) -> None:
    """A replica that was promoted votes, two seconds later at the latest."""
    replica, master = Connection(), Connection()
    replica.role = "slave"
    stage = Stage(clock, replica, master)
    stage.arrive()
    clock.advance(1.0)
    stage.arrive()
    assert stage.address.tries == 1

    clock.advance(1.0)
    stage.arrive()
    asked = question()
    stage.ask(asked)

    assert replica.is_disconnected
    assert len(commands(master.sock.sent)) == 1


# -- the conversation ------------------------------------------------------------


def test_replies_are_those_to_the_questions_in_their_order(
    stage: Stage, sock: Sock
) -> None:
    """However late: a reply is never taken for the answer to a later question."""
    first, second = question("a"), question("b")
    stage.ask(first)
    stage.ask(second)
    sock.replies([2, b"t", 1])
    stage.node.receive()
    assert (said(first), said(second)) == ([2, b"t", 1], None)
    sock.replies([3])

    stage.node.receive()

    assert said(second) == [3]


def test_questions_that_go_together_are_one_send(stage: Stage, sock: Sock) -> None:
    """A hundred renewals cost one system call and not a hundred."""
    stage.ask(*(question(f"k{number}") for number in range(100)))

    assert sock.sends == 1
    assert len(commands(sock.sent)) == 100


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_reply_that_comes_in_pieces_is_one(stage: Stage, sock: Sock, size: int) -> None:
    """Wherever the network has torn it."""
    first, second = question("a"), question("b")
    stage.ask(first, second)
    data = encoded([2, b"token\nfacts", 900]) + encoded([3])

    for start in range(0, len(data), size):
        assert said(second) is None
        sock.inbox.append(data[start : start + size])
        stage.node.receive()

    assert (said(first), said(second)) == ([2, b"token\nfacts", 900], [3])


def test_reply_longer_than_a_read_is_read_to_its_end(stage: Stage, sock: Sock) -> None:
    """All that has come is read in one go."""
    asked = question()
    stage.ask(asked)
    sock.replies([2, b"x" * 200_000, 1])

    stage.node.receive()

    assert said(asked)[2] == 1


def test_tls_that_has_more_in_its_buffer_is_read_to_its_end(
    clock: FakeClock,
) -> None:
    """A TLS socket may hold what no selector sees: it is read until it says no."""

    class Tls(Sock):
        """Gives one record at a time."""

        def pending(self) -> int:
            return 0

        def recv(self, size: int) -> bytes:
            if not self.inbox:
                raise ssl.SSLWantReadError
            return super().recv(size)

    connection = Connection()
    connection._sock = Tls()  # noqa: SLF001  (it is a stand-in of this test)
    stage = Stage(clock, connection)
    stage.arrive()
    first, second = question("a"), question("b")
    stage.ask(first, second)
    connection.sock.replies([3])
    connection.sock.replies([2, b"t", 1])

    stage.node.receive()

    assert (said(first), said(second)) == ([3], [2, b"t", 1])
    assert stage.node.facts


def test_nothing_to_read_is_no_end(stage: Stage, sock: Sock) -> None:
    """A selector that was wrong costs nothing."""
    asked = question()
    stage.ask(asked)

    stage.node.receive()
    sock.replies([3])
    stage.node.receive()

    assert said(asked) == [3]


def test_command_that_does_not_fit_is_sent_on_when_it_does(
    stage: Stage, sock: Sock
) -> None:
    """In the order of asking: what comes later waits behind it."""
    sock.room = 10
    first, second = question("a"), question("b")

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
    assert bytes(sock.sent) == first.packed() + second.packed()


def test_socket_that_takes_nothing_is_waited_for(stage: Stage, sock: Sock) -> None:
    """The whole command is sent later, once."""
    sock.room = 0
    asked = question()
    stage.ask(asked)
    stage.node.flush()
    assert said(asked) is None

    sock.room = 1 << 20
    stage.node.flush()

    assert bytes(sock.sent) == asked.packed()


def test_node_that_takes_nothing_any_more_is_given_up(stage: Stage, sock: Sock) -> None:
    """Four megabytes are waiting: it is gone, and memory is not endless."""
    sock.room = 0
    questions = [question("k" * 1_000_000) for _ in range(5)]

    for asked in questions:
        stage.ask(asked)

    assert sock.is_closed
    reason = "took nothing more from a full connection"
    assert [said(asked) for asked in questions] == [reason] * 5


# -- the end of a connection -----------------------------------------------------


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (b"", "closed the connection"),
        (ConnectionResetError("reset by peer"), "lost its connection: reset by peer"),
        (b":1\r\n:1\r\n", "spoke without being asked"),
        (b"HTTP/1.1 400\r\n", "does not speak the protocol of Redis"),
    ],
    ids=["eof", "reset", "unasked", "http"],
)
def test_connection_that_ends_fails_what_is_out(
    stage: Stage, sock: Sock, end: Any, reason: str
) -> None:
    """All of it at once, with the reason; the socket is closed and not watched."""
    first, second, later = question("a"), question("b"), question("c")
    stage.ask(first, second)
    sock.replies([3])
    stage.node.receive()
    if end == b":1\r\n:1\r\n":
        stage.node.receive()
        sock.replies([3])
        stage.node.receive()

    sock.inbox.append(end)
    stage.node.receive()
    stage.ask(later)

    assert said(first) == [3]
    assert reason in f"{said(second)} {said(later)}"
    assert said(later).startswith(reason)
    assert sock.is_closed
    assert stage.selector.registered == {}
    assert stage.node.facts is None


def test_send_that_fails_ends_the_connection(stage: Stage, sock: Sock) -> None:
    """The question, and what was out before it."""
    first, second = question("a"), question("b")
    stage.ask(first)
    sock.failure = BrokenPipeError("Broken pipe")

    stage.ask(second)

    assert said(first) == said(second) == "lost its connection: Broken pipe"
    assert sock.is_closed


def test_flush_that_fails_ends_the_connection(stage: Stage, sock: Sock) -> None:
    """The same for what is sent later."""
    sock.room = 1
    asked = question()
    stage.ask(asked)
    sock.failure = ConnectionResetError("reset by peer")

    stage.node.flush()

    assert said(asked) == "lost its connection: reset by peer"


def test_connection_is_made_anew_after_its_end(
    clock: FakeClock, connection: Connection
) -> None:
    """At the next use, and without a pause: it was good until now."""
    again = Connection()
    stage = Stage(clock, connection, again)
    stage.arrive()
    clock.advance(1.0)
    connection.sock.inbox.append(b"")
    stage.node.receive()
    asked = question()

    stage.node.tend(cast("Any", stage.selector))
    assert stage.node.is_arriving
    stage.ask(asked)
    stage.arrive()

    assert bytes(again.sock.sent) == asked.packed()


@pytest.mark.parametrize("where", ["send", "receive", "flush"])
def test_connection_torn_by_an_interruption_is_never_used_again(
    stage: Stage, sock: Sock, where: str
) -> None:
    """A time limit may strike between any two lines: who knows what was sent."""
    out, struck, after = question("a"), question("b"), question("c")
    stage.ask(out)
    if where == "receive":
        sock.inbox.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            stage.node.receive()
    else:
        if where == "flush":
            sock.room = 1
            stage.ask(struck)
        sock.failure = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            stage.ask(struck) if where == "send" else stage.node.flush()
    sock.failure = None
    sock.replies([3], [3])

    assert stage.node.wants_tending
    stage.node.tend(cast("Any", stage.selector))
    stage.ask(after)

    reason = "had its connection closed after an interruption"
    assert said(out) == reason
    assert sock.is_closed
    assert b"$1\r\nc\r\n" not in sock.sent


def test_reply_that_makes_no_sense_is_no_vote(stage: Stage, sock: Sock) -> None:
    """It is a mistake that must be seen, and ends the connection."""
    first, second = question("a"), question("b")
    stage.ask(first, second)
    sock.replies([99], [3])

    with pytest.raises(KeyError):
        stage.node.receive()
    stage.node.tend(cast("Any", stage.selector))

    assert first.ballot.granted == first.ballot.taken == 0
    assert said(second) == "had its connection closed after an interruption"


# -- scripts that were forgotten -------------------------------------------------


def test_forgotten_script_is_sent_with_its_source(stage: Stage, sock: Sock) -> None:
    """After a restart, or SCRIPT FLUSH: the question is answered all the same."""
    asked = question()
    stage.ask(asked)
    sock.replies(NOSCRIPT)
    stage.node.receive()
    assert said(asked) is None
    sock.replies([3])

    stage.node.receive()

    assert commands(sock.sent)[1][:2] == [b"EVAL", INSPECT.source.encode()]
    assert said(asked) == [3]


def test_forgotten_script_does_not_overtake_a_later_command(
    clock: FakeClock, stage: Stage, sock: Sock
) -> None:
    """An acquire that ran after its own release would lock for a whole ttl."""
    acquire, let_go = question(), release(clock)
    stage.ask(acquire)
    stage.ask(let_go)
    sock.replies(NOSCRIPT, 0)
    stage.node.receive()

    assert said(acquire) == "had forgotten its scripts"
    assert said(let_go) == 0
    *_, lesson = commands(sock.sent)
    assert lesson == [b"SCRIPT", b"LOAD", INSPECT.source.encode()]
    assert [command[0] for command in commands(sock.sent)].count(b"EVAL") == 1


def test_forgotten_script_may_overtake_commands_of_other_keys(
    stage: Stage, sock: Sock
) -> None:
    """They have nothing to do with each other."""
    first, second = question("a"), question("b")
    stage.ask(first)
    stage.ask(second)
    sock.replies(NOSCRIPT, [3], [2, b"t", 1])

    stage.node.receive()

    assert commands(sock.sent)[2][0] == b"EVAL"
    assert (said(first), said(second)) == ([2, b"t", 1], [3])


@pytest.mark.parametrize("outcome", [("OK",), ErrorReply("OOM"), NOSCRIPT, b"sha"])
def test_answer_to_a_lesson_is_nobodys(
    clock: FakeClock, stage: Stage, sock: Sock, outcome: Any
) -> None:
    """Whatever it is, it is not taken for that to the next question."""
    stage.ask(question())
    stage.ask(release(clock))
    sock.replies(NOSCRIPT, 0)
    stage.node.receive()
    after = question("z")
    stage.ask(after)

    sock.replies(outcome, [3])
    stage.node.receive()

    assert said(after) == [3]
    assert stage.node.facts


# -- suspects, and who hangs -----------------------------------------------------


def test_suspect_is_asked_on(stage: Stage, sock: Sock) -> None:
    """Its late answers are entered where they belong; then all is well again."""
    first, second = question("a"), question("b")
    stage.ask(first)
    stage.node.overdue()
    suspected = [stage.node.suspect]
    stage.ask(second)
    for _ in range(2):
        sock.replies([3])
        stage.node.receive()
        suspected.append(stage.node.suspect)

    assert suspected == [True, True, False]  # until nothing is out any more
    assert (said(first), said(second)) == ([3], [3])


def test_suspect_that_hangs_is_connected_to_anew(
    clock: FakeClock, connection: Connection
) -> None:
    """Silent for longer than connecting takes: a second connection replaces it."""
    again = Connection()
    stage = Stage(clock, connection, again)
    stage.arrive()
    out = question()
    stage.ask(out)
    stage.node.overdue()
    clock.advance(CONNECT_TIMEOUT)
    stage.arrive()
    assert stage.address.tries == 1

    clock.advance(0.01)
    stage.arrive()

    assert connection.is_disconnected
    assert said(out) == "was silent for too long and has been connected to anew"
    assert not stage.node.suspect
    assert list(stage.selector.registered) == [again.sock]


def test_suspect_that_came_round_keeps_its_connection(
    clock: FakeClock, connection: Connection
) -> None:
    """It answered while the other was made: its answer counts, and the other goes."""
    again = Connection()
    stage = Stage(clock, connection, again)
    stage.arrive()
    out = question()
    stage.ask(out)
    stage.node.overdue()
    clock.advance(CONNECT_TIMEOUT + 0.01)
    connection.sock.replies([3])

    stage.arrive()

    assert said(out) == [3]
    assert again.is_disconnected
    assert not connection.is_disconnected
    assert list(stage.selector.registered) == [connection.sock]


def test_suspect_is_given_up_in_the_end(
    clock: FakeClock, connection: Connection
) -> None:
    """Where a second connection does not get through either: ten seconds."""
    stage = Stage(clock, connection)
    stage.arrive()
    out = question()
    stage.ask(out)
    stage.node.overdue()

    clock.advance(10.0)
    stage.arrive()
    assert said(out) is None
    clock.advance(0.01)
    stage.arrive()

    assert said(out) == "has been silent for 10 s"
    assert connection.is_disconnected


def test_node_without_connection_is_no_suspect(clock: FakeClock) -> None:
    """There is nobody to suspect."""
    stage = Stage(clock)

    stage.node.overdue()

    assert not stage.node.suspect


# -- what is owed ----------------------------------------------------------------


def test_release_that_did_not_get_through_is_told_when_it_does(
    clock: FakeClock, connection: Connection
) -> None:
    """And a second later once more: the old buffers may hold an acquire."""
    again = Connection()
    stage = Stage(clock, connection, again)
    stage.arrive()
    let_go = release(clock)
    stage.ask(let_go)
    connection.sock.inbox.append(b"")
    stage.node.receive()
    assert said(let_go) == "closed the connection"
    assert stage.node.owes

    stage.node.tend(cast("Any", stage.selector))
    clock.advance(0.2)
    stage.arrive()
    assert bytes(again.sock.sent) == let_go.packed()
    clock.advance(0.9)
    stage.node.catch_up()
    assert bytes(again.sock.sent) == let_go.packed()
    clock.advance(0.1)
    stage.node.catch_up()

    assert bytes(again.sock.sent) == let_go.packed() * 2
    assert not stage.node.owes


def test_question_that_may_be_dropped_is_not_owed(stage: Stage, sock: Sock) -> None:
    """An acquire is never told again: its try is over."""
    stage.ask(question())
    sock.inbox.append(b"")
    stage.node.receive()

    assert not stage.node.owes


def test_release_is_not_owed_to_a_node_that_was_away_all_the_time(
    clock: FakeClock,
) -> None:
    """It cannot have granted: a node that is down for an hour collects nothing."""
    stage = Stage(clock)
    stage.arrive()
    began = clock.monotonic()
    clock.advance(1.0)

    stage.ask(release(clock, insist_since=began))
    assert not stage.node.owes
    stage.ask(release(clock, insist_since=0.0))
    assert stage.node.owes


def test_release_is_owed_to_a_node_that_went_away_since(
    clock: FakeClock, stage: Stage, sock: Sock
) -> None:
    """It may have granted before it went."""
    began = clock.monotonic()
    clock.advance(1.0)
    sock.inbox.append(b"")
    stage.node.receive()
    clock.advance(1.0)

    stage.ask(release(clock, insist_since=began))

    assert stage.node.owes


# -- closing, forking ------------------------------------------------------------


def test_close_fails_what_is_out_and_owes_nothing(
    clock: FakeClock, stage: Stage, connection: Connection
) -> None:
    """Closed is closed; the next use connects again."""
    asked = release(clock)
    stage.ask(asked)

    stage.node.close()
    stage.node.close()

    assert said(asked) == "was closed"
    assert connection.is_disconnected
    assert stage.selector.registered == {}
    assert not stage.node.owes
    assert stage.node.wants_tending


def test_forked_child_touches_nothing_of_its_parents(
    stage: Stage, connection: Connection
) -> None:
    """No goodbye on the parent's connection, and no answer to its questions."""
    asked = question()
    stage.ask(asked)

    stage.node.forget()

    assert not connection.is_disconnected
    assert connection.sock.is_closed  # its own copy of the descriptor
    assert said(asked) is None
    assert (stage.node.facts, list(stage.node.pending)) == (None, [])
    assert stage.node.wants_tending


def test_connect_thread_ends_when_it_is_done(clock: FakeClock) -> None:
    """No thread is left waiting on a node that is down."""
    before = _thread._count()  # noqa: SLF001
    stage = Stage(clock)
    stage.node.tend(cast("Any", stage.selector))

    let_connect(stage.node)

    until(lambda: _thread._count() == before)  # noqa: SLF001
