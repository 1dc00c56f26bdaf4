"""Servers without a vote: a cluster, a sentinel, a replica, one that is named twice."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.question import by_everyone
from tests.unit.core.net import CONNECT_TIMEOUT, GRANTED, Net
from tests.unit.core.stage import Stage, said
from tests.unit.core.wires import Connection, commands, question

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


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


# -- one server twice -----------------------------------------------------------


def test_same_server_twice_votes_once(clock: FakeClock) -> None:
    """Two names of one run id: the one that came second is refused, whoever that is."""
    net = Net(clock, "a", "same", "same")
    net.connect()
    asked = net.question(settle=by_everyone)
    for index in range(3):
        if not net.nodes[index].misfit:
            net.comes(index, 0.001, GRANTED)

    net.fanout.ask(asked)

    assert net.kinds(asked).count(VoteKind.GRANTED) == 2
    (twin,) = [node for node in net.nodes if node.misfit]
    assert twin.label in ("node-1", "node-2")
    assert twin.misfit.startswith("is the same server as node-")
    assert twin.misfit.endswith("list each one once")


def test_same_server_twice_is_found_before_it_has_voted_twice(
    clock: FakeClock,
) -> None:
    """Also where one of its connections is made later: one vote for each server."""
    net = Net(clock, "same", "same", "c")
    net.addresses[2].coming[:] = []
    net.addresses[0].gate.clear()
    asked = net.question()
    net.fanout.send(asked)

    def arrive() -> None:
        net.addresses[0].gate.set()
        for sock in net.socks:
            if sock.sent and not sock.inbox:
                sock.sent.clear()
                sock.replies(GRANTED)

    net.fanout.drain(clock.monotonic())
    net.on_select.append(arrive)
    net.fanout.wait(asked, until=clock.monotonic() + CONNECT_TIMEOUT)

    assert asked.ballot.granted == 1


def test_servers_without_a_name_are_not_the_same(clock: FakeClock) -> None:
    """A server, or an ACL, that hides its run id proves nothing."""
    net = Net(clock, "", "", "")
    net.connect()

    assert [node.misfit for node in net.nodes] == [""] * 3
