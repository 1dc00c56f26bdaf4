"""Real redis-servers on loopback that tests can pause, kill and restart.

::

    with DevNodes(5) as servers:
        redlock = Redlock(servers.urls)
        servers.nodes[0].kill()          # the other four are a majority

They are for demos and tests. In production, put nodes on machines that do not fail
together.

Each server has a folder of its own, which `stop` removes. A server that is started
again is empty, unless the caller asks to keep its memory. The servers run in sessions
of their own, so Ctrl-C reaches only the program that started them. They end with
`stop`, with the ``with`` block, and when the interpreter exits. On Linux the kernel
also kills them when this process is killed, if its main thread started them.
Elsewhere they survive its SIGKILL.

Read ``processes`` first (a child process), then ``deployment`` (what all servers share)
and ``node`` (one server, and its configuration); `DevNodes` below is a list of nodes.
``store`` is a PostgreSQL, etcd or ZooKeeper in place of them, and ``stores`` has the
servers of each.
"""

from __future__ import annotations

from celery_redlock.devnodes.deployment import Deployment
from celery_redlock.devnodes.node import (
    DevNode,
    ServerOptions,
    find_redis_server,
    redis_servers,
)
from celery_redlock.devnodes.processes import with_its_parent
from celery_redlock.devnodes.store import STORES, DevStore
from celery_redlock.devnodes.stores.server import StoreNode
from celery_redlock.errors import ConfigurationError

__all__ = [
    "STORES",
    "DevNode",
    "DevNodes",
    "DevStore",
    "ServerOptions",
    "StoreNode",
    "find_redis_server",
    "redis_servers",
    "with_its_parent",
]


class DevNodes(Deployment):
    """Redis-servers to use as nodes: a context manager.

    Attributes:
        nodes: The servers, in the order of their URLs.
    """

    nodes: list[DevNode]

    def __init__(
        self,
        count: int = 5,
        *,
        binary: str | None = None,
        max_ttl: float = 60.0,
        initialize: bool = True,
        options: ServerOptions | None = None,
    ) -> None:
        """Describe the servers. Nothing runs before `start`.

        Args:
            count: The number of servers; 5 by default, of which 2 may fail.
            binary: The redis-server to run; `find_redis_server` by default.
            max_ttl: Seconds; the ``max_ttl`` of the `Redlock` that will use them.
            initialize: Whether to declare the running servers a new deployment. They
                then vote at once, and not only after a ``max_ttl``.
            options: The configuration of each server.

        Raises:
            ConfigurationError: ``count`` is less than 1.
        """
        if count < 1:
            raise ConfigurationError(
                f"{count} nodes cannot vote: DevNodes needs a count of at least 1. "
                "No server was started."
            )
        self.nodes = [DevNode(binary=binary, options=options) for _ in range(count)]
        self._max_ttl = max_ttl
        self._initialize = initialize

    def _start_all(self) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.start()
