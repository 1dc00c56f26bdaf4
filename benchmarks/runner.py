"""Run contenders in turn, and compare their costs.

Other programs share the machine and its clock speed changes, so absolute times mean
little. Contenders run in the same round, a few milliseconds apart. A ratio is taken
within each round, and the result is the median over the rounds. (pyperf runs one
benchmark after another, and does not count the processor time of servers.)
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_US = 1_000_000
# Seconds for a node to answer. Only the group "hung" measures time-outs. No other
# group may meet one on a busy machine.
PATIENT = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one cycle in one round, in microseconds.

    Attributes:
        wall: The time by the clock.
        cpu: The processor time of all threads of this process.
        servers: The processor time of all servers; 0 if the system has no such figure.
    """

    wall: float
    cpu: float
    servers: float = 0.0


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do a cycle.

    Attributes:
        name: The name in tables.
        nodes: The number of servers.
        run: Does the given number of cycles.
        count: The number of cycles in a round.
    """

    name: str
    nodes: int
    run: Callable[[int], None]
    count: int


def servers_cpu(pids: Iterable[int]) -> float:
    """Return the processor time of these processes so far, in seconds (Linux)."""
    total = 0.0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):  # of each thread
            with contextlib.suppress(OSError):  # it has ended just now
                total += int(path.read_text().split()[0]) / 1e9
    return total


def measured(contender: Contender, pids: Sequence[int]) -> Cost:
    """Run one round of a contender."""
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
    """Run rounds in which all contenders take turns, with a new first one each time.

    Args:
        contenders: The contenders. Each warms up with a round that does not count.
        rounds: The number of rounds that count.
        pids: The processes of the servers.

    Returns:
        The costs in each round, in order, by name.
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
    """Return the median of each figure."""
    return Cost(
        statistics.median(cost.wall for cost in costs),
        statistics.median(cost.cpu for cost in costs),
        statistics.median(cost.servers for cost in costs),
    )


def ratio(costs: Sequence[Cost], others: Sequence[Cost], what: str = "wall") -> float:
    """Return the ratio of costs to other costs: the median over the rounds.

    Args:
        costs: The rounds of one contender.
        others: The rounds of another one, in the same order.
        what: The figure of `Cost`.
    """
    pairs = zip(costs, others, strict=True)
    ratios = (getattr(a, what) / getattr(b, what) for a, b in pairs)
    return float(statistics.median(ratios))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of them does not exceed (0 < share ≤ 1)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)  # rounded up
    return ordered[max(0, int(rank) - 1)]


def slope(points: Mapping[float, float]) -> float:
    """Return the growth of the values for each step of 1: least squares."""
    line = statistics.linear_regression(list(points), list(points.values()))
    return line.slope
