"""All nodes at once: who is waited for, how long, and who is not."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from celery_redlock.core import fanout
from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.fanout import Fanout
from celery_redlock.core.node import Node
from celery_redlock.core.question import (
    by_everyone,
    by_majority,
    granted_or_hopeless,
    verdict_certain,
)
from celery_redlock.core.scripts import RELEASE
from celery_redlock.core.timing import Timing
from tests.strikes import Strike, Struck
from tests.unit.core.wires import (
    SOON,
    Address,
    Connection,
    Selector,
    Sock,
    commands,
    encoded,
    let_connect,
    question,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.question import Question
    from celery_redlock.testing import FakeClock

NODE_TIMEOUT, CONNECT_TIMEOUT = 0.05, 1.0
GRANTED, TAKEN, FREE = [1, 7], [2, b"other.1\n1", 900], [3]


class ClockedSelector(Selector):
    """Moves time on to what comes next, or to the end of the wait.

    Attributes:
        waits: How long each look could last.
        coming: What will be received, when and by whom.
        on_select: Called at each look.
    """

    def __init__(
        self,
        clock: FakeClock,
        on_select: list[Callable[[], Any]],
        nodes: list[Node],
    ) -> None:
        super().__init__()
        self.clock = clock
        self.nodes = nodes
        self.waits: list[float] = []
        self.coming: list[tuple[float, Sock, bytes]] = []
        self.on_select = on_select
        self.is_closed = False

    def select(self, timeout: float) -> list[tuple[Any, int]]:
        """Return who can be read, as a selector does."""
        self.waits.append(timeout)
        for call in list(self.on_select):
            call()
        let_connect(*self.nodes, seconds=0.005)  # some are behind a closed gate
        now = self.clock.monotonic()
        next_at = min((at for at, _, _ in self.coming), default=float("inf"))
        next_at = now if any(sock.inbox for sock in self.registered) else next_at
        self.clock.advance(max(0.0, min(next_at, now + timeout) - now))
        now = self.clock.monotonic()
        for item in [item for item in self.coming if item[0] <= now]:
            self.coming.remove(item)
            item[1].inbox.append(item[2])
        ready = []
        for sock, (events, node) in self.registered.items():
            mask = selectors.EVENT_READ if sock.inbox else 0
            mask |= events & selectors.EVENT_WRITE if sock.room else 0
            if mask:
                key = selectors.SelectorKey(sock, 0, events, node)
                ready.append((key, mask))
        return ready

    def close(self) -> None:
        """Watch nothing any more."""
        super().close()
        self.is_closed = True


class Net:
    """Some nodes, and the conversation with them."""

    def __init__(self, clock: FakeClock, *run_ids: str) -> None:
        self.clock = clock
        self.connections = [Connection(run_id) for run_id in run_ids]
        self.addresses = [
            Address(connection, name=f"node-{index}")
            for index, connection in enumerate(self.connections)
        ]
        self.selectors: list[ClockedSelector] = []
        self.on_select: list[Callable[[], Any]] = []
        self.nodes = [
            Node(cast("Any", address), clock=clock, connect_timeout=CONNECT_TIMEOUT)
            for address in self.addresses
        ]
        self.fanout = Fanout(
            self.nodes,
            clock=clock,
            timing=Timing(30.0, 60.0, NODE_TIMEOUT, CONNECT_TIMEOUT),
            new_selector=cast("Any", self._new_selector),
        )

    def _new_selector(self) -> ClockedSelector:
        self.selectors.append(ClockedSelector(self.clock, self.on_select, self.nodes))
        return self.selectors[-1]

    @property
    def selector(self) -> ClockedSelector:
        """The selector in use."""
        return self.selectors[-1]

    @property
    def socks(self) -> list[Sock]:
        """The sockets of the nodes."""
        return [connection.sock for connection in self.connections]

    def connect(self) -> None:
        """Let all connections be made."""
        asked = self.question(settle=by_everyone)
        self.fanout.ask(asked)
        for index, sock in enumerate(self.socks):
            if sock.sent and asked.ballot.votes[index] is None:
                self.comes(index, 0.0, FREE)
        self.fanout.drain(0.0)
        self.selector.waits.clear()
        for node in self.nodes:
            node.suspect = False
        for sock in self.socks:
            sock.sent.clear()

    def comes(self, index: int, seconds: float, reply: Any) -> None:
        """Let a node's reply arrive in so many seconds."""
        at = self.clock.monotonic() + seconds
        self.selector.coming.append((at, self.socks[index], encoded(reply)))

    def question(self, key: str = "k", **options: Any) -> Question:
        """Return a question to all nodes."""
        options.setdefault("settle", verdict_certain)
        return question(key, nodes=len(self.nodes), **options)

    def kinds(self, asked: Question) -> list[VoteKind | None]:
        """Return how each node voted."""
        return [vote.kind if vote else None for vote in asked.ballot.votes]


@pytest.fixture
def net(clock: FakeClock) -> Net:
    """Give three nodes that are connected."""
    net = Net(clock, "a", "b", "c")
    net.connect()
    return net


# -- asking ---------------------------------------------------------------------------


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
    net.comes(0, NODE_TIMEOUT + 0.01, GRANTED)
    net.selector.coming.clear()

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


# -- turns ----------------------------------------------------------------------------


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


# -- connections -----------------------------------------------------------------------


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


# -- debts, closing, forking -----------------------------------------------------------


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
