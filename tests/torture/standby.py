"""A PostgreSQL whose standby is promoted when it dies, as a failover does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.servers import find_postgresql
from tests.harness.store_nodes import StoreNodes
from tests.stores.cluster import Primary, Standby

if TYPE_CHECKING:
    from typing_extensions import Self


class WithStandby(StoreNodes):
    """A primary and a standby that follows it: the store of a torture.

    The primary does not wait for its standby, which so may lack what was granted last.
    The promoted one has the address of the old one, whose data are removed, and gets a
    standby in turn.
    """

    def __init__(self) -> None:
        super().__init__("postgresql", initialize=False)
        programs = find_postgresql()
        assert programs  # it was started from there
        (node,) = self.nodes
        self._primary = Primary(programs)
        self._servers = node.server = self._primary
        self._standby: Standby | None = None

    def start(self) -> None:
        """Start both servers, and return when they answer."""
        super().start()
        self._follow()

    def _follow(self) -> None:
        self._standby = Standby(self._primary)
        self._standby.start()

    def fail(self) -> None:
        """Kill the primary."""
        self._primary.crash()

    def promote(self) -> None:
        """Let the standby take its place, and start a new standby."""
        assert self._standby
        self._standby.take_over()
        self._primary.remove()
        self._servers = self._primary = self.nodes[0].server = self._standby
        self._follow()

    def stop(self) -> None:
        """End both servers, and remove their data."""
        if self._standby:
            self._standby.remove()
        super().stop()

    def __enter__(self) -> Self:
        self.start()
        return self
