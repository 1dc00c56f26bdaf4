"""All nodes at once: which are waited for, for how long, and by which thread."""

from __future__ import annotations

import itertools
import linecache
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_redlock.basics import process
from celery_redlock.testing import FakeClock
from celery_redlock.wire import broadcast
from celery_redlock.wire.node import Node
from celery_redlock.wire.quorum import VoteKind
from celery_redlock.wire.requests import all_answered, grant_is_decided
from tests.harness.threads import threads_started_here
from tests.harness.waiting import until as eventually
from tests.unit.lock.sockets import (
    CONNECT_TIMEOUT,
    FREE,
    GRANTED,
    NODE_TIMEOUT,
    SOON,
    TAKEN,
    Connection,
    Net,
    commands,
)

# -- replies ---------------------------------------------------------------------------


def test_request_goes_to_all_nodes_before_a_reply_is_read(net: Net) -> None:
    """So N nodes cost little more than one."""
    sent: list[list[int]] = []
    net.on_select.append(
        lambda: sent.append([len(commands(sock.sent)) for sock in net.socks])
    )
    net.all_come(0.001, GRANTED)

    net.broadcast.ask(net.request())

    assert sent == [[1, 1, 1]]


def test_ask_returns_when_the_request_is_done(net: Net, clock: FakeClock) -> None:
    """After two of three grants the third node is not waited for, and not suspect."""
    net.comes(0, 0.002, GRANTED)
    net.comes(1, 0.003, GRANTED)
    net.comes(2, 0.004, GRANTED)
    before = clock.monotonic()
    asked = net.request()

    net.broadcast.ask(asked)

    assert clock.monotonic() == pytest.approx(before + 0.003)
    assert asked.ballot.granted == 2
    assert not net.nodes[2].suspect


def test_late_reply_is_entered_in_its_own_request(net: Net, clock: FakeClock) -> None:
    """The next use reads it."""
    net.comes(0, 0.002, GRANTED)
    net.comes(1, 0.003, GRANTED)
    first, second = net.request(), net.request(done_when=all_answered)
    net.broadcast.ask(first)
    net.comes(2, 0.001, TAKEN)
    net.all_come(0.002, FREE)

    net.broadcast.ask(second)

    assert net.kinds(first)[2] is VoteKind.TAKEN
    assert net.kinds(second) == [VoteKind.FREE] * 3


def test_ask_gives_up_after_one_node_timeout(net: Net, clock: FakeClock) -> None:
    """Silent nodes become suspect: they get requests and are not waited for."""
    net.comes(0, 0.001, GRANTED)
    before = clock.monotonic()
    asked = net.request()

    net.broadcast.ask(asked)

    assert clock.monotonic() == pytest.approx(before + NODE_TIMEOUT)
    assert net.kinds(asked) == [VoteKind.GRANTED, None, None]
    assert [node.suspect for node in net.nodes] == [False, True, True]


def test_ask_reads_once_more_before_a_node_counts_as_silent(net: Net) -> None:
    """This process itself may have been late."""
    asked = net.request()

    def stall() -> None:
        net.clock.advance(NODE_TIMEOUT)
        net.on_select.clear()
        net.all_come(0.0, GRANTED)

    net.on_select.append(stall)

    net.broadcast.ask(asked)

    assert asked.ballot.granted >= 2
    assert not any(node.suspect for node in net.nodes)


def test_suspect_is_not_waited_for(net: Net, clock: FakeClock) -> None:
    """A minority that hangs costs one time-out in all."""
    asked = net.request(done_when=all_answered)
    net.all_come(0.001, FREE, nodes=2)
    net.broadcast.ask(asked)
    assert net.nodes[2].suspect
    before = clock.monotonic()
    net.all_come(0.001, FREE, nodes=2)

    net.broadcast.ask(net.request(done_when=all_answered))

    assert clock.monotonic() == pytest.approx(before + 0.001)


def test_node_that_hangs_and_is_not_needed_is_noticed(
    net: Net, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The two others decide each request long before its time is over."""
    clock.advance(60.0)  # since the line about a node that was late when it connected
    before = clock.monotonic()
    while not net.nodes[2].suspect and clock.monotonic() < before + 10.0:
        net.all_come(0.001, GRANTED, nodes=2)
        net.broadcast.ask(net.request())
        clock.advance(0.1)

    silent = clock.monotonic() - before
    assert CONNECT_TIMEOUT < silent < CONNECT_TIMEOUT + 0.3
    (line,) = caplog.messages
    assert re.match(r"Node node-2 answers late: no reply for 1\.[012] s\. ", line)


def test_node_that_is_behind_is_late_since_the_call(
    net: Net, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """And not since its reply to an earlier request, which has just come."""
    clock.advance(60.0)  # since the line about a node that was late when it connected
    earlier = net.request()
    net.broadcast.send(earlier)
    net.comes(2, NODE_TIMEOUT - 0.001, GRANTED)

    net.broadcast.ask(net.request(done_when=all_answered))

    assert earlier.ballot.votes[2]
    lines = [line for line in caplog.messages if line.startswith("Node node-2")]
    assert [line.partition(". Calls")[0] for line in lines] == [
        f"Node node-2 answers late: no reply for {NODE_TIMEOUT:.2f} s"
    ]


def test_node_that_hung_while_nothing_was_asked_has_its_whole_silence_told(
    net: Net, clock: FakeClock
) -> None:
    """It counts from the request that it left without a reply."""
    first = net.request()
    net.all_come(0.001, GRANTED, nodes=2)
    net.broadcast.ask(first)
    clock.advance(50.0)
    net.all_come(0.001, GRANTED, nodes=2)

    net.broadcast.ask(net.request())

    assert "node-2 has been silent for 50 s" in first.ballot.reasons()


def test_reply_that_nobody_has_read_for_long_is_in_time(
    net: Net, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It was there when nothing was asked."""
    for _ in range(3):
        net.comes(0, 0.001, GRANTED)
        net.comes(1, 0.002, GRANTED)
        net.comes(2, 0.003, GRANTED)
        net.broadcast.ask(net.request())
        clock.advance(50.0)

    assert not caplog.messages
    assert not net.nodes[2].suspect


def test_suspects_are_waited_for_if_no_majority_answers_without_them(net: Net) -> None:
    """If all nodes were late once, the network is slow."""
    net.broadcast.ask(net.request(done_when=all_answered))
    assert all(node.suspect for node in net.nodes)
    asked = net.request()
    net.all_come(0.01, FREE, nodes=2)
    net.all_come(0.02, GRANTED, nodes=2)

    net.broadcast.ask(asked)

    assert asked.ballot.granted == 2


def test_several_requests_are_waited_for_together(net: Net, clock: FakeClock) -> None:
    """The watchdog renews all leases in one exchange."""
    first = net.request(done_when=grant_is_decided)
    second = net.request(done_when=grant_is_decided)
    net.broadcast.send(first, second)
    before = clock.monotonic()
    net.all_come(0.01, GRANTED, nodes=2)
    net.all_come(0.02, GRANTED, nodes=2)

    net.broadcast.wait(first, second, until=before + NODE_TIMEOUT)

    assert clock.monotonic() == pytest.approx(before + 0.02)
    assert (first.ballot.granted, second.ballot.granted) == (2, 2)


def test_wait_ends_at_its_instant(net: Net, clock: FakeClock) -> None:
    """A caller with a deadline passes it. No node is late before its own time is up."""
    asked = net.request()
    net.broadcast.send(asked)
    before = clock.monotonic()

    net.broadcast.wait(asked, until=before + 0.005)

    assert clock.monotonic() == pytest.approx(before + 0.005)
    assert not any(node.suspect for node in net.nodes)
    net.broadcast.wait(asked)
    assert clock.monotonic() == pytest.approx(before + NODE_TIMEOUT)
    assert all(node.suspect for node in net.nodes)


def test_drain_reads_without_waiting(net: Net, clock: FakeClock) -> None:
    """It enters the replies that have come."""
    asked = net.request()
    net.broadcast.send(asked)
    net.comes(0, 0.0, GRANTED)
    before = clock.monotonic()

    net.broadcast.drain()

    assert net.kinds(asked) == [VoteKind.GRANTED, None, None]
    assert clock.monotonic() == before
    assert not net.nodes[1].suspect


# -- obsolete requests --------------------------------------------------------------


def test_obsolete_request_is_not_sent(net: Net) -> None:
    """One thread drives: no other request can be sent in between."""
    is_obsolete = net.request("a", is_obsolete=lambda: True)
    wanted = net.request("b", is_obsolete=lambda: False)

    net.broadcast.send(is_obsolete, wanted)

    assert [commands(sock.sent)[0][3] for sock in net.socks] == [b"b"] * 3
    assert net.kinds(is_obsolete) == [VoteKind.SILENT] * 3
    assert "was not asked any more" in is_obsolete.ballot.reasons()


# -- connections -----------------------------------------------------------------------


def test_first_request_waits_for_connections(clock: FakeClock) -> None:
    """Fewer than a quorum are connected, so it waits for the connect timeout."""
    net = Net(clock, "a", "b", "c")
    for address in net.addresses:
        address.gate.clear()
    asked = net.request()

    def get_on() -> None:
        if clock.monotonic() < 1000.2:
            return
        for index, sock in enumerate(net.socks):
            net.addresses[index].gate.set()
            if sock.sent and not sock.incoming:
                sock.sent.clear()
                sock.replies(GRANTED)

    net.on_select.append(get_on)

    net.broadcast.ask(asked)

    assert asked.ballot.granted >= 2
    assert 0.2 < clock.monotonic() - 1000.0 < CONNECT_TIMEOUT


def test_nodes_have_their_time_to_answer_after_connecting(clock: FakeClock) -> None:
    """Even if connecting takes nearly all of its time."""
    net = Net(clock, "a", "b", "c")
    for address in net.addresses:
        address.gate.clear()
    asked = net.request()

    def connect_late_and_answer_late() -> None:
        if clock.monotonic() < 1000.0 + 0.99 * CONNECT_TIMEOUT:
            return
        for index, sock in enumerate(net.socks):
            net.addresses[index].gate.set()
            if sock.sent:
                sock.sent.clear()
                net.comes(index, 0.9 * NODE_TIMEOUT, GRANTED)

    net.on_select.append(connect_late_and_answer_late)

    net.broadcast.ask(asked)

    assert asked.ballot.granted >= 2


def test_connections_that_are_not_needed_are_not_waited_for(clock: FakeClock) -> None:
    """Two of three nodes are connected: the third one has the node timeout."""
    net = Net(clock, "a", "b", "c")
    net.addresses[2].gate.clear()
    net.connect()
    before = clock.monotonic()
    net.comes(0, 0.001, FREE)

    net.broadcast.ask(net.request())

    assert clock.monotonic() == pytest.approx(before + NODE_TIMEOUT, abs=0.003)
    net.addresses[2].gate.set()


def test_nodes_that_cannot_be_connected_to_fail_at_once(clock: FakeClock) -> None:
    """A refused connection is no silence."""
    net = Net(clock, "a", "b", "c")
    for address in net.addresses:
        address.coming.clear()
    asked = net.request()

    net.broadcast.ask(asked)

    assert net.kinds(asked) == [VoteKind.SILENT] * 3
    assert asked.ballot.reasons().count("refused the connection") == 3
    assert clock.monotonic() - 1000.0 < NODE_TIMEOUT


def test_idle_connections_are_checked_before_they_are_used(net: Net) -> None:
    """A firewall or the server may have closed them: they are made anew in time."""
    asked = net.request()
    again = [Connection(run_id) for run_id in ("a", "b", "c")]
    for index, sock in enumerate(net.socks):
        sock.incoming.append(b"")
        net.addresses[index].coming.append(again[index])
    net.clock.advance(60.0)

    def answer() -> None:
        for connection in again:
            if connection.sock.sent and not connection.sock.incoming:
                connection.sock.sent.clear()
                connection.sock.replies(GRANTED)

    net.on_select.append(answer)
    net.broadcast.ask(asked)

    assert asked.ballot.granted >= 2
    assert all(connection.is_disconnected for connection in net.connections)


def test_busy_connections_are_not_checked(net: Net, clock: FakeClock) -> None:
    """It saves one system call after a recent reply."""
    net.all_come(0.001, GRANTED, nodes=2)
    net.broadcast.ask(net.request())
    net.selector.waits.clear()
    net.all_come(0.001, GRANTED, nodes=2)

    net.broadcast.ask(net.request())

    assert len(net.selector.waits) == 1


# -- closing, forking ------------------------------------------------------------


def test_close_closes_all_connections_and_the_next_use_opens_them(net: Net) -> None:
    """A second close is harmless."""
    selector = net.selector
    net.broadcast.close()
    net.broadcast.close()

    assert all(connection.is_disconnected for connection in net.connections)
    assert selector.is_closed
    assert selector.registered == {}
    for address in net.addresses:
        address.coming.append(Connection())
    net.broadcast.drain()
    assert net.selector is not selector


def test_close_waits_for_replies_that_are_on_their_way(net: Net) -> None:
    """A node whose connection is gone may drop releases that it has not read."""
    asked = net.request(done_when=all_answered)
    net.broadcast.send(asked)
    began = net.clock.monotonic()
    for index in range(3):
        net.comes(index, 0.01 * (index + 1), FREE)

    net.broadcast.close()

    assert net.kinds(asked) == [VoteKind.FREE] * 3
    assert net.clock.monotonic() - began == pytest.approx(0.03)


def test_close_waits_for_no_longer_than_a_node_may_take(net: Net) -> None:
    """A node that hangs does not keep a process from ending."""
    asked = net.request(done_when=all_answered)
    net.broadcast.send(asked)
    began = net.clock.monotonic()

    net.broadcast.close()

    assert net.kinds(asked) == [VoteKind.SILENT] * 3
    assert net.clock.monotonic() - began == pytest.approx(NODE_TIMEOUT)


def test_forked_child_starts_anew(net: Net) -> None:
    """It has a selector and connections of its own."""
    net.broadcast.send(net.request())
    selector = net.selector

    net.broadcast.forget_parent()

    assert not any(connection.is_disconnected for connection in net.connections)
    assert selector.is_closed
    assert [node.facts for node in net.nodes] == [None] * 3


# -- one server twice ------------------------------------------------------------------


def test_same_server_twice_votes_once(clock: FakeClock) -> None:
    """Of two nodes with one run id, the second to connect is refused."""
    net = Net(clock, "a", "same", "same")
    net.connect()
    asked = net.request(done_when=all_answered)
    for index in range(3):
        if not net.nodes[index].unfit_because:
            net.comes(index, 0.001, GRANTED)

    net.broadcast.ask(asked)

    assert net.kinds(asked).count(VoteKind.GRANTED) == 2
    (second,) = [node for node in net.nodes if node.unfit_because]
    assert second.label in ("node-1", "node-2")
    assert second.unfit_because.startswith("is the same server as node-")
    assert second.unfit_because.endswith("list each one once")


def test_same_server_twice_is_found_before_it_has_voted_twice(clock: FakeClock) -> None:
    """Even if one of its connections is made later."""
    net = Net(clock, "same", "same", "c")
    net.addresses[2].coming[:] = []
    net.addresses[0].gate.clear()
    asked = net.request()
    net.broadcast.send(asked)

    def arrive() -> None:
        net.addresses[0].gate.set()
        for sock in net.socks:
            if sock.sent and not sock.incoming:
                sock.sent.clear()
                sock.replies(GRANTED)

    net.broadcast.drain()
    net.on_select.append(arrive)
    net.broadcast.wait(asked, until=clock.monotonic() + CONNECT_TIMEOUT)

    assert asked.ballot.granted == 1


def test_servers_without_a_name_are_not_the_same(clock: FakeClock) -> None:
    """A server, or an ACL, may hide the run id."""
    net = Net(clock, "", "", "")
    net.connect()

    assert [node.unfit_because for node in net.nodes] == [""] * 3


# -- threads ---------------------------------------------------------------------------


def test_thread_does_not_wait_beyond_its_deadline(net: Net, clock: FakeClock) -> None:
    """A loss is announced in time, even while another thread waits for hung nodes."""
    occupied = Occupied(net)
    asked = net.request("b")
    now = clock.monotonic()

    net.broadcast.send(asked)
    read = net.broadcast.wait(asked, until=now)
    net.broadcast.drain()

    assert not read
    assert [len(commands(sock.sent)) for sock in net.socks] == [1, 1, 1]
    occupied.leave()
    eventually(
        lambda: [len(commands(sock.sent)) for sock in net.socks] == [2, 2, 2],
        what="the request that was handed over",
    )


def source_line_of(thread: threading.Thread) -> str:
    """Return the line of the code that the thread is in."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame else ""


class Occupied:
    """A broadcast that another thread uses until ``leave``."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._entered, self._leave = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        net.on_select.append(self._hang)
        self.start(net.broadcast.ask, net.request("first"))
        assert self._entered.wait(SOON)

    def _hang(self) -> None:
        self._net.on_select.clear()
        self._entered.set()
        assert self._leave.wait(SOON)

    def start(self, call: Callable[..., object], *args: Any, **options: Any) -> None:
        """Start a thread that uses the broadcast, too."""
        thread = threading.Thread(target=call, args=args, kwargs=options, daemon=True)
        self.threads.append(thread)
        thread.start()

    def leave(self) -> None:
        """Let the other threads use it, and wait until all are done."""
        self._leave.set()
        for thread in self.threads:
            thread.join(SOON)
            assert not thread.is_alive()


def test_reply_is_read_after_the_deadline_before_it_is_judged(net: Net) -> None:
    """The time for which another thread uses the connections is no silence."""
    asked = net.request()
    net.broadcast.send(asked)
    occupied = Occupied(net)
    read: list[bool] = []
    occupied.start(lambda: read.append(net.broadcast.wait(asked)))
    net.clock.advance(2 * NODE_TIMEOUT)
    net.all_come(0.0, GRANTED)

    occupied.leave()

    assert read == [True]
    assert asked.ballot.granted == 3


def test_call_whose_request_is_done_already_has_a_deadline(net: Net) -> None:
    """An interrupted driver sent it, and others read the votes before it was filed."""
    asked = net.request()
    net.broadcast.send(asked)
    net.all_come(0.0, GRANTED)
    net.broadcast.drain()
    before = net.clock.monotonic()

    net.broadcast.ask(asked)

    assert net.clock.monotonic() == pytest.approx(before + NODE_TIMEOUT)


def test_nodes_have_their_time_from_when_a_request_is_sent(net: Net) -> None:
    """The time for which it waits to be sent is no silence."""
    asked = net.request(is_obsolete=lambda: net.clock.advance(2 * NODE_TIMEOUT))
    net.broadcast.send(asked)
    net.all_come(NODE_TIMEOUT / 2, GRANTED)

    net.broadcast.wait(asked)

    assert asked.ballot.granted == 3


def suspects(net: Net) -> list[bool]:
    """Make the last two nodes suspect, and return which nodes are."""
    net.comes(0, 0.0, FREE)
    net.broadcast.ask(net.request())
    return [node.suspect for node in net.nodes]


def test_callers_wait_for_hung_nodes_at_the_same_time(net: Net) -> None:
    """A caller that waited for its turn has waited for the nodes meanwhile."""
    assert suspects(net) == [False, True, True]
    occupied = Occupied(net)
    asked = [net.request(f"other {number}") for number in range(20)]
    for request in asked:
        occupied.start(net.broadcast.ask, request)
    eventually(
        lambda: all("event.acquire" in source_line_of(t) for t in occupied.threads[1:])
    )
    net.clock.advance(10 * NODE_TIMEOUT)
    net.comes(0, 0.0, FREE)

    def answer() -> None:
        if net.nodes[0].pending:
            net.socks[0].replies(FREE)

    net.on_select.append(answer)
    before = net.clock.monotonic()

    occupied.leave()

    assert net.clock.monotonic() < before + NODE_TIMEOUT
    assert [net.kinds(request) for request in asked] == [
        [VoteKind.FREE, None, None]
    ] * 20


def test_suspect_that_answers_has_its_time_anew(net: Net) -> None:
    """A caller that has waited for its turn waits for nodes that are back."""
    assert suspects(net) == [False, True, True]
    occupied = Occupied(net)
    asked = net.request()
    occupied.start(net.broadcast.ask, asked)
    eventually(lambda: "event.acquire" in source_line_of(occupied.threads[1]))
    net.clock.advance(10 * NODE_TIMEOUT)
    net.comes(0, 0.0, FREE)
    net.comes(0, 0.02, GRANTED)
    for index in (1, 2):
        net.comes(index, 0.0, FREE)  # to the requests before
        net.comes(index, 0.01, FREE)
        net.comes(index, 0.02, GRANTED)

    occupied.leave()

    assert asked.ballot.granted >= 2


def test_others_send_while_a_caller_waits_for_hung_nodes(net: Net) -> None:
    """The connections are free as soon as only nodes are outstanding that hang."""
    assert suspects(net) == [False, True, True]
    net.comes(0, 0.0, FREE)
    sent: list[bool] = []

    def send() -> None:
        thread = threading.Thread(target=net.broadcast.send, args=(net.request(),))
        thread.start()
        thread.join(SOON)
        sent.append(not thread.is_alive())

    net.clock.at(NODE_TIMEOUT / 2, send)

    net.broadcast.ask(net.request())

    assert sent == [True]


def test_handler_in_the_thread_that_reads_waits_for_no_other(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finaliser may release a lock in the middle of the I/O thread."""
    # On a busy machine the second caller would drive before that thread has started.
    monkeypatch.setattr(broadcast, "_LOOK_EVERY", SOON)
    occupied = Occupied(net)
    occupied.start(net.broadcast.ask, net.request("second"))
    eventually(lambda: "event.acquire" in source_line_of(occupied.threads[1]))
    done: list[threading.Thread] = []

    def finalise() -> None:
        if threading.current_thread() not in occupied.threads:
            net.on_select.clear()
            net.broadcast.ask(net.request("finaliser"))
            done.append(threading.current_thread())

    net.on_select.append(finalise)

    occupied.leave()
    eventually(lambda: bool(done))  # the others may have ended before it returns

    assert len(done) == 1
    keys = [command[3] for command in commands(net.socks[0].sent)]
    assert keys == [b"first", b"second", b"finaliser"]


def test_caller_that_is_alone_starts_no_thread(net: Net) -> None:
    """It sends and reads by itself: a child of prefork pays for no hand-over."""
    net.all_come(0.001, GRANTED)

    with threads_started_here() as started:
        net.broadcast.ask(net.request())
        net.broadcast.send(net.request())

    assert started == []


def test_call_that_is_over_does_not_keep_its_event(net: Net) -> None:
    """The event leads to the event loop of the caller, which may be closed by then."""

    class Event:
        def __init__(self, released: threading.Event) -> None:
            self.release = released.set

    kept = []
    for _ in range(3):  # a thread that has just started looks once more
        net.all_come(
            NODE_TIMEOUT / 2, GRANTED
        )  # later than the I/O thread waits for more callers
        released = threading.Event()
        event = Event(released)
        kept.append(weakref.ref(event))
        net.broadcast.begin(net.request(), event)
        assert released.wait(SOON)
        del event

    eventually(lambda: not any(event() for event in kept), SOON)


def test_log_handler_that_raises_ends_no_thread_that_coroutines_wait_for(
    net: Net, request: pytest.FixtureRequest
) -> None:
    """The I/O thread logs an error that it has met. Then it goes on."""
    request.getfixturevalue("failing_log")  # the connections are made by now
    errors = [OSError("met by the I/O thread")]

    def fail() -> None:
        if errors:
            raise errors.pop()

    net.on_select.append(fail)
    net.all_come(NODE_TIMEOUT / 2, GRANTED)
    released = threading.Event()
    event = cast("Any", SimpleNamespace(release=released.set))

    net.broadcast.begin(net.request(), event)

    assert released.wait(SOON)
    assert errors == []


def test_requests_that_wait_together_leave_together(net: Net) -> None:
    """One ``send`` for each node carries the requests of all callers, in order."""
    sends = net.socks[0].sends
    occupied = Occupied(net)
    names = [f"other {number}" for number in range(10)]
    queue = net.broadcast._queue  # noqa: SLF001
    for number, name in enumerate(names):
        occupied.start(net.broadcast.ask, net.request(name))
        eventually(partial(lambda count: len(queue) == count, number + 1))

    occupied.leave()

    assert [c[3].decode() for c in commands(net.socks[0].sent)] == ["first", *names]
    assert net.socks[0].sends == sends + 2  # one of the first, one of all others


def test_exception_in_a_caller_costs_no_other_its_verdict(net: Net) -> None:
    """A time limit interrupts the caller that reads, while another one waits."""
    entered, leave = threading.Event(), threading.Event()
    asked, verdicts = net.request("other"), list[int]()

    def interrupt() -> None:
        net.on_select.clear()
        entered.set()
        assert leave.wait(SOON)
        raise KeyboardInterrupt

    def ask() -> None:
        net.broadcast.ask(asked)
        verdicts.append(asked.ballot.granted)

    def ask_in_vain() -> None:
        with pytest.raises(KeyboardInterrupt):
            net.broadcast.ask(net.request("interrupted"))

    net.on_select.append(interrupt)
    threads = [
        threading.Thread(target=call, daemon=True) for call in (ask_in_vain, ask)
    ]
    threads[0].start()
    assert entered.wait(SOON)
    threads[1].start()
    eventually(lambda: "event.acquire" in source_line_of(threads[1]))
    net.all_come(0.0, FREE, GRANTED)

    leave.set()

    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()
    assert verdicts[0] >= 2


def test_callers_are_told_though_no_thread_can_be_started(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the callers then sends and reads for all."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    occupied = Occupied(net)
    asked = [net.request(f"other {number}") for number in range(5)]
    for request in asked:
        occupied.start(net.broadcast.ask, request)
    monkeypatch.setattr(process, "_thread", SimpleNamespace(start_new_thread=refuse))

    occupied.leave()

    assert all(request.is_done() or request.ballot.pending for request in asked)
    assert len(commands(net.socks[0].sent)) == 6


def test_coroutine_is_told_though_no_thread_can_be_started(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own thread waits for it, while another caller sends and reads."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    occupied = Occupied(net)
    monkeypatch.setattr(process, "_thread", SimpleNamespace(start_new_thread=refuse))
    told = threading.Event()
    event = cast("Any", SimpleNamespace(release=told.set))
    occupied.start(net.broadcast.begin, net.request("other"), event)
    eventually(lambda: "event.acquire" in source_line_of(occupied.threads[1]))

    occupied.leave()

    assert told.is_set()


@pytest.mark.parametrize(
    ("kind", "name", "use"),
    [
        (broadcast.Exchange, "_waker", broadcast.Exchange.wake),
        (Node, "_conversation", lambda node: node.facts),
        (Node, "_conversation", lambda node: node.pending),
        (Node, "_conversation", lambda node: node.is_working),
    ],
    ids=["wake", "facts", "pending", "is_working"],
)
def test_driver_may_close_what_another_thread_looks_at(
    kind: type, name: str, use: Callable[[Any], object]
) -> None:
    """Where threads switch between any two instructions: PyPy, and without the GIL."""
    connection = SimpleNamespace(facts=None, is_working=False)
    there = SimpleNamespace(wake=list, pending=(), connection=connection)
    first_and_later = itertools.chain([there], itertools.repeat(None))
    seen = property(lambda _: next(first_and_later))
    looked_at: Any = object.__new__(type("Closing", (kind,), {name: seen}))
    looked_at._sleeps = True  # noqa: SLF001

    use(looked_at)


def test_rest_of_an_interrupted_batch_is_sent_first(net: Net) -> None:
    """So no release can overtake the acquire of another node."""
    net.socks[1].failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        net.broadcast.send(net.request("first"))
    net.socks[1].failure = None

    net.broadcast.send(net.request("second"))

    sent = [[c[3] for c in commands(sock.sent)] for sock in net.socks]
    assert sent[0] == sent[2] == [b"first", b"second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_fork_while_a_thread_drives_does_not_block_the_child(net: Net) -> None:
    """The child has an exchange of its own."""
    outcome: list[int] = []

    def fork() -> None:
        net.on_select.clear()
        pid = os.fork()
        if pid == 0:  # the child
            net.broadcast.send(net.request())
            os._exit(17)
        outcome.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    net.on_select.append(fork)

    net.broadcast.ask(net.request())

    assert outcome == [17]
