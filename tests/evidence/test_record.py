"""The record of bugs in ``evidence/``: its tests, its commands, and its page."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from evidence.bugs import BUGS
from evidence.figures import Figures
from evidence.page import all_ways, is_stale
from evidence.rules import RULES
from evidence.ways import Guard, Planted, Scenario, WithoutRule, shown_by
from spec.catalogue import RULES as SPEC_RULES
from tests.harness.programs import end_of
from tests.simulation.planted_bugs import MEMBERSHIP_BUGS

ROOT = Path(__file__).parents[2]
WAYS = all_ways()


def test_page_is_up_to_date() -> None:
    """The page was written from this record and these figures."""
    assert not is_stale(Figures()), "python -m evidence --write"


def test_record_names_what_exists() -> None:
    """Each bug and each rule names a test, a rule or a planted bug that is there."""
    guards = [bug.way for bug in BUGS if isinstance(bug.way, Guard)]
    for rule in RULES:
        guards += [way for way in rule.ways().values() if isinstance(way, Guard)]

    assert guards
    assert [fault for way in WAYS.values() for fault in way.problems()] == []
    assert [fault for guard in guards for fault in guard.problems()] == []


def test_names_are_unique() -> None:
    """A name on the command line is one bug or one rule."""
    names = Counter([bug.name for bug in BUGS] + [rule.name for rule in RULES])

    assert [name for name, count in names.items() if count > 1] == []


def test_rules_are_those_of_the_specification() -> None:
    """Each rule that Spin must miss is a rule of the table."""
    ours = {
        (rule.specification.model, rule.specification.rule)
        for rule in RULES
        if isinstance(rule.specification, WithoutRule)
    }

    assert ours == {(rule.model, rule.name) for rule in SPEC_RULES}


def test_membership_bugs_are_in_the_table() -> None:
    """Each bug that is planted in a plan takes a rule of the table away."""
    ours = {way.bug for way in WAYS.values() if isinstance(way, Scenario)}

    assert ours == {*MEMBERSHIP_BUGS}


def test_planted_bug_is_found() -> None:
    """The simulator finds a bug, and says in which history."""
    shown = shown_by(Planted("half is a quorum"))

    assert shown.is_found
    assert "two holders, in history" in shown.detail


@pytest.mark.long
def test_unknown_name_is_refused() -> None:
    """The command says that no bug has the name."""
    done = end_of(sys.executable, "-m", "evidence", "no-such-bug", code=2, cwd=ROOT)

    assert "no-such-bug" in done.stderr
