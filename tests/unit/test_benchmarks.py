"""The benchmarks: each group runs, and ratios, goals and tables are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import GROUPS
from benchmarks.report import (
    Goal,
    Result,
    compared,
    filled,
    goals,
    results,
    table,
)
from benchmarks.runner import (
    Contender,
    Cost,
    interleave,
    median_cost,
    percentile,
    ratio,
    slope,
)
from tests.harness.programs import end_of

ROOT = Path(__file__).parents[2]
PEERS = {"hung", "tasks", "one_node", "refusals", "processes"}  # not installed here
SLOW = pytest.mark.exhaustive

TEN = [Cost(2.0, 1.0), Cost(20.0, 10.0), Cost(2.0, 1.0)]
ONE_SLOW = [Cost(2.0, 1.0), Cost(90.0, 1.0), Cost(3.0, 1.0)]


@pytest.mark.parametrize(
    ("ours", "theirs", "what", "value"),
    [
        (TEN, [Cost(1.0, 2.0), Cost(10.0, 20.0), Cost(1.0, 2.0)], "wall", 2.0),
        (TEN, [Cost(1.0, 2.0), Cost(10.0, 20.0), Cost(1.0, 2.0)], "cpu", 0.5),
        (ONE_SLOW, [Cost(1.0, 1.0)] * 3, "wall", 3.0),
    ],
)
def test_ratio_is_the_median_of_those_within_each_round(
    ours: list[Cost], theirs: list[Cost], what: str, value: float
) -> None:
    """A machine that is slow for one round, for both or for one, changes nothing."""
    assert ratio(ours, theirs, what) == value


def test_ratio_needs_the_same_rounds_of_both() -> None:
    """A missing round is an error."""
    with pytest.raises(ValueError, match="shorter"):
        ratio([Cost(1.0, 1.0)] * 2, [Cost(1.0, 1.0)])


def test_median_cost_is_the_median_of_each_number() -> None:
    """The fastest round by the clock may not be the fastest by CPU time."""
    costs = [Cost(1.0, 6.0, 7.0), Cost(2.0, 5.0, 9.0), Cost(3.0, 4.0, 8.0)]

    assert median_cost(costs) == Cost(2.0, 5.0, 8.0)


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.01, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)],
)
def test_percentile_is_a_measured_value(share: float, value: float) -> None:
    """It is the smallest value that this share of the values does not exceed."""
    values = [float(number) for number in range(100, 0, -1)]

    assert percentile(values, share) == value
    assert percentile([7.0], share) == 7.0


def test_slope_is_the_growth_per_step() -> None:
    """A constant part does not change it."""
    assert slope({1: 30.0, 3: 50.0, 5: 70.0}) == pytest.approx(10.0)


@pytest.mark.long
def test_contenders_take_turns_and_each_is_first_once() -> None:
    """After a warm-up, each round begins with the next contender."""
    order: list[str] = []
    contenders = [
        Contender(name, 1, lambda _, name=name: order.append(name), 10)  # type: ignore[misc]
        for name in ("a", "b", "c")
    ]

    costs = interleave(contenders, rounds=3)

    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(rounds) for name, rounds in costs.items()} == dict.fromkeys(
        ("a", "b", "c"), 3
    )


@pytest.mark.parametrize(
    ("value", "limit", "mark"),
    [
        (1.2, "≤ 1.25 ×", "reached"),
        (1.25, "≤ 1.25", "reached"),
        (1.5, "≤ 1.25 s", "missed by 20%"),
        (3.5, "≥ 3 ×", "reached"),
        (2.0, "≥ 3 ×", "missed by 33%"),
    ],
)
def test_result_shows_by_how_much_it_misses_its_goal(
    value: float, limit: str, mark: str
) -> None:
    """The mark is in per cent of the goal."""
    result = Result(Goal("group", "figure", limit, "what"), value)

    assert result.row()[-1] == mark
    assert result.is_reached == (mark == "reached")


def test_only_goals_with_a_measurement_are_checked() -> None:
    """A run of one group checks no goal of another group."""
    found = {"nodes": {"cpu_us_per_node": 14.0}}

    (result,) = results(found)

    assert result.row()[1:] == ("14 µs", "≤ 15 µs", "reached")


def test_comparison_shows_the_figure_of_the_earlier_run_where_it_has_one() -> None:
    """A group that the earlier run left out has its new figure only."""
    earlier = {"nodes": {"cpu_us_per_node": 16.0}}
    found = {"nodes": {"cpu_us_per_node": 14.0}, "imports": {"package_ms": 2.0}}

    nodes, imports = compared(found, earlier)

    assert nodes.endswith("14 µs   ≤ 15 µs   reached   was 16 µs")
    assert imports.endswith("2 ms   ≤ 15 ms   reached")


def test_page_keeps_the_text_outside_of_the_marks() -> None:
    """Only the text between the marks of one name is replaced."""
    page = (
        "before\n<!-- made by make bench: a -->\nold\n<!-- end of a -->\nafter\n"
        "<!-- made by make bench: b -->\nother\n<!-- end of b -->\n"
    )

    once = filled(page, "a", "new \\1")

    assert once == page.replace("old", "new \\1")
    assert filled(once, "a", "old") == page


def test_page_without_marks_is_refused() -> None:
    """A figure without a place would be lost."""
    with pytest.raises(ValueError, match="0 places for 'a'"):
        filled("nothing", "a", "new")


def test_table_is_aligned_right_except_its_first_column() -> None:
    """Aligned numbers can be compared."""
    expected = "| name | n |\n| --- | --: |\n| a | 1 |"

    assert table(("name", "n"), [("a", "1")]) == expected


@pytest.mark.long
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=[SLOW] if group == "line" else [])
        for group in GROUPS
        if group not in PEERS
    ],
)
def test_group_measures(group: str) -> None:
    """Each figure that has a goal is there, but those of programs that are not."""
    command = (sys.executable, "-m", "benchmarks", "--group", group, "--quick")

    printed = end_of(*command, cwd=ROOT, seconds=300).stdout

    found = json.loads(printed.splitlines()[-1])
    measured = {result.goal for result in results({group: found})}
    absent = {goal for goal in goals() if goal.group == group} - measured
    assert found
    assert all(goal.figure.split(".")[1] in found["missing"] for goal in absent)
