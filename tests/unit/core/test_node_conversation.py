"""The conversation with a node: what is sent in which order, which reply is whose."""

from __future__ import annotations

import selectors
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.unit.core.stage import Stage, said
from tests.unit.core.wires import Connection, Sock, commands, encoded, question

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


READ = selectors.EVENT_READ
BOTH = selectors.EVENT_READ | selectors.EVENT_WRITE


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
