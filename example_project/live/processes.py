"""The processes that the live page may stop, start and kill.

``run.py`` registers them. Without it, the page only shows the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Processes", "processes", "register"]


class Processes(Protocol):
    """The processes of the site."""

    @property
    def store_servers(self) -> Sequence[str]:
        """The servers of the store; none if there are nodes."""

    def node_runs(self, index: int) -> bool:
        """Tell whether the server of a node runs."""

    def stop_node(self, index: int) -> None:
        """Kill the server of a node; its memory is lost, unless it is a store's."""

    def start_node(self, index: int) -> None:
        """Start the server of a node again: empty, unless it is a store's."""

    def kill_child(self, pid: int, parent: int) -> bool:
        """Kill a process of a worker. Return False if no worker has this process."""


_registered: list[Processes] = []


def register(site: Processes) -> None:
    """Let the page stop, start and kill these processes."""
    _registered[:] = [site]


def processes() -> Processes | None:
    """Return the processes of the site, if they are registered."""
    return _registered[0] if _registered else None
