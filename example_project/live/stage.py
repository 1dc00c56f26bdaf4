"""What the live page may break. ``run.py`` has it; a site that is served does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from django.apps import apps

if TYPE_CHECKING:
    from live.apps import LiveConfig

__all__ = ["Stage", "current_stage"]


class Stage(Protocol):
    """The processes of the site."""

    def node_runs(self, index: int) -> bool:
        """Tell whether a node's server is running."""

    def stop_node(self, index: int) -> None:
        """Kill a node's server, with all that it knows."""

    def start_node(self, index: int) -> None:
        """Start it again, empty."""

    def kill_child(self, pid: int, parent: int) -> bool:
        """Kill a process of one of the workers. Tell whether it was one."""


def current_stage() -> Stage | None:
    """Return the stage, if the site is on one."""
    return cast("LiveConfig", apps.get_app_config("live")).stage
