"""Write what was measured into ``docs/performance.md``, between its marks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import goals
from benchmarks.model import Figures, load_of
from benchmarks.picture import Bar, bars

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["filled", "table", "write"]

DOCS = Path(__file__).parent.parent / "docs"
_LOCKS = (10**3, 10**4, 10**5, 10**6, 10**7)
_WORKERS = (10, 100, 1_000, 10_000)
_SHARED = 10**5  # locks, in the table by workers


def write(found: dict[str, Any]) -> None:
    """Fill in the page and draw the picture."""
    page = DOCS / "performance.md"
    text = page.read_text(encoding="utf-8")
    for name, make in _BLOCKS.items():
        text = filled(text, name, make(found))
    page.write_text(text, encoding="utf-8")
    (DOCS / "pictures").mkdir(exist_ok=True)
    picture = DOCS / "pictures" / "performance.svg"
    picture.write_text(_picture(found["locks"]), encoding="utf-8")


def filled(text: str, name: str, block: str) -> str:
    """Return the text with this block between the marks of that name.

    Raises:
        ValueError: It has no such marks.
    """
    begin, end = f"<!-- made by make bench: {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    text, count = pattern.subn(lambda _: f"{begin}\n{block}\n{end}", text)
    if count != 1:
        message = f"The page has {count} places for {name!r}; it needs one."
        raise ValueError(message)
    return text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns but the first are set right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine(found: dict[str, Any]) -> str:
    return table(
        ("", "measured on"),
        [(name, str(fact)) for name, fact in found["machine"].items()],
    )


def _goals(found: dict[str, Any]) -> str:
    return table(
        ("", "measured", "goal", ""),
        [(g.what, g.text, g.goal, g.mark) for g in goals.check(found)],
    )


def _locks(found: dict[str, Any]) -> str:
    found = found["locks"]
    rows = [
        (
            f"**{row['name']}**" if row["name"] == "celery-redlock" else row["name"],
            str(row["nodes"]),
            f"{row['wall_ratio']:.2f} ×",
            f"{row['cpu_ratio']:.2f} ×",
            f"{row['wall_us']:.0f}",
            f"{row['cpu_us']:.0f}",
            f"{row['servers_us']:.0f}",
        )
        for row in sorted(found["rows"], key=lambda row: float(row["wall_ratio"]))
    ]
    head = ("acquire + release", "nodes", "time", "client CPU")
    absent = "".join(
        f"\n\n{name} did not run: {why}." for name, why in found["missing"].items()
    )
    return table((*head, "µs", "µs CPU", "µs CPU of all servers"), rows) + absent


def _profile(found: dict[str, Any]) -> str:
    profile = found["profile"]
    rows = [
        (
            what,
            f"{share['times']:.1f}",
            f"{share['us']:.0f}",
            f"{share['us'] / profile['cycle_us']:.0%}",
        )
        for what, share in profile["parts"].items()
    ]
    head = ("where a cycle's time goes", "calls", "µs", "share")
    return table(head, [*rows, ("all", "", f"{profile['cycle_us']:.0f}", "100%")])


def _nodes(found: dict[str, Any]) -> str:
    cpu, wall = found["nodes"]["cpu_us"], found["nodes"]["wall_us"]
    return table(
        ("nodes", *cpu),
        [
            ("client CPU of an acquire, µs", *(f"{cost:.0f}" for cost in cpu.values())),
            ("its time, µs", *(f"{cost:.0f}" for cost in wall.values())),
        ],
    )


def _hung(found: dict[str, Any]) -> str:
    hung = found["hung"]
    rows = [
        (
            f"{count} of 5",
            f"{hung['p50_us'][count]:.0f}",
            f"{hung['p99_us'][count]:.0f}",
            f"{hung['p99_ratio'].get(count, 1.0):.2f} ×",
        )
        for count in hung["p50_us"]
    ]
    peers = " and ".join(
        f"{took:.1f} ms with {name}" for name, took in hung["peers_ms"].items()
    )
    return (
        table(("nodes hung", "median, µs", "p99, µs", "p99 ÷ healthy"), rows)
        + f"\n\nWith one of five hung, the median cycle takes {peers}, which were "
        "given the same time-out of 50 ms and no retries."
    )


def _leases(found: dict[str, Any]) -> str:
    rows = [
        (
            f"{one['leases']:,}",
            f"{one['wall_s']:.2f}",
            f"{one['cpu_s']:.2f}",
            f"{one['servers_us_per_renewal']:.1f}",
            f"{one['bytes_per_lease']:.0f}",
        )
        for one in (found["leases"]["goal"], found["leases"]["most"])
    ]
    head = ("leases", "all renewed, s", "client CPU, s")
    return table((*head, "µs CPU of a node for each", "bytes of each"), rows)


def _tasks(found: dict[str, Any]) -> str:
    tasks = found["tasks"]
    rows = [
        (
            name,
            f"{tasks['per_second'][name]:.0f}",
            f"{tasks['to_plain'][name]:.2f} ×",
            f"{tasks['client_us_per_task'][name]:.0f}",
        )
        for name in tasks["per_second"]
    ]
    head = ("", "tasks a second", "÷ plain Celery", "µs CPU of the publisher")
    return table(head, rows)


def figures_of(found: dict[str, Any]) -> Figures:
    """Take from the groups what the model is fed with."""
    locks = {row["name"]: row for row in found["locks"]["rows"]}
    leases, memory = found["leases"]["goal"], found["memory"]
    ours = locks["celery-redlock"]
    return Figures(
        cycle_us=ours["servers_us"] / ours["nodes"],
        cycle_bytes=found["locks"]["bytes"],
        cycle_packets=found["locks"]["packets"],
        lock_bytes=max(memory["bytes_per_lock"]) + memory["key_length"],
        renewal_us=leases["cpu_s"] / leases["leases"] * 1e6,
        lease_bytes=leases["bytes_per_lease"],
        message_us=found["tasks"]["broker_us_per_task"],
    )


def _figures(found: dict[str, Any]) -> str:
    figures, most = figures_of(found), found["leases"]["most"]
    predicted = figures.renewal_us * most["leases"] / 1e6
    return table(
        ("fed with", ""),
        [
            ("a node's CPU for acquire + release, µs", f"{figures.cycle_us:.0f}"),
            (
                "so a node's core does, per second",
                f"{1e6 / figures.cycle_us:,.0f} locks",
            ),
            ("bytes for them, both ways", f"{figures.cycle_bytes:.0f}"),
            ("packets for them, both ways", f"{figures.cycle_packets:.1f}"),
            ("a node's memory for a lock, bytes", f"{figures.lock_bytes:.0f}"),
            ("the holder's CPU for a renewal, µs", f"{figures.renewal_us:.0f}"),
            ("the holder's memory for a lease, bytes", f"{figures.lease_bytes:.0f}"),
            ("the broker's CPU for a message, µs", f"{figures.message_us:.0f}"),
            (
                f"check: CPU to renew {most['leases']:,} leases, s",
                f"{predicted:.2f} predicted, {most['cpu_s']:.2f} measured",
            ),
        ],
    )


def _by_locks(found: dict[str, Any]) -> str:
    rows = []
    for locks in _LOCKS:
        load = load_of(locks, 1_000, figures_of(found))
        rows.append(
            (
                f"{locks:,}",
                f"{load.renewals:,.0f}",
                f"{load.grants:,.0f}",
                f"{load.node_core:.1%}",
                f"{load.node_bits / 1e6:,.1f}",
                f"{load.node_packets:,.0f}",
                f"{load.node_bytes / 1e6:,.1f}",
                f"{load.broker_core:.1%}",
                f"{load.sets:,}",
            )
        )
    head = ("locks", "renewals/s", "grants/s", "a node's core", "Mbit/s", "packets/s")
    return table((*head, "MB", "broker's core", "sets"), rows)


def _by_workers(found: dict[str, Any]) -> str:
    rows = []
    for workers in _WORKERS:
        load = load_of(_SHARED, workers, figures_of(found))
        rows.append(
            (
                f"{workers:,}",
                f"{load.connections:,}",
                f"{_SHARED / load.connections:,.1f}",
                f"{load.process_core:.2%}",
            )
        )
    head = ("workers", "connections to each node", "leases in a process")
    return table((*head, "core of a process, for renewal"), rows)


_BLOCKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "machine": _machine,
    "goals": _goals,
    "locks": _locks,
    "profile": _profile,
    "nodes": _nodes,
    "hung": _hung,
    "leases": _leases,
    "tasks": _tasks,
    "figures": _figures,
    "by locks": _by_locks,
    "by workers": _by_workers,
}


def _picture(found: dict[str, Any]) -> str:
    rows = []
    for row in sorted(found["rows"], key=lambda row: float(row["wall_ratio"])):
        name, nodes = row["name"], row["nodes"]
        kind = "floor" if name.startswith("raw") else "theirs"
        rows.append(
            Bar(
                f"{name} ({nodes})",
                row["wall_ratio"],
                row["cpu_ratio"],
                f"{row['wall_ratio']:.1f} ×",
                "ours" if name == "celery-redlock" else kind,
            )
        )
    title = "Acquire + release: time, and client CPU below it; redis-py's Lock is 1"
    return bars(title, rows)
