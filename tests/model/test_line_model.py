"""The line of calls with ``in_order``: all histories of a few calls and nodes."""

from __future__ import annotations

import pytest

from tests.conftest import with_long
from tests.model.checker import Report, explore
from tests.model.line import ENDS, Bounds, Line, Rules, State

BOUNDS = {
    "a clock is late": Bounds(clocks=(2, 1)),
    "equal clocks": Bounds(clocks=(1, 1)),
    "one node": Bounds(nodes=1, clocks=(3, 2, 1)),
    "nodes that know different numbers": Bounds(known=(9, 0, 0)),
    "each end": Bounds(nodes=1, clocks=(2, 1), ends=ENDS),
    "an end on three nodes": Bounds(clocks=(2, 1), ends=("revoked", "not sent")),
}


def search(bounds: Bounds, rules: Rules | None = None) -> Report[State]:
    """Search all histories within the bounds."""
    line = Line(rules or Rules(), bounds)
    return explore(
        [line.start()], steps=line.steps, violation=line.violation, key=line.key
    )


@pytest.mark.parametrize(
    "name",
    with_long(
        BOUNDS,
        *("equal clocks", "nodes that know different numbers", "an end on three nodes"),
    ),
)
def test_line_keeps_order_and_ends_with_its_calls(name: str) -> None:
    """No call runs too early, no place outlives its call, and no circle waits."""
    report = search(BOUNDS[name])

    assert not report.violation, report
    assert report.states > 50, "the search has hardly started"


@pytest.mark.parametrize(
    ("rules", "violation"),
    [
        (Rules(every_count=False), "call 1 runs before call 0"),
        (Rules(majority_tells=False), "call 1 runs before call 0"),
        (Rules(greatest=False), "call 1 runs before call 0"),
        (Rules(settles=False), "runs before call"),
        (Rules(numbers_first=False), "call 1 runs before call 0"),
        (Rules(remembers=False), "outlives it"),
    ],
)
def test_model_needs_each_rule(rules: Rules, violation: str) -> None:
    """Without one of them a history goes wrong."""
    report = search(Bounds(known=(9, 0, 0)), rules)

    assert violation in report.violation, report


@pytest.mark.parametrize("end", [*ENDS, "ran"])
def test_model_finds_each_end_that_is_forgotten(end: str) -> None:
    """The place of such a call would hold up all later ones."""
    leaves = tuple(one for one in (*ENDS, "ran") if one != end)
    bounds = Bounds(nodes=1, ends=(end,) if end != "ran" else ())

    report = search(bounds, Rules(leaves=leaves))

    assert "outlives it" in report.violation, report


def test_order_does_not_survive_a_lost_memory() -> None:
    """A node that forgets was one of the majority that knew the earlier call."""
    line = Line(Rules(), Bounds(forgets=1))

    def order(state: State) -> str:
        found = line.violation(state)
        return found if "runs before" in found else ""

    report = explore([line.start()], steps=line.steps, violation=order, key=line.key)

    assert report.violation, report
