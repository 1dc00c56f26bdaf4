"""All nodes at once: who is waited for, how long, and who is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.question import by_everyone, granted_or_hopeless
from tests.unit.core.net import FREE, GRANTED, NODE_TIMEOUT, TAKEN, Net
from tests.unit.core.wires import commands

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


def test_question_goes_to_all_before_anybody_is_read(net: Net) -> None:
    """N nodes cost little more than one."""
    sent: list[list[int]] = []
    net.on_select.append(
        lambda: sent.append([len(commands(sock.sent)) for sock in net.socks])
    )
    for index in range(3):
        net.comes(index, 0.001, GRANTED)

    net.fanout.ask(net.question())

    assert sent == [[1, 1, 1]]


def test_ask_returns_when_the_question_is_settled(net: Net, clock: FakeClock) -> None:
    """Two of three granted: the third is not waited for, and not suspected."""
    net.comes(0, 0.002, GRANTED)
    net.comes(1, 0.003, GRANTED)
    net.comes(2, 0.004, GRANTED)
    before = clock.monotonic()
    asked = net.question()

    net.fanout.ask(asked)

    assert clock.monotonic() == pytest.approx(before + 0.003)
    assert asked.ballot.granted == 2
    assert not net.nodes[2].suspect


def test_late_reply_is_entered_where_it_belongs(net: Net, clock: FakeClock) -> None:
    """At the next use, into its own question and into no other."""
    net.comes(0, 0.002, GRANTED)
    net.comes(1, 0.003, GRANTED)
    first, second = net.question(), net.question(settle=by_everyone)
    net.fanout.ask(first)
    net.comes(2, 0.001, TAKEN)
    for index in range(3):
        net.comes(index, 0.002, FREE)

    net.fanout.ask(second)

    assert net.kinds(first)[2] is VoteKind.TAKEN
    assert net.kinds(second) == [VoteKind.FREE] * 3


def test_ask_gives_up_after_one_node_timeout(net: Net, clock: FakeClock) -> None:
    """Whoever is silent; they are asked on and not waited for."""
    net.comes(0, 0.001, GRANTED)
    before = clock.monotonic()
    asked = net.question()

    net.fanout.ask(asked)

    assert clock.monotonic() == pytest.approx(before + NODE_TIMEOUT)
    assert net.kinds(asked) == [VoteKind.GRANTED, None, None]
    assert [node.suspect for node in net.nodes] == [False, True, True]


def test_ask_looks_once_more_before_silence_is_counted(
    net: Net, clock: FakeClock
) -> None:
    """The one that was late may have been this process, which was not scheduled."""
    asked = net.question()

    def stall() -> None:
        clock.advance(NODE_TIMEOUT)
        net.on_select.clear()
        for index in range(3):
            net.comes(index, 0.0, GRANTED)

    net.on_select.append(stall)

    net.fanout.ask(asked)

    assert asked.ballot.granted >= 2
    assert not any(node.suspect for node in net.nodes)


def test_suspect_is_not_waited_for(net: Net, clock: FakeClock) -> None:
    """A minority that hangs costs one time-out, and then none."""
    asked = net.question(settle=by_everyone)
    net.comes(0, 0.001, FREE)
    net.comes(1, 0.001, FREE)
    net.fanout.ask(asked)
    assert net.nodes[2].suspect
    before = clock.monotonic()
    net.comes(0, 0.001, FREE)
    net.comes(1, 0.001, FREE)

    net.fanout.ask(net.question(settle=by_everyone))

    assert clock.monotonic() == pytest.approx(before + 0.001)


def test_suspects_are_waited_for_where_no_majority_answers_without_them(
    net: Net, clock: FakeClock
) -> None:
    """All of them were late once: that is a slow network, and no outage."""
    net.fanout.ask(net.question(settle=by_everyone))
    assert all(node.suspect for node in net.nodes)
    asked = net.question()
    for index in (0, 1):
        net.comes(index, 0.01, FREE)
        net.comes(index, 0.02, GRANTED)

    net.fanout.ask(asked)

    assert asked.ballot.granted == 2


def test_several_questions_are_waited_for_together(net: Net, clock: FakeClock) -> None:
    """The watchdog's renewals of all leases: one exchange."""
    first = net.question(settle=granted_or_hopeless)
    second = net.question(settle=granted_or_hopeless)
    net.fanout.send(first, second)
    before = clock.monotonic()
    for index in (0, 1):
        net.comes(index, 0.01, GRANTED)
        net.comes(index, 0.02, GRANTED)

    net.fanout.wait(first, second, until=before + NODE_TIMEOUT)

    assert clock.monotonic() == pytest.approx(before + 0.02)
    assert (first.ballot.granted, second.ballot.granted) == (2, 2)


def test_wait_ends_at_its_instant(net: Net, clock: FakeClock) -> None:
    """Who has a deadline of his own names it."""
    asked = net.question()
    net.fanout.send(asked)
    before = clock.monotonic()

    net.fanout.wait(asked, until=before + 0.005)

    assert clock.monotonic() == pytest.approx(before + 0.005)


def test_drain_reads_without_waiting(net: Net, clock: FakeClock) -> None:
    """What has come is entered; what has not is not waited for."""
    asked = net.question()
    net.fanout.send(asked)
    net.comes(0, 0.0, GRANTED)
    before = clock.monotonic()

    net.fanout.drain(before)

    assert net.kinds(asked) == [VoteKind.GRANTED, None, None]
    assert clock.monotonic() == before
    assert not net.nodes[1].suspect


# -- withdrawing ---------------------------------------------------------------------


def test_question_that_is_withdrawn_is_not_sent(net: Net) -> None:
    """Asked in our turn: nothing can be sent between this and that."""
    withdrawn, wanted = net.question("a", withdrawn=lambda: True), net.question("b")

    net.fanout.send(withdrawn, wanted)

    assert [commands(sock.sent)[0][3] for sock in net.socks] == [b"b"] * 3
    assert net.kinds(withdrawn) == [VoteKind.SILENT] * 3
    assert "was not asked any more" in withdrawn.ballot.reasons()


def test_question_that_is_not_withdrawn_is_sent(net: Net) -> None:
    """The lease is still held."""
    asked = net.question(withdrawn=lambda: False)

    net.fanout.send(asked)

    assert all(sock.sent for sock in net.socks)
