"""The report: goals with their results, and the tables of the performance page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Goal", "Result", "filled", "results", "table", "write_page"]

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "performance.md"


# -- Goals -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for one figure of a group.

    Attributes:
        what: The name of the figure.
        value: Returns the figure from the results of the group, or None.
        limit: The limit.
        unit: The unit of both; ``×`` for a ratio.
        at_least: Whether the figure must be above the limit.
    """

    what: str
    value: Callable[[dict[str, Any]], float | None]
    limit: float
    unit: str = "×"
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A goal with its figure."""

    goal: Goal
    value: float

    @property
    def is_reached(self) -> bool:
        """Whether the figure is on the right side of the limit."""
        limit = self.goal.limit
        return self.value >= limit if self.goal.at_least else self.value <= limit

    def row(self) -> tuple[str, str, str, str]:
        """Return name, figure, limit, and by how much the figure misses the limit."""
        goal = self.goal
        small, large = sorted((self.value, goal.limit))
        mark = "reached" if self.is_reached else f"missed by {large / small - 1:.0%}"
        sign = "≥" if goal.at_least else "≤"
        return (
            goal.what,
            f"{_number(self.value)} {goal.unit}".strip(),
            f"{sign} {_number(goal.limit)} {goal.unit}".strip(),
            mark,
        )


def results(found: dict[str, Any]) -> Iterator[Result]:
    """Yield the results of the groups that were measured."""
    for group, goals in _GOALS.items():
        for goal in goals if group in found else ():
            value = goal.value(found[group])
            if value is not None:
                yield Result(goal, value)


def _number(value: float) -> str:
    if value >= 100:  # noqa: PLR2004  (the digits after the point say nothing)
        return f"{value:.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _lock(name: str, figure: str) -> Callable[[dict[str, Any]], float | None]:
    """Return a function that reads one figure of one contender of ``locks``."""

    def value(found: dict[str, Any]) -> float | None:
        return next((row[figure] for row in found["rows"] if row["name"] == name), None)

    return value


_OURS = "celery-redlock"
_CYCLE = "acquire + release on 5 nodes"
_RENEWAL = "one renewal of 10,000 leases"
_TASKS = "no-op tasks through a worker: throughput"
_GOALS = {
    "locks": [
        Goal(
            f"{_CYCLE}: time ÷ redis-py Lock on one", _lock(_OURS, "wall_ratio"), 1.25
        ),
        Goal(f"{_CYCLE}: time ÷ raw sockets, same scripts", lambda f: f["to_raw"], 1.2),
        Goal(
            "time of redlock-py ÷ time of celery-redlock",
            _lock("redlock-py", "wall_of_ours"),
            3,
            at_least=True,
        ),
        Goal(
            "time of pottery ÷ time of celery-redlock",
            _lock("pottery", "wall_of_ours"),
            8,
            at_least=True,
        ),
        Goal(
            f"{_CYCLE}: client CPU ÷ redis-py Lock on one",
            _lock(_OURS, "cpu_ratio"),
            1.0,
        ),
    ],
    "plain": [
        Goal("the same time ratio without hiredis", lambda f: f["wall_ratio"], 1.25),
        Goal("the same CPU ratio without hiredis", lambda f: f["cpu_ratio"], 1.0),
    ],
    "hung": [
        Goal("p99 with 1 of 5 nodes hung ÷ p99", lambda f: f["p99_ratio"]["1"], 1.5),
        Goal("p99 with 2 of 5 nodes hung ÷ p99", lambda f: f["p99_ratio"]["2"], 1.5),
    ],
    "nodes": [
        Goal(
            "client CPU of an acquire for one more node",
            lambda f: f["cpu_us_per_node"],
            15,
            "µs",
        )
    ],
    "leases": [
        Goal(f"{_RENEWAL}: time", lambda f: f["goal"]["wall_s"], 1.0, "s"),
        Goal(f"{_RENEWAL}: client CPU", lambda f: f["goal"]["cpu_s"], 0.5, "s"),
        Goal(
            "memory of the process for each lease",
            lambda f: f["goal"]["bytes_per_lease"] / 1000,
            1.5,
            "kB",
        ),
    ],
    "waiting": [
        Goal(
            "from a release to the next of 20 waiters, median",
            lambda f: f["median_ms"],
            10,
            "ms",
        ),
        Goal(
            "commands per waiter and second, all nodes", lambda f: f["commands"], 3, ""
        ),
    ],
    "crowd": [
        Goal(
            "100 threads on one key: throughput ÷ uncontended",
            lambda f: f["ratio"],
            0.9,
            at_least=True,
        ),
        Goal("round trips of a refused acquire", lambda f: f["round_trips"], 1, ""),
    ],
    "memory": [
        Goal(
            "memory of a node for a held lock, without its key",
            lambda f: max(f["bytes_per_lock"]),
            300,
            "B",
        ),
        Goal(
            "memory of all fences after more locks ÷ before",
            lambda f: f["fences_bytes"][1] / f["fences_bytes"][0],
            1.05,
        ),
    ],
    "imports": [
        Goal("import celery_redlock after celery", lambda f: f["package_ms"], 15, "ms")
    ],
    "layer": [
        Goal(
            "client CPU of a no-op task between Celery and the lock",
            lambda f: f["layer_us"],
            100,
            "µs",
        )
    ],
    "tasks": [
        Goal(
            f"{_TASKS} ÷ plain Celery",
            lambda f: f["to_plain"][_OURS],
            0.75,
            at_least=True,
        ),
        Goal(
            f"{_TASKS} ÷ celery-singleton",
            lambda f: f["to_singleton"],
            1,
            at_least=True,
        ),
        Goal(f"{_TASKS} ÷ celery-once", lambda f: f["to_once"], 1, at_least=True),
    ],
}


# -- The page --------------------------------------------------------------------------


def write_page(found: dict[str, Any]) -> None:
    """Write the tables into the page, between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    for name, block in _blocks(found).items():
        text = filled(text, name, block)
    PAGE.write_text(text, encoding="utf-8")


def filled(text: str, name: str, block: str) -> str:
    """Return the text with this block between the marks of that name.

    Raises:
        ValueError: The text does not have these marks once.
    """
    begin, end = f"<!-- made by make bench: {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    text, count = pattern.subn(lambda _: f"{begin}\n{block}\n{end}", text)
    if count != 1:
        message = f"The page has {count} places for {name!r}; it needs one."
        raise ValueError(message)
    return text


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown; all columns but the first are aligned right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _blocks(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables by their names on the page."""
    locks, profile, tasks = found["locks"], found["profile"], found["tasks"]
    nodes, hung, leases = found["nodes"], found["hung"], found["leases"]
    absent = [
        f"\n\n{name} did not run: {why}." for name, why in locks["missing"].items()
    ]
    peers = [f"{took:.1f} ms with {name}" for name, took in hung["peers_ms"].items()]
    parts = profile["parts"].items()
    return {
        "goals": table(
            ("", "measured", "goal", ""), [one.row() for one in results(found)]
        ),
        "locks": table(
            (
                *("acquire + release", "nodes", "time", "client CPU", "µs", "µs CPU"),
                "µs CPU of all servers",
            ),
            [
                (
                    f"**{row['name']}**" if row["name"] == _OURS else row["name"],
                    row["nodes"],
                    f"{row['wall_ratio']:.2f} ×",
                    f"{row['cpu_ratio']:.2f} ×",
                    *(f"{row[one]:.0f}" for one in ("wall_us", "cpu_us", "servers_us")),
                )
                for row in sorted(locks["rows"], key=lambda row: row["wall_ratio"])
            ],
        )
        + "".join(absent),
        "profile": table(
            ("where a cycle's time goes", "calls", "µs", "share"),
            [
                *(
                    (
                        what,
                        f"{part['times']:.1f}",
                        f"{part['us']:.0f}",
                        f"{part['us'] / profile['cycle_us']:.0%}",
                    )
                    for what, part in parts
                ),
                ("all", "", f"{profile['cycle_us']:.0f}", "100%"),
            ],
        ),
        "nodes": table(
            ("nodes", *nodes["cpu_us"]),
            [
                (name, *(f"{cost:.0f}" for cost in nodes[figure].values()))
                for name, figure in (
                    ("client CPU of an acquire, µs", "cpu_us"),
                    ("its time, µs", "wall_us"),
                )
            ],
        ),
        "hung": table(
            ("nodes hung", "median, µs", "p99, µs", "p99 ÷ healthy"),
            [
                (
                    f"{count} of 5",
                    f"{median:.0f}",
                    f"{hung['p99_us'][count]:.0f}",
                    f"{hung['p99_ratio'].get(count, 1.0):.2f} ×",
                )
                for count, median in hung["p50_us"].items()
            ],
        )
        + "\n\nWith one of five hung, the median cycle takes "
        + " and ".join(peers)
        + ". Both have the same time-out of 50 ms and no retries.",
        "leases": table(
            (
                *("leases", "all renewed, s", "client CPU, s"),
                *("µs CPU of a node for each", "bytes of each"),
            ),
            [
                (
                    f"{one['leases']:,}",
                    f"{one['wall_s']:.2f}",
                    f"{one['cpu_s']:.2f}",
                    f"{one['servers_us_per_renewal']:.1f}",
                    f"{one['bytes_per_lease']:.0f}",
                )
                for one in (leases["goal"], leases["most"])
            ],
        ),
        "tasks": table(
            ("", "tasks a second", "÷ plain Celery", "µs CPU of the publisher"),
            [
                (
                    name,
                    f"{per_second:.0f}",
                    f"{tasks['to_plain'][name]:.2f} ×",
                    f"{tasks['client_us_per_task'][name]:.0f}",
                )
                for name, per_second in tasks["per_second"].items()
            ],
        ),
        "machine": table(("", "measured on"), [*found["machine"].items()]),
    }
