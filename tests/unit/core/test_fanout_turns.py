"""Threads talk to the nodes in turns, and whatever happens in one, it is given back."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core import fanout
from tests.strikes import Strike, Struck
from tests.unit.core.net import NODE_TIMEOUT, Net
from tests.unit.core.wires import SOON, commands

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


def test_threads_talk_one_at_a_time_and_do_not_wait_beyond_their_deadline(
    net: Net, clock: FakeClock
) -> None:
    """A loss is announced in time, whoever else is waiting for hung nodes."""
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert leave.wait(SOON)

    net.on_select.append(hang)
    thread = threading.Thread(target=net.fanout.ask, args=(net.question("a"),))
    thread.start()
    assert entered.wait(SOON)
    asked = net.question("b")
    now = clock.monotonic()

    sent = net.fanout.send(asked, until=now)
    net.fanout.wait(asked, until=now)
    net.fanout.drain(now)
    net.on_select.clear()
    leave.set()
    thread.join()

    assert not sent
    assert [len(commands(sock.sent)) for sock in net.socks] == [1, 1, 1]
    assert net.fanout.send(asked, until=clock.monotonic() + 1.0)
    assert [len(commands(sock.sent)) for sock in net.socks] == [2, 2, 2]


def test_turn_is_given_back_when_its_holder_is_interrupted(
    net: Net, clock: FakeClock
) -> None:
    """A time limit that strikes while we wait blocks nobody after us."""

    def strike() -> None:
        net.on_select.clear()
        raise KeyboardInterrupt

    net.on_select.append(strike)
    with pytest.raises(KeyboardInterrupt):
        net.fanout.ask(net.question())
    net.on_select.append(strike)
    with pytest.raises(KeyboardInterrupt):
        net.fanout.wait(net.question(), until=clock.monotonic() + 1.0)

    assert net.fanout.send(net.question(), until=clock.monotonic())


@pytest.mark.parametrize("talk", ["ask", "send", "wait", "drain"])
def test_turn_is_given_back_wherever_an_exception_strikes(
    net: Net, clock: FakeClock, talk: str
) -> None:
    """Else the next one who wants to talk, or to give up a lock, waits for ever."""

    def speak() -> None:
        until = clock.monotonic() + NODE_TIMEOUT
        asked = net.question()
        if talk == "ask":
            net.fanout.ask(asked)
        elif talk == "drain":
            net.fanout.drain(until)
        else:
            getattr(net.fanout, talk)(asked, until=until)

    places, was_struck = 0, True
    while was_struck:
        places += 1
        strike = Strike(places, fanout.__file__)
        with contextlib.suppress(Struck), strike:
            speak()
        was_struck = strike.has_struck
        other = threading.Thread(target=net.fanout.send, args=(net.question(),))
        other.daemon = True
        other.start()
        other.join(SOON)
        assert not other.is_alive(), f"the turn was kept after a strike at {places}"

    assert places > 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_fork_in_the_middle_of_a_turn_does_not_block_the_child(net: Net) -> None:
    """The lock that another thread holds at the fork would be held for ever."""
    outcome: list[int] = []

    def fork() -> None:
        net.on_select.clear()
        pid = os.fork()
        if pid == 0:  # the child: does it get its turn?
            done = net.fanout.send(net.question(), until=net.clock.monotonic())
            os._exit(17 if done else 1)
        outcome.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    net.on_select.append(fork)

    net.fanout.ask(net.question())

    assert outcome == [17]
