"""The report: goals with their results, and the tables of the two pages about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_DOCS = Path(__file__).parents[1] / "docs"
PAGES = (_DOCS / "explanation/performance.md", _DOCS / "contributing/measurements.md")
_OURS = "celery-redlock"


# -- Goals -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for one figure: a line of ``goals.txt``, which says what they are.

    Attributes:
        group: The group that measures the figure.
        figure: Where the figure is in the results of the group.
        limit: The limit, with a sign before it and its unit behind it.
        what: The name of the figure.
    """

    group: str
    figure: str
    limit: str
    what: str


@dataclass(frozen=True, slots=True)
class Result:
    """A goal with its figure."""

    goal: Goal
    value: float

    @property
    def is_reached(self) -> bool:
        """Whether the figure is on the right side of the limit."""
        sign, limit, *_ = self.goal.limit.split()
        return (
            (self.value <= float(limit)) if sign == "≤" else self.value >= float(limit)
        )

    def row(self) -> tuple[str, str, str, str]:
        """Return name, figure, limit, and by how much the figure misses the limit."""
        _, limit, *unit = self.goal.limit.split()
        missing = abs(self.value / float(limit) - 1)
        mark = "reached" if self.is_reached else f"missed by {missing:.0%}"
        measured = " ".join([_number(self.value), *unit])
        return self.goal.what, measured, self.goal.limit, mark


@cache
def goals() -> tuple[Goal, ...]:
    """Return all goals, in the order of the page."""
    lines = (Path(__file__).parent / "goals.txt").read_text("utf-8").splitlines()
    goals = (line.split(" | ") for line in lines if not line.startswith("#"))
    return tuple(Goal(*(cell.strip() for cell in cells)) for cells in goals)


def results(found: dict[str, Any]) -> Iterator[Result]:
    """Yield the results of the groups that were measured."""
    for goal in goals():
        value = _figure(found.get(goal.group), goal.figure)
        if value is not None:
            yield Result(goal, value)


def _figure(found: Any, path: str) -> float | None:
    """Return the figure at a path; None if there is none."""
    for key in path.split("."):
        if isinstance(found, list):
            found = {row["name"]: row for row in found}
        found = found.get(key) if found else None
    return found


def compared(found: dict[str, Any], earlier: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each result, with the figure of an earlier run if it has one."""
    before = {one.goal.what: one.row()[1] for one in results(earlier)}
    for result in results(found):
        what, measured, limit, mark = result.row()
        then = f"   was {before[what]}" if what in before else ""
        yield f"{what:66} {measured:>8} {limit:>9}   {mark}{then}"


def _number(value: float) -> str:
    if value >= 100:  # noqa: PLR2004  (the digits after the point say nothing)
        return f"{value:.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


# -- The pages -------------------------------------------------------------------------


def write_pages(found: dict[str, Any]) -> None:
    """Write the tables into the pages, between their marks.

    Raises:
        ValueError: The pages do not have the marks of a table once.
    """
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    blocks = {**_blocks(found), "goals": _goals("".join(texts), found)}
    for name, block in blocks.items():
        places = [i for i, text in enumerate(texts) if block_of(text, name)]
        if len(places) != 1:
            count = len(places)
            message = f"The pages have {count} places for {name!r}; one is needed."
            raise ValueError(message)
        texts[places[0]] = filled(texts[places[0]], name, block)
    for page, text in zip(PAGES, texts, strict=True):
        page.write_text(text, encoding="utf-8")


def _goals(text: str, found: dict[str, Any]) -> str:
    """Return the table of goals. A goal that was not measured keeps its row."""
    measured = {one.goal.what: one.row() for one in results(found)}
    before = {
        cells[0]: cells
        for line in block_of(text, "goals").splitlines()
        if (cells := tuple(cell.strip() for cell in line.strip("| ").split("|")))
    }
    rows = [measured.get(one.what) or before.get(one.what) for one in goals()]
    return table(("", "measured", "goal", ""), [row for row in rows if row])


def block_of(text: str, name: str) -> str:
    """Return what is between the marks of that name."""
    begin, end = f"<!-- made by make bench: {name} -->", f"<!-- end of {name} -->"
    return text.partition(begin)[2].partition(end)[0]


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


# -- Tables ----------------------------------------------------------------------------


def _blocks(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the measured groups, by their names on the page."""
    return {
        name: make(found[group])
        for name, (group, make) in _TABLES.items()
        if group in found
    }


def _filled_in(rows: Iterable[Mapping[str, Any]], *columns: tuple[str, str]) -> str:
    """Return a table: each column is a head, and the format of its cells."""
    return table(
        [head for head, _ in columns],
        [[cell.format_map(row) for _, cell in columns] for row in rows],
    )


def _named(rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows that have their names; a bare figure becomes a row, too."""
    return [
        {"name": name, **(row if isinstance(row, dict) else {"figure": row})}
        for name, row in rows.items()
    ]


def _machine(found: dict[str, str]) -> str:
    return table(("", "measured on"), [*found.items()])


def _locks(found: dict[str, Any]) -> str:
    rows = sorted(found["rows"], key=lambda row: row["wall_ratio"])
    bold = [
        {**row, "name": f"**{_OURS}**"} if row["name"] == _OURS else row for row in rows
    ]
    made = _filled_in(
        bold,
        ("acquire + release", "{name}"),
        ("nodes", "{nodes}"),
        ("time", "{wall_ratio:.2f} ×"),
        ("client CPU", "{cpu_ratio:.2f} ×"),
        ("µs", "{wall_us:.0f}"),
        ("µs CPU", "{cpu_us:.0f}"),
        ("µs CPU of all servers", "{servers_us:.0f}"),
    )
    missing = found["missing"].items()
    return made + "".join(f"\n\n{name} did not run: {why}." for name, why in missing)


def _profile(found: dict[str, Any]) -> str:
    cycle_us = found["cycle_us"]
    parts = [{**row, "times": f"{row['times']:.1f}"} for row in _named(found["parts"])]
    return _filled_in(
        [
            {**row, "share": row["us"] / cycle_us}
            for row in (*parts, {"name": "all", "times": "", "us": cycle_us})
        ],
        ("where a cycle's time goes", "{name}"),
        ("calls", "{times}"),
        ("µs", "{us:.0f}"),
        ("share", "{share:.0%}"),
    )


def _nodes(found: dict[str, Any]) -> str:
    figures = {"client CPU of an acquire, µs": "cpu_us", "its time, µs": "wall_us"}
    return table(
        ("nodes", *found["cpu_us"]),
        [
            (name, *(f"{cost:.0f}" for cost in found[figure].values()))
            for name, figure in figures.items()
        ],
    )


def _hung(found: dict[str, Any]) -> str:
    made = _filled_in(
        found["rows"],
        ("nodes hung", "{name}"),
        ("median, µs", "{p50_us:.0f}"),
        ("p99, µs", "{p99_us:.0f}"),
        ("p99 ÷ healthy", "{p99_ratio:.2f} ×"),
    )
    peers = [f"{took:.1f} ms with {name}" for name, took in found["peers_ms"].items()]
    return (
        f"{made}\n\nWith one of five hung, the median cycle takes "
        f"{' and '.join(peers)}. Both have the same time-out of 50 ms and no retries."
    )


def _many(found: dict[str, Any]) -> str:
    return _filled_in(
        found["rows"],
        ("callers of one process", "{count:,} {kind}"),
        ("delay each way", "{ms:g} ms"),
        ("cycles a second", "{ours:.0f}"),
        ("÷ redis-py on one node", "{ratio:.2f} ×"),
        ("slowest ÷ mean", "{least:.2f}"),
        ("p99, ms", "{p99_ms:.1f}"),
    )


def _leases(found: dict[str, Any]) -> str:
    rows = []
    for one in (found["goal"], found["most"], found["busy"]):
        beside, size = "", f"{one['bytes_per_lease']:.0f}"
        if one["threads"]:
            beside, size = f", beside {one['threads']} threads", "–"
        rows.append({**one, "beside": beside, "size": size})
    return _filled_in(
        rows,
        ("leases", "{leases:,}{beside}"),
        ("all renewed, s", "{wall_s:.2f}"),
        ("client CPU, s", "{cpu_s:.2f}"),
        ("µs CPU of a node for each", "{servers_us_per_renewal:.1f}"),
        ("bytes of each", "{size}"),
    )


def _tasks(found: dict[str, Any]) -> str:
    return _filled_in(
        _named(found["rows"]),
        ("", "{name}"),
        ("tasks a second", "{per_second:.0f}"),
        ("÷ plain Celery", "{to_plain:.2f} ×"),
        ("µs CPU of the publisher", "{client_us:.0f}"),
    )


def _refusals(found: dict[str, Any]) -> str:
    return _filled_in(
        _named(found["rows"]),
        ("", "{name}"),
        ("calls a second", "{per_second:.0f}"),
        ("÷ runs", "{to_run:.2f} ×"),
        ("CPU of the worker, ms each", "{cpu_ms:.1f}"),
        ("a call behind them waits, s", "{other_waits:.1f}"),
    )


def _at_publishing(found: dict[str, Any]) -> str:
    return _filled_in(
        _named(found["at_publish"]),
        ("a duplicate that is not published", "{name}"),
        ("calls a second", "{figure:.0f}"),
    )


def _storms(found: dict[str, Any]) -> str:
    return _filled_in(
        _named(found["storm"]["rows"]),
        ("", "{name}"),
        ("of them sent", "{sent:,}"),
        ("drained in, s", "{seconds:.1f}"),
        ("a call behind them waits, s", "{other_waits:.1f}"),
    )


def _processes(found: dict[str, Any]) -> str:
    rows = found["cpu_us"]
    heads = [(process, f"{{{process}:.0f}}") for process in rows[_OURS]]
    return _filled_in(_named(rows), ("CPU of one task, µs", "{name}"), *heads)


def _stores(found: dict[str, Any]) -> str:
    made = _filled_in(
        found["rows"],
        ("one caller", "{name} ({server})"),
        ("servers", "{servers}"),
        ("acquire + release, µs", "{cycle_us[celery-redlock]:.0f}"),
        ("client CPU, µs", "{cycle_cpu_us[celery-redlock]:.0f}"),
        ("two writes, µs", "{cycle_us[two writes]:.0f}"),
        ("÷ two writes", "{to_writes:.2f} ×"),
        ("lock of its driver, µs", "{cycle_us[the driver's lock]:.0f} ({peer})"),
        ("÷ that", "{to_peer:.2f} ×"),
        ("a refusal, µs", "{refusal_us[celery-redlock]:.0f}"),
        ("of its driver, µs", "{refusal_us[the driver's lock]:.0f}"),
    )
    missing = found["missing"].items()
    absent = [f"\n\n{it} was not measured: {why.rstrip('.')}." for it, why in missing]
    return made + "".join(absent)


def _stores_many(found: dict[str, Any]) -> str:
    tasks = {
        "tasks a second": "{tasks[per_second]:.0f}",
        "of plain Celery": "{tasks[plain_per_second]:.0f}",
        "÷ plain Celery": "{tasks[to_plain]:.2f} ×",
        "two writes ÷ plain Celery": "{tasks[writes_to_plain]:.2f} ×",
    }
    return _filled_in(
        [
            row
            | {
                head: cell.format_map(row) if "tasks" in row else "–"
                for head, cell in tasks.items()
            }
            for row in found["rows"]
        ],
        ("", "{name}"),
        ("leases", "{leases[leases]:,}"),
        ("all renewed, ms", "{leases[wall_ms]:.0f}"),
        ("client CPU, ms", "{leases[cpu_ms]:.0f}"),
        *((head, f"{{{head}}}") for head in tasks),
    )


_TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "machine": ("machine", _machine),
    "locks": ("locks", _locks),
    "profile": ("profile", _profile),
    "nodes": ("nodes", _nodes),
    "hung": ("hung", _hung),
    "many": ("many", _many),
    "leases": ("leases", _leases),
    "tasks": ("tasks", _tasks),
    "tasks on one node": ("one_node", _tasks),
    "refusals": ("refusals", _refusals),
    "refusals at publishing": ("refusals", _at_publishing),
    "storms": ("refusals", _storms),
    "processes": ("processes", _processes),
    "stores": ("stores", _stores),
    "stores, many": ("stores", _stores_many),
}
"""The name of a table on a page: its group, and the function that makes it."""
