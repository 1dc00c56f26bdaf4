"""Let contenders take turns, and say what each costs beside another.

The machine is never alone and its clock speed moves, so no absolute time means
much. What is compared runs in the same round, a few milliseconds apart; a ratio is
taken within each round, and the median over the rounds is told.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "PATIENT",
    "Contender",
    "Cost",
    "interleave",
    "median_cost",
    "percentile",
    "ratio",
    "slope",
]

_US = 1_000_000
# Seconds for a node to answer. Where no time-out is measured, none shall strike: not
# even on a machine that is busy with other things.
PATIENT = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one cycle took in one round, in microseconds.

    Attributes:
        wall: Time by the clock.
        cpu: Processor time of this process, all of its threads.
        servers: Processor time of all servers; 0 where the system does not tell.
    """

    wall: float
    cpu: float
    servers: float = 0.0


@dataclass(frozen=True, slots=True)
class Contender:
    """Somebody who does the same as the others in another way.

    Attributes:
        name: What it is called in tables.
        nodes: How many servers it uses.
        run: Does this many cycles.
        count: How many cycles make a round.
    """

    name: str
    nodes: int
    run: Callable[[int], None]
    count: int


def servers_cpu(pids: Iterable[int]) -> float:
    """Return the processor time of these processes so far, in seconds (Linux)."""
    total = 0.0
    for pid in pids:
        path = Path(f"/proc/{pid}/schedstat")
        total += int(path.read_text().split()[0]) / 1e9 if path.is_file() else 0.0
    return total


def measured(contender: Contender, pids: Sequence[int]) -> Cost:
    """Let it do one round."""
    gc.collect()
    served, used, began = servers_cpu(pids), time.process_time(), time.perf_counter()
    contender.run(contender.count)
    wall = time.perf_counter() - began
    cpu = time.process_time() - used
    scale = _US / contender.count
    return Cost(wall * scale, cpu * scale, (servers_cpu(pids) - served) * scale)


def interleave(
    contenders: Sequence[Contender], *, rounds: int, pids: Sequence[int] = ()
) -> dict[str, list[Cost]]:
    """Let all do a round in turn, and so on; nobody is always the first.

    Args:
        contenders: Who takes part. Each is warmed up by a round that does not count.
        rounds: How many rounds count.
        pids: The servers, whose processor time is told too.

    Returns:
        By name, the cost in each round, in order.
    """
    for contender in contenders:
        contender.run(max(1, contender.count // 2))
    costs: dict[str, list[Cost]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        first = number % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            costs[contender.name].append(measured(contender, pids))
    return costs


def median_cost(costs: Sequence[Cost]) -> Cost:
    """Return the median of each of the numbers."""
    return Cost(
        statistics.median(cost.wall for cost in costs),
        statistics.median(cost.cpu for cost in costs),
        statistics.median(cost.servers for cost in costs),
    )


def ratio(costs: Sequence[Cost], others: Sequence[Cost], what: str = "wall") -> float:
    """Return how many times the others' cost this is: the median over the rounds.

    Args:
        costs: The rounds of one.
        others: The rounds of the other, in the same order.
        what: Which number of `Cost`.
    """
    pairs = zip(costs, others, strict=True)
    return statistics.median(getattr(a, what) / getattr(b, what) for a, b in pairs)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of them does not exceed (0 < share ≤ 1)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)  # rounded up
    return ordered[max(0, int(rank) - 1)]


def slope(points: Mapping[float, float]) -> float:
    """Return by how much the values grow for each step of 1: least squares."""
    line = statistics.linear_regression(list(points), list(points.values()))
    return line.slope
