"""A move to other nodes by two deploys of the clients: safe only if the nodes close."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.model.checker import explore
from tests.model.two_deployments import Rules, State, TwoDeployments

if TYPE_CHECKING:
    from tests.model.checker import Report

TWO = "two hold the lock"


def search(rules: Rules, clients: int = 2) -> Report[State]:
    """Search all histories of so many clients."""
    machine = TwoDeployments(rules, clients)
    return explore(
        [machine.start()],
        steps=machine.steps,
        violation=machine.violation,
        key=lambda state: state,
    )


def test_move_by_two_deploys_alone_gives_two_holders() -> None:
    """A client that was forgotten runs beside one that has the new lock."""
    report = search(Rules(closes=False, waits=False, opens=False, starts_above=False))
    assert report.violation == TWO
    assert "client 0 starts as NEW" in report.history
    assert not any("client 1 starts" in step for step in report.history)


@pytest.mark.parametrize("clients", [2, 3])
def test_move_whose_nodes_close_wait_and_open_gives_one_holder(clients: int) -> None:
    """With the three steps of `reconfigure`, no history has two holders."""
    report = search(Rules(), clients)
    assert not report.violation, str(report)


@pytest.mark.parametrize(
    ("rule", "violation"),
    [
        ("waits", TWO),
        ("opens", TWO),
        ("starts_above", "a grant has an old fence"),
        ("raises_both", "a grant has an old fence"),
    ],
)
def test_move_without_one_of_its_rules_is_not_safe(rule: str, violation: str) -> None:
    """Each rule of the move is needed."""
    report = search(replace(Rules(), **{rule: False}))
    assert report.violation == violation
