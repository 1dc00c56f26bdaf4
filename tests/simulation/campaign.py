"""Play many histories on several processors, and add up their results."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.history import play
from tests.simulation.minimise import minimised
from tests.simulation.patches import simulated_core
from tests.simulation.planner import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Tally", "campaign", "failure_report", "play_seeds"]

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

    @property
    def faults(self) -> int:
        """The number of injected faults."""
        return sum(
            count for name, count in self.coverage.items() if name.startswith("fault ")
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
