"""The page ``docs/explanation/record.md``, made from the record and the figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from evidence.bugs import BUGS, Effect
from evidence.rules import RULES, TOOLS
from evidence.ways import Guard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evidence.bugs import Bug
    from evidence.figures import Figures
    from evidence.rules import Rule
    from evidence.ways import Shown, Way

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "record.md"
_COMMITS = "https://github.com/celery-redlock/celery-redlock/commit/"

_HEAD = """\
# The record: every bug of the lock, and what finds it

<!-- written by `python -m evidence --write`, from evidence/ -->

This page lists each bug of the lock that was found in this project: what it did, what
found it, where it is fixed, and which test guards it. In a second table, each rule of
the protocol is taken away, one at a time: which tools notice?

No version was published before 0.2.0. So no user has met one of these bugs, and no
issue of a user found one. Each bug was in the code or in the design before 0.2.0.
*draft* means that it was found before it was committed. *Not recorded* means that
neither the commit nor a page says what found it.

The last column names the test that failed before the fix: `make test` or
`make test-all` runs it. Where it says **found**, a tool brings the bug back:

- *Planted:* the simulator plays histories of the real code with the bug in it.
- *Without a rule:* [the specification](specification.md) lacks a rule, and Spin finds a
  counterexample.
- *In a model:* a test of [tests/model](../../tests/model/membership.py) has the bug in
  its model, and passes if the search finds it.

```sh
make evidence                         # all of them, and this page
python -m evidence late-restart       # one bug, by its name in the tables
python -m evidence rule:drift         # one rule, in all tools
```
"""


def all_ways() -> dict[str, Way]:
    """Return the ways in which bugs and rules are shown, by name."""
    ways = {bug.name: bug.way for bug in BUGS if not isinstance(bug.way, Guard)}
    for rule in RULES:
        for tool, way in rule.ways().items():
            if not isinstance(way, Guard):
                ways[f"rule:{rule.name}:{tool}"] = way
    return ways


def is_stale(figures: Figures) -> bool:
    """Tell whether the page differs from the record and the figures."""
    return not PAGE.exists() or PAGE.read_text("utf-8") != text(figures)


def write(figures: Figures) -> None:
    """Write the page."""
    PAGE.write_text(text(figures), encoding="utf-8")


def text(figures: Figures) -> str:
    """Return the page."""
    parts = (
        _figures(figures),
        _finders(),
        *(_table(effect, figures) for effect in Effect),
        _rules(figures),
        _gaps(figures),
    )
    return "\n".join([_HEAD, *(line for part in parts for line in part)])


def _figures(figures: Figures) -> Iterator[str]:
    yield "## The last run"
    yield ""
    yield "| tool | result |"
    yield "|---|---|"
    for name, result in figures.counts.items():
        yield f"| {name} | {result} |"
    yield f"| Bugs of this page | {_bug_counts(figures)} |"
    found = [figures.shown(name) for name in all_ways() if name.startswith("rule:")]
    ran = [one for one in found if one is not None]
    good = sum(bool(one.is_found) for one in ran)
    rules = f"{len(RULES)} rules; found in {good} of {len(ran)} runs"
    yield f"| Rules taken away | {rules} |"
    yield f"| Time for bugs and rules | {_seconds(figures):,.0f} s |"
    yield ""


def _bug_counts(figures: Figures) -> str:
    guarded = sum(isinstance(bug.way, Guard) for bug in BUGS)
    shown = [figures.shown(bug.name) for bug in BUGS]
    found = sum(bool(one and one.is_found) for one in shown)
    return f"{len(BUGS)}; {found} brought back and found, {guarded} guarded by a test"


def _seconds(figures: Figures) -> float:
    shown = [figures.shown(name) for name in all_ways()]
    return sum(one.seconds for one in shown if one)


def _finders() -> Iterator[str]:
    counts = Counter(bug.found_by for bug in BUGS)
    yield "## What found them"
    yield ""
    yield "| found by | bugs |"
    yield "|---|---|"
    for finder, count in counts.most_common():
        yield f"| {finder.value} | {count} |"
    yield ""


def _table(effect: Effect, figures: Figures) -> Iterator[str]:
    bugs = [bug for bug in BUGS if bug.effect is effect]
    if not bugs:
        return
    yield f"## {effect.value}"
    yield ""
    yield "| name | what it did | found by | fixed in | guarded by |"
    yield "|---|---|---|---|---|"
    for bug in bugs:
        yield _row(bug, figures)
    yield ""


def _row(bug: Bug, figures: Figures) -> str:
    did = f"{bug.text} {bug.note}".strip()
    cells = (
        f"`{bug.name}`",
        did,
        bug.found_by.value,
        _fixed(bug.fixed_in),
        _guard(bug, figures),
    )
    return "| " + " | ".join(cells) + " |"


def _guard(bug: Bug, figures: Figures) -> str:
    if isinstance(bug.way, Guard):
        return bug.way.text()
    return f"{_cell(bug.way.text())}. {_result(figures.shown(bug.name))}"


def _fixed(commit: str) -> str:
    if not commit:
        return "not fixed: a limit"
    return commit if commit == "draft" else f"[{commit}]({_COMMITS}{commit})"


def _cell(text: str) -> str:
    return text[0].upper() + text[1:]


def _result(shown: Shown | None) -> str:
    if shown is None:
        return "Not run yet."
    if shown.is_found is None:
        return f"{_cell(shown.detail)}."
    return f"**Found:** {shown.detail}." if shown.is_found else "**Not found.**"


def _rules(figures: Figures) -> Iterator[str]:
    yield "## Rule by rule"
    yield ""
    yield "The rule is taken away. *found* means that the tool finds it, *no* that it"
    yield "does not, for a reason that is given below. In an empty cell it was not"
    yield "tried, mostly because the tool does not run the part with the rule. The"
    yield "contract suite and the unit tests have a test of the rule."
    yield ""
    yield f"| rule | {' | '.join(TOOLS)} |"
    yield "|---|" + "---|" * len(TOOLS)
    for rule in RULES:
        cells = [_verdict(rule, tool, figures) for tool in TOOLS]
        yield f"| **{rule.name}:** {rule.text} | {' | '.join(cells)} |"
    yield ""


def _verdict(rule: Rule, tool: str, figures: Figures) -> str:
    way = rule.ways().get(tool)
    if way is None:
        return "no" if tool in rule.why_not else ""
    if isinstance(way, Guard):
        return way.text()
    shown = figures.shown(f"rule:{rule.name}:{tool}")
    if shown is None:
        return "not run"
    if shown.is_found is None:
        return "not run"
    return "found" if shown.is_found else "**not found**"


def _gaps(figures: Figures) -> Iterator[str]:
    yield "## What the tools do not find"
    yield ""
    for rule in RULES:
        for tool, why in rule.why_not.items():
            yield f"- *{rule.name}*, {tool}: {why}."
        for tool in rule.ways():
            shown = figures.shown(f"rule:{rule.name}:{tool}")
            if shown and shown.is_found is False:
                yield f"- *{rule.name}*, {tool}: not found ({shown.detail})."
    yield "- *All rules*, torture: two planted bugs were tried. The faults are chosen"
    yield "  at random, so a run tells little about a rule that only one order needs."
    yield "- Forks, asyncio, signals, replicas and Celery are only in the tests of one"
    yield "  module and in the torture. The simulator has none of them."
    yield ""
