"""A restart guard that reports when it does without a node that is silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.members.restart_guard import RestartGuard
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.members.restart_guard import NodeMembership
    from celery_redlock.members.view import View


class ObservedGuard(RestartGuard):
    """A guard that reports each founding and each admission without some node."""

    def _found(self, view: View | None, looks: Sequence[NodeMembership]) -> View:
        if len(looks) < len(self.configuration.labels):
            World.current.oracle.gone()
        return super()._found(view, looks)

    def _admit(self, view: View, gone: set[int]) -> int:
        admitted = super()._admit(view, gone)
        if admitted and gone:
            World.current.oracle.gone()
        return admitted
