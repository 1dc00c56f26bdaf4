"""Play many histories, and add up their results.

``python -m tests.simulation.soak [first seed]`` plays until it is stopped. It prints
the number of histories and faults, and the seeds of failures. For the first failure of
each kind it also prints the history, reduced to the parts that it needs.
``--histories N`` ends after N histories, and ``--seed N`` shows one history.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.history import play
from tests.simulation.minimise import minimised
from tests.simulation.patches import simulated_core
from tests.simulation.planner import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROUND = 5_000  # histories between two lines of the summary
_BATCH = 250  # histories of one process at a time


@dataclass(slots=True)
class Tally:
    """The results of some histories.

    Attributes:
        histories: Their number.
        coverage: How often each fault, vote and verdict occurred.
        failures: The seeds of histories with a finding, and the first finding of each.
    """

    histories: int = 0
    coverage: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the results of other histories."""
        self.histories += other.histories
        self.coverage.update(other.coverage)
        self.failures += other.failures

    def summary(self, seconds: float) -> str:
        """Return the results, which took so long, in a line."""
        faults = [n for name, n in self.coverage.items() if name.startswith("fault ")]
        return (
            f"{self.histories:,} histories, {sum(faults):,} faults, "
            f"{self.coverage['verdict won']:,} grants, {len(self.failures)} failures "
            f"in {seconds:.0f} s; seeds of failures: "
            f"{[seed for seed, _ in self.failures][:50]}"
        )


def play_seeds(seeds: range) -> Tally:
    """Play histories in this process."""
    tally = Tally()
    with simulated_core():
        for seed in seeds:
            outcome = play(plan_of(seed))
            tally.histories += 1
            tally.coverage.update(outcome.coverage)
            tally.failures += [(seed, str(each)) for each in outcome.findings[:1]]
    return tally


def campaign(seeds: range) -> Iterator[Tally]:
    """Play histories on all processors; yield after each batch, in any order."""
    batches = [seeds[i : i + _BATCH] for i in range(0, len(seeds), _BATCH)]
    # Spawned processes import all modules themselves: alike on all platforms.
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count()) as pool:
        yield from pool.imap_unordered(play_seeds, batches)


def failure_report(seed: int) -> str:
    """Return the history of a failing seed, reduced to the parts that it needs."""
    with simulated_core():
        return play(minimised(plan_of(seed)), traced=True).report()


def main() -> int:
    """Play and print; return the exit code, 0 when there was no finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak")
    parser.add_argument("first", nargs="?", type=int, default=0, help="first seed")
    parser.add_argument("--histories", type=int, help="end after so many")
    parser.add_argument("--seed", type=int, help="show this one history and end")
    options = parser.parse_args()
    if options.seed is not None:
        with simulated_core():
            echo(play(plan_of(options.seed), traced=True).report())
        return 0
    tally, kinds, began = Tally(), set[str](), time.monotonic()
    try:
        for start in itertools.count(options.first, _ROUND):
            left = (options.histories or sys.maxsize) - tally.histories
            if left <= 0:
                break
            for part in campaign(range(start, start + min(_ROUND, left))):
                tally.add(part)
                for seed, finding in part.failures:
                    echo(f"seed {seed}: {finding}")
                    kind = finding.partition(":")[0]
                    if kind not in kinds:
                        kinds.add(kind)
                        echo(failure_report(seed))
            echo(tally.summary(time.monotonic() - began))
    except KeyboardInterrupt:
        echo(tally.summary(time.monotonic() - began))
    for name, count in sorted(tally.coverage.items()):
        echo(f"{count:12,}  {name}")
    return 1 if tally.failures else 0


def echo(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
