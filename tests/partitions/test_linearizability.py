"""The checker accepts what an order explains, and finds what none explains."""

from __future__ import annotations

from typing import Any

import pytest

from spec.check import missing
from tests.partitions.history import Hold, Operation
from tests.partitions.linearizability import failure_of_mutex, failure_of_register

NEVER = float("inf")

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"{missing()} is missing")


def hold(fence: int, asked: float, began: float, believed: float, ended: float) -> Hold:
    """Return a hold that no clock step has shortened."""
    times = (asked, began, believed, ended)
    return Hold("key", fence, fence, *times, votes=5, promised=believed)


def write(
    fence: int, value: str, start: float, end: float, *, refused: bool = False
) -> Operation:
    """Return a write; one that ends never has no answer."""
    known, facts = end < NEVER, {"refused": refused}
    kind, pair = "ok" if known else "info", [fence, value]
    return Operation(0, "write", "key", start, pair, end, kind, pair, facts)


def read(result: Any, start: float, end: float) -> Operation:
    """Return a read."""
    return Operation(1, "read", "key", start, None, end, "ok", result)


def test_mutex_accepts_holders_one_after_another() -> None:
    """A lease that ended during a pause does not collide with the next one."""
    holds = [hold(1, 0, 1, 2, 9), hold(2, 1.5, 3, 4, 5), hold(3, 0, 6, 7, 8)]

    assert failure_of_mutex(holds) is None


def test_mutex_accepts_fences_of_the_lock() -> None:
    """Fences count microseconds since 1970: more than 32 bits."""
    first = 1795507953173459
    holds = [hold(first, 0, 1, 2, 3), hold(first + 2**32, 4, 5, 6, 7)]

    assert failure_of_mutex(holds) is None


def test_mutex_finds_two_holders() -> None:
    """Two clients that believe at one instant that they hold the lock have no order."""
    assert failure_of_mutex([hold(1, 0, 1, 3, 4), hold(2, 1, 2, 5, 6)])


def test_mutex_finds_a_lower_fence() -> None:
    """A holder after another one has a greater fence."""
    assert failure_of_mutex([hold(2, 0, 1, 2, 3), hold(1, 4, 5, 6, 7)])


def test_promise_that_has_ended_before_a_hold_is_not_broken() -> None:
    """The nodes of the second client had their clocks stepped before it asked."""
    first, second = hold(1, 0, 1, 5, 5), hold(2, 2, 3, 6, 6)
    assert first.breaks_the_promise(second)

    second.promised = 1.5

    assert first.collides(second)
    assert not first.breaks_the_promise(second)


def test_register_accepts_a_write_without_answer_that_took_effect_late() -> None:
    """A write without an answer may be read after the next read."""
    history = [
        write(1, "a", 0, 1),
        write(1, "b", 2, NEVER),
        read([1, "a"], 3, 4),
        read([1, "b"], 5, 6),
    ]

    assert failure_of_register(history) is None


@pytest.mark.parametrize(
    "after",
    [
        read([1, "a"], 5, 6),
        write(1, "late", 5, 6),
        write(3, "new", 5, 6, refused=True),
    ],
    ids=["stale read", "lower fence accepted", "greater fence refused"],
)
def test_register_finds_what_no_order_explains(after: Operation) -> None:
    """A stale read, and a write that was accepted or refused wrongly, are found."""
    history = [write(1, "a", 0, 1), write(2, "b", 2, 3), after]

    assert failure_of_register(history) is after


def test_register_finds_a_late_write_under_an_old_fence() -> None:
    """A write without an answer has no effect after a greater fence was accepted."""
    late = read([1, "b"], 6, 7)
    history = [write(1, "b", 0, NEVER), write(2, "c", 2, 3), read([2, "c"], 4, 5), late]

    assert failure_of_register(history) is late
