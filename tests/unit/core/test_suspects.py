"""A node that is late is suspected: asked on, connected to anew, at last given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.core.stage import CONNECT_TIMEOUT, Stage, said
from tests.unit.core.wires import Connection, Sock, question

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


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
