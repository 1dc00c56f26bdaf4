"""Sockets, connections and selectors that follow a test's script; no network."""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from celery_redlock.basics.resp import ErrorReply, PythonReader
from celery_redlock.basics.secret import SecretUrl
from celery_redlock.basics.timing import Timing
from celery_redlock.scripts import ALL_SCRIPTS, INSPECT, RELEASE, Script
from celery_redlock.testing import FakeClock
from celery_redlock.wire.broadcast import Broadcast
from celery_redlock.wire.node import Node
from celery_redlock.wire.quorum import VoteKind
from celery_redlock.wire.requests import (
    ScriptRequest,
    all_answered,
    verdict_is_certain,
)
from tests.unit.lock.support import kinds

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


def request(
    key: str = "k",
    script: Script = INSPECT,
    nodes: int = 1,
    more: Sequence[str] = (),
    **options: Any,
) -> ScriptRequest:
    """Return a request about this key, and more of them."""
    labels = [f"node-{index}" for index in range(nodes)]
    given = {"labels": labels, "done_when": all_answered, **options}
    return ScriptRequest(script, [key, *more], [], **given)


def commands(data: bytes | bytearray) -> list[list[bytes]]:
    """Return the commands that were sent, as a server reads them."""
    reader = PythonReader()
    reader.feed(bytes(data))
    found = []
    while (command := reader.gets()) is not False:
        found.append(command)
    return found


class Sock:
    """A socket with scripted input, and what was sent.

    Attributes:
        incoming: What ``recv`` returns, or raises, one after the other.
        sent: All bytes that were sent.
        sends: How many times something was sent.
        room: How many bytes it takes before it says "not now".
        failure: The exception that ``send`` raises.
        is_closed: Whether it was closed.
    """

    def __init__(self) -> None:
        self.incoming: list[bytes | BaseException] = []
        self.sent = bytearray()
        self.sends = 0
        self.room = ROOM
        self.failure: BaseException | None = None
        self.is_closed = False
        self.timeout: float | None = None

    def settimeout(self, seconds: float) -> None:
        """Record how long it may block."""
        self.timeout = seconds

    def recv(self, size: int) -> bytes:
        """Return what comes next, or say "not now"."""
        if not self.incoming:
            raise BlockingIOError
        item = self.incoming.pop(0)
        if isinstance(item, BaseException):
            raise item
        if len(item) > size:
            self.incoming.insert(0, item[size:])
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
        """Let these replies arrive together."""
        self.incoming.append(b"".join(map(encoded, replies)))


class Connection:
    """A connection of redis-py, as far as `open_connection` uses it."""

    def __init__(
        self,
        run_id: str = "run",
        mode: str = "redis_mode:standalone",
        *,
        loads_scripts: bool = False,
    ) -> None:
        self._sock = Sock()
        self._loads_scripts = loads_scripts
        self._loaded: list[Script] = []
        self.is_disconnected = False
        self.role = "master"
        self.failure: Exception | None = None
        self._answers: dict[str, str] = {
            "server": f"# Server\r\nredis_version:7.0\r\n{mode}\r\nrun_id:{run_id}\r\n"
        }
        self._asked = ""

    @property
    def sock(self) -> Sock:
        """Its socket."""
        return self._sock

    def connect(self) -> None:
        """Connect, or raise."""
        if self.failure:
            raise self.failure

    def send_command(self, *words: str) -> None:
        """Record the command."""
        self._asked = words[1]
        if words[0] == "SCRIPT" and self._loads_scripts:
            self._loaded += [one for one in ALL_SCRIPTS if one.source == words[2]]

    def read_response(self) -> bytes:
        """Return what the server says about itself."""
        if self._loaded:
            return self._loaded.pop(0).sha.encode()
        role = f"role:{self.role}\r\nmaster_host:m\r\nmaster_port:7\r\n"
        return self._answers.get(self._asked, role).encode()

    def disconnect(self) -> None:
        """Close it as redis-py does."""
        self.is_disconnected = True
        self._sock.close()


class Address:
    """The address of a node with its next connections, one after the other.

    Attributes:
        name: The name of the node.
        coming: The next connections; an exception is one that fails.
        tries: How many connections were tried.
        last: The connection that was made last.
        gate: While it is closed, connecting takes for ever.
    """

    def __init__(self, *coming: Connection | Exception, name: str = "node") -> None:
        self.name, self.url = name, SecretUrl("redis://node")
        self.is_store = False
        self.coming = list(coming)
        self.tries = 0
        self.last = Connection()
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
            self.last = coming
            return coming
        failed = Connection()
        failed.failure = coming
        return failed


class Selector:
    """A selector: which sockets are registered for which events."""

    def __init__(self) -> None:
        self.registered: dict[Any, tuple[int, Any]] = {}

    def register(self, sock: Any, events: int, data: Any) -> None:
        """Watch a socket that is not watched yet."""
        assert sock not in self.registered
        self.registered[sock] = (events, data)

    def modify(self, sock: Any, events: int, data: Any) -> None:
        """Watch a socket for something else."""
        if sock not in self.registered:
            raise KeyError(sock)
        self.registered[sock] = (events, data)

    def unregister(self, sock: Any) -> None:
        """Watch a socket no more."""
        del self.registered[sock]

    def close(self) -> None:
        """Watch no socket."""
        self.registered.clear()


def let_connect(*nodes: Node, seconds: float = SOON) -> None:
    """Wait until connections have been made or have failed, for at most so long."""
    until = time.monotonic() + seconds
    connectors = [node._connector for node in nodes]  # noqa: SLF001
    while any(c.is_busy for c in connectors) and time.monotonic() < until:
        time.sleep(0.0001)


def arrive(node: Node, selector: Any) -> None:
    """Let a connection be tried, and take the result."""
    node.maintain(selector)
    let_connect(node)
    node.maintain(selector)
    node.send_backlog()


# -- one node --------------------------------------------------------------------------


class Stage:
    """One node, and its next connections."""

    def __init__(self, clock: FakeClock, *coming: Connection | Exception) -> None:
        self.clock = clock
        self.address = Address(*coming)
        self.selector = Selector()
        self.node = Node(
            cast("Any", self.address), 0, clock=clock, connect_timeout=CONNECT_TIMEOUT
        )

    def next_connection(self) -> Connection:
        """Return the connection that comes after those that there are."""
        connection = Connection()
        self.address.coming.append(connection)
        return connection

    def maintain(self) -> bool:
        """Take a new connection or start one; tell whether one was taken."""
        return self.node.maintain(cast("Any", self.selector))

    def arrive(self) -> None:
        """Let a connection be tried, and take the result."""
        arrive(self.node, self.selector)

    def ask(self, *requests: ScriptRequest) -> None:
        """Send these requests together."""
        self.node.send(requests)

    def sends(self, key: str = "k") -> ScriptRequest:
        """Send a request, and return it."""
        asked = request(key)
        self.ask(asked)
        return asked

    def answers(self, *replies: Any) -> None:
        """Let these replies arrive together, and read them."""
        self.address.last.sock.replies(*replies)
        self.node.receive()

    def reads(self, incoming: bytes | BaseException) -> None:
        """Let these bytes, none at the end, or this error arrive, and read them."""
        self.address.last.sock.incoming.append(incoming)
        self.node.receive()


def said(asked: ScriptRequest) -> Any:
    """Return the node's reply, or why there is none; None while it is outstanding."""
    vote = asked.ballot.votes[0]
    if asked.replies[0] is None and vote is not None:
        return vote.reason
    return asked.replies[0]


def release(clock: FakeClock, **options: Any) -> ScriptRequest:
    """Return a release, which must arrive."""
    until = clock.monotonic() + 60.0
    return request(script=RELEASE, resend_until=until, **options)


# -- three nodes -----------------------------------------------------------------------


NODE_TIMEOUT, CONNECT_TIMEOUT = 0.05, 1.0  # seconds
GRANTED, TAKEN, FREE = [1, 7], [2, b"other.1\n1", 900], [3]


class ClockedSelector(Selector):
    """Moves the clock to the next input, or to the end of the wait.

    Attributes:
        waits: The timeout of each ``select``.
        coming: The input to come: when, on which socket, which bytes.
        on_select: Called with each ``select``.
    """

    def __init__(
        self,
        clock: FakeClock,
        on_select: list[Callable[[], Any]],
        nodes: Sequence[Node],
    ) -> None:
        super().__init__()
        self.clock = clock
        self.nodes = nodes
        self.waits: list[float] = []
        self.coming: list[tuple[float, Sock, bytes]] = []
        self.on_select = on_select
        self.is_closed = False

    def select(self, timeout: float) -> list[tuple[Any, int]]:
        """Return the ready sockets, as a selector does."""
        self.waits.append(timeout)
        for call in list(self.on_select):
            call()
        addresses = [node._connector._address for node in self.nodes]  # noqa: SLF001
        gates = [cast("Address", address).gate for address in addresses]
        pairs = zip(self.nodes, gates, strict=True)
        let_connect(*(node for node, gate in pairs if gate.is_set()))
        now = self.clock.monotonic()
        next_at = min((at for at, _, _ in self.coming), default=float("inf"))
        sockets = [sock for sock in self.registered if isinstance(sock, Sock)]
        for sock in sockets:
            events, _ = self.registered[sock]
            if sock.incoming or (events & selectors.EVENT_WRITE and sock.room):
                next_at = now
        self.clock.advance(max(0.0, min(next_at, now + timeout) - now))
        now = self.clock.monotonic()
        for item in [item for item in self.coming if item[0] <= now]:
            self.coming.remove(item)
            item[1].incoming.append(item[2])
        ready = []
        for sock in sockets:
            events, node = self.registered[sock]
            mask = selectors.EVENT_READ if sock.incoming else 0
            mask |= events & selectors.EVENT_WRITE if sock.room else 0
            if mask:
                key = selectors.SelectorKey(0, 0, events, node)
                ready.append((key, mask))
        return ready

    def close(self) -> None:
        """Watch no socket any more."""
        super().close()
        self.is_closed = True


class Net:
    """Some nodes, and the broadcast to them."""

    def __init__(self, clock: FakeClock, *run_ids: str) -> None:
        self.clock = clock
        self.connections = [Connection(run_id) for run_id in run_ids]
        self.addresses = [
            Address(connection, name=f"node-{index}")
            for index, connection in enumerate(self.connections)
        ]
        self.selectors: list[ClockedSelector] = []
        self.on_select: list[Callable[[], Any]] = []
        self.broadcast = Broadcast(
            [
                Node(
                    cast("Any", address),
                    index,
                    clock=clock,
                    connect_timeout=CONNECT_TIMEOUT,
                )
                for index, address in enumerate(self.addresses)
            ],
            clock=clock,
            timing=Timing(30.0, 60.0, NODE_TIMEOUT, CONNECT_TIMEOUT),
            new_selector=cast("Any", self._new_selector),
        )

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes."""
        return self.broadcast.nodes

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
        asked = self.request(done_when=all_answered)
        self.broadcast.ask(asked)
        for index, sock in enumerate(self.socks):
            if sock.sent and asked.ballot.votes[index] is None:
                self.comes(index, 0.0, FREE)
        self.broadcast.drain()
        self.selector.waits.clear()
        for node in self.nodes:
            node.suspect = False
        for sock in self.socks:
            sock.sent.clear()

    def comes(self, index: int, seconds: float, *replies: Any) -> None:
        """Let a node's replies arrive in so many seconds."""
        at, sock = self.clock.monotonic() + seconds, self.socks[index]
        self.selector.coming += [(at, sock, encoded(reply)) for reply in replies]

    def all_come(self, seconds: float, *replies: Any, nodes: int = 3) -> None:
        """Let the replies of all nodes, or of the first ones, arrive together."""
        for index in range(nodes):
            self.comes(index, seconds, *replies)

    def request(self, key: str = "k", **options: Any) -> ScriptRequest:
        """Return a request to all nodes."""
        options.setdefault("done_when", verdict_is_certain)
        return request(key, nodes=len(self.nodes), **options)

    def kinds(self, asked: ScriptRequest) -> list[VoteKind | None]:
        """Return how each node voted."""
        return kinds(asked.ballot)
