"""How a connection to a node ends: broken, spoilt, closed, or left to the parent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.core.stage import Stage, release, said
from tests.unit.core.wires import Connection, Sock, question

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (b"", "closed the connection"),
        (ConnectionResetError("reset by peer"), "lost its connection: reset by peer"),
        (b"HTTP/1.1 400\r\n", "does not speak the protocol of Redis"),
        (b"$4\r\nPONG\r\n", "does not speak the protocol of Redis: b'PONG'"),
    ],
    ids=["eof", "reset", "http", "nonsense"],
)
def test_connection_that_ends_fails_what_is_out(
    stage: Stage, sock: Sock, end: Any, reason: str
) -> None:
    """All of it at once, with the reason; the socket is closed and not watched."""
    first, second, later = question("a"), question("b"), question("c")
    stage.ask(first, second)
    sock.replies([3])
    stage.node.receive()

    sock.inbox.append(end)
    stage.node.receive()
    stage.ask(later)

    assert said(first) == [3]
    assert said(second).startswith(reason)
    assert said(later).startswith(reason)
    assert sock.is_closed
    assert stage.selector.registered == {}
    assert stage.node.facts is None


def test_node_that_speaks_unasked_is_left(stage: Stage, sock: Sock) -> None:
    """A reply too many would be taken for that to the next question."""
    asked, later = question("a"), question("b")
    stage.ask(asked)
    sock.replies([3], [3])

    stage.node.receive()
    stage.ask(later)

    assert said(asked) == [3]
    assert said(later).startswith("spoke without being asked")
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

    stage.tend()
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
    stage.tend()
    stage.ask(after)

    reason = "had its connection closed after an interruption"
    assert said(out) == reason
    assert sock.is_closed
    assert b"$1\r\nc\r\n" not in sock.sent


def test_reply_that_makes_no_sense_is_no_vote(stage: Stage, sock: Sock) -> None:
    """Nor is any that follows, for it may answer another question."""
    first, second = question("a"), question("b")
    stage.ask(first, second)
    sock.replies([99], [3])

    stage.node.receive()

    reason = "does not speak the protocol of Redis: [99]"
    assert said(first) == said(second) == reason
    assert sock.is_closed


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
