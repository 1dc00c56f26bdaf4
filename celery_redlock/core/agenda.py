"""Which lease under watch has to be looked at when.

A watch can be moved in the agenda. Its old line is left standing, and passed over
when its time comes, since the watch is then planned for another one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.core.lease import Lease

__all__ = ["Agenda", "Watch"]


class Watch:
    """A lease under watch, and when something has to be done about it."""

    __slots__ = ("lease", "on_lost", "on_renewed", "planned_at", "renew_at", "renewing")

    def __init__(
        self,
        lease: Lease,
        on_lost: Callable[[Lease], None] | None,
        on_renewed: Callable[[Lease, float], None] | None,
        renew_at: float,
    ) -> None:
        self.lease = lease
        self.on_lost = on_lost
        self.on_renewed = on_renewed
        self.renew_at = renew_at
        self.renewing = False
        self.planned_at = 0.0

    @property
    def due_at(self) -> float:
        """The instant at which to look at it next."""
        until = self.lease.until
        return until if self.renewing else min(self.renew_at, until)


class Agenda:
    """Watches in the order in which they are due. For one thread."""

    __slots__ = ("_count", "_lines")

    def __init__(self) -> None:
        self._lines: list[tuple[float, int, Watch]] = []
        self._count = itertools.count()  # watches themselves cannot be compared

    def plan(self, watch: Watch) -> None:
        """Enter it for when it is due, instead of for when it stood before."""
        watch.planned_at = watch.due_at
        heapq.heappush(self._lines, (watch.planned_at, next(self._count), watch))

    def due(self, now: float) -> Iterator[Watch]:
        """Take out the watches whose time has come, one by one."""
        while self._lines and self._lines[0][0] <= now:
            planned_at, _, watch = heapq.heappop(self._lines)
            if planned_at == watch.planned_at:
                yield watch

    @property
    def next_at(self) -> float:
        """The instant of the first line; infinity when the agenda is empty."""
        return self._lines[0][0] if self._lines else math.inf
