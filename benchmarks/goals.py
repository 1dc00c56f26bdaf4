"""What was aimed at, beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Goal", "check"]


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table.

    Attributes:
        what: What was measured.
        value: What came out.
        limit: What was aimed at.
        unit: Of both; ``×`` for a ratio.
        at_least: Whether more is better.
    """

    what: str
    value: float
    limit: float
    unit: str = "×"
    at_least: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the value is on the right side of the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def goal(self) -> str:
        """The limit, in words."""
        return f"{'≥' if self.at_least else '≤'} {_number(self.limit)} {self.unit}"

    @property
    def text(self) -> str:
        """The value, in words."""
        return f"{_number(self.value)} {self.unit}"

    @property
    def mark(self) -> str:
        """Whether it is reached, or by how much it is missed."""
        if self.is_reached:
            return "reached"
        off = self.limit / self.value if self.at_least else self.value / self.limit
        return f"missed by {(off - 1) * 100:.0f} %"


def _number(value: float) -> str:
    if value >= 100:  # noqa: PLR2004  (then nobody reads what is after the point)
        return f"{value:.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def check(found: dict[str, Any]) -> Iterator[Goal]:
    """Yield the goals of the groups that were measured."""
    for group, goals_of in _GOALS.items():
        if group in found:
            yield from goals_of(found[group])


def _locks(found: dict[str, Any]) -> Iterator[Goal]:
    rows = {row["name"]: row for row in found["rows"]}
    us = rows["celery-redlock"]
    cycle = "acquire + release on 5 nodes: time"
    yield Goal(f"{cycle} ÷ redis-py Lock on one", us["wall_ratio"], 1.25)
    yield Goal(f"{cycle} ÷ raw sockets, same scripts", found["to_raw"], 1.2)
    for peer, times in (("redlock-py", 3), ("pottery", 8)):
        if peer in rows:
            faster = rows[peer]["wall_of_ours"]
            yield Goal(f"the time of {peer} ÷ ours", faster, times, at_least=True)
    yield Goal("client CPU for it ÷ redis-py Lock on one", us["cpu_ratio"], 1.0)


def _plain(found: dict[str, Any]) -> Iterator[Goal]:
    yield Goal("the same time, both without hiredis", found["wall_ratio"], 1.25)
    yield Goal("the same CPU, both without hiredis", found["cpu_ratio"], 1.0)


def _hung(found: dict[str, Any]) -> Iterator[Goal]:
    for hung, value in found["p99_ratio"].items():
        yield Goal(f"p99 with {hung} of 5 nodes hung ÷ healthy p99", value, 1.5)


def _nodes(found: dict[str, Any]) -> Iterator[Goal]:
    cost = found["cpu_us_per_node"]
    yield Goal("client CPU that one more node adds to an acquire", cost, 15, "µs")


def _leases(found: dict[str, Any]) -> Iterator[Goal]:
    goal = found["goal"]
    what = f"{goal['leases']:,} leases: one renewal of all"
    yield Goal(f"{what}, time", goal["wall_s"], 1.0, "s")
    yield Goal(f"{what}, client CPU", goal["cpu_s"], 0.5, "s")
    weight = goal["bytes_per_lease"] / 1000
    yield Goal("memory of the process per lease", weight, 1.5, "kB")


def _waiting(found: dict[str, Any]) -> Iterator[Goal]:
    what = f"release to the next of {found['waiters']} waiters, median"
    yield Goal(what, found["median_ms"], 10, "ms")
    yield Goal("commands per waiter and second, all nodes", found["commands"], 3, "")


def _crowd(found: dict[str, Any]) -> Iterator[Goal]:
    what = f"{found['crowd']} on one key: throughput ÷ uncontended"
    yield Goal(what, found["ratio"], 0.9, at_least=True)
    yield Goal("round trips that a loser waits for", found["round_trips"], 1, "")


def _memory(found: dict[str, Any]) -> Iterator[Goal]:
    worst = max(found["bytes_per_lock"])
    yield Goal("bytes on a node per held lock, over its key", worst, 300, "B")
    few, many = found["fences_bytes"]
    yield Goal("bytes of all fences after more locks ÷ before", many / few, 1.05)


def _imports(found: dict[str, Any]) -> Iterator[Goal]:
    took = found["package_ms"]
    yield Goal("import celery_redlock after import celery", took, 15, "ms")


def _tasks(found: dict[str, Any]) -> Iterator[Goal]:
    what = "no-op tasks through a worker: throughput"
    ours = found["to_plain"]["celery-redlock"]
    yield Goal(f"{what} ÷ plain Celery", ours, 0.75, at_least=True)
    yield Goal(f"{what} ÷ celery-singleton", found["to_singleton"], 1, at_least=True)
    yield Goal(f"{what} ÷ celery-once", found["to_once"], 1, at_least=True)


_GOALS = {
    "locks": _locks,
    "plain": _plain,
    "hung": _hung,
    "nodes": _nodes,
    "leases": _leases,
    "waiting": _waiting,
    "crowd": _crowd,
    "memory": _memory,
    "imports": _imports,
    "tasks": _tasks,
}
