"""The specification in ``spec/``: models that Spin checks, and the page about them."""

from __future__ import annotations

import pytest

from spec.catalogue import RULES, Rule, Run
from spec.check import FOLDER, check_rule, check_run, missing
from spec.page import is_stale, runs_of

pytestmark = pytest.mark.timeout(1200)  # a slow machine takes minutes for the largest
needs_spin = pytest.mark.skipif(bool(missing()), reason=f"{missing()} is missing")
# `make test-more` searches for these, and for errors of one model; `make spec` for all.
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


def marks_of(rule: Rule) -> list[pytest.MarkDecorator]:
    """Return when the counterexample of a rule is searched for."""
    return [pytest.mark.long, *([] if rule.name in SHORT else [pytest.mark.exhaustive])]


@needs_spin
@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(
            rule,
            id=f"{rule.model}-{rule.name}",
            marks=marks_of(rule),
        )
        for rule in RULES
    ],
)
def test_counterexample_is_found(rule: Rule) -> None:
    """Without any one rule Spin finds an error, and its steps are sentences."""
    result = check_rule(rule)

    assert result.errors
    assert result.history


@needs_spin
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            run,
            id=" ".join((run.model, *run.defines)),
            marks=[
                pytest.mark.long,
                *([] if run.model == "keys" else [pytest.mark.exhaustive]),
            ],
        )
        for run in runs_of(large=False)
    ],
)
def test_model_has_no_error(run: Run) -> None:
    """All states within the bounds are visited, and none is an error."""
    result = check_run(run)

    assert not result.errors, result.history
    assert result.is_complete
    assert result.states > 1000
