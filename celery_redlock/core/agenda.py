"""Which lease under watch has to be looked at when.

A watch can be moved in the agenda. Its old line is left standing, and passed over
when its time comes, since the watch is then planned for another one; or struck out
before, when there are too many of them.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.core.lease import Lease

__all__ = ["Agenda", "Watch", "tell"]

log = logging.getLogger("celery_redlock.renewal")

_LEAST_ROOM = 64  # lines


class Watch:
    """A lease under watch, and when something has to be done about it."""

    __slots__ = (
        "lease",
        "on_cancelled",
        "on_lost",
        "on_renewed",
        "planned_at",
        "renew_at",
        "renew_every",
        "renewed_at",
        "renewing",
    )

    def __init__(  # noqa: PLR0913, PLR0917  (made in one place)
        self,
        lease: Lease,
        on_lost: Callable[[Lease], None] | None,
        on_renewed: Callable[[Lease, float], None] | None,
        renew_at: float,
        on_cancelled: Callable[[Lease], None] | None = None,
        renew_every: float = math.inf,
    ) -> None:
        self.lease = lease
        self.on_cancelled = on_cancelled
        self.renew_every = renew_every
        self.on_lost = on_lost
        self.on_renewed = on_renewed
        self.renew_at = renew_at
        self.renewed_at = lease.started_at
        self.renewing = False
        self.planned_at = 0.0

    @property
    def due_at(self) -> float:
        """The instant at which to look at it next."""
        until = self.lease.until
        return until if self.renewing else min(self.renew_at, until)


class Agenda:
    """Watches in the order in which they are due. For one thread."""

    __slots__ = ("_count", "_lines", "_room")

    def __init__(self) -> None:
        self._lines: list[tuple[float, int, Watch]] = []
        self._room = _LEAST_ROOM
        self._count = itertools.count()  # watches themselves cannot be compared

    def plan(self, watch: Watch) -> None:
        """Enter it for when it is due, instead of for when it stood before."""
        watch.planned_at = watch.due_at
        heapq.heappush(self._lines, (watch.planned_at, next(self._count), watch))
        if len(self._lines) > self._room:
            self._tidy()

    def _tidy(self) -> None:
        """Strike out the lines that were left standing, once they are half of all."""
        self._lines = [line for line in self._lines if line[0] == line[2].planned_at]
        heapq.heapify(self._lines)
        self._room = max(_LEAST_ROOM, 2 * len(self._lines))

    def due(self, now: float) -> Iterator[Watch]:
        """Take out the watches whose time has come, one by one."""
        while self._lines and self._lines[0][0] <= now:
            planned_at, _, watch = heapq.heappop(self._lines)
            if planned_at == watch.planned_at:
                watch.planned_at = 0.0  # it may stand there twice for one instant
                yield watch

    @property
    def next_at(self) -> float:
        """The instant of the first line; infinity when the agenda is empty."""
        return self._lines[0][0] if self._lines else math.inf


def tell(callback: Callable[..., None] | None, *facts: object) -> None:
    """Call back; an error in there is its author's and ends nothing here."""
    if callback is None:
        return
    try:
        callback(*facts)
    except Exception:
        log.exception("The callback %r raised an error.", callback)
