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

Read ``processes`` first (a child process), then ``node`` (one server, and its
configuration) and ``deployment`` (they vote at once); `DevNodes` below is a list of
nodes. ``store`` is a PostgreSQL, etcd or ZooKeeper in place of them, and ``stores`` has
the servers of each.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

from celery_redlock.devnodes.deployment import initialize
from celery_redlock.devnodes.node import (
    DevNode,
    ServerOptions,
    find_redis_server,
    redis_servers,
)
from celery_redlock.devnodes.processes import with_its_parent
from celery_redlock.devnodes.store import STORES, DevStore, StoreNode
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Self

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


class DevNodes:
    """Redis-servers to use as nodes: a context manager.

    Attributes:
        nodes: The servers, in the order of their URLs.
    """

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
        self._owner: int | None = None

    @property
    def urls(self) -> list[str]:
        """The URLs, for `Redlock` or ``redlock_nodes``."""
        return [node.url for node in self.nodes]

    def start(self) -> None:
        """Start all servers, and return when all answer. A second call does nothing.

        Raises:
            RedlockError: There is no redis-server, a server did not start, or the
                deployment could not be initialized. No server is running.
        """
        if self._owner == os.getpid():
            return
        self._owner = os.getpid()
        atexit.register(self.stop)
        try:
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.start()
            if self._initialize:
                initialize(self.urls, self._max_ttl)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all servers, paused or not. In a fork this does nothing."""
        if self._owner != os.getpid():
            return
        for node in self.nodes:
            node.stop()
        self._owner = None
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
