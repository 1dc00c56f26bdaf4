"""The simulated network: paths, connections, and selectors that wait for them.

A connection keeps its order, as TCP does. Messages of different connections overtake
each other: a connection that the client has closed may still deliver messages long
after the client has opened another one.
"""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.basics.resp import new_reader
from celery_redlock.wire import connection as transport
from tests.simulation.world import current_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from celery_redlock.wire.url import NodeAddress
    from tests.simulation.server import Server
    from tests.simulation.world import Process, Thread

_NEVER = float("inf")
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Conditions(NamedTuple):
    """The network around a client while no fault changes it.

    Attributes:
        shortest: Seconds that a message takes at least.
        longest: Seconds that a message takes at most, without a spike.
        spikes: The share of the messages that take longer.
        spike: Seconds that a spike adds at most.
        partial_sends: The share of the sends that take only some of the bytes.
    """

    shortest: float
    longest: float
    spikes: float = 0.0
    spike: float = 0.0
    partial_sends: float = 0.0


class Path:
    """The path between one client and one node, shared by all their connections.

    Attributes:
        cut_until: Messages are held until this instant.
        slow_until: Until this instant, a message takes up to ``slowness`` seconds more.
        before_send: Called with a connection and the bytes that it is about to send.
    """

    __slots__ = (
        *("before_send", "conditions", "connections", "cut_until", "process", "rng"),
        *("server", "slow_until", "slowness", "world"),
    )

    def __init__(
        self, process: Process, server: Server, rng: Random, conditions: Conditions
    ) -> None:
        self.world = process.world
        self.process = process
        self.server = server
        self.rng = rng
        self.conditions = conditions
        self.before_send: list[Callable[[Connection, bytes], None]] = []
        self.cut_until = 0.0
        self.slow_until = 0.0
        self.slowness = 0.0
        self.connections: list[Connection] = []

    def delay(self) -> float:
        """Return the seconds that one message takes, one way."""
        random = self.rng.random
        shortest, longest, spikes, spike, _ = self.conditions
        seconds = shortest + (longest - shortest) * random()
        now = self.world.now
        if spikes and random() < spikes:
            seconds += spike * random()
        if now < self.slow_until:
            seconds += self.slowness * random()
        if now < self.cut_until:
            seconds += self.cut_until - now
        return seconds

    def blocked_for(self) -> float:
        """Return the seconds for which no message passes; at most 0 if it is open."""
        server = self.server
        if server.is_unreachable:
            return _NEVER
        return max(self.cut_until, server.hung_until) - self.world.now

    def reset(self) -> None:
        """Break its connections, and lose the last messages on their way."""
        for connection in self.connections:
            after = self.rng.random() * self.conditions.longest
            connection.break_(after, silently=False)


class Connection:
    """One TCP connection; the client's end looks like a non-blocking socket."""

    __slots__ = (
        *("_rest_writable_at", "_to_client_at", "_to_server_at", "ended_at", "error"),
        *("events", "inbox", "is_open", "key", "lost_from_server", "lost_to_server"),
        *("path", "reader", "selector", "server", "start", "world"),
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.world = path.world
        self.server = path.server
        self.start = path.server.starts
        self.is_open = True
        self.ended_at = _NEVER  # when the node learns that the connection has ended
        self.error = ""
        self.selector: Selector | None = None
        self.key: Key | None = None
        self.events = 0
        self.reader = new_reader()  # the node's end
        self.lost_to_server = _NEVER
        self.lost_from_server = _NEVER
        self.inbox = bytearray()
        self._to_server_at = 0.0
        self._to_client_at = 0.0
        self._rest_writable_at = 0.0
        path.connections.append(self)

    # -- the client's end, as a socket -----------------------------------------

    def send(self, data: bytes | bytearray) -> int:
        """Send the bytes, or the first of them."""
        path = self.path
        path.process.checkpoint()
        if path.before_send:
            for call in tuple(path.before_send):
                call(self, bytes(data))
        now = self.world.now
        if self.error:
            raise ConnectionResetError(self.error)
        if now < self._rest_writable_at:
            raise BlockingIOError
        size = len(data)
        share = path.conditions.partial_sends
        if share and path.rng.random() < share:
            size = path.rng.randrange(size)
            self._rest_writable_at = now + path.delay()
            self.world.schedule(self._rest_writable_at, self._notify)
            self.server.oracle.count("partial send")
        sent = bytes(data[:size]) if size < len(data) else bytes(data)
        if sent:
            self._to_server_at = max(self._to_server_at, now + path.delay())
            self.world.schedule(self._to_server_at, self.server.receive, self, sent)
        return size

    def recv(self, size: int) -> bytes:
        """Return the bytes that have arrived."""
        self.path.process.checkpoint()
        if self.inbox:
            data = bytes(self.inbox[:size])
            del self.inbox[:size]
            return data
        if self.error:
            raise ConnectionResetError(self.error)
        raise BlockingIOError

    def ready(self) -> int:
        """Return the events, of those that the client waits for, that are ready."""
        ready = _READ if self.inbox or self.error else 0
        if self.events & _WRITE and self.world.now >= self._rest_writable_at:
            ready |= _WRITE
        return ready & self.events

    def close(self) -> None:
        """Close the client's end. Bytes that were sent before still arrive."""
        self.is_open = False
        self.inbox.clear()
        self._end_at(
            max(self._to_server_at, self.world.now + self.path.conditions.longest)
        )
        if self in self.path.connections:
            self.path.connections.remove(self)

    # -- the node's end, and the network between ---------------------------------

    def reply(self, data: bytes) -> bool:
        """Send from the node. Return False if the bytes are known to be lost."""
        path = self.path
        self._to_client_at = max(self._to_client_at, self.world.now + path.delay())
        if self._to_client_at <= self.lost_from_server:
            self.world.schedule(self._to_client_at, self._receive, data)
            return self.is_open and not self.error
        return False

    def break_(self, after: float, *, silently: bool) -> None:
        """Lose all messages that would arrive later than in ``after`` seconds."""
        end = self.world.now + after
        self.lost_to_server = min(self.lost_to_server, end)
        self.lost_from_server = min(self.lost_from_server, end)
        if not silently:
            self._end_at(end)
            self.world.schedule(max(end, self._to_client_at), self.refuse)

    def refuse(self) -> None:
        """Send the client a reset: the node does not know this connection."""
        if self.is_open and not self.error:
            self.error = "Connection reset by peer"
            self._notify()

    def _end_at(self, instant: float) -> None:
        if instant <= self.lost_to_server:
            self.ended_at = min(self.ended_at, instant)

    def _receive(self, data: bytes) -> None:
        if self.is_open and not self.error and self.world.now <= self.lost_from_server:
            self.inbox += data
            self._notify()

    def _notify(self) -> None:
        if self.selector is not None:
            self.selector.notify()


# -- In the place of modules of the core -----------------------------------------


class _Options:
    """The part of a connection of redis-py that operators' commands read."""

    db = 0
    username = ""


class SimConnection(transport.Connection):
    """A connection of the core whose socket is a simulated `Connection`."""

    __slots__ = ()

    def __init__(self, connection: Connection) -> None:
        self.sock = connection
        self.reader = new_reader()
        self.unsent = bytearray()
        self.events, self.is_tls = _READ, False
        self.facts = transport.NodeFacts(connection.server.node.replid, "")
        self.sent_scripts = set()  # as for a user who may not load scripts
        options: Any = _Options()
        self.connection = options

    def close(self) -> None:
        """Close it."""
        self.sock.close()

    def disown(self) -> None:
        """Close the copy of a forked child. No process forks here."""
        self.sock.close()


class BlockingSocket:
    """A connection that waits for bytes, for operators' commands."""

    __slots__ = ("_connection", "_selector", "_timeout")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._selector = Selector()
        self._selector.register(connection, _READ, None)
        self._timeout = 0.0

    def settimeout(self, seconds: float) -> None:
        """Set for how long ``recv`` waits."""
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        """Send all bytes."""
        while data:
            sent = self._send(data)
            data = data[sent:]
            if not sent:
                current_thread().process.clock.sleep(0.001)

    def _send(self, data: bytes) -> int:
        try:
            return self._connection.send(data)
        except BlockingIOError:
            return 0

    def recv(self, size: int) -> bytes:
        """Return the bytes that have arrived; wait for some.

        Raises:
            TimeoutError: None came in time.
        """
        if not self._selector.select(self._timeout):
            raise TimeoutError
        return self._connection.recv(size)

    def close(self) -> None:
        """Close it."""
        self._connection.close()


class Key(NamedTuple):
    """The part of a ``selectors.SelectorKey`` that the core reads."""

    fileobj: Connection | Waker
    data: Any


class Selector:
    """Waits for several connections; replaces a class of ``selectors``."""

    __slots__ = ("_connections", "_waiting")

    def __init__(self) -> None:
        self._connections: list[Connection | Waker] = []
        self._waiting: Thread | None = None

    def register(self, connection: Connection | Waker, events: int, data: Any) -> None:
        """Begin to wait for a connection."""
        connection.selector = self
        self.modify(connection, events, data)
        self._connections.append(connection)

    def modify(self, connection: Connection | Waker, events: int, data: Any) -> None:
        """Wait for other events of a connection."""
        connection.key = Key(connection, data)
        connection.events = events

    def unregister(self, connection: Connection | Waker) -> None:
        """Stop waiting for a connection."""
        if connection not in self._connections:
            raise KeyError(connection)
        connection.selector = None
        self._connections.remove(connection)

    def select(self, timeout: float) -> list[tuple[Key | None, int]]:
        """Return the connections that are ready; wait for one."""
        thread = current_thread()
        thread.process.checkpoint()
        found = self._ready()
        if found or timeout <= 0:
            return found
        self._waiting = thread
        thread.park(timeout)
        self._waiting = None
        return self._ready()

    def _ready(self) -> list[tuple[Key | None, int]]:
        return [
            (c.key, events)
            for c in self._connections
            if (c.inbox or c.error or c.events != _READ) and (events := c.ready())
        ]

    def notify(self) -> None:
        """Wake the thread that waits: a connection may be ready."""
        if self._waiting is not None:
            self._waiting.wake()

    def close(self) -> None:
        """Remove all connections."""
        self._connections.clear()


class Waker:
    """Wakes the thread that waits in a selector; replaces a pipe of the core."""

    __slots__ = ("error", "events", "inbox", "key", "selector")

    def __init__(self) -> None:
        self.selector: Selector | None = None
        self.key: Key | None = None
        self.events = 0
        self.error = ""
        self.inbox = bytearray()

    def wake(self) -> None:
        """Make it readable."""
        self.inbox += b"."
        if self.selector is not None:
            self.selector.notify()

    def receive(self) -> None:
        """Read, so that it is readable no more."""
        self.inbox.clear()

    def ready(self) -> int:
        """Return the events that are ready."""
        return _READ if self.inbox else 0

    def close(self) -> None:
        """Close it."""
        self.inbox.clear()


class Network:
    """All paths, and how clients connect over them."""

    def __init__(self, new_rng: Callable[[str], Random]) -> None:
        self._new_rng = new_rng
        self._channels = 0
        self._servers: dict[str, Server] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._leads: dict[tuple[str, str], str] = {}

    def add(self, server: Server) -> None:
        """Add a node."""
        self._servers[server.name] = server

    def new_channel(self) -> str:
        """Return a name for a channel that no other process has."""
        self._channels += 1
        return f"process{self._channels}"

    def attach(self, process: Process, conditions: Conditions) -> None:
        """Make the paths between a client and all nodes."""
        for name, server in self._servers.items():
            rng = self._new_rng(f"path {process.name} {name}")
            self._paths[process.name, name] = Path(process, server, rng, conditions)

    def path(self, process: str, server: str) -> Path:
        """Return the path between a client and a server."""
        return self._paths[process, server]

    def lead(self, name: str, server: str, process: str = "") -> None:
        """Let a name lead a client, or all, to this server when they connect again."""
        if not process:
            for key in [key for key in self._leads if key[1] == name]:
                del self._leads[key]
        self._leads[process, name] = server

    def is_led_away(self, name: str) -> bool:
        """Tell whether this name leads some client to another server."""
        leads = self._leads.items()
        return any(key[1] == name and server != name for key, server in leads)

    def is_split(self, name: str) -> bool:
        """Tell whether this name leads some clients to one server, others to another.

        One that has led a client elsewhere still leads all others as before.
        """
        everywhere = self._leads.get(("", name), name)
        leads = self._leads.items()
        return any(key[1] == name and server != everywhere for key, server in leads)

    def path_by_name(self, process: str, name: str) -> Path:
        """Return the path between a client and the server that a name leads it to."""
        everywhere = self._leads.get(("", name), name)
        return self._paths[process, self._leads.get((process, name), everywhere)]

    def paths_to(self, server: str) -> list[Path]:
        """Return the paths from all clients to one node."""
        return [path for (_, name), path in self._paths.items() if name == server]

    def paths_of(self, process: str) -> list[Path]:
        """Return the paths from one client to all nodes."""
        return [path for (name, _), path in self._paths.items() if name == process]

    def open_connection(
        self, address: NodeAddress, timeout: float
    ) -> SimConnection | str:
        """Connect to a node; replaces ``transport.connection.open_connection``."""
        thread = current_thread()
        process = thread.process
        process.checkpoint()
        path = self.path_by_name(process.name, address.name)
        late = f"did not accept a connection within {timeout:g} s"
        blocked = path.blocked_for()
        if blocked > timeout:
            thread.park(timeout)
            return late
        thread.park(max(0.0, blocked) + 3 * path.delay())
        if path.blocked_for() > 0:
            return late
        if not path.server.is_up:
            return "refused the connection"
        return SimConnection(Connection(path))

    def open_blocking_connection(
        self, address: NodeAddress, timeout: float, *, load_scripts: bool
    ) -> SimConnection | str:
        """Connect as an operator's command does, which loads no scripts."""
        assert not load_scripts, "operators' commands load none"
        opened = self.open_connection(address, timeout)
        if isinstance(opened, SimConnection):
            opened.sock = BlockingSocket(opened.sock)
        return opened
