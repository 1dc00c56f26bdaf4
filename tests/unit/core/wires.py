"""Sockets, connections and selectors that do what a test says; no network."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import redis.exceptions  # noqa: F401  (else the first thread that connects is slow)

from celery_redlock.core.question import Question, by_everyone
from celery_redlock.core.scripts import INSPECT, Script
from celery_redlock.core.wire import ErrorReply, PythonReader

if TYPE_CHECKING:
    from celery_redlock.core.node import Node

__all__ = [
    "Address",
    "Connection",
    "Selector",
    "Sock",
    "arrive",
    "commands",
    "encoded",
    "let_connect",
    "question",
]

SOON = 5.0  # seconds within which a thread must have done its work
ROOM = 1 << 20  # bytes


def encoded(reply: Any) -> bytes:
    """Return a reply as a server sends it; a status is a tuple of its text."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, ErrorReply):
        return f"-{reply}\r\n".encode()
    if isinstance(reply, tuple):
        return f"+{reply[0]}\r\n".encode()
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))


def question(
    key: str = "k", script: Script = INSPECT, nodes: int = 1, **options: Any
) -> Question:
    """Return a question about this key."""
    labels = [f"node-{index}" for index in range(nodes)]
    given = {"labels": labels, "settle": by_everyone, **options}
    return Question(script, [key], [], **given)


def commands(data: bytes | bytearray) -> list[list[bytes]]:
    """Return the commands in what was sent, as a server reads them."""
    reader = PythonReader()
    reader.feed(bytes(data))
    found = []
    while (command := reader.gets()) is not False:
        found.append(command)
    return found


class Sock:
    """A socket: what it will receive, and what was sent.

    Attributes:
        inbox: What ``recv`` returns, or raises, one after the other.
        sent: What was sent.
        sends: How many times something was sent.
        room: How many bytes it takes before it says "not now".
        failure: What ``send`` raises.
        on_send: Called before anything is sent.
        is_closed: Whether it was closed, in whatever way.
    """

    def __init__(self) -> None:
        self.inbox: list[bytes | BaseException] = []
        self.sent = bytearray()
        self.sends = 0
        self.room = ROOM
        self.failure: BaseException | None = None
        self.is_closed = False
        self.timeout: float | None = None

    def settimeout(self, seconds: float) -> None:
        """Note how long it may block."""
        self.timeout = seconds

    def recv(self, size: int) -> bytes:
        """Return what comes next, or say "not now"."""
        if not self.inbox:
            raise BlockingIOError
        item = self.inbox.pop(0)
        if isinstance(item, BaseException):
            raise item
        if len(item) > size:
            self.inbox.insert(0, item[size:])
        return item[:size]

    def send(self, data: bytes | bytearray) -> int:
        """Take as much as there is room for."""
        if self.failure:
            raise self.failure
        if not self.room:
            raise BlockingIOError
        taken = min(self.room, len(data))
        self.room -= taken
        self.sent += data[:taken]
        self.sends += 1
        return taken

    def close(self) -> None:
        """Close it."""
        self.is_closed = True

    def replies(self, *replies: Any) -> None:
        """Let these replies come, at once."""
        self.inbox.append(b"".join(map(encoded, replies)))


class Connection:
    """What redis-py makes of a URL, as far as `open_link` can tell."""

    def __init__(self, run_id: str = "run", mode: str = "standalone") -> None:
        self._sock = Sock()
        self.is_disconnected = False
        self.role = "master"
        self.failure: Exception | None = None
        self._answers: dict[str, str] = {
            "server": f"# Server\r\nredis_version:7.0\r\nredis_mode:{mode}\r\n"
            f"run_id:{run_id}\r\n"
        }
        self._asked = ""

    @property
    def sock(self) -> Sock:
        """Its socket."""
        return self._sock

    def connect(self) -> None:
        """Get through, or not."""
        if self.failure:
            raise self.failure

    def send_command(self, *words: str) -> None:
        """Note what is asked."""
        self._asked = words[1]

    def read_response(self) -> bytes:
        """Tell about the server."""
        role = f"role:{self.role}\r\nmaster_host:m\r\nmaster_port:7\r\n"
        return self._answers.get(self._asked, role).encode()

    def disconnect(self) -> None:
        """Close it politely."""
        self.is_disconnected = True
        self._sock.close()


class Address:
    """Where a node is: its next connections, one after the other.

    Attributes:
        name: Of the node.
        coming: The connections that will be made; a reason is one that fails.
        tries: How many were tried.
        gate: While it is closed, connecting takes for ever.
    """

    def __init__(self, *coming: Connection | Exception, name: str = "node") -> None:
        self.name = name
        self.coming = list(coming)
        self.tries = 0
        self.gate = threading.Event()
        self.gate.set()

    def connection(self, timeout: float) -> Connection:  # noqa: ARG002  (as redis-py's)
        """Return the next connection."""
        self.tries += 1
        assert self.gate.wait(SOON)
        coming = (
            self.coming.pop(0) if self.coming else ConnectionRefusedError("refused")
        )
        if isinstance(coming, Connection):
            return coming
        failed = Connection()
        failed.failure = coming
        return failed


class Selector:
    """What waits for sockets: who is registered for which events."""

    def __init__(self) -> None:
        self.registered: dict[Any, tuple[int, Any]] = {}

    def register(self, sock: Any, events: int, data: Any) -> None:
        """Watch a socket, that is not watched yet."""
        assert sock not in self.registered
        self.registered[sock] = (events, data)

    def modify(self, sock: Any, events: int, data: Any) -> None:
        """Watch a socket for something else."""
        assert sock in self.registered
        self.registered[sock] = (events, data)

    def unregister(self, sock: Any) -> None:
        """Watch a socket no more."""
        del self.registered[sock]

    def close(self) -> None:
        """Watch nothing."""
        self.registered.clear()


def let_connect(*nodes: Node, seconds: float = SOON) -> None:
    """Wait until connections have been made or have failed, for at most so long."""
    until = time.monotonic() + seconds
    connectors = [node._connector for node in nodes]  # noqa: SLF001
    while any(c.is_busy for c in connectors) and time.monotonic() < until:
        time.sleep(0.0001)


def arrive(node: Node, selector: Any) -> None:
    """Let a connection be tried, and take what comes of it."""
    node.tend(selector)
    let_connect(node)
    node.tend(selector)
    node.catch_up()
