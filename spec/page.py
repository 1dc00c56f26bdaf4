"""Write the generated part of the page, or say whether it is stale."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from spec.catalogue import RULES, RUNS
from spec.check import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spec.catalogue import Rule, Run
    from spec.check import Result

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "specification.md"
_END = "<!-- written by spec: end -->"
_TITLES = {
    "lock": "One lock: `spec/lock.pml`",
    "fence": "Fences: `spec/fence.pml`",
    "keys": "Several keys and permits: `spec/keys.pml`",
    "reconfiguration": "Epochs: `spec/reconfiguration.pml`",
}


def is_stale() -> bool:
    """Tell whether a model or a rule has changed since the page was written."""
    return _begin() not in PAGE.read_text()


def write(runs: Sequence[Result], rules: Sequence[Result]) -> None:
    """Put the results of all runs and of all rules into the page."""
    text = PAGE.read_text()
    before = text[: text.index("<!-- written by spec")]
    after = text[text.index(_END) :]
    lines = [_begin(), *_table(runs), *_rules(rules)]
    PAGE.write_text(before + "\n".join(lines) + "\n" + after)


def _begin() -> str:
    digest = hashlib.sha256()
    for source in sorted({*FOLDER.glob("*.pml")} - {FOLDER / "trace.pml"}):
        digest.update(source.read_bytes())
    digest.update(repr([RUNS, RULES]).encode())
    return f"<!-- written by spec, from {digest.hexdigest()[:16]} -->"


def _table(results: Sequence[Result]) -> Iterator[str]:
    yield "| model | bounds | states | depth | memory | processor time |"
    yield "|---|---|---|---|---|---|"
    runs = [run for run in RUNS if not run.is_large]
    for run, result in zip(runs, results, strict=True):
        yield (
            f"| `{run.model}` | {run.bounds} | {result.states:,} | {result.depth:,} | "
            f"{result.memory_mb:,.0f} MB | {result.cpu:,.0f} s |"
        )
    states = sum(result.states for result in results)
    cpu = sum(result.cpu for result in results)
    yield ""
    yield (
        f"Together {states:,} states in {cpu:,.0f} s of processor time. "
        "No error, and no limit was reached."
    )
    yield ""


def _rules(results: Sequence[Result]) -> Iterator[str]:
    last = ""
    for rule, result in zip(RULES, results, strict=True):
        if rule.model != last:
            last = rule.model
            yield f"## {_TITLES[last]}"
            yield ""
        yield from _rule(rule, result)


def _rule(rule: Rule, result: Result) -> Iterator[str]:
    yield f"**{rule.text}** Without it (`-DNO_{rule.name}`): {_lower(rule.why)}"
    yield ""
    yield "| | step |"
    yield "|---|---|"
    for number, step in enumerate(result.history, 1):
        yield f"| {number} | {step} |"
    yield ""


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def runs_of(*, large: bool) -> list[Run]:
    """Return the searches of the usual bounds, or of the larger ones."""
    return [run for run in RUNS if run.is_large == large]
