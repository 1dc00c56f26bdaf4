"""Searches every state that can be reached, shortest histories first.

The result holds for all histories within the bounds, and for none beyond.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Report(Generic[State]):
    """The result of a search.

    Attributes:
        states: How many states were searched.
        violation: What is wrong with the last state of `history`; "" if nothing is.
        history: The steps of a shortest history to that state.
        start: The first state of the history; None if nothing is wrong.
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
    """Search for a shortest history with a violation.

    Args:
        starts: The first states.
        steps: Yields every next step of a state: a sentence, and the state after it.
        violation: Returns what is wrong with a state; "" if nothing is.
        key: Returns a name that is equal for states which differ only in names.
        most: The most states to search.

    Raises:
        MemoryError: There are more states than `most`. The search has no result.
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
    with _no_collections():
        while todo:
            name, state = todo.popleft()
            for what, after in steps(state):
                next_name = key(after)
                if next_name in reached:
                    continue
                reached[next_name] = (name, what)
                wrong = violation(after)
                if wrong:
                    history, origin = _history_of(next_name, reached)
                    return Report(len(reached), wrong, history, first[origin])
                todo.append((next_name, after))
            if len(reached) > most:
                message = f"more than {most} states"
                raise MemoryError(message)
    return Report(len(reached))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Spare the garbage collector the states: they have no cycles.

    It would look at all of them again and again, for a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _history_of(
    name: Hashable, reached: dict[Hashable, tuple[Hashable | None, str]]
) -> tuple[tuple[str, ...], Hashable]:
    history = []
    before, what = reached[name]
    while before is not None:
        history.append(what)
        name = before
        before, what = reached[name]
    return tuple(reversed(history)), name
