"""The report of a torture: a table for the terminal, and JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

__all__ = ["Report"]

_EVIDENCE = 5  # lines for each verdict


@dataclasses.dataclass
class Report:
    """The outcome of one torture.

    Attributes:
        broker: The broker of the workers.
        seed: The seed of the faults and the jobs.
        seconds: The duration of the faults.
        finished_after: The seconds from the last fault until all jobs had ended.
        jobs: The number of sent jobs, by kind.
        runs: The number of runs of bodies.
        faults: The number of faults, by kind.
        zero: The counts that must be zero.
        apart: The counts that may be more.
        evidence: The events that were counted for `zero`.
    """

    broker: str
    seed: int
    seconds: float
    finished_after: float
    jobs: dict[str, int]
    runs: int
    faults: dict[str, int]
    zero: dict[str, int]
    apart: dict[str, int]
    evidence: dict[str, list[str]]

    @property
    def is_clean(self) -> bool:
        """Whether all counts that must be zero are zero, with enough jobs to tell."""
        return not any(self.zero.values()) and sum(self.jobs.values()) >= self.seconds

    def json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def sections(self) -> list[tuple[str, dict[str, int]]]:
        """Return the parts of the table."""
        return [
            ("must be zero", self.zero),
            ("may be more", self.apart),
            (f"{sum(self.faults.values())} faults", self.faults),
            (f"{sum(self.jobs.values())} jobs, {self.runs} runs", self.jobs),
        ]

    def title(self) -> str:
        """Return the line above the table."""
        return (
            f"torture: {self.broker}, seed {self.seed}, {self.seconds:g} s of faults, "
            f"all jobs ended {self.finished_after:.0f} s later"
        )

    def text(self) -> str:
        """Return the table as plain text."""
        lines = [self.title()]
        for name, counts in self.sections():
            lines += ["", name]
            lines += [f"  {what:<50}{n:>6}" for what, n in _sorted(name, counts)]
        return "\n".join(lines)

    def proofs(self) -> str:
        """Return the events of the counts that must be zero."""
        return "\n".join(
            f"{what}: {one}"
            for what, seen in self.evidence.items()
            for one in seen[:_EVIDENCE]
        )

    def show(self) -> None:
        """Print the table, with colours if rich is installed."""
        try:
            from rich.console import Console  # noqa: PLC0415  (may be absent)
            from rich.table import Table  # noqa: PLC0415  (may be absent)
        except ImportError:
            sys.stdout.write(self.text() + "\n")
        else:
            table: Any = Table(show_header=False)
            table.add_column("what")
            table.add_column("count", justify="right")
            for name, counts in self.sections():
                table.add_row(f"[bold]{name}", "")
                for what, number in _sorted(name, counts):
                    colour = "red" if number else "green"
                    mark = f"[{colour}]{number}" if counts is self.zero else str(number)
                    table.add_row(f"  {what}", mark)
                table.add_section()
            console = Console()
            console.print(self.title())
            console.print(table)
        if proofs := self.proofs():
            sys.stdout.write(proofs + "\n")


def _sorted(name: str, counts: dict[str, int]) -> list[tuple[str, int]]:
    if name == "must be zero":
        return [*counts.items()]
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
