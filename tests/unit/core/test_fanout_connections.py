"""Connections to all nodes: who waits for them, and what a close or a fork does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.question import by_everyone
from tests.unit.core.net import CONNECT_TIMEOUT, FREE, GRANTED, NODE_TIMEOUT, Net
from tests.unit.core.wires import Connection

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


def test_first_question_waits_for_connections(clock: FakeClock) -> None:
    """Fewer than a quorum are connected: then connecting is worth its time-out."""
    net = Net(clock, "a", "b", "c")
    for address in net.addresses:
        address.gate.clear()
    asked = net.question()

    def get_on() -> None:
        if clock.monotonic() < 1000.2:
            return
        for index, sock in enumerate(net.socks):
            net.addresses[index].gate.set()
            if sock.sent and not sock.inbox:
                sock.sent.clear()
                sock.replies(GRANTED)

    net.on_select.append(get_on)

    net.fanout.ask(asked)

    assert asked.ballot.granted >= 2
    assert 0.2 < clock.monotonic() - 1000.0 < CONNECT_TIMEOUT


def test_connections_that_are_not_needed_are_not_waited_for(
    clock: FakeClock,
) -> None:
    """Two of three are there: the third has the usual time."""
    net = Net(clock, "a", "b", "c")
    net.addresses[2].gate.clear()
    net.connect()
    before = clock.monotonic()
    net.comes(0, 0.001, FREE)

    net.fanout.ask(net.question())

    assert clock.monotonic() == pytest.approx(before + NODE_TIMEOUT, abs=0.003)
    net.addresses[2].gate.set()


def test_nodes_that_cannot_be_connected_to_fail_at_once(clock: FakeClock) -> None:
    """A refusal is not waited out."""
    net = Net(clock, "a", "b", "c")
    for address in net.addresses:
        address.coming.clear()
    asked = net.question()

    net.fanout.ask(asked)

    assert net.kinds(asked) == [VoteKind.SILENT] * 3
    assert asked.ballot.reasons().count("refused the connection") == 3
    assert clock.monotonic() - 1000.0 < NODE_TIMEOUT


def test_idle_connections_are_looked_at_before_they_are_used(
    net: Net, clock: FakeClock
) -> None:
    """Closed meanwhile, by a firewall or a server's time-out: made anew in time."""
    asked = net.question()
    again = [Connection(run_id) for run_id in ("a", "b", "c")]
    for index, sock in enumerate(net.socks):
        sock.inbox.append(b"")
        net.addresses[index].coming.append(again[index])
    clock.advance(60.0)

    def answer() -> None:
        for connection in again:
            if connection.sock.sent and not connection.sock.inbox:
                connection.sock.sent.clear()
                connection.sock.replies(GRANTED)

    net.on_select.append(answer)
    net.fanout.ask(asked)

    assert asked.ballot.granted >= 2
    assert all(connection.is_disconnected for connection in net.connections)


def test_busy_connections_are_not_looked_at_twice(net: Net, clock: FakeClock) -> None:
    """One system call less, where there was an answer a moment ago."""
    net.comes(0, 0.001, GRANTED)
    net.comes(1, 0.001, GRANTED)
    net.fanout.ask(net.question())
    net.selector.waits.clear()
    net.comes(0, 0.001, GRANTED)
    net.comes(1, 0.001, GRANTED)

    net.fanout.ask(net.question())

    assert len(net.selector.waits) == 1


# -- closing, forking ------------------------------------------------------------


def test_close_closes_everything_and_the_next_use_begins_anew(net: Net) -> None:
    """Twice is harmless."""
    selector = net.selector
    net.fanout.close()
    net.fanout.close()

    assert all(connection.is_disconnected for connection in net.connections)
    assert selector.is_closed
    assert selector.registered == {}
    for address in net.addresses:
        address.coming.append(Connection())
    net.fanout.drain(0.0)
    assert net.selector is not selector


def test_close_waits_for_answers_that_are_on_their_way(
    net: Net, clock: FakeClock
) -> None:
    """A node that finds the connection gone may drop releases that it has not read."""
    asked = net.question(settle=by_everyone)
    net.fanout.send(asked)
    began = clock.monotonic()
    for index in range(3):
        net.comes(index, 0.01 * (index + 1), FREE)

    net.fanout.close()

    assert net.kinds(asked) == [VoteKind.FREE] * 3
    assert clock.monotonic() - began == pytest.approx(0.03)


def test_close_waits_for_no_longer_than_a_node_may_take(
    net: Net, clock: FakeClock
) -> None:
    """One that hangs does not keep a process from ending."""
    asked = net.question(settle=by_everyone)
    net.fanout.send(asked)
    began = clock.monotonic()

    net.fanout.close()

    assert net.kinds(asked) == [VoteKind.SILENT] * 3
    assert clock.monotonic() - began == pytest.approx(NODE_TIMEOUT)


def test_forked_child_begins_anew(net: Net) -> None:
    """With a turn, a selector and connections of its own; its parent's live on."""
    net.fanout.send(net.question())
    selector = net.selector

    net.fanout.forget()

    assert not any(connection.is_disconnected for connection in net.connections)
    assert selector.is_closed
    assert [node.facts for node in net.nodes] == [None] * 3
