"""Connections that delay, break and forget, as bytes between the core and a node.

A connection keeps its order, as TCP does. Messages of different connections
overtake each other; one that the client gave up may still deliver what was on
its way, long after a newer connection was made.
"""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.core.link import NodeFacts
from celery_redlock.core.wire import new_reader
from tests.simulation.world import here

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from celery_redlock.core.address import NodeAddress
    from tests.simulation.server import Server
    from tests.simulation.world import Process, Thread, World

__all__ = ["Connection", "Network", "Path", "Selector", "SimLink"]

_NEVER = float("inf")
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Path:
    """The way between one client and one node, which all their connections take.

    Attributes:
        cut_until: Nothing gets through before this instant; it waits.
        slow_until: Until then ``slowness`` seconds are added to each message.
        stutter: The part of the sends that takes only some of the bytes.
        ambushes: Called with a connection and the bytes that it is to send.
    """

    __slots__ = (
        "ambushes",
        "connections",
        "cut_until",
        "process",
        "rng",
        "server",
        "slow_until",
        "slowness",
        "stutter",
        "weather",
        "world",
    )

    def __init__(
        self, process: Process, server: Server, rng: Random, weather: Weather
    ) -> None:
        self.world = process.world
        self.process = process
        self.server = server
        self.rng = rng
        self.weather = weather
        self.stutter = weather.stutter
        self.ambushes: list[Callable[[Connection, bytes], None]] = []
        self.cut_until = 0.0
        self.slow_until = 0.0
        self.slowness = 0.0
        self.connections: list[Connection] = []

    def delay(self) -> float:
        """Return the seconds that one message takes, one way."""
        random = self.rng.random
        shortest, longest, spikes, spike, _ = self.weather
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
        """Return the seconds for which nothing gets through; 0 or less if it does."""
        server = self.server
        if server.gone_silently:
            return _NEVER
        return max(self.cut_until, server.hung_until) - self.world.now

    def reset(self) -> None:
        """Break its connections; the end of what was on its way is lost."""
        for connection in self.connections:
            connection.break_(self.rng.random() * self.weather.longest, told=True)


class Weather(NamedTuple):
    """How a network behaves when nothing special happens to it.

    Attributes:
        shortest: Seconds that a message takes at least.
        longest: Seconds that it takes, but for spikes.
        spikes: The part of the messages that take longer.
        spike: Seconds that those take longer at most.
        stutter: The part of the sends that takes only some of the bytes.
    """

    shortest: float
    longest: float
    spikes: float = 0.0
    spike: float = 0.0
    stutter: float = 0.0


class Connection:
    """One TCP connection; the client's end looks like a non-blocking socket."""

    __slots__ = (
        "_inbox",
        "_rest_writable_at",
        "_to_client_at",
        "_to_server_at",
        "epoch",
        "error",
        "events",
        "is_open",
        "key",
        "lost_from_server",
        "lost_to_server",
        "path",
        "reader",
        "selector",
        "server",
        "unread",
        "world",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.world: World = path.world
        self.server = path.server
        self.epoch = path.server.epoch
        self.is_open = True
        self.error = ""
        self.selector: Selector | None = None
        self.key: Key | None = None
        self.events = 0
        self.reader = new_reader()  # the node's end
        self.unread = False
        self.lost_to_server = _NEVER
        self.lost_from_server = _NEVER
        self._inbox = bytearray()
        self._to_server_at = 0.0
        self._to_client_at = 0.0
        self._rest_writable_at = 0.0
        path.connections.append(self)

    # -- the client's end, as a socket -----------------------------------------

    def send(self, data: bytes | bytearray) -> int:
        """Send what fits."""
        path = self.path
        path.process.operate()
        if path.ambushes:
            for ambush in tuple(path.ambushes):
                ambush(self, bytes(data))
        now = self.world.now
        if self.error:
            raise ConnectionResetError(self.error)
        if now < self._rest_writable_at:
            raise BlockingIOError
        size = len(data)
        if path.stutter and path.rng.random() < path.stutter:
            size = path.rng.randrange(size)
            self._rest_writable_at = now + path.delay()
            self.world.at(self._rest_writable_at, self._notify)
            self.server.witness.count("partial send")
        taken = bytes(data[:size]) if size < len(data) else bytes(data)
        if taken:
            self._to_server_at = max(self._to_server_at, now + path.delay())
            self.world.at(self._to_server_at, self.server.take_in, self, taken)
        return size

    def recv(self, size: int) -> bytes:
        """Return what has come."""
        self.path.process.operate()
        if self._inbox:
            data = bytes(self._inbox[:size])
            del self._inbox[:size]
            return data
        if self.error:
            raise ConnectionResetError(self.error)
        raise BlockingIOError

    def ready(self) -> int:
        """Return for which of the events that are waited for it is ready."""
        ready = _READ if self._inbox or self.error else 0
        if self.events & _WRITE and self.world.now >= self._rest_writable_at:
            ready |= _WRITE
        return ready & self.events

    def close(self) -> None:
        """Close the client's end. What was sent is still delivered, unless lost."""
        self.is_open = False
        self._inbox.clear()
        if self in self.path.connections:
            self.path.connections.remove(self)

    # -- what happens to it ------------------------------------------------------

    def reply(self, data: bytes) -> None:
        """Send from the node."""
        path = self.path
        self._to_client_at = max(self._to_client_at, self.world.now + path.delay())
        if self._to_client_at <= self.lost_from_server:
            self.world.at(self._to_client_at, self._take_in, data)

    def break_(self, after: float, *, told: bool) -> None:
        """Lose what would arrive later than in ``after`` seconds; say so or not."""
        end = self.world.now + after
        self.lost_to_server = min(self.lost_to_server, end)
        self.lost_from_server = min(self.lost_from_server, end)
        if told:
            self.world.at(max(end, self._to_client_at), self.refuse)

    def refuse(self) -> None:
        """Tell the client that the node knows nothing of this connection."""
        if self.is_open and not self.error:
            self.error = "Connection reset by peer"
            self._notify()

    def _take_in(self, data: bytes) -> None:
        if self.is_open and not self.error and self.world.now <= self.lost_from_server:
            self._inbox += data
            self._notify()

    def _notify(self) -> None:
        if self.selector is not None:
            self.selector.notify()


class SimLink:
    """Stands in for ``core.link.Link``."""

    __slots__ = ("facts", "reader", "sock")

    def __init__(self, connection: Connection) -> None:
        self.sock = connection
        self.reader = new_reader()
        self.facts = NodeFacts(connection.server.node.run_id, "7.0.15", "")

    def close(self) -> None:
        """Close it."""
        self.sock.close()

    def disown(self) -> None:
        """Close a forked child's copy. Nobody forks here."""
        self.sock.close()


class Key(NamedTuple):
    """What ``select`` returns of a connection."""

    fileobj: Connection
    data: Any


class Selector:
    """Waits for several connections; stands in for a ``selectors`` class."""

    __slots__ = ("_connections", "_waiting")

    def __init__(self) -> None:
        self._connections: list[Connection] = []
        self._waiting: Thread | None = None

    def register(self, connection: Connection, events: int, data: Any) -> None:
        """Wait for a connection from now on."""
        connection.selector = self
        connection.key = Key(connection, data)
        connection.events = events
        self._connections.append(connection)

    def modify(self, connection: Connection, events: int, data: Any) -> None:
        """Wait for other events of a connection."""
        connection.key = Key(connection, data)
        connection.events = events

    def unregister(self, connection: Connection) -> None:
        """Wait for a connection no more."""
        if connection not in self._connections:
            raise KeyError(connection)
        connection.selector = None
        self._connections.remove(connection)

    def select(self, timeout: float) -> list[tuple[Key | None, int]]:
        """Return what is ready; wait for something to be."""
        thread = here()
        thread.process.operate()
        found = [(c.key, ready) for c in self._connections if (ready := c.ready())]
        if found or timeout <= 0:
            return found
        self._waiting = thread
        thread.park(timeout)
        self._waiting = None
        return [(c.key, ready) for c in self._connections if (ready := c.ready())]

    def notify(self) -> None:
        """Look again: a connection may be ready."""
        if self._waiting is not None:
            self._waiting.wake()

    def close(self) -> None:
        """Forget all connections."""
        self._connections.clear()


class Network:
    """All paths, and how connections are made over them."""

    def __init__(self, new_rng: Callable[[str], Random]) -> None:
        self._new_rng = new_rng
        self._servers: dict[str, Server] = {}
        self._paths: dict[tuple[str, str], Path] = {}

    def add(self, server: Server) -> None:
        """Make a node known by its label."""
        self._servers[server.name] = server

    def attach(self, process: Process, weather: Weather) -> None:
        """Lay paths from a client to all nodes."""
        for name, server in self._servers.items():
            rng = self._new_rng(f"path {process.name} {name}")
            self._paths[process.name, name] = Path(process, server, rng, weather)

    def path(self, process: str, server: str) -> Path:
        """Return the way between two."""
        return self._paths[process, server]

    def paths_to(self, server: str) -> list[Path]:
        """Return the ways from all clients to one node."""
        return [path for (_, name), path in self._paths.items() if name == server]

    def paths_of(self, process: str) -> list[Path]:
        """Return the ways from one client to all nodes."""
        return [path for (name, _), path in self._paths.items() if name == process]

    def open_link(self, address: NodeAddress, timeout: float) -> SimLink | str:
        """Connect; stands in for ``core.link.open_link``."""
        thread = here()
        process = thread.process
        process.operate()
        path = self._paths[process.name, address.name]
        server = path.server
        late = f"did not accept a connection within {timeout:g} s"
        blocked = path.blocked_for()
        if blocked > timeout:
            thread.park(timeout)
            return late
        thread.park(max(0.0, blocked) + 3 * path.delay())
        if path.blocked_for() > 0:
            return late
        return SimLink(Connection(path)) if server.is_up else "refused the connection"
