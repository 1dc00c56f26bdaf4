"""A server of a store, as a `DevStore` uses it."""

from __future__ import annotations

from celery_redlock.devnodes.processes import Process


class StoreServer(Process):
    """One server of a store. It keeps its data on disk.

    Attributes:
        port: Its port for clients on 127.0.0.1; 0 before the first start.
    """

    port = 0

    @property
    def store_url(self) -> str:
        """The URL of the whole store, for ``redlock_nodes``."""
        raise NotImplementedError

    def end(self) -> None:
        """End the server, paused or not. Its data stay."""
        self.kill()
