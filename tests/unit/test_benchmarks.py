"""The arithmetic of the benchmarks: what a ratio, a goal and the model say."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.goals import Goal, check
from benchmarks.model import Figures, load_of
from benchmarks.page import filled, table
from benchmarks.picture import Bar, bars
from benchmarks.runner import (
    Contender,
    Cost,
    interleave,
    median_cost,
    percentile,
    ratio,
    slope,
)

FIGURES = Figures(
    cycle_us=50.0,
    cycle_bytes=1000.0,
    cycle_packets=4.0,
    lock_bytes=300.0,
    renewal_us=40.0,
    lease_bytes=1500.0,
    message_us=200.0,
)


def test_ratio_is_taken_within_each_round() -> None:
    """A machine that is ten times slower for one round changes nothing."""
    ours = [Cost(2.0, 1.0), Cost(20.0, 10.0), Cost(2.0, 1.0)]
    theirs = [Cost(1.0, 2.0), Cost(10.0, 20.0), Cost(1.0, 2.0)]

    assert ratio(ours, theirs) == 2.0
    assert ratio(ours, theirs, "cpu") == 0.5


def test_ratio_is_the_median_of_the_rounds() -> None:
    """One round in which somebody else was busy does not count."""
    ours = [Cost(2.0, 1.0), Cost(90.0, 1.0), Cost(3.0, 1.0)]

    assert ratio(ours, [Cost(1.0, 1.0)] * 3) == 3.0


def test_ratio_wants_the_same_rounds_of_both() -> None:
    """A round that one of them missed is a mistake."""
    with pytest.raises(ValueError, match="shorter"):
        ratio([Cost(1.0, 1.0)] * 2, [Cost(1.0, 1.0)])


def test_median_cost_takes_each_number_for_itself() -> None:
    """The cheapest round by the clock need not be so by its CPU time."""
    costs = [Cost(1.0, 6.0, 7.0), Cost(2.0, 5.0, 9.0), Cost(3.0, 4.0, 8.0)]

    assert median_cost(costs) == Cost(2.0, 5.0, 8.0)


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)]
)
def test_percentile_is_a_value_that_was_seen(share: float, value: float) -> None:
    """The least one that this share of them does not exceed."""
    values = [float(number) for number in range(100, 0, -1)]

    assert percentile(values, share) == value


def test_percentile_of_one_value_is_that_value() -> None:
    """However small the share."""
    assert percentile([7.0], 0.01) == 7.0


def test_slope_is_the_growth_per_step() -> None:
    """A constant part does not matter to it."""
    assert slope({1: 30.0, 3: 50.0, 5: 70.0}) == pytest.approx(10.0)


def test_contenders_take_turns_and_nobody_is_always_first() -> None:
    """A round of each, the first one moved on each time, after a warm-up."""
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
    ("goal", "mark"),
    [
        (Goal("", 1.2, 1.25), "reached"),
        (Goal("", 1.25, 1.25), "reached"),
        (Goal("", 1.5, 1.25), "missed by 20 %"),
        (Goal("", 3.5, 3.0, at_least=True), "reached"),
        (Goal("", 2.0, 3.0, at_least=True), "missed by 50 %"),
    ],
)
def test_goal_says_by_how_much_it_is_missed(goal: Goal, mark: str) -> None:
    """In per cent of what would have done."""
    assert goal.mark == mark


def test_only_goals_of_what_was_measured_are_checked() -> None:
    """A run of one group says nothing of the others."""
    found = {"nodes": {"cpu_us_per_node": 14.0}}

    (goal,) = check(found)

    assert (goal.value, goal.goal, goal.is_reached) == (14.0, "≤ 15 µs", True)


def test_load_grows_with_locks_alone_on_the_nodes() -> None:
    """Ten times the locks are ten times the work there, for however many workers."""
    few, many = load_of(1_000, 10, FIGURES), load_of(10_000, 1_000, FIGURES)

    for name in ("renewals", "grants", "node_core", "node_bits", "node_bytes"):
        assert getattr(many, name) == pytest.approx(10 * getattr(few, name)), name


def test_load_of_a_node_is_its_renewals_and_grants() -> None:
    """600 locks of 60 s: 60 renewals and 10 grants a second, so 40 cycles."""
    load = load_of(600, 10, FIGURES)

    assert (load.renewals, load.grants) == (60.0, 10.0)
    assert load.node_core == pytest.approx(40 * 50e-6)
    assert load.node_bits == pytest.approx(40 * 8_000)


def test_sets_keep_each_node_half_idle() -> None:
    """One set until its nodes are busy for half of the time; then more of them."""
    assert load_of(1_000, 10, FIGURES).sets == 1
    much = load_of(1_000_000, 10, FIGURES)
    assert much.node_core / much.sets <= 0.5 < much.node_core / (much.sets - 1)


def test_connections_grow_with_workers_alone() -> None:
    """Each process of a worker has one to each node."""
    assert load_of(1_000, 10, FIGURES).connections == 80
    assert load_of(1_000_000, 10, FIGURES).connections == 80


def test_dearer_figures_make_a_greater_load() -> None:
    """The model is fed by what was measured, and by nothing else."""
    dear = dataclasses.replace(FIGURES, cycle_us=100.0, message_us=400.0)
    load, other = load_of(1_000, 10, FIGURES), load_of(1_000, 10, dear)

    assert other.node_core == pytest.approx(2 * load.node_core)
    assert other.broker_core == pytest.approx(2 * load.broker_core)


def test_page_keeps_what_was_written_by_hand() -> None:
    """Only what is between the marks of that name is replaced, and it stays so."""
    page = (
        "before\n<!-- made by make bench: a -->\nold\n<!-- end of a -->\nafter\n"
        "<!-- made by make bench: b -->\nother\n<!-- end of b -->\n"
    )

    once = filled(page, "a", "new \\1")

    assert once == page.replace("old", "new \\1")
    assert filled(once, "a", "old") == page


def test_page_without_a_place_is_refused() -> None:
    """A figure that would be lost is a mistake."""
    with pytest.raises(ValueError, match="0 places for 'a'"):
        filled("nothing", "a", "new")


def test_table_is_set_right_but_for_its_first_column() -> None:
    """Numbers below each other can be compared."""
    expected = "| name | n |\n| --- | --: |\n| a | 1 |"

    assert table(("name", "n"), [("a", "1")]) == expected


def test_picture_draws_bars_to_one_scale() -> None:
    """Names are escaped; the longest bar has all the room, the others their part."""
    rows = [
        Bar("a & b", 2.0, 1.0, "2 ×", "ours"),
        Bar("c", 4.0, 4.0, "4 ×", "theirs"),
    ]

    picture = bars("title", rows)

    assert "a &amp; b" in picture
    assert picture.count('width="430.0"') == 2
    assert picture.count('width="215.0"') == 1
