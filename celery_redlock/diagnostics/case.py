"""All that the rules of a diagnosis look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.core.examination import Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.examination import Chart
    from celery_redlock.core.redlock import Redlock

__all__ = ["Case"]


@dataclass(frozen=True, slots=True)
class Case:
    """A deployment as it was found, and what uses it.

    Attributes:
        redlock: The service by whose settings everything is judged.
        charts: What was seen of each node, in node order.
        app: The Celery app, or None where there is none.
    """

    redlock: Redlock
    charts: Sequence[Chart]
    app: Any = None

    @property
    def seen(self) -> list[Chart]:
        """The nodes that could be looked at."""
        silent = Standing.SILENT
        return [chart for chart in self.charts if chart.glance.standing is not silent]

    @property
    def voting(self) -> list[Chart]:
        """The nodes that vote; of those that are one and the same server, one."""
        by_server = {chart.glance.run_id: chart for chart in reversed(self.charts)}
        votes = Standing.VOTES
        return [c for c in by_server.values() if c.glance.standing is votes]
