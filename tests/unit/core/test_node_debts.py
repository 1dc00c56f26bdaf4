"""Releases that did not get through are owed, and told once the node is back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.question import by_majority
from celery_redlock.core.scripts import RELEASE
from tests.unit.core.stage import Stage, release, said
from tests.unit.core.wires import Connection, Sock, commands, let_connect, question

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock
    from tests.unit.core.net import Net


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

    stage.tend()
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


def test_fanout_owes_what_its_nodes_owe(net: Net, clock: FakeClock) -> None:
    """And pays at the next look, once the node is back."""
    let_go = net.question(
        script=RELEASE, settle=by_majority, insist_until=clock.monotonic() + 60.0
    )
    net.fanout.send(let_go)
    owed = [net.fanout.owes]
    net.socks[0].inbox.append(b"")
    net.fanout.drain(clock.monotonic())
    owed.append(net.fanout.owes)

    back = Connection("a")
    net.addresses[0].coming.append(back)
    for _ in range(3):
        clock.advance(0.6)
        net.fanout.drain(clock.monotonic())
        let_connect(*net.nodes)
        net.fanout.drain(clock.monotonic())

    assert [*owed, net.fanout.owes] == [False, True, False]
    assert [command[3] for command in commands(back.sock.sent)] == [b"k"] * 2
