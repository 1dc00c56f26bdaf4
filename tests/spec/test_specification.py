"""The specification in ``spec/``: models that Spin checks, and the page about them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spec.catalogue import RULES, RUNS
from spec.check import FOLDER, check_rule, check_run, missing
from spec.page import is_stale

needs_spin = pytest.mark.skipif(bool(missing()), reason=f"{missing()} is missing")
SHORT = {"MAJORITY", "QUARANTINE", "TOKEN"}


def test_page_is_up_to_date() -> None:
    """The page was written from these models and rules."""
    assert not is_stale(), "python -m spec --write"


def test_catalogue_has_every_rule_of_the_models() -> None:
    """The rules of the models and those of the catalogue are the same."""
    in_models = {
        (source.stem, word.removeprefix("NO_").rstrip(")"))
        for source in FOLDER.glob("*.pml")
        for line in source.read_text().splitlines()
        if line.startswith(("#if", "#elif"))
        for word in line.replace("(", " ").split()
        if word.startswith("NO_")
    }

    assert {(rule.model, rule.name) for rule in RULES} <= in_models
    assert {name for _, name in in_models} == {rule.name for rule in RULES}


@needs_spin
@pytest.mark.parametrize(
    "rule", [r for r in RULES if r.model == "lock" and r.name in SHORT], ids=str
)
def test_short_counterexample_is_found(rule: object) -> None:
    """Without a rule, Spin finds an error, and its steps are sentences."""
    result = check_rule(rule)  # type: ignore[arg-type]

    assert result.errors
    assert any("A starts an attempt" in step for step in result.history)


@needs_spin
def test_small_model_has_no_error() -> None:
    """The smallest model is visited in all of its states."""
    [run] = [run for run in RUNS if run.model == "keys" and not run.defines]
    result = check_run(run)

    assert not result.errors, result.history
    assert result.is_complete
    assert result.states > 1000


@needs_spin
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_models_and_all_counterexamples() -> None:
    """All states with all rules have no error. Without any one rule there is one."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "spec"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
