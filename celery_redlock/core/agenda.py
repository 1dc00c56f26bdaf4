"""What to do when: an agenda in which an entry can be moved.

Moving leaves the old line standing; it is passed over when its time comes, since
the entry then says that it is planned for another one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Agenda", "Entry"]


class Entry(Protocol):
    """What can be planned.

    Attributes:
        due_at: The instant at which it wants to be looked at next.
        planned_at: The instant for which it stands in the agenda.
    """

    planned_at: float

    @property
    def due_at(self) -> float:
        """The instant at which it wants to be looked at next."""


_EntryT = TypeVar("_EntryT", bound=Entry)


class Agenda(Generic[_EntryT]):
    """Entries in the order in which they are due. For one thread."""

    __slots__ = ("_count", "_lines")

    def __init__(self) -> None:
        self._lines: list[tuple[float, int, _EntryT]] = []
        self._count = itertools.count()  # entries themselves cannot be compared

    def plan(self, entry: _EntryT) -> None:
        """Enter it for when it is due, instead of for when it stood before."""
        entry.planned_at = entry.due_at
        heapq.heappush(self._lines, (entry.planned_at, next(self._count), entry))

    def due(self, now: float) -> Iterator[_EntryT]:
        """Take out the entries whose time has come, one by one."""
        while self._lines and self._lines[0][0] <= now:
            planned_at, _, entry = heapq.heappop(self._lines)
            if planned_at == entry.planned_at:
                yield entry

    @property
    def next_at(self) -> float:
        """The instant of the first line; infinity when the agenda is empty."""
        return self._lines[0][0] if self._lines else math.inf
