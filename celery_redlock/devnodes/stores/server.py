"""A server of a store, with the methods of a `DevNode`."""

from __future__ import annotations

from celery_redlock.devnodes.deployment import Server
from celery_redlock.errors import ConfigurationError


class StoreNode(Server):
    """One server of a `DevStore`. It keeps its data on disk. Not thread-safe."""

    @property
    def url(self) -> str:
        """The URL of the whole store, for ``redlock_nodes``."""
        raise NotImplementedError

    def launch(self) -> None:
        """Start the process and return at once; `start` waits until it answers."""
        super().start()

    def stop(self) -> None:
        """End the server, paused or not. `DevStore.stop` removes its data."""
        self.kill()

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
