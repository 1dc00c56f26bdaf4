"""Servers on loopback that are a deployment: what `DevNodes` and `DevStore` share."""

from __future__ import annotations

import atexit
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

from celery_redlock.devnodes.processes import Process
from celery_redlock.errors import RedlockError
from celery_redlock.locks.redlock import Redlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

_PATIENCE = 20.0  # seconds: a server that has just started on a busy machine is slow


class Server(Process):
    """One server that tests can pause and kill. Not thread-safe.

    Attributes:
        port: Its port on 127.0.0.1, the same after a restart; 0 before the first start.
    """

    port = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} 127.0.0.1:{self.port}>"

    @property
    def pid(self) -> int:
        """The process id of the server.

        Raises:
            RedlockError: It is not running.
        """
        self._check_running()
        return super().pid

    @property
    def log(self) -> str:
        """The server's log since its last start."""
        return self.logs_since_start()

    def pause(self) -> None:
        """Stop its processes (SIGSTOP): it accepts connections and never answers.

        Raises:
            RedlockError: It is not running.
        """
        self._check_running()
        super().pause()

    def resume(self) -> None:
        """Continue the server after `pause` (SIGCONT).

        Raises:
            RedlockError: It is not running.
        """
        self._check_running()
        super().resume()

    def _check_running(self) -> None:
        if not self.is_running:
            raise RedlockError(f"{self!r} is not running. Start or restart it first.")


class Deployment:
    """Servers that vote: a context manager. Subclasses say how they start."""

    nodes: Sequence[Any]
    _max_ttl: float
    _initialize: bool
    _owner: int | None = None

    @property
    def urls(self) -> list[str]:
        """The URLs, for `Redlock` or ``redlock_nodes``."""
        return [node.url for node in self.nodes]

    def start(self) -> None:
        """Start all servers, and return when all answer. A second call does nothing.

        Raises:
            RedlockError: A server is not on this machine or did not start, or the
                deployment could not be initialized. No server is running.
        """
        if self._owner == os.getpid():
            return
        self._owner = os.getpid()
        atexit.register(self.stop)
        try:
            self._start_all()
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
        self._clean_up()
        self._owner = None
        atexit.unregister(self.stop)

    def _start_all(self) -> None:
        raise NotImplementedError

    def _clean_up(self) -> None:
        """Remove what the servers share."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def initialize(urls: Sequence[str], max_ttl: float) -> None:
    """Let servers that have just started vote, and not only after a ``max_ttl``.

    Raises:
        RedlockError: One of them does not answer within 20 s, or is not new.
    """
    ttl = min(30.0, max_ttl)
    with closing(
        Redlock(urls, ttl=ttl, max_ttl=max_ttl, connect_timeout=_PATIENCE)
    ) as redlock:
        redlock.initialize()
