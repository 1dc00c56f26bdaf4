"""How clients come by connections, and wait for several of them at once."""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.core.link import Link, NodeFacts
from celery_redlock.core.wire import new_reader
from tests.simulation.connection import Connection, Path
from tests.simulation.world import here

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from celery_redlock.core.address import NodeAddress
    from tests.simulation.connection import Weather
    from tests.simulation.server import Server
    from tests.simulation.world import Process, Thread

__all__ = ["Network", "Selector", "SimLink"]

_READ = selectors.EVENT_READ


class SimLink(Link):
    """A link whose socket is a `Connection`."""

    __slots__ = ()

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
        self._numbers = 0
        self._servers: dict[str, Server] = {}
        self._paths: dict[tuple[str, str], Path] = {}

    def add(self, server: Server) -> None:
        """Make a node known by its label."""
        self._servers[server.name] = server

    def new_number(self) -> int:
        """Return a number that nobody else has."""
        self._numbers += 1
        return self._numbers

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
