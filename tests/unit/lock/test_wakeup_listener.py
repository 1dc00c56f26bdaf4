"""Listening for wake-ups: subscriptions that are refused, broken, garbled or idle."""

from __future__ import annotations

import linecache
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from celery_redlock.basics.process import ThreadRun
from celery_redlock.basics.timing import Timing
from celery_redlock.scripts.keys import Keys
from celery_redlock.wire import pubsub
from celery_redlock.wire.pubsub import Waiter, WakeupListener
from celery_redlock.wire.url import parse_nodes
from tests.harness.tcp import ScriptedServer
from tests.harness.waiting import until
from tests.interruptions import counts_places, interruptions

TIMING = Timing(30.0, 60.0, 0.05, 1.0)
INFO = b"run_id:1\r\nredis_version:7\r\nrole:master\r\n"


class Crier(ScriptedServer):
    """A server that a test publishes on.

    Attributes:
        channels: The subscribed channels, in order.
        answer: The reply to SUBSCRIBE, if it is not the right one.
        subscribers: The connection of each of them.
    """

    def __init__(self) -> None:
        self.channels: list[bytes] = []
        self.answer = b""
        self.subscribers: list[socket.socket] = []
        super().__init__(self._reply)

    def say(self, data: bytes) -> None:
        """Send bytes to the last subscriber."""
        self.subscribers[-1].sendall(data)

    def _reply(self, command: list[bytes], sock: socket.socket) -> bytes:
        if command[0] == b"INFO":
            return b"$%d\r\n%b\r\n" % (len(INFO), INFO)
        if command[0] != b"SUBSCRIBE":
            return b"+OK\r\n"
        self.subscribers.append(sock)
        self.channels.append(command[1])
        return self.answer or frame(b"subscribe", command[1]) + b":1\r\n"


def frame(*words: bytes) -> bytes:
    """Return the start of an array of three, of which one is to follow."""
    return b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def message(channel: bytes, text: bytes) -> bytes:
    """Return the message that a subscriber receives."""
    return frame(b"message", channel, text)


@pytest.fixture
def crier() -> Iterator[Crier]:
    """Give a server."""
    crier = Crier()
    yield crier
    crier.stop()


@pytest.fixture
def listener(crier: Crier) -> Iterator[WakeupListener]:
    """Give a listener on this server."""
    listener = WakeupListener(parse_nodes([crier.url]), Keys("redlock"), TIMING)
    yield listener
    listener.close()
    until(lambda: not listener.listening)


def waiter_of(listener: WakeupListener) -> Waiter:
    """Return a new waiter whose listener listens to the server."""
    waiter = listener.add_waiter()
    until(lambda: listener.listening == 1)
    return waiter


def name_in_process(waiter: Waiter) -> bytes:
    """Return the name of a waiter in a message."""
    return waiter.name.rpartition("/")[2].encode()


def test_listener_opens_no_connection_before_the_first_waiter(
    crier: Crier, listener: WakeupListener
) -> None:
    """Making a listener opens nothing."""
    assert listener.listening == 0
    assert crier.channels == []


def test_message_wakes_the_waiter_that_it_names(
    crier: Crier, listener: WakeupListener
) -> None:
    """Other waiters of the process are not woken."""
    first, second = listener.add_waiter(), listener.add_waiter()
    until(lambda: listener.listening == 1)
    (channel,) = crier.channels

    crier.say(message(channel, name_in_process(second) + b" 0"))

    until(lambda: second.wakeups)
    assert not first.wakeups
    assert second.name.startswith(channel.decode())


def test_new_subscription_requests_a_look(listener: WakeupListener) -> None:
    """A waiter may have missed a wake-up before."""
    waiter = listener.add_waiter()

    until(lambda: waiter.must_look)

    assert listener.listening == 1


def test_message_for_a_removed_waiter_is_ignored(
    crier: Crier, listener: WakeupListener
) -> None:
    """A late or unreadable message does no harm."""
    gone, waiter = listener.add_waiter(), listener.add_waiter()
    until(lambda: listener.listening == 1)
    listener.remove_waiter(gone)
    (channel,) = crier.channels
    for text in (name_in_process(gone) + b" 0", b"", b"x", b"1 2 3", b"\xff 0"):
        crier.say(message(channel, text))

    crier.say(message(channel, name_in_process(waiter) + b" 0"))

    until(lambda: waiter.wakeups)
    assert not gone.wakeups


def hang_up(crier: Crier) -> None:
    """Break the connection."""
    crier.hang_up()


def talk_nonsense(crier: Crier) -> None:
    """Send bytes that are no reply."""
    crier.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("spoil", [hang_up, talk_nonsense])
def test_broken_subscription_is_made_anew(
    crier: Crier, listener: WakeupListener, spoil: Callable[[Crier], None]
) -> None:
    """While there is a waiter, which then looks again."""
    waiter = listener.add_waiter()
    until(lambda: waiter.must_look)
    waiter.reset()

    spoil(crier)

    until(lambda: waiter.must_look)
    assert len(crier.channels) == 2
    assert crier.channels[0] == crier.channels[1]


def test_refused_subscription_is_logged_once(
    crier: Crier, listener: WakeupListener, caplog: pytest.LogCaptureFixture
) -> None:
    """A user without the permission has no wake-ups, and no other problem."""
    crier.answer = b"-NOPERM No permissions to access a channel\r\n"
    listener.add_waiter()
    until(lambda: "The subscription to node" in caplog.text)
    crier.hang_up()
    until(lambda: len(crier.channels) == 2)

    assert listener.listening == 0
    listener.close()
    assert caplog.text.count("The subscription to node") == 1


def test_subscription_that_is_allowed_later_is_noticed(
    crier: Crier,
    listener: WakeupListener,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the same connection. The waiter looks for itself once, and is then woken."""
    monkeypatch.setattr(pubsub, "_ASK_AGAIN", 0.0)
    monkeypatch.setattr(pubsub, "_SELECT_FOR", 0.01)
    crier.answer = b"-NOPERM No permissions to access a channel\r\n"
    waiter = listener.add_waiter()
    until(lambda: len(crier.channels) > 2)
    assert not waiter.must_look

    crier.answer = b""
    until(lambda: listener.listening == 1)
    until(lambda: waiter.must_look)
    crier.say(message(crier.channels[-1], name_in_process(waiter) + b" 0"))

    until(lambda: waiter.wakeups)
    assert len({*crier.subscribers}) == 1
    assert caplog.text.count("The subscription to node") == 1


def test_listener_closes_after_a_while_without_waiters(
    listener: WakeupListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens again for the next one.

    A time limit may interrupt a wait before it can remove its waiter, as the second.
    """
    monkeypatch.setattr(pubsub, "_IDLE", 0.0)
    waiter = waiter_of(listener)

    listener.remove_waiter(waiter)

    until(lambda: listener.listening == 0)
    waiter = waiter_of(listener)

    del waiter

    until(lambda: listener.listening == 0)


def test_thread_that_ends_leaves_the_subscription_of_the_next_one(
    crier: Crier, listener: WakeupListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter may come just when it has found that there is none."""
    ends = listener._background.ends  # noqa: SLF001
    (subscription,) = listener._subscriptions  # noqa: SLF001
    runs: list[ThreadRun] = []
    kept: list[Any] = []

    def late(run: ThreadRun, has_work: Callable[[], object]) -> bool:
        is_over = ends(run, has_work)
        if is_over and not runs:
            monkeypatch.undo()
            runs.append(run)
            waiter = waiter_of(listener)
            kept.extend([waiter, subscription._connection])  # noqa: SLF001
        return is_over

    monkeypatch.setattr(listener._background, "ends", late)  # noqa: SLF001
    monkeypatch.setattr(pubsub, "_IDLE", 0.0)
    listener.remove_waiter(waiter_of(listener))
    until(lambda: bool(kept))
    assert runs[0].end.acquire(timeout=10.0)

    assert subscription._connection is kept[1]  # noqa: SLF001
    assert len(crier.channels) == 2


def test_signal_handler_that_waits_for_a_lock_in_the_middle_of_a_wait_has_its_turn(
    listener: WakeupListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock is held that its own thread would wait for."""
    inner: list[Waiter] = []
    ensure = listener._background.ensure  # noqa: SLF001

    def interrupted() -> bool:
        monkeypatch.undo()  # the handler comes once
        inner.append(listener.add_waiter())
        return ensure()

    monkeypatch.setattr(listener._background, "ensure", interrupted)  # noqa: SLF001
    outer: list[Waiter] = []
    thread = threading.Thread(
        target=lambda: outer.append(listener.add_waiter()), daemon=True
    )
    thread.start()
    thread.join(10)

    assert [waiter.name for waiter in outer] != [waiter.name for waiter in inner]
    until(lambda: inner[0].must_look and outer[0].must_look)


def test_waiters_come_and_go_while_all_are_asked_to_look(
    listener: WakeupListener,
) -> None:
    """The listening thread goes through the waiters while others change them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    enough = threading.Event()

    def come_and_go() -> None:
        while not enough.is_set():
            for waiter in [listener.add_waiter() for _ in range(50)]:
                listener.remove_waiter(waiter)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(30_000):
            listener._handle(listener._subscriptions[0], [b"subscribe", b"", 1])  # noqa: SLF001
    finally:
        enough.set()
        thread.join()
        sys.setswitchinterval(interval)


@counts_places
def test_wait_that_is_interrupted_anywhere_raises_the_interruption() -> None:
    """It leaves no lock taken, as an interrupted `threading.Event` can."""
    for interruption in interruptions(threading.__file__):
        waiter = Waiter("w")
        with interruption:
            waiter.listen(0.001)
        waiter.wake(0, 5.0)
        waiter.listen(60.0)  # the news is there
        assert waiter.wakeups == {0: 5.0}


def test_waiter_may_stop_to_wait_while_it_is_woken() -> None:
    """Its event is gone then. The thread that wakes it goes on."""
    waiter, event = Waiter("w"), threading.Lock()
    event.acquire()
    waiter.notify(event)

    def stop_to_wait(frame: FrameType, what: str, arg: object) -> Any:
        del arg
        if what == "line" and frame.f_locals.get("self") is waiter:
            code = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if code.strip().endswith("event.release()"):
                waiter.notify(None)
        return stop_to_wait

    before = sys.gettrace()
    sys.settrace(stop_to_wait)
    try:
        waiter.wake(0, 5.0)
    finally:
        sys.settrace(before)

    assert waiter.wakeups == {0: 5.0}
