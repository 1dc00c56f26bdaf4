"""The checker accepts what an order explains, and finds what none explains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spec.check import missing
from tests.torture.histories import Run
from tests.torture.linearizability import (
    NEVER,
    Kind,
    Operation,
    mutexes,
    unexplained,
    write_jepsen,
)

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"{missing()} is missing")


def run(fence: int, asked: float, began: float, proven: float, ended: float) -> Run:
    """Return a run with the lock of one key."""
    facts: dict[str, Any] = {"task_id": "job", "task": "count", "key": "key", "pid": 1}
    facts |= {"fence": fence, "limits": {}, "votes": 5, "outcome": "done"}
    facts |= {"asked": asked, "began": began, "last": ended, "proven": proven}
    return Run(f"run {fence}", **facts)


def failure_of(*runs: Run) -> Operation | None:
    """Return the operation on their lock that no order explains."""
    return unexplained(mutexes(runs)).get("key")


def failure_in(history: list[Operation]) -> Operation | None:
    """Return the operation on a register that no order explains."""
    return unexplained({"cell": history}).get("cell")


def write(fence: int, value: str, start: float, end: float) -> Operation:
    """Return a write; one that ends never has no answer."""
    kind = Kind.WRITE if end < NEVER else Kind.MAYBE
    return Operation(kind, fence, value, start, end)


def read(fence: int, value: str, start: float, end: float) -> Operation:
    """Return a read."""
    return Operation(Kind.READ, fence, value, start, end)


def test_mutex_accepts_holders_one_after_another() -> None:
    """A lease that ended during a pause does not collide with the next one."""
    runs = run(1, 0, 1, 2, 9), run(2, 1.5, 3, 4, 5), run(3, 0, 6, 7, 8)

    assert failure_of(*runs) is None


def test_mutex_accepts_fences_of_the_lock() -> None:
    """Fences count microseconds since 1970: more than 32 bits."""
    first = 1795507953173459
    runs = run(first, 0, 1, 2, 3), run(first + 2**32, 4, 5, 6, 7)

    assert failure_of(*runs) is None


def test_mutex_finds_two_holders() -> None:
    """Two clients that believe at one instant that they hold the lock have no order."""
    assert failure_of(run(1, 0, 1, 3, 4), run(2, 1, 2, 5, 6))


def test_mutex_finds_a_lower_fence() -> None:
    """A holder after another one has a greater fence."""
    assert failure_of(run(2, 0, 1, 2, 3), run(1, 4, 5, 6, 7))


def test_mutex_accepts_a_run_that_was_killed() -> None:
    """It has no end, and its lock is free when the lease is over."""
    killed = run(1, 0, 1, 2, 2)
    killed.outcome = None

    assert failure_of(killed, run(2, 1, 3, 4, 5)) is None


def test_register_accepts_a_write_without_answer_that_took_effect_late() -> None:
    """A write without an answer may be read after the next read."""
    history = [
        write(1, "a", 0, 1),
        write(1, "b", 2, NEVER),
        read(1, "a", 3, 4),
        read(1, "b", 5, 6),
    ]

    assert failure_in(history) is None


@pytest.mark.parametrize(
    "after",
    [
        read(1, "a", 5, 6),
        write(1, "late", 5, 6),
        Operation(Kind.REFUSED, 3, "new", 5, 6),
    ],
    ids=["stale read", "lower fence accepted", "greater fence refused"],
)
def test_register_finds_what_no_order_explains(after: Operation) -> None:
    """A stale read, and a write that was accepted or refused wrongly, are found."""
    history = [write(1, "a", 0, 1), write(2, "b", 2, 3), after]

    assert failure_in(history) is after


def test_register_finds_a_late_write_under_an_old_fence() -> None:
    """A write without an answer has no effect after a greater fence was accepted."""
    late = read(1, "b", 6, 7)
    history = [write(1, "b", 0, NEVER), write(2, "c", 2, 3), read(2, "c", 4, 5), late]

    assert failure_in(history) is late


def test_history_in_the_form_of_jepsen_has_two_lines_for_each_answer(
    tmp_path: Path,
) -> None:
    """A write without an answer has one, and each operation a process of its own."""
    file = tmp_path / "history.jsonl"
    history = [write(1, "a", 0, 2), write(1, "b", 1, NEVER)]

    write_jepsen({"cell": history}, file)

    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [(one["process"], one["type"], one["value"]) for one in lines] == [
        (0, "invoke", [1, "a"]),
        (1, "invoke", [1, "b"]),
        (0, "ok", [1, "a"]),
    ]
