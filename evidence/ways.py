"""The ways in which a bug comes back, and how a tool shows that it finds the bug.

A bug that no tool brings back has its regression test: a guard.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from spec.catalogue import RULES
from spec.check import check_rule, missing
from tests.simulation.history import play
from tests.simulation.patches import simulated_core
from tests.simulation.planner import plan_of
from tests.simulation.planted_bugs import MEMBERSHIP_BUGS, PLANTED_BUGS

ROOT = Path(__file__).parents[1]
_PASSED = 0  # exit code of pytest
_SCENARIOS = "tests/simulation/test_scenarios.py"
_SUMMARY = re.compile(r"(\d+ (?:failed|passed)\S*)")


@dataclass(frozen=True, slots=True)
class Shown:
    """The result of bringing a bug back.

    Attributes:
        is_found: Whether the tool found the bug; None if a program is missing for it.
        detail: What the tool found, or which program is missing.
        seconds: How long it took.
    """

    is_found: bool | None
    detail: str
    seconds: float = 0.0


class Way(Protocol):
    """A way in which a bug comes back.

    Attributes:
        is_long: Whether it takes more than half a minute.
    """

    @property
    def is_long(self) -> bool:
        """Tell whether it takes more than half a minute."""

    def text(self) -> str:
        """Return how the bug comes back, as a cell of a table."""

    def problems(self) -> list[str]:
        """Return what the way names and does not exist."""

    def show(self) -> Shown:
        """Bring the bug back, and let the tool look for it."""


def shown_by(way: Way) -> Shown:
    """Bring a bug back, and measure how long that takes."""
    begun = time.monotonic()
    shown = way.show()
    return replace(shown, seconds=round(time.monotonic() - begun, 1))


# -- The simulator and the specification ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug that is planted into the real code while the simulator plays histories.

    Attributes:
        bug: Its name in ``tests/simulation/planted_bugs.py``.
        is_long: Whether it takes more than half a minute.
    """

    bug: str
    is_long: bool = False

    def text(self) -> str:
        """Return how the bug comes back, as a cell of a table."""
        return f"planted: *{self.bug}*"

    def problems(self) -> list[str]:
        """Return what the way names and does not exist."""
        known = any(bug.name == self.bug for bug in PLANTED_BUGS)
        return [] if known else [f"no planted bug {self.bug!r}"]

    def show(self) -> Shown:
        """Play histories until one shows the bug."""
        [bug] = [bug for bug in PLANTED_BUGS if bug.name == self.bug]
        with simulated_core(), bug.planted():
            for seed in range(bug.within):
                outcome = play(plan_of(seed, bug.style), ignored=bug.ignored)
                for finding in outcome.findings:
                    if finding.kind in bug.findings:
                        return Shown(is_found=True, detail=_found(finding.kind, seed))
        return Shown(is_found=False, detail=f"nothing in {bug.within} histories")


def _found(kind: str, seed: int) -> str:
    return f"{kind}, in history {seed + 1}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A bug that is planted while the simulator plays plans that are written by hand.

    Attributes:
        bug: Its name in ``MEMBERSHIP_BUGS``.
    """

    bug: str
    is_long: bool = False

    def text(self) -> str:
        """Return how the bug comes back, as a cell of a table."""
        return f"planted: *{self.bug}*, in a plan"

    def problems(self) -> list[str]:
        """Return what the way names and does not exist."""
        known = self.bug in MEMBERSHIP_BUGS
        return [] if known else [f"no planted bug {self.bug!r}"]

    def show(self) -> Shown:
        """Play the plans with the bug."""
        done = _pytest(f"{_SCENARIOS}::test_membership_bug_is_found[{self.bug}]")
        kinds = " or ".join(MEMBERSHIP_BUGS[self.bug].findings)
        is_found = done.returncode == _PASSED
        return Shown(is_found, f"{kinds}, in a plan" if is_found else _summary(done))


@dataclass(frozen=True, slots=True)
class WithoutRule:
    """A model of the specification without one of its rules.

    Attributes:
        model: The model.
        rule: The rule.
    """

    model: str
    rule: str
    is_long: bool = False

    def text(self) -> str:
        """Return how the bug comes back, as a cell of a table."""
        return f"`spec/{self.model}.pml` with `-DNO_{self.rule}`"

    def problems(self) -> list[str]:
        """Return what the way names and does not exist."""
        pairs = {(rule.model, rule.name) for rule in RULES}
        known = (self.model, self.rule) in pairs
        return [] if known else [f"no rule {self.rule} in {self.model}"]

    def show(self) -> Shown:
        """Let Spin look for a counterexample."""
        if name := missing():
            return Shown(None, f"{name} is missing")
        [rule] = [
            one for one in RULES if (one.model, one.name) == (self.model, self.rule)
        ]
        result = check_rule(rule)
        if not result.errors:
            return Shown(is_found=False, detail=f"nothing in {result.states:,} states")
        steps = f"counterexample of {len(result.history)} steps"
        return Shown(is_found=True, detail=f"{steps}, after {result.states:,} states")


# -- Tests ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InModel:
    """A test that has the bug in it, and asserts that a tool finds it.

    Attributes:
        test: The test, as pytest names it.
        is_long: Whether it takes more than half a minute.
    """

    test: str
    is_long: bool = False

    def text(self) -> str:
        """Return how the bug comes back, as a cell of a table."""
        return f"`{_name_of(self.test)}` has it in its model"

    def problems(self) -> list[str]:
        """Return what the way names and does not exist."""
        return _missing_test(self.test)

    def show(self) -> Shown:
        """Run the test, which passes if the tool finds the bug."""
        done = _pytest(self.test)
        return Shown(done.returncode == _PASSED, _summary(done))


@dataclass(frozen=True, slots=True)
class Guard:
    """The regression test of a bug. `make test` or `make test-all` runs it.

    It is no way back: the test failed before the fix, and passes now.

    Attributes:
        test: The test, as pytest names it.
    """

    test: str

    def text(self) -> str:
        """Return the name of the test, as a cell of a table."""
        return f"`{_name_of(self.test)}`"

    def problems(self) -> list[str]:
        """Return what it names and does not exist."""
        return _missing_test(self.test)


# -- What they share -----------------------------------------------------------------


def _name_of(test: str) -> str:
    return test.partition("::")[2].partition("[")[0] or test


def _missing_test(test: str) -> list[str]:
    path, _, name = test.partition("::")
    file = ROOT / path
    if not file.is_file():
        return [f"no file {path}"]
    name = name.partition("[")[0]
    tree = ast.parse(file.read_text("utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return [f"no test {name} in {path}"] if name and name not in names else []


def _pytest(*tests: str) -> subprocess.CompletedProcess[str]:
    options = ("-p", "no:cacheprovider", "-q", "-x", "--no-header", "--tb=no")
    return subprocess.run(  # noqa: S603  (our own tests)
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def _summary(done: subprocess.CompletedProcess[str]) -> str:
    """Return how many tests failed and passed, or the last line of the output."""
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]])[-1]
    counts = _SUMMARY.findall(last)
    return ", ".join(count.rstrip(",") for count in counts) or last
