"""What can be wrong with a node: its server, its memory, its clock, its permissions."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING

from celery_redlock.core.examination import Standing
from celery_redlock.core.permissions import OUR_KEYS
from celery_redlock.diagnostics.finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.examination import Chart
    from celery_redlock.diagnostics.case import Case

__all__ = [
    "clock",
    "kind",
    "latency",
    "memory",
    "neighbours",
    "permissions",
    "persistence",
    "reach",
]

_MS = 1000
_DRIFT_ALLOWED, _DRIFT_ODD = 0.01, 0.005
_CLOCKS_APART = 1.0  # seconds
_SHOWN = 3  # names


def reach(case: Case) -> Iterator[Finding]:
    """Find nodes that cannot be talked to."""
    for chart in case.charts:
        glance = chart.glance
        if glance.standing is Standing.SILENT and not chart.denied:
            remedy = "Start it, or mend the way to it."
            if "credentials" in glance.reason:
                remedy = "Correct its user and password in redlock_nodes."
            yield Finding(
                "unreachable",
                Severity.WARNING,
                f"Node {chart.label} {glance.reason}.",
                remedy,
                chart.label,
            )


def latency(case: Case) -> Iterator[Finding]:
    """Find nodes whose answers tend to come too late to count."""
    timeout = case.redlock.timing.node_timeout
    for chart in case.seen:
        if not chart.rhythm.latencies:
            continue
        usual = median(chart.rhythm.latencies)
        if usual > timeout / 2:
            yield Finding(
                "slow",
                Severity.WARNING,
                f"Node {chart.label} takes {usual * _MS:.3g} ms to answer as a rule; "
                f"redlock_node_timeout is {timeout * _MS:.3g} ms.",
                "Bring the node nearer, or raise redlock_node_timeout: it should be "
                "several times what a node takes.",
                chart.label,
            )


def kind(case: Case) -> Iterator[Finding]:
    """Find servers that are no independent masters, or may stop being one."""
    for chart in case.seen:
        info = chart.glance.info
        if chart.glance.standing is Standing.UNFIT:
            replica = info.get("role") != "master"
            yield Finding(
                "replica" if replica else "cluster",
                Severity.ERROR,
                f"Node {chart.label} {chart.glance.reason.partition(';')[0]}: it gets "
                "no vote.",
                "Put an independent Redis master in its place. What replicates or "
                "fails over loses locks.",
                chart.label,
            )
        elif info.get("second_repl_offset", "-1") != "-1":
            yield Finding(
                "promoted",
                Severity.WARNING,
                f"Node {chart.label} was a replica and has been promoted: locks that "
                "its master had granted may be missing.",
                "Take it out of failover (Sentinel, a managed service's replicas). The "
                "restart guard keeps such a node out of the vote for one max_ttl.",
                chart.label,
            )
        elif info.get("connected_slaves", "0") != "0":
            yield Finding(
                "replicas",
                Severity.NOTE,
                f"Node {chart.label} has {info['connected_slaves']} replicas.",
                "It needs none: one that is promoted in its place does not know all "
                "of its locks, and is kept out of the vote for one max_ttl.",
                chart.label,
            )


def memory(case: Case) -> Iterator[Finding]:
    """Find nodes that may throw locks away when their memory is full."""
    for chart in case.seen:
        policy = chart.glance.info.get("maxmemory_policy", "noeviction")
        limit = int(chart.glance.info.get("maxmemory", "0"))
        if policy == "noeviction":
            continue
        fact = f"Node {chart.label} evicts keys ({policy}) when it has used up "
        if limit:
            severity = Severity.ERROR
            fact += f"its {limit:,} bytes: a lock that is evicted is held by nobody."
        else:
            severity = Severity.NOTE
            fact += "its memory, of which it has no limit now."
        yield Finding(
            "eviction",
            severity,
            fact,
            "Set maxmemory-policy to noeviction.",
            chart.label,
        )


def neighbours(case: Case) -> Iterator[Finding]:
    """Find nodes on which others keep keys."""
    for chart in case.seen:
        others = [f"the key {key!r}" for key in chart.strangers[:_SHOWN]]
        databases = [name for name in chart.glance.info if re.fullmatch(r"db\d+", name)]
        others += [
            f"database {name[2:]}"
            for name in databases
            if name != f"db{chart.database}"
        ]
        if others:
            yield Finding(
                "shared",
                Severity.WARNING,
                f"Node {chart.label} is used by others as well: it has "
                f"{', '.join(others)}.",
                "Give locks Redis servers of their own. A broker or cache that is busy "
                "delays them, and one that is full throws them away.",
                chart.label,
            )


def persistence(case: Case) -> Iterator[Finding]:
    """Tell what a restart of each node costs."""
    guard, quarantine = case.redlock.guard, case.redlock.timing.quarantine
    for chart in case.seen:
        appends = chart.glance.info.get("aof_enabled") == "1"
        if not guard.enabled:
            writes = (
                "writes an append-only file"
                if appends
                else "does not write every change to disk"
            )
            yield Finding(
                "persistence",
                Severity.WARNING if appends else Severity.ERROR,
                f"Node {chart.label} {writes}, and the restart guard is off: after a "
                "restart it may grant what it has granted already.",
                "Set redlock_restart_guard = True. (Without it, only `appendonly yes` "
                "with `appendfsync always` keeps what was granted.)",
                chart.label,
            )
        elif appends or chart.saves:
            how = "an append-only file" if appends else f"snapshots ({chart.saves!r})"
            yield Finding(
                "persistence",
                Severity.NOTE,
                f"Node {chart.label} writes {how} to disk.",
                "It need not: the restart guard does not rely on it, and keeps a node "
                f"that has restarted out of the vote for {quarantine:.0f} s anyway. "
                "Writing can make the node pause.",
                chart.label,
            )


def clock(case: Case) -> Iterator[Finding]:
    """Find clocks that differ, or run at another rate."""
    charts = [chart for chart in case.seen if chart.rhythm.latencies]
    if not charts:
        return
    middle = median(chart.rhythm.ahead for chart in charts)
    tolerance = case.redlock.guard.hint_tolerance_us / 1e6
    if abs(middle) > tolerance:
        yield Finding(
            "client-clock",
            Severity.WARNING,
            f"The clock of this machine is {_apart(-middle)} those of the nodes. What "
            f"is off by more than {tolerance:g} s (max_ttl / 4) is no hint for fences.",
            "Set it by NTP. Until then fences may take a second round trip.",
        )
    for chart in charts:
        yield from _clock_of(chart, chart.rhythm.ahead - middle)


def _clock_of(chart: Chart, ahead: float) -> Iterator[Finding]:
    drift = chart.rhythm.drift
    if abs(ahead) > _CLOCKS_APART:
        yield Finding(
            "node-clock",
            Severity.WARNING,
            f"The clock of node {chart.label} is {_apart(ahead)} those of most nodes.",
            "Set it by NTP, slewing and not stepping: a step forward ends its locks "
            "early.",
            chart.label,
        )
    if abs(drift) > _DRIFT_ODD:
        beyond = abs(drift) > _DRIFT_ALLOWED
        yield Finding(
            "clock-drift",
            Severity.ERROR if beyond else Severity.WARNING,
            f"The clock of node {chart.label} runs {abs(drift):.1%} too "
            f"{'fast' if drift > 0 else 'slow'}; locks allow for 1 %.",
            "Mend the clock of its machine, or move the node. A fast clock ends locks "
            "before their holders know.",
            chart.label,
        )


def permissions(case: Case) -> Iterator[Finding]:
    """Find nodes on which our user may not do what must be done."""
    for chart in case.charts:
        commands = [name for name in chart.denied if name != OUR_KEYS]
        facts = []
        if commands:
            facts.append(f"the commands {', '.join(commands)}")
        if OUR_KEYS in chart.denied:
            facts.append(f"the keys {case.redlock.guard.prefix}:*")
        if facts:
            yield Finding(
                "acl",
                Severity.ERROR,
                f"Node {chart.label} denies our user {' and '.join(facts)}.",
                "Allow what `celery -A proj redlock doctor --acl` prints.",
                chart.label,
            )


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"
