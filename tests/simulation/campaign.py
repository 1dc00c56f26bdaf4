"""Many histories on several processors, and what they came to."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.history import play
from tests.simulation.minimise import minimised
from tests.simulation.planning import plan_of
from tests.simulation.seams import simulated_seams

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Tally", "campaign", "failure_report", "play_seeds"]

_BATCH = 250  # histories that one process is given at a time


@dataclass(slots=True)
class Tally:
    """What some histories came to.

    Attributes:
        histories: How many there were.
        coverage: How often which fault, vote and verdict occurred.
        failures: Seeds of the histories that showed something, and what.
    """

    histories: int = 0
    coverage: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count what other histories came to as well."""
        self.histories += other.histories
        self.coverage.update(other.coverage)
        self.failures += other.failures

    @property
    def faults(self) -> int:
        """How many faults were injected."""
        return sum(
            count for name, count in self.coverage.items() if name.startswith("fault ")
        )


def play_seeds(seeds: range) -> Tally:
    """Play histories in this process."""
    tally = Tally()
    with simulated_seams():
        for seed in seeds:
            outcome = play(plan_of(seed))
            tally.histories += 1
            tally.coverage.update(outcome.coverage)
            tally.failures += [(seed, str(each)) for each in outcome.findings[:1]]
    return tally


def campaign(seeds: range, *, processes: int | None = None) -> Iterator[Tally]:
    """Play histories on all processors; yield after each batch, in any order.

    Args:
        seeds: Which ones.
        processes: How many to use; one for each processor by default.
    """
    batches = [seeds[i : i + _BATCH] for i in range(0, len(seeds), _BATCH)]
    # Fork-safe and alike on all platforms: each process imports all by itself.
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes or os.cpu_count()) as pool:
        yield from pool.imap_unordered(play_seeds, batches)


def failure_report(seed: int) -> str:
    """Return a failing seed's history, as small as it can be made, to be read."""
    with simulated_seams():
        small = minimised(plan_of(seed))
        return play(small, traced=True).report()
