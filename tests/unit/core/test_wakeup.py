"""Listening for releases: a subscription that is refused, broken, nonsense, or idle."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core import wakeup
from celery_redlock.core.address import parse_nodes
from celery_redlock.core.timing import Timing
from celery_redlock.core.wakeup import Ears, Waiter
from celery_redlock.core.wire import new_reader
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMING = Timing(30.0, 60.0, 0.05, 1.0)
INFO = b"run_id:1\r\nredis_version:7\r\nrole:master\r\n"


class Crier:
    """A server that says what the test wants to those who subscribe.

    Attributes:
        url: Where it is.
        channels: What was subscribed to, in order.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.channels: list[bytes] = []
        self.answer = b""
        self._subscribers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def say(self, data: bytes) -> None:
        """Send bytes to the last who subscribed."""
        self._subscribers[-1].sendall(data)

    def hang_up(self) -> None:
        """Close the connection of the last who subscribed."""
        self._subscribers[-1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        self._listener.close()
        for subscriber in self._subscribers:
            subscriber.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        reader = new_reader()
        try:
            while data := near.recv(1 << 16):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    near.sendall(self._reply(near, command))
        except OSError:
            return

    def _reply(self, near: socket.socket, command: list[bytes]) -> bytes:
        if command[0] == b"INFO":
            return b"$%d\r\n%b\r\n" % (len(INFO), INFO)
        if command[0] != b"SUBSCRIBE":
            return b"+OK\r\n"
        self._subscribers.append(near)
        self.channels.append(command[1])
        return self.answer or frame(b"subscribe", command[1]) + b":1\r\n"


def frame(*words: bytes) -> bytes:
    """Return an array of three of which one is to follow."""
    return b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def message(channel: bytes, text: bytes) -> bytes:
    """Return what a subscriber hears."""
    return frame(b"message", channel, text)


@pytest.fixture
def crier() -> Iterator[Crier]:
    """Give a server."""
    crier = Crier()
    yield crier
    crier.close()


@contextmanager
def ears_on(crier: Crier) -> Iterator[Ears]:
    """Give ears that listen to this server."""
    ears = Ears(parse_nodes([crier.url]), "redlock", TIMING)
    yield ears
    ears.close()
    until(lambda: not ears.listening)


def name_in_process(waiter: Waiter) -> bytes:
    """Return what a message calls it."""
    return waiter.name.rpartition("/")[2].encode()


def test_nobody_is_connected_to_before_somebody_waits(crier: Crier) -> None:
    """Making ears opens nothing."""
    with ears_on(crier) as ears:
        assert ears.listening == 0
        assert crier.channels == []


def test_turn_is_told_to_whom_it_is_for(crier: Crier) -> None:
    """Others who wait in the process hear nothing of it."""
    with ears_on(crier) as ears:
        first, second = ears.enlist(), ears.enlist()
        until(lambda: ears.listening == 1)
        (channel,) = crier.channels

        crier.say(message(channel, name_in_process(second) + b" 0"))

        until(lambda: second.turns)
        assert not first.turns
        assert second.name.startswith(channel.decode())


def test_fresh_subscription_nudges_who_waits(crier: Crier) -> None:
    """Something may have happened before."""
    with ears_on(crier) as ears:
        waiter = ears.enlist()

        until(lambda: waiter.nudged)

        assert ears.listening == 1


def test_turn_of_one_who_is_gone_is_passed_over(crier: Crier) -> None:
    """A late message, or one that makes no sense, does no harm."""
    with ears_on(crier) as ears:
        gone, waiter = ears.enlist(), ears.enlist()
        until(lambda: ears.listening == 1)
        ears.dismiss(gone)
        (channel,) = crier.channels
        for text in (name_in_process(gone) + b" 0", b"", b"x", b"1 2 3", b"\xff 0"):
            crier.say(message(channel, text))

        crier.say(message(channel, name_in_process(waiter) + b" 0"))

        until(lambda: waiter.turns)
        assert not gone.turns


def hang_up(crier: Crier) -> None:
    """Break the connection."""
    crier.hang_up()


def talk_nonsense(crier: Crier) -> None:
    """Say what is no reply."""
    crier.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("spoil", [hang_up, talk_nonsense])
def test_spoilt_subscription_is_made_anew(
    crier: Crier, spoil: Callable[[Crier], None]
) -> None:
    """While somebody waits; and it nudges again."""
    with ears_on(crier) as ears:
        waiter = ears.enlist()
        until(lambda: waiter.nudged)
        waiter.forget()

        spoil(crier)

        until(lambda: waiter.nudged)
        assert len(crier.channels) == 2
        assert crier.channels[0] == crier.channels[1]


def test_refusal_is_said_once(crier: Crier, caplog: pytest.LogCaptureFixture) -> None:
    """Without the permission nobody is listened to, and nothing else is wrong."""
    crier.answer = b"-NOPERM No permissions to access a channel\r\n"
    with ears_on(crier) as ears:
        ears.enlist()
        until(lambda: "cannot be listened to" in caplog.text)
        crier.hang_up()
        until(lambda: len(crier.channels) == 2)

        assert ears.listening == 0
    assert caplog.text.count("cannot be listened to") == 1


def test_ears_close_when_nobody_has_waited_for_long(
    crier: Crier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And open again for the next."""
    monkeypatch.setattr(wakeup, "_IDLE", 0.0)
    with ears_on(crier) as ears:
        waiter = ears.enlist()
        until(lambda: ears.listening == 1)

        ears.dismiss(waiter)

        until(lambda: ears.listening == 0)
        waiter = ears.enlist()
        until(lambda: ears.listening == 1)


def test_ears_close_when_who_waited_was_struck_down(
    crier: Crier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a time limit, say, before it could dismiss the waiter that it was given."""
    monkeypatch.setattr(wakeup, "_IDLE", 0.0)
    with ears_on(crier) as ears:
        waiter = ears.enlist()
        until(lambda: ears.listening == 1)

        del waiter

        until(lambda: ears.listening == 0)


def test_thread_that_died_is_replaced(
    crier: Crier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception of a time limit can hit a thread that is just being born."""
    monkeypatch.setattr(wakeup, "_PRESUMED_DEAD", 0.0)
    with ears_on(crier) as ears:
        with monkeypatch.context() as dying:
            dying.setattr(ears, "_run", lambda _: None)
            ears.enlist()

        ears.enlist()

        until(lambda: ears.listening == 1)


def test_people_come_and_go_while_all_are_nudged(crier: Crier) -> None:
    """The listening thread goes through the waiters while others change them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    enough = threading.Event()
    with ears_on(crier) as ears:

        def come_and_go() -> None:
            while not enough.is_set():
                for waiter in [ears.enlist() for _ in range(50)]:
                    ears.dismiss(waiter)

        thread = threading.Thread(target=come_and_go)
        thread.start()
        try:
            for _ in range(30_000):
                ears._take_in(ears._ears[0], [b"subscribe", b"", 1])  # noqa: SLF001
        finally:
            enough.set()
            thread.join()
            sys.setswitchinterval(interval)
