"""Look at every state that can be reached, shortest ways first.

What it finds is true of all histories within the bounds, and of none beyond.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

__all__ = ["Report", "explore"]

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Report(Generic[State]):
    """What was found.

    Attributes:
        states: How many states were looked at.
        violation: What is wrong with the last state of `history`; "" if nothing.
        history: A shortest way to it: what happened, step by step.
        start: Where that way begins; None if nothing is wrong.
    """

    states: int
    violation: str = ""
    history: tuple[str, ...] = ()
    start: State | None = None

    def __str__(self) -> str:
        if not self.violation:
            return f"no violation in {self.states} states"
        return "\n".join((self.violation, f"  from {self.start}", *self._lines()))

    def _lines(self) -> Iterator[str]:
        return (f"  {number}. {what}" for number, what in enumerate(self.history, 1))


def explore(
    starts: Iterable[State],
    *,
    steps: Callable[[State], Iterable[tuple[str, State]]],
    violation: Callable[[State], str],
    key: Callable[[State], Hashable],
    most: int = 50_000_000,
) -> Report[State]:
    """Return a shortest history that violates something, or that there is none.

    Args:
        starts: The states to begin with.
        steps: Gives what can happen next: a sentence, and the state after it.
        violation: Says what is wrong with a state; "" if nothing.
        key: Equal for states that differ only in names.
        most: States to look at before giving up.

    Raises:
        MemoryError: There are more states than `most`. Nothing is known.
    """
    reached: dict[Hashable, tuple[Hashable | None, str]] = {}
    todo: deque[tuple[Hashable, State]] = deque()
    first: dict[Hashable, State] = {}
    for start in starts:
        name = key(start)
        if name not in reached:
            reached[name] = (None, "")
            first[name] = start
            todo.append((name, start))
    while todo:
        name, state = todo.popleft()
        for what, after in steps(state):
            next_name = key(after)
            if next_name in reached:
                continue
            reached[next_name] = (name, what)
            wrong = violation(after)
            if wrong:
                history, origin = _way_to(next_name, reached)
                return Report(len(reached), wrong, history, first[origin])
            todo.append((next_name, after))
        if len(reached) > most:
            message = f"more than {most} states"
            raise MemoryError(message)
    return Report(len(reached))


def _way_to(
    name: Hashable, reached: dict[Hashable, tuple[Hashable | None, str]]
) -> tuple[tuple[str, ...], Hashable]:
    history = []
    before, what = reached[name]
    while before is not None:
        history.append(what)
        name = before
        before, what = reached[name]
    return tuple(reversed(history)), name
