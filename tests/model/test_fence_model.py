"""Every history within some bounds: with all rules, and with one taken away.

``REDLOCK_MODEL=large`` searches larger bounds, for some minutes.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.model.checker import Report, explore
from tests.model.protocol import Protocol, Recovery, Rules, State, start_states

TWICE = "granted twice"


def search(
    rules: Rules, *, nodes: int = 3, attempts: int = 2, counters: int = 1
) -> Report[State]:
    """Search every history of these rules within these bounds."""
    protocol = Protocol(rules, nodes)
    return explore(
        start_states(rules, nodes=nodes, attempts=attempts, counters=counters),
        steps=protocol.steps,
        violation=protocol.violation,
        key=State.key,
    )


# -- Without one rule -------------------------------------------------


def test_raise_on_any_node_repeats_a_fence() -> None:
    """Without both rules of a raise, a fence repeats though no clock is wrong."""
    report = search(Rules(raise_needs_key=False, raise_needs_number=False))

    assert TWICE in report.violation
    assert "A raises node 2 to 2" in report.history, report  # B has the key there


def test_raise_without_the_key_repeats_a_fence() -> None:
    """Rule 1: if keys can end, a raise must not act on a node without the key."""
    report = search(Rules(raise_needs_key=False, timely=False))

    assert TWICE in report.violation
    assert "A raises node 0 to 2" in report.history, report  # B has the key there


def test_raise_without_the_number_repeats_a_fence() -> None:
    """Rule 2: a node whose number was not in the maximum must not count."""
    report = search(Rules(raise_needs_number=False, timely=False))

    assert TWICE in report.violation
    assert "A decides on 2 from nodes 0, 1" in report.history, report
    assert "A raises node 2 to 3" in report.history, report


def test_lost_counters_repeat_a_fence() -> None:
    """A quarantine alone protects the lock, but not the order of fences."""
    report = search(Rules(losses=1, recovery=Recovery.NEVER))

    assert TWICE in report.violation


def test_early_recovery_repeats_a_fence() -> None:
    """The counters of others at a restart lack a grant that is under way."""
    report = search(Rules(losses=1, recovery=Recovery.AT_ONCE))

    assert TWICE in report.violation
    loss = next(i for i, what in enumerate(report.history) if "loses" in what)
    grant = next(i for i, what in enumerate(report.history) if "is granted" in what)
    assert loss < grant, report


def test_node_that_votes_at_once_lets_a_second_holder_in() -> None:
    """Without quarantine, one restart is enough for two holders."""
    report = search(Rules(losses=1, quarantine=False))

    assert report.violation == "two hold the lock"


def test_keys_that_end_early_let_a_second_holder_in() -> None:
    """Mutual exclusion depends on clocks alone; fences protect the rest."""
    timely = Rules(timely=False)
    report = explore(
        start_states(timely, nodes=3, attempts=2, counters=0),
        steps=Protocol(timely, 3).steps,
        violation=Protocol(Rules(), 3).violation,
        key=State.key,
    )

    assert report.violation == "two hold the lock"


# -- With all rules ---------------------------------------------------

SMALL: dict[str, tuple[Rules, dict[str, int]]] = {
    "two attempts": (Rules(restores=True), {"counters": 3}),
    "three attempts": (Rules(restores=True), {"attempts": 3, "counters": 0}),
    "keys that end at any time": (Rules(timely=False), {}),
    "keys that end, and are restored": (
        Rules(timely=False, restores=True),
        {"counters": 0},
    ),
    "a node that loses its memory": (Rules(losses=1, restores=True), {}),
    "nodes that lose their memory": (
        Rules(losses=2, restores=True),
        {"counters": 0},
    ),
    "other keys of the stripe": (Rules(bumps=2, restores=True), {}),
    "clocks that run apart": (Rules(hints=(4, 2), restores=True), {"counters": 4}),
    "one node": (Rules(losses=1, restores=True), {"nodes": 1, "counters": 3}),
    "two nodes": (Rules(losses=1, restores=True), {"nodes": 2, "counters": 2}),
    "four nodes": (Rules(), {"nodes": 4}),
    "five nodes": (Rules(), {"nodes": 5, "counters": 0}),
}
LARGE: dict[str, tuple[Rules, dict[str, int]]] = {
    "two attempts": (Rules(restores=True), {"counters": 6}),
    "three attempts": (Rules(restores=True), {"attempts": 3, "counters": 2}),
    "keys that end at any time": (
        Rules(timely=False),
        {"attempts": 3, "counters": 0},
    ),
    "keys that end, and are restored": (
        Rules(timely=False, restores=True),
        {"counters": 2},
    ),
    "a node that loses its memory": (
        Rules(losses=1, restores=True),
        {"attempts": 3, "counters": 0},
    ),
    "nodes that lose their memory": (Rules(losses=2, restores=True), {}),
    "everything at once": (
        Rules(losses=1, bumps=1, hints=(3, 2), restores=True),
        {},
    ),
    "five nodes": (Rules(restores=True), {"nodes": 5}),
    "five nodes, of which one loses its memory": (
        Rules(losses=1),
        {"nodes": 5, "counters": 0},
    ),
    "five nodes, keys that end": (Rules(timely=False), {"nodes": 5, "counters": 0}),
}
BOUNDS = LARGE if os.environ.get("REDLOCK_MODEL") == "large" else SMALL


@pytest.mark.timeout(3600 if BOUNDS is LARGE else 120)
@pytest.mark.parametrize("name", BOUNDS)
def test_rules_hold(name: str) -> None:
    """In every history fences are unique and grow, and one attempt holds at a time."""
    rules, bounds = BOUNDS[name]

    report = search(rules, **bounds)

    assert not report.violation, report
    assert report.states > 100, "the search has hardly started"


# -- The checker itself --------------------------------------------------------------


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
