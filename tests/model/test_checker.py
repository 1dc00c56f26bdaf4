"""The search itself: shortest histories first, and an error beyond its limit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.checker import explore


def test_checker_finds_a_shortest_history() -> None:
    """Of all histories with a violation it returns a shortest one."""

    def steps(number: int) -> list[tuple[str, int]]:
        return [("add 1", number + 1), ("double", number * 2)]

    options: dict[str, Any] = {"steps": steps, "key": lambda number: number}
    report = explore([1], violation=lambda n: "ten" if n == 10 else "", **options)

    assert report.history == ("add 1", "double", "add 1", "double")
    assert (report.violation, report.start) == ("ten", 1)
    assert str(report) == "ten\n  from 1\n" + "\n".join(
        f"  {i}. {what}" for i, what in enumerate(report.history, 1)
    )


def test_checker_fails_beyond_its_limit() -> None:
    """More states than it may search are an error, not a success."""
    with pytest.raises(MemoryError, match="more than 100 states"):
        explore(
            [0],
            steps=lambda number: [("on", number + 1)],
            violation=lambda _: "",
            key=lambda number: number,
            most=100,
        )
