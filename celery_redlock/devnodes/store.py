"""A store on loopback to use in place of nodes, for demos and tests.

::

    with DevStore("etcd") as store:      # three members
        redlock = Redlock(store.urls)
        store.nodes[0].kill()            # the other two are a majority

    with DevStore("postgresql") as store:
        redlock = Redlock(store.urls)
        store.nodes[0].kill()            # no lock is granted ...
        store.nodes[0].restart()         # ... until it is back, with what it had
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

from celery_redlock.devnodes.deployment import initialize
from celery_redlock.devnodes.stores.etcd import Etcd
from celery_redlock.devnodes.stores.postgresql import installed_postgresql
from celery_redlock.devnodes.stores.zookeeper import ZooKeeper
from celery_redlock.errors import ConfigurationError, RedlockError
from celery_redlock.stores.connection import store_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from celery_redlock.devnodes.stores.server import StoreServer, StoreServers

_SERVERS: dict[str, tuple[str, Callable[..., StoreServers]]] = {
    "postgresql": ("PostgreSQL", installed_postgresql),
    "etcd": ("etcd", Etcd),
    "zookeeper": ("ZooKeeper", ZooKeeper),
}
STORES = tuple(_SERVERS)


class StoreNode:
    """One server of a `DevStore`, with the methods of a ``DevNode``. Not thread-safe.

    Args:
        server: Its process.
    """

    def __init__(self, server: StoreServer) -> None:
        self.server = server

    def __repr__(self) -> str:
        return f"<StoreNode 127.0.0.1:{self.port}>"

    @property
    def url(self) -> str:
        """The URL of the whole store, for ``redlock_nodes``."""
        return self.server.store_url

    @property
    def port(self) -> int:
        """The port of the server, the same after a restart; 0 before the start."""
        return self.server.port

    @property
    def pid(self) -> int:
        """The process id of the server.

        Raises:
            RedlockError: It was never started.
        """
        return self.server.pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self.server.is_running

    @property
    def log(self) -> str:
        """The server's log since its last start."""
        return self.server.logs_since_start()

    def start(self) -> None:
        """Start the server and return when it answers. A second call does nothing.

        A server of a cluster answers only while it is one of a majority. Without one,
        this returns at once.

        Raises:
            RedlockError: The server did not start.
        """
        if not self.is_running:
            self.server.start()

    def stop(self) -> None:
        """End the server, paused or not. `DevStore.stop` removes its data."""
        self.server.end()

    def pause(self) -> None:
        """Stop all processes of the server (SIGSTOP): it never answers.

        Raises:
            RedlockError: It is not running.
        """
        self._running().pause()

    def resume(self) -> None:
        """Continue the server after `pause` (SIGCONT).

        Raises:
            RedlockError: It is not running.
        """
        self._running().resume()

    def kill(self) -> None:
        """End all processes of the server at once (SIGKILL), paused or not."""
        self.server.kill()

    def restart(self, *, keep_memory: bool = True) -> None:
        """Restart the server with its data.

        Args:
            keep_memory: True; a store forgets nothing.

        Raises:
            ConfigurationError: ``keep_memory`` is False. Nothing was done.
            RedlockError: The server did not start.
        """
        if not keep_memory:
            raise ConfigurationError(
                f"{self!r} cannot restart empty: a store forgets nothing. Nothing was "
                "done. Use another DevStore."
            )
        self.kill()
        self.start()

    def _running(self) -> StoreServer:
        if not self.is_running:
            raise RedlockError(f"{self!r} is not running. Start it first.")
        return self.server


class DevStore:
    """A store to use in place of nodes: a context manager, as `DevNodes`.

    Attributes:
        kind: One of `STORES`.
        title: The name of the store as a text shows it: ``"PostgreSQL"``.
        nodes: Its servers: one PostgreSQL, or the members of a cluster.
    """

    def __init__(
        self,
        kind: str = "postgresql",
        *,
        max_ttl: float = 60.0,
        initialize: bool = True,
        durable: bool = False,
        members: int = 3,
    ) -> None:
        """Describe the servers. Nothing runs before `start`.

        Args:
            kind: One of `STORES`.
            max_ttl: Seconds; the ``max_ttl`` of the `Redlock` that will use it.
            initialize: Whether to make its table, if it has one, and to declare it a
                new deployment.
            durable: Whether a commit waits for the disk, as it should in production. A
                server that is killed forgets nothing without it.
            members: How many servers a cluster has. PostgreSQL is always one.

        Raises:
            ConfigurationError: There is no such kind, or its driver is not installed.
            RedlockError: The server is not on this machine.
        """
        if kind not in _SERVERS:
            raise ConfigurationError(
                f"There is no store {kind!r}; there are {', '.join(STORES)}."
            )
        store_of(f"{kind}://")
        self.kind = kind
        self.title, make = _SERVERS[kind]
        size = {} if kind == "postgresql" else {"members": members}
        self._servers = make(durable=durable, **size)
        self.nodes = [StoreNode(server) for server in self._servers.members]
        self._max_ttl = max_ttl
        self._initialize = initialize
        self._owner: int | None = None

    @property
    def urls(self) -> list[str]:
        """The one URL of the store, for `Redlock` or ``redlock_nodes``."""
        return [self.nodes[0].url]

    def start(self) -> None:
        """Start all servers, and return when they answer. A second call does nothing.

        Raises:
            RedlockError: One did not start, or could not be initialized. No server is
                running.
        """
        if self._owner == os.getpid():
            return
        self._owner = os.getpid()
        atexit.register(self.stop)
        try:
            self._servers.start()
            if self._initialize:
                initialize(self.urls, self._max_ttl)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all servers, paused or not, and remove their data.

        In a fork this does nothing.
        """
        if self._owner != os.getpid():
            return
        for node in self.nodes:
            node.stop()
        self._servers.stop()
        self._owner = None
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
