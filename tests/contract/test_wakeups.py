"""Who is woken, where somebody listens: by a release, and by who leaves the line."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.address import parse_node
from celery_redlock.core.wire import new_reader, pack
from celery_redlock.testing import MemoryNode
from tests.contract.memory_subject import MemorySubject
from tests.contract.server_subject import ServerSubject
from tests.contract.subjects import OTHER, SOON, TTL, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST = "the last message"  # after which there is nothing to be heard


class Hall:
    """Hears what a node says on some channels."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._said: dict[bytes, list[bytes]] = defaultdict(list)
        self._connections: dict[str, Any] = {}
        if isinstance(subject, MemorySubject):
            subject.node = MemoryNode(subject.clock, publish=self._hear)

    def _hear(self, channel: bytes, message: bytes) -> int:
        if channel not in self._said:
            return 0
        self._said[channel].append(message)
        return 1

    def listen(self, channel: str) -> None:
        """Subscribe to a channel."""
        if not isinstance(self._subject, ServerSubject):
            self._said[channel.encode()] = []
            return
        connection: Any = parse_node(self._subject.node.url).connection(SOON)
        connection.connect()
        self._connections[channel] = connection, new_reader()
        connection._sock.sendall(pack("SUBSCRIBE", channel))  # noqa: SLF001
        assert self._next(channel)[:2] == [b"subscribe", channel.encode()]

    def _next(self, channel: str) -> list[Any]:
        connection, reader = self._connections[channel]
        while (message := reader.gets()) is False:
            data = connection._sock.recv(65536)  # noqa: SLF001  (the bytes are it)
            assert data, "the server has closed the connection"
            reader.feed(data)
        return list(message)

    def heard(self, channel: str) -> list[bytes]:
        """Return what was said on a channel so far, once."""
        if not isinstance(self._subject, ServerSubject):
            said = self._said[channel.encode()]
            self._said[channel.encode()] = []
            return said
        self._subject.command("PUBLISH", channel, LAST)
        messages = iter(lambda: self._next(channel)[2], LAST.encode())
        return list(messages)

    def close(self) -> None:
        """Listen no more."""
        for connection, _ in self._connections.values():
            connection.disconnect()


@pytest.fixture
def hall(subject: Subject) -> Iterator[Hall]:
    """Give somebody who can listen to the node."""
    hall = Hall(subject)
    yield hall
    hall.close()


def test_release_wakes_the_first_alone(subject: Subject, hall: Hall) -> None:
    """It is told its name and that the lock is free now; the other keeps its place."""
    hall.listen(f"{subject.prefix}:w")
    subject.acquire()
    subject.line_up(f"{subject.prefix}:w/2", rank=2)
    subject.line_up(f"{subject.prefix}:w/1", rank=1)

    assert subject.release() == 1

    assert hall.heard(f"{subject.prefix}:w") == [b"1 0"]
    assert subject.in_line() == [f"{subject.prefix}:w/2".encode()]


def test_release_that_keeps_the_lock_tells_when_it_is_free(
    subject: Subject, hall: Hall
) -> None:
    """In so many milliseconds."""
    hall.listen(f"{subject.prefix}:w")
    subject.acquire()
    subject.line_up(f"{subject.prefix}:w/1")

    assert subject.release(keep_ms=TTL) == 1

    assert hall.heard(f"{subject.prefix}:w") == [f"1 {TTL}".encode()]


@pytest.mark.parametrize("how", ["release", "step_out"])
def test_who_is_gone_is_passed_over_and_who_listens_is_woken(
    subject: Subject, hall: Hall, how: str
) -> None:
    """Nobody after it is."""
    hall.listen(f"{subject.prefix}:w")
    subject.acquire()
    for place, waiter in enumerate(["gone/1", "gone/2", "w/7", "w/8"]):
        subject.line_up(f"{subject.prefix}:{waiter}", rank=place)

    if how == "release":
        subject.release()
    else:
        subject.delete(subject.lock)
        subject.step_out("somebody/1")

    assert hall.heard(f"{subject.prefix}:w") == [b"7 0"]
    assert subject.in_line() == [f"{subject.prefix}:w/8".encode()]


def test_channel_ends_at_the_last_slash(subject: Subject, hall: Hall) -> None:
    """A prefix may have some as well."""
    hall.listen(f"{subject.prefix}/a:w")
    subject.acquire()
    subject.line_up(f"{subject.prefix}/a:w/12")

    subject.release()

    assert hall.heard(f"{subject.prefix}/a:w") == [b"12 0"]


def test_nobody_is_woken_for_a_lock_that_is_held(subject: Subject, hall: Hall) -> None:
    """Neither by who leaves the line nor by a release of what is not ours."""
    hall.listen(f"{subject.prefix}:w")
    subject.acquire(OTHER)
    subject.line_up(f"{subject.prefix}:w/1")

    subject.step_out("somebody/1")
    subject.release()

    assert hall.heard(f"{subject.prefix}:w") == []


def test_who_got_the_lock_wakes_nobody(subject: Subject, hall: Hall) -> None:
    """It says so when it leaves, also where it is free."""
    hall.listen(f"{subject.prefix}:w")
    subject.line_up(f"{subject.prefix}:w/1")

    subject.step_out("somebody/1", "")

    assert hall.heard(f"{subject.prefix}:w") == []
