"""Every history within some bounds: with all rules, and with one taken away.

``REDLOCK_MODEL=large`` searches larger bounds, for some minutes. It leaves out states
that add no history with a violation: see `Protocol`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.model.checker import Report, explore
from tests.model.protocol import Phase, Protocol, Recovery, Rules, State, start_states

TWICE = "granted twice"
FIRST, SECOND, BOTH = (0,), (1,), (0, 1)  # the keys of an attempt


def search(
    rules: Rules,
    *,
    nodes: int = 3,
    attempts: int = 2,
    counters: int = 1,
    reduced: bool = False,
) -> Report[State]:
    """Search every history of these rules within these bounds."""
    protocol = Protocol(rules, nodes, reduced=reduced)
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


# -- Several keys, without one rule -----------------------------------


def test_raise_that_needs_one_key_of_two_repeats_a_fence() -> None:
    """A raise must not act on a node where another attempt has one of the keys."""
    rules = Rules(
        keys=(BOTH, SECOND), stripes=(0, 1), timely=False, raise_needs_every_key=False
    )
    report = search(rules, counters=0)

    assert TWICE in report.violation
    lost = report.history.index("key 1 of A ends on node 0")
    assert lost < report.history.index("A raises node 0 to 2"), report


def test_release_of_one_key_of_two_leaves_the_other_locked() -> None:
    """A release that ends one key of a set leaves a key that no attempt needs."""
    rules = Rules(keys=(BOTH, SECOND), stripes=(0, 1), release_ends_every_key=False)
    report = search(rules)

    assert report.violation.endswith("keeps a part of the keys of A")


def test_restore_that_forgets_a_key_lets_a_second_holder_in() -> None:
    """A node counts for a renewal only if it has every key of the set."""
    rules = Rules(
        keys=(BOTH, SECOND),
        stripes=(0, 1),
        restores=True,
        renews=True,
        restore_writes_every_key=False,
    )
    protocol = Protocol(rules, 3)
    report = explore(
        start_states(rules, nodes=3, attempts=2, counters=0),
        steps=protocol.steps,
        violation=lambda state: protocol.violation(state) if _two(state) else "",
        key=State.key,
    )

    assert report.violation == "two hold the lock"
    restored = next(i for i, what in enumerate(report.history) if "restores" in what)
    assert "A restores its key" in report.history[restored], report


def _two(state: State) -> bool:
    """Tell whether two attempts hold: look for nothing else."""
    return sum(a.phase is Phase.HOLDING for a in state.attempts) > 1


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
    "several keys, of which others want one": (
        Rules(keys=(BOTH, FIRST, SECOND), stripes=(0, 1), restores=True),
        {"attempts": 3, "counters": 0},
    ),
    "one key, and a set that has it": (
        Rules(keys=(FIRST, BOTH, SECOND), stripes=(0, 1), restores=True),
        {"attempts": 3, "counters": 0},
    ),
    "two keys, and a set of both": (
        Rules(keys=(FIRST, SECOND, BOTH), stripes=(0, 1), restores=True),
        {"attempts": 3, "counters": 0},
    ),
    "sets in a circle": (
        Rules(keys=((0, 1), (1, 2), (2, 0)), stripes=(0, 1, 0), restores=True),
        {"attempts": 3, "counters": 0},
    ),
    "several keys that are renewed": (
        Rules(keys=(BOTH, SECOND), stripes=(0, 1), restores=True, renews=True),
        {},
    ),
    "several keys, of which each ends at any time": (
        Rules(keys=(BOTH, SECOND), stripes=(0, 1), timely=False),
        {"counters": 0},
    ),
    "several keys of one stripe": (
        Rules(keys=(BOTH, BOTH), stripes=(0, 0), timely=False),
        {"counters": 0},
    ),
    "several keys, and a node that loses its memory": (
        Rules(
            keys=(BOTH, SECOND), stripes=(0, 1), losses=1, restores=True, renews=True
        ),
        {"counters": 0},
    ),
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
    "several keys that are renewed": (
        Rules(keys=(BOTH, FIRST, SECOND), stripes=(0, 1), restores=True, renews=True),
        {"attempts": 3, "counters": 0},
    ),
    "several keys, of which each ends at any time": (
        Rules(keys=(BOTH, SECOND), stripes=(0, 1), timely=False, restores=True),
        {},
    ),
    "several keys of one stripe": (
        Rules(keys=(BOTH, SECOND), stripes=(0, 0), timely=False),
        {},
    ),
    "several keys, and a node that loses its memory": (
        Rules(
            keys=(BOTH, FIRST, SECOND),
            stripes=(0, 1),
            losses=1,
            restores=True,
            renews=True,
        ),
        {"attempts": 3, "counters": 0},
    ),
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

    report = search(rules, reduced=BOUNDS is LARGE, **bounds)

    assert not report.violation, report
    assert report.states > 100, "the search has hardly started"


@pytest.mark.parametrize(
    "rules",
    [
        Rules(raise_needs_key=False, raise_needs_number=False),
        Rules(raise_needs_key=False, timely=False),
        Rules(raise_needs_number=False, timely=False),
        Rules(losses=1, recovery=Recovery.NEVER),
        Rules(losses=1, recovery=Recovery.AT_ONCE),
        Rules(losses=1, quarantine=False),
        pytest.param(
            Rules(
                keys=(BOTH, SECOND),
                stripes=(0, 1),
                timely=False,
                raise_needs_every_key=False,
            ),
            marks=pytest.mark.long,
        ),
        Rules(
            keys=(BOTH, SECOND),
            stripes=(0, 1),
            restores=True,
            renews=True,
            restore_writes_every_key=False,
        ),
    ],
    ids=str,
)
def test_reduced_search_finds_each_rule_that_is_missing(rules: Rules) -> None:
    """It needs fewer states to a violation, and finds one as the full search does."""
    full, reduced = search(rules), search(rules, reduced=True)

    assert full.violation
    assert reduced.violation
    assert reduced.states < full.states


@pytest.mark.parametrize("name", SMALL)
def test_reduced_search_finds_nothing_with_all_rules(name: str) -> None:
    """It has fewer states than the full search, and agrees with it."""
    rules, bounds = SMALL[name]

    report = search(rules, reduced=True, **bounds)

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
