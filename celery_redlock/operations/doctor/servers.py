"""The Redis servers: replication, memory, disk, permissions, clocks and latency."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.resp import DOES_NOT_KNOW
from celery_redlock.basics.text import number_in
from celery_redlock.operations.acl import OUR_CHANNELS, OUR_KEYS
from celery_redlock.operations.doctor.rule import (
    ERROR,
    NOTE,
    WARNING,
    Case,
    Finding,
    rule,
)
from celery_redlock.operations.inspect import NodeState
from celery_redlock.operations.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.operations.inspect import NodeReport

_MS = 1000
_DRIFT_ALLOWED, _DRIFT_ODD = 0.01, 0.005
_CLOCKS_APART = 1.0  # seconds
_STANDS_STILL = 0.05  # of the rate of another clock, at most


@rule("Node")
def replication(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find masters that have replicas, or were one."""
    info = report.status.info
    replicas = number_in(info.get("connected_slaves", ""))
    if report.status.state is NodeState.UNFIT:
        return
    if info.get("second_repl_offset", "-1") != "-1":
        yield Finding(
            "promoted",
            WARNING,
            "was a replica and has been promoted, or has restarted with the file of a "
            "master that had replicas: locks that the master had granted may be "
            "missing",
            "Exclude it from failover (Sentinel, a managed service's replicas), and "
            "restart it. The restart guard keeps such a node out of the vote for one "
            "max_ttl.",
        )
    elif replicas:
        yield Finding(
            "replicas",
            NOTE,
            f"has {plural(replicas, 'replica')}",
            "It needs none: a promoted replica does not know all locks of its master, "
            "and is kept out of the vote for one max_ttl.",
        )


@rule("Node")
def memory(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find nodes that may evict locks when their memory is full."""
    policy = report.status.info.get("maxmemory_policy", "noeviction")
    limit = number_in(report.status.info.get("maxmemory", ""))
    if policy != "noeviction":
        fact = f"evicts keys ({policy}) when its memory is full"
        yield Finding(
            "eviction",
            ERROR if limit else NOTE,
            f"{fact} ({limit:,} bytes), so it has no vote: an evicted lock is lost"
            if limit
            else f"{fact}; it has no memory limit now",
            "Set maxmemory-policy to noeviction.",
        )


@rule("Node")
def persistence(report: NodeReport, case: Case) -> Iterator[Finding]:
    """Say what a restart of a Redis node costs: a store keeps what it grants."""
    if "aof_enabled" not in report.status.info:  # a store; or it is not known
        return
    appends = report.status.info.get("aof_enabled") == "1"
    file = "an append-only file"
    if not case.redlock.guard.enabled:
        writes = f"writes {file}" if appends else "does not write every change to disk"
        yield Finding(
            "persistence",
            WARNING if appends else ERROR,
            f"{writes}, and the restart guard is off: after a restart it may grant a "
            "lock that is held",
            "Turn the restart guard on. (Without it, only `appendonly yes` with "
            "`appendfsync always` keeps what was granted.)",
        )
    elif appends or report.saves:
        yield Finding(
            "persistence",
            NOTE,
            f"writes {file if appends else f'snapshots ({report.saves!r})'} to disk",
            "This is not needed: the restart guard does not rely on it, and keeps a "
            "restarted node out of the vote for "
            f"{case.redlock.timing.quarantine:.0f} s anyway. Writing can make the node "
            "pause.",
        )


@rule("Node")
def permissions(report: NodeReport, case: Case) -> Iterator[Finding]:
    """Find nodes that deny our user a needed command or our keys."""
    prefix = case.redlock.keys.prefix
    others = {
        OUR_KEYS: f"the keys {prefix}:*",
        OUR_CHANNELS: f"the channels {prefix}:wake:*",
    }
    commands = [name for name in report.denied if name not in others]
    denied = [f"the commands {', '.join(commands)}"] if commands else []
    denied += [words for sign, words in others.items() if sign in report.denied]
    if denied:
        yield Finding(
            "acl",
            ERROR if report.lacks_commands else WARNING,
            f"denies our user {' and '.join(denied)}",
            f"Allow what `{COMMAND} doctor --acl` prints.{_effect(report)}",
        )


@rule("Node")
def commands(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find nodes that do not know a needed command; a Sentinel is a finding itself."""
    if report.unknown and not report.status.reason.startswith("runs in "):
        several = len(report.unknown) > 1
        yield Finding(
            "commands",
            ERROR if report.lacks_commands else WARNING,
            f"{DOES_NOT_KNOW.strip()}{'s' * several} {', '.join(report.unknown)}",
            "If its configuration renames or disables "
            f"{'them' if several else 'it'} (`rename-command`), remove this. "
            "Otherwise replace it with a server that is known to work."
            f"{_effect(report)}",
        )


def _effect(report: NodeReport) -> str:
    """Return what a node does without what it denies or does not know."""
    if report.lacks_commands:
        return ""
    return (
        " It votes, but without publish and subscribe a release wakes no call that "
        "waits: calls look again after a while."
    )


@rule("Node")
def stopped_clock(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find nodes whose clock does not move."""
    clock = report.clock
    if clock.most_rate < _STANDS_STILL:
        yield Finding(
            "clock-stopped",
            ERROR,
            f"has a clock that does not move: by {clock.moved:.3f} s in "
            f"{clock.watched:.1f} s. Locks and quarantines on it do not end",
            "Repair the clock of its machine, or replace the node.",
        )


@rule()
def stopped_client_clock(case: Case) -> Iterator[Finding]:
    """Find that the clock of this machine does not move."""
    clocks = [report.clock for report in case.reports if report.clock.latencies]
    if clocks and median(it.least_rate for it in clocks) > 1 / _STANDS_STILL:
        watched = median(clock.watched for clock in clocks)
        moved = median(clock.moved for clock in clocks)
        yield Finding(
            "client-clock-stopped",
            ERROR,
            f"The clock of this machine does not move: by {watched:.3f} s while those "
            f"of the nodes moved by {moved:.1f} s. A task here does not notice the end "
            "of its lock.",
            "Run no workers on this machine until its clock is repaired.",
        )


@rule()
def client_clock(case: Case) -> Iterator[Finding]:
    """Find a clock of this machine that differs from those of the nodes."""
    if case.redlock.guard.decides_alone:
        return
    tolerance = case.redlock.guard.hint_tolerance_us / 1e6
    ahead, within = _usual_ahead(case)
    if abs(ahead) - within > tolerance:
        yield Finding(
            "client-clock",
            WARNING,
            f"The clock of this machine is {_apart(-ahead)} those of the nodes. A "
            f"difference of more than {tolerance:g} s (max_ttl / 4) makes its time "
            "useless as a hint for fences.",
            "Set it by NTP. Until then fences may take a second round trip.",
        )


@rule("Node")
def node_clock(report: NodeReport, case: Case) -> Iterator[Finding]:
    """Find clocks that differ from those of most nodes."""
    clock, (usual, within) = report.clock, _usual_ahead(case)
    ahead = clock.ahead - usual
    if clock.latencies and abs(ahead) - clock.ahead_within - within > _CLOCKS_APART:
        yield Finding(
            "node-clock",
            WARNING,
            f"has a clock that is {_apart(ahead)} those of most nodes",
            "Let NTP slew it, and never step it: after a step forward its locks "
            "expire early.",
        )


@rule("Node")
def clock_drift(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find clocks that provably run at another rate."""
    slowest, fastest = report.clock.least_rate, report.clock.most_rate
    drift = max(slowest - 1, 0.0) or min(fastest - 1, 0.0)
    both_move = fastest > _STANDS_STILL and slowest < 1 / _STANDS_STILL
    if both_move and abs(drift) > _DRIFT_ODD:
        yield Finding(
            "clock-drift",
            ERROR if abs(drift) > _DRIFT_ALLOWED else WARNING,
            f"has a clock that runs {abs(drift):.1%} too "
            f"{'fast' if drift > 0 else 'slow'}; locks allow for 1 %",
            "Repair the clock of its machine, or move the node. With a fast clock, "
            "locks expire before their holders notice.",
        )


def _usual_ahead(case: Case) -> tuple[float, float]:
    """Return by how many seconds the clocks of most nodes are ahead of ours.

    And by how many seconds this may be wrong.
    """
    clocks = [report.clock for report in case.reports if report.clock.latencies]
    if not clocks:
        return 0.0, 0.0
    within = max(clock.ahead_within for clock in clocks)
    return median(clock.ahead for clock in clocks), within


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


@rule("Node")
def latency(report: NodeReport, case: Case) -> Iterator[Finding]:
    """Find nodes whose answers are often too late to count."""
    timeout = case.redlock.timing.node_timeout
    usual = median(report.clock.latencies or (0.0,))
    if usual > timeout / 2:
        yield Finding(
            "slow",
            WARNING,
            f"usually takes {usual * _MS:.3g} ms to answer; redlock_node_timeout is "
            f"{timeout * _MS:.3g} ms",
            "Move the node closer, or raise redlock_node_timeout to several times "
            "what a node takes.",
        )
