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

from typing import TYPE_CHECKING

from celery_redlock.devnodes.deployment import Deployment, Server
from celery_redlock.devnodes.stores.etcd import Etcd
from celery_redlock.devnodes.stores.postgresql import installed_postgresql
from celery_redlock.devnodes.stores.zookeeper import ZooKeeper
from celery_redlock.errors import ConfigurationError
from celery_redlock.stores.connection import store_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes.stores.cluster import Cluster
    from celery_redlock.devnodes.stores.postgresql import PostgreSQL
    from celery_redlock.devnodes.stores.server import StoreServer

_SERVERS: dict[str, tuple[str, Callable[..., Cluster | PostgreSQL]]] = {
    "postgresql": ("PostgreSQL", installed_postgresql),
    "etcd": ("etcd", Etcd),
    "zookeeper": ("ZooKeeper", ZooKeeper),
}
STORES = tuple(_SERVERS)


class StoreNode(Server):
    """One server of a `DevStore`, with the methods of a `DevNode`. Not thread-safe."""

    server: StoreServer

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


class DevStore(Deployment):
    """A store to use in place of nodes: a context manager, as `DevNodes`.

    Attributes:
        kind: One of `STORES`.
        title: The name of the store as a text shows it: ``"PostgreSQL"``.
        nodes: Its servers: one PostgreSQL, or the members of a cluster.
    """

    nodes: list[StoreNode]

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

    @property
    def urls(self) -> list[str]:
        """The one URL of the store, for `Redlock` or ``redlock_nodes``."""
        return [self.nodes[0].url]

    def _start_all(self) -> None:
        self._servers.start()

    def _clean_up(self) -> None:
        self._servers.stop()
