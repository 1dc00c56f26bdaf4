"""The report: goals with their results, and the tables of the two pages about them."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_DOCS = Path(__file__).parents[1] / "docs"
PAGES = (_DOCS / "explanation/performance.md", _DOCS / "contributing/measurements.md")


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
        missing = abs(self.value / goal.limit - 1)
        mark = "reached" if self.is_reached else f"missed by {missing:.0%}"
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


def _lock(name: str, figure: str) -> Callable[[dict[str, Any]], float | None]:
    """Return a function that reads one figure of one contender of ``locks``."""

    def value(found: dict[str, Any]) -> float | None:
        return next((row[figure] for row in found["rows"] if row["name"] == name), None)

    return value


def _many(
    kind: str, count: int, ms: float, figure: str
) -> Callable[[dict[str, Any]], float | None]:
    """Return a function that reads one figure of one row of ``many``."""

    def value(found: dict[str, Any]) -> float | None:
        wanted = (kind, count, ms)
        rows = {(row["kind"], row["count"], row["ms"]): row for row in found["rows"]}
        return rows[wanted][figure] if wanted in rows else None

    return value


def _added(process: str) -> Callable[[dict[str, Any]], float]:
    """Return a function that reads what one process needs beside plain Celery."""
    return lambda found: found[_OURS][process] - found["plain Celery"][process]


def _many_goal(kind: str, count: int, ms: float, limit: float) -> Goal:
    place = f"{ms:g} ms each way" if ms else "loopback"
    return Goal(
        f"{count} {kind}, {place}: cycles ÷ redis-py Lock on one node",
        _many(kind, count, ms, "ratio"),
        limit,
        at_least=True,
    )


def _refused(policy: str) -> Callable[[dict[str, Any]], float | None]:
    """Return a function that reads the rate of one policy of ``refusals``."""
    return lambda found: found["to_run"][policy]


def _behind(name: str, figure: str) -> Callable[[dict[str, Any]], float]:
    """Return a function that reads how jobs run behind long runs, of ``line``."""
    return lambda found: found["behind"][name][figure]


def _after(end: str) -> Callable[[dict[str, Any]], float]:
    """Return a function that reads how long a job waits behind ended ones."""
    return lambda found: found["after"][end]


def _store(
    name: str, value_of: Callable[[dict[str, Any]], float]
) -> Callable[[dict[str, Any]], float | None]:
    """Return a function that reads a figure of a store."""

    def value(found: dict[str, Any]) -> float | None:
        rows = {row["name"]: row for row in found["rows"]}
        return value_of(rows[name]) if name in rows else None

    return value


_OURS = "celery-redlock"
_DRIVER = "the driver's lock"
_CYCLE = "acquire + release on 5 nodes"
_RENEWAL = "one renewal of 10,000 leases"
_BEHIND = "100 jobs of 10 ms behind runs of 30 s"
_JOBS = "10,000 jobs of 50 ms, limit=10"
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
    "keys": [
        Goal(f"{_CYCLE}, two keys: time ÷ one key", lambda f: f["wall_ratio"], 1.15),
    ],
    "permits": [
        Goal(
            f"{_CYCLE}, limit=10: time ÷ a lock",
            lambda f: f["granted"]["wall_ratio"],
            1.15,
        ),
        Goal(
            "a refusal at limit=100: time ÷ a lock's refusal",
            lambda f: f["refused"]["wall_ratio"],
            1.5,
        ),
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
            f"{_RENEWAL}, while 64 threads acquire: time",
            lambda f: f["busy"]["wall_s"],
            1.0,
            "s",
        ),
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
    "many": [
        _many_goal("threads", 16, 0.0, 1.5),
        _many_goal("threads", 64, 0.0, 1.8),
        _many_goal("threads", 64, 1.0, 1.3),
        _many_goal("greenlets", 500, 0.0, 1.8),
        _many_goal("greenlets", 500, 1.0, 1.3),
        Goal(
            "64 threads, 1 ms each way: slowest thread ÷ mean",
            _many("threads", 64, 1.0, "least"),
            0.5,
            at_least=True,
        ),
        Goal(
            "64 threads: p99 with 1 of 5 nodes hung ÷ p99",
            lambda f: f["hung_p99"],
            1.5,
        ),
    ],
    "backlog": [
        Goal(f"{_JOBS}: permits in use", lambda f: f["busy"], 0.9, at_least=True),
        Goal(f"{_JOBS}: publications of a job", lambda f: f["publications"], 3),
        Goal(
            f"{_JOBS}: mean end of the jobs published last ÷ first",
            lambda f: f["last_quarter"] / f["first_quarter"],
            1,
            at_least=True,
        ),
    ],
    "line": [
        *(
            Goal(
                f"{_BEHIND}, {name}: the last ends after",
                _behind(name, "seconds"),
                3,
                "s",
            )
            for name in ("retry", "limit=1", "limit=2", "limit=3")
        ),
        Goal(
            f"{_BEHIND}, retry: from a release to the next run, median",
            _behind("retry", "hand_over_ms"),
            20,
            "ms",
        ),
        *(
            Goal(
                f"a job behind 100 that were {end}: wait for a free permit",
                _after(end),
                1,
                "s",
            )
            for end in ("revoked", "expired", "purged")
        ),
        Goal(
            "10,000 duplicates of one run, retry: publications of a job",
            lambda f: f["storm"]["publications"],
            2,
        ),
        Goal(
            "the same: wait of a call of another task, p99",
            lambda f: f["storm"]["other_p99"],
            1,
            "s",
        ),
    ],
    "processes": [
        Goal(
            f"CPU of one task, {process}: beside plain Celery",
            _added(process),
            most,
            "µs",
        )
        for process, most in (
            ("publisher", 60),
            ("worker's main process", 60),
            ("its children", 500),
            ("the five nodes", 500),
        )
    ],
    "records": [
        Goal(
            "a task with one UPDATE, exactly_once_in: time ÷ a bare transaction",
            lambda f: f["to_bare"],
            1.4,
        ),
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
            0.65,
            at_least=True,
        ),
    ],
    "one_node": [
        Goal(
            "the same with one node ÷ celery-singleton",
            lambda f: f["to_singleton"],
            1,
            at_least=True,
        ),
    ],
    "refusals": [
        *(
            Goal(
                f"calls refused by {policy} a second ÷ runs",
                _refused(policy),
                least,
                at_least=True,
            )
            for policy, least in (
                *(("skip", 1), ("raise", 1)),
                *(("retry", 0.5), ("buffer_one", 0.5)),
            )
        ),
        Goal(
            "CPU of a skipped call in its process",
            lambda f: f["in_process_ms"]["skip"],
            0.5,
            "ms",
        ),
        Goal(
            "CPU of a call that fails as a duplicate",
            lambda f: f["in_process_ms"]["raise"],
            0.7,
            "ms",
        ),
        Goal(
            "10,000 skipped calls: time ÷ 10,000 plain no-ops",
            lambda f: f["storm_ratio"],
            1.5,
        ),
        Goal(
            "400 calls of 50 ms on one key, retry: time ÷ ideal",
            lambda f: f["in_a_row"]["to_ideal"],
            1.4,
        ),
        Goal(
            "the same: publications of one call at most",
            lambda f: f["in_a_row"]["most_publications"],
            2,
            "",
        ),
    ],
    "stores": [
        *(
            Goal(
                f"acquire + release in {name}: time ÷ {other}",
                _store(name, operator.itemgetter(figure)),
                most,
            )
            for name, other, figure, most in (
                ("PostgreSQL, fsync on", "two writes", "to_writes", 1.5),
                ("etcd", "etcd3gw Lock", "to_peer", 0.7),
                ("ZooKeeper", "kazoo Lock", "to_peer", 1.1),
            )
        ),
        Goal(
            "one renewal of 1,000 leases in PostgreSQL, fsync on",
            _store("PostgreSQL, fsync on", lambda row: row["leases"]["wall_s"] * 1000),
            10,
            "ms",
        ),
        *(
            Goal(
                f"no-op tasks on {name}: throughput ÷ plain Celery",
                _store(name, lambda row: row["tasks"]["to_plain"]),
                least,
                at_least=True,
            )
            for name, least in (
                ("PostgreSQL, fsync on", 0.65),
                ("etcd", 0.4),
                ("ZooKeeper", 0.4),
            )
        ),
    ],
}


# -- The page --------------------------------------------------------------------------


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
    goals = [goal.what for group in _GOALS.values() for goal in group]
    before = {
        cells[0]: cells
        for line in block_of(text, "goals").splitlines()
        if (cells := tuple(cell.strip() for cell in line.strip("| ").split("|")))
    }
    rows = [measured.get(what) or before.get(what) for what in goals]
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


def _blocks(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the measured groups, by their names on the page."""
    measured = {
        name: text
        for group, tables in _TABLES.items()
        if group in found
        for name, text in tables(found[group]).items()
    }
    if "machine" in found:
        rows = [*found["machine"].items()]
        measured["machine"] = table(("", "measured on"), rows)
    return measured


def _locks_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the table about one acquire and release."""
    absent = [
        f"\n\n{name} did not run: {why}." for name, why in found["missing"].items()
    ]
    text = table(
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
            for row in sorted(found["rows"], key=lambda row: row["wall_ratio"])
        ],
    ) + "".join(absent)
    return {"locks": text}


def _profile_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the table about where its time goes."""
    parts = found["parts"].items()
    text = table(
        ("where a cycle's time goes", "calls", "µs", "share"),
        [
            *(
                (
                    what,
                    f"{part['times']:.1f}",
                    f"{part['us']:.0f}",
                    f"{part['us'] / found['cycle_us']:.0%}",
                )
                for what, part in parts
            ),
            ("all", "", f"{found['cycle_us']:.0f}", "100%"),
        ],
    )
    return {"profile": text}


def _nodes_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the table about one more node."""
    text = table(
        ("nodes", *found["cpu_us"]),
        [
            (name, *(f"{cost:.0f}" for cost in found[figure].values()))
            for name, figure in (
                ("client CPU of an acquire, µs", "cpu_us"),
                ("its time, µs", "wall_us"),
            )
        ],
    )
    return {"nodes": text}


def _hung_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the table about nodes that hang."""
    peers = [f"{took:.1f} ms with {name}" for name, took in found["peers_ms"].items()]
    text = (
        table(
            ("nodes hung", "median, µs", "p99, µs", "p99 ÷ healthy"),
            [
                (
                    f"{count} of 5",
                    f"{median:.0f}",
                    f"{found['p99_us'][count]:.0f}",
                    f"{found['p99_ratio'].get(count, 1.0):.2f} ×",
                )
                for count, median in found["p50_us"].items()
            ],
        )
        + "\n\nWith one of five hung, the median cycle takes "
        + " and ".join(peers)
        + ". Both have the same time-out of 50 ms and no retries."
    )
    return {"hung": text}


def _many_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the table about many callers."""
    text = table(
        (
            *("callers of one process", "delay each way", "cycles a second"),
            *("÷ redis-py on one node", "slowest ÷ mean", "p99, ms"),
        ),
        [
            (
                f"{row['count']:,} {row['kind']}",
                f"{row['ms']:g} ms",
                f"{row['ours']:.0f}",
                f"{row['ratio']:.2f} ×",
                f"{row['least']:.2f}",
                f"{row['p99_ms']:.1f}",
            )
            for row in found["rows"]
        ],
    )
    return {"many": text}


def _leases_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the table about many leases."""
    text = table(
        (
            *("leases", "all renewed, s", "client CPU, s"),
            *("µs CPU of a node for each", "bytes of each"),
        ),
        [
            (
                f"{one['leases']:,}"
                + (f", beside {one['threads']} threads" if one["threads"] else ""),
                f"{one['wall_s']:.2f}",
                f"{one['cpu_s']:.2f}",
                f"{one['servers_us_per_renewal']:.1f}",
                "–" if one["threads"] else f"{one['bytes_per_lease']:.0f}",
            )
            for one in (found["goal"], found["most"], found["busy"])
        ],
    )
    return {"leases": text}


def _tasks_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the table about tasks."""
    text = table(
        ("", "tasks a second", "÷ plain Celery", "µs CPU of the publisher"),
        [
            (
                name,
                f"{per_second:.0f}",
                f"{found['to_plain'][name]:.2f} ×",
                f"{found['client_us_per_task'][name]:.0f}",
            )
            for name, per_second in found["per_second"].items()
        ],
    )
    return {"tasks": text}


def _refusals_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables about refused calls."""
    return {
        "refusals": table(
            (
                *("", "calls a second", "÷ runs", "CPU of the worker, ms each"),
                "a call behind them waits, s",
            ),
            [
                (
                    name,
                    f"{row['per_second']:.0f}",
                    f"{found['to_run'][name]:.2f} ×",
                    f"{row['cpu_ms']:.1f}",
                    f"{row['other_waits']:.1f}",
                )
                for name, row in found["rows"].items()
            ],
        ),
        "refusals at publishing": table(
            ("a duplicate that is not published", "calls a second"),
            [(name, f"{rate:.0f}") for name, rate in found["at_publish"].items()],
        ),
        "storms": table(
            ("", "of them sent", "drained in, s", "a call behind them waits, s"),
            [
                (
                    name,
                    f"{row['sent']:,}",
                    f"{row['seconds']:.1f}",
                    f"{row['other_waits']:.1f}",
                )
                for name, row in found["storm"]["rows"].items()
            ],
        ),
    }


def _one_node_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the table about tasks with a deployment of one node."""
    return {"tasks on one node": _tasks_tables(found)["tasks"]}


def _processes_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the table about the processor time of a task."""
    processes = list(found[_OURS])
    rows = [
        (name, *(f"{costs[process]:.0f}" for process in processes))
        for name, costs in found.items()
    ]
    return {"processes": table(("CPU of one task, µs", *processes), rows)}


def _stores_tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables about locks in stores."""
    rows = found["rows"]
    absent = [
        f"\n\n{name} was not measured: {why.rstrip('.')}."
        for name, why in found["missing"].items()
    ]
    cycles = table(
        (
            *("one caller", "servers", "acquire + release, µs", "client CPU, µs"),
            *("two writes, µs", "÷ two writes", "lock of its driver, µs", "÷ that"),
            *("a refusal, µs", "of its driver, µs"),
        ),
        [
            (
                f"{row['name']} ({row['server']})",
                row["servers"],
                f"{row['cycle_us'][_OURS]:.0f}",
                f"{row['cycle_cpu_us'][_OURS]:.0f}",
                f"{row['cycle_us']['two writes']:.0f}",
                f"{row['to_writes']:.2f} ×",
                f"{row['cycle_us'][_DRIVER]:.0f} ({row['peer']})",
                f"{row['to_peer']:.2f} ×",
                f"{row['refusal_us'][_OURS]:.0f}",
                f"{row['refusal_us'][_DRIVER]:.0f}",
            )
            for row in rows
        ],
    )
    many = table(
        (
            *("", "leases", "all renewed, ms", "client CPU, ms", "tasks a second"),
            *("of plain Celery", "÷ plain Celery", "two writes ÷ plain Celery"),
        ),
        [
            (
                row["name"],
                f"{row['leases']['leases']:,}",
                f"{row['leases']['wall_s'] * 1000:.0f}",
                f"{row['leases']['cpu_s'] * 1000:.0f}",
                *(
                    (
                        f"{row['tasks']['per_second']:.0f}",
                        f"{row['tasks']['plain_per_second']:.0f}",
                        f"{row['tasks']['to_plain']:.2f} ×",
                        f"{row['tasks']['writes_to_plain']:.2f} ×",
                    )
                    if "tasks" in row
                    else ("–", "–", "–", "–")
                ),
            )
            for row in rows
        ],
    )
    return {"stores": cycles + "".join(absent), "stores, many": many}


_TABLES: dict[str, Callable[[dict[str, Any]], dict[str, str]]] = {
    "locks": _locks_tables,
    "profile": _profile_tables,
    "nodes": _nodes_tables,
    "hung": _hung_tables,
    "many": _many_tables,
    "leases": _leases_tables,
    "tasks": _tasks_tables,
    "one_node": _one_node_tables,
    "refusals": _refusals_tables,
    "processes": _processes_tables,
    "stores": _stores_tables,
}
