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

from celery_redlock.devnodes.deployment import Deployment
from celery_redlock.devnodes.stores.etcd import Etcd
from celery_redlock.devnodes.stores.postgresql import installed_postgresql
from celery_redlock.devnodes.stores.zookeeper import ZooKeeper
from celery_redlock.errors import ConfigurationError
from celery_redlock.stores.connection import store_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes.stores.cluster import Cluster
    from celery_redlock.devnodes.stores.postgresql import PostgreSQL
    from celery_redlock.devnodes.stores.server import StoreNode

_SERVERS: dict[str, tuple[str, Callable[..., Cluster | PostgreSQL]]] = {
    "postgresql": ("PostgreSQL", installed_postgresql),
    "etcd": ("etcd", Etcd),
    "zookeeper": ("ZooKeeper", ZooKeeper),
}
STORES = tuple(_SERVERS)


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
        self.nodes = self._servers.members
        self._max_ttl = max_ttl
        self._initialize = initialize

    @property
    def urls(self) -> list[str]:
        """The one URL of the store, for `Redlock` or ``redlock_nodes``."""
        return [self.nodes[0].url]

    def _start_all(self) -> None:
        self._servers.start()

    def _clean_up(self) -> None:
        self._servers.remove()
