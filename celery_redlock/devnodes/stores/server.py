"""The servers of a store, as a `DevStore` uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from celery_redlock.devnodes.processes import Process

if TYPE_CHECKING:
    from collections.abc import Sequence


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


class StoreServers(Protocol):
    """All servers of a store."""

    @property
    def members(self) -> Sequence[StoreServer]:
        """The servers, in the order of the URL."""

    def start(self) -> None:
        """Start all servers, and return when the store answers."""

    def stop(self) -> None:
        """End all servers, and remove their data."""
