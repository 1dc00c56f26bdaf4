"""Connecting to a node in the background: who waits for it, and for how long."""

from __future__ import annotations

import _thread
import itertools
import selectors
from typing import TYPE_CHECKING

import pytest

from tests.unit.core.stage import Stage, said
from tests.unit.core.wires import Connection, Sock, commands, let_connect, question
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


READ = selectors.EVENT_READ


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

    assert not stage.tend()
    assert not stage.tend()

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
    stage.tend()
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
    assert not stage.tend()


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
    stage.tend()
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
    stage.tend()

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
    stage.tend()
    asked = question()

    stage.ask(asked)

    assert not stage.node.is_arriving
    assert said(asked) == "refused the connection"
    stage.address.gate.set()


def test_connect_thread_ends_when_it_is_done(clock: FakeClock) -> None:
    """No thread is left waiting on a node that is down."""
    before = _thread._count()  # noqa: SLF001
    stage = Stage(clock)
    stage.tend()

    let_connect(stage.node)

    until(lambda: _thread._count() == before)  # noqa: SLF001
