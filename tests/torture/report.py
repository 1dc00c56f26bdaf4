"""The report of a torture: a table for the terminal, and JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter, defaultdict

_EVIDENCE = 5  # lines for each verdict


class Counts:
    """The counts of verdicts.

    Attributes:
        zero: The counts that must be zero.
        apart: The counts that may be more.
        evidence: The events that were counted for `zero`, in words.
    """

    def __init__(self) -> None:
        self.zero: dict[str, int] = {}
        self.apart: Counter[str] = Counter()
        self.evidence: defaultdict[str, list[str]] = defaultdict(list)

    def found(self, what: str, evidence: list[str]) -> None:
        """Add a count that must be zero."""
        self.zero[what] = len(evidence)
        self.evidence[what] += evidence


@dataclasses.dataclass
class Report:
    """The outcome of one torture."""

    broker: str
    store: str  # "" for Redis nodes
    seed: int
    seconds: float  # of faults
    finished_after: float  # seconds from the last fault until all jobs had ended
    jobs: dict[str, int]  # sent ones, by kind
    runs: int
    faults: dict[str, int]  # by kind
    zero: dict[str, int]  # the counts that must be zero
    apart: dict[str, int]  # the counts that may be more
    evidence: dict[str, list[str]]  # what was counted for `zero`
    title: str = "torture"

    @property
    def is_clean(self) -> bool:
        """Whether all counts that must be zero are zero, with enough jobs to tell."""
        return not any(self.zero.values()) and sum(self.jobs.values()) >= self.seconds

    def json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def text(self) -> str:
        """Return the table."""
        sections = {
            "must be zero": self.zero,
            "may be more": _sorted(self.apart),
            f"{sum(self.faults.values())} faults": _sorted(self.faults),
            f"{sum(self.jobs.values())} jobs, {self.runs} runs": _sorted(self.jobs),
        }
        when = f"all jobs ended {self.finished_after:.0f} s later"
        faults = f"{self.seconds:g} s of faults"
        locks = f"locks in {self.store}" if self.store else "locks on Redis nodes"
        title = f"{self.title}: broker {self.broker}, {locks}, seed {self.seed}"
        lines = [f"{title}, {faults}, {when}"]
        for name, counts in sections.items():
            lines += ["", name]
            lines += [f"  {what:<50}{number:>6}" for what, number in counts.items()]
        return "\n".join(lines)

    def proofs(self) -> str:
        """Return the events of the counts that must be zero."""
        return "\n".join(
            f"{what}: {one}"
            for what, seen in self.evidence.items()
            for one in seen[:_EVIDENCE]
        )

    def show(self) -> None:
        """Print the table, and the events that were counted."""
        sys.stdout.write(self.text() + "\n")
        if proofs := self.proofs():
            sys.stdout.write(proofs + "\n")


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
