"""The setup of the Redis servers: replication, memory, disk, permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.operations.acl import OUR_KEYS
from celery_redlock.operations.doctor.finding import ERROR, NOTE, WARNING
from celery_redlock.operations.doctor.rule import Problem, node_rule
from celery_redlock.operations.inspect import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.operations.doctor.case import Case
    from celery_redlock.operations.inspect import NodeReport

__all__ = ["memory", "permissions", "persistence", "replication"]


@node_rule()
def replication(report: NodeReport, _: Case) -> Iterator[Problem]:
    """Find masters that have replicas, or were one."""
    info = report.status.info
    replicas = int(info.get("connected_slaves", "0"))
    if report.status.state is NodeState.UNFIT:
        return
    if info.get("second_repl_offset", "-1") != "-1":
        yield Problem(
            "promoted",
            WARNING,
            "was a replica and has been promoted: locks that its master had granted "
            "may be missing",
            "Exclude it from failover (Sentinel, a managed service's replicas). The "
            "restart guard keeps such a node out of the vote for one max_ttl.",
        )
    elif replicas:
        yield Problem(
            "replicas",
            NOTE,
            f"has {replicas} replica{'s' * (replicas > 1)}",
            "It needs none: a promoted replica does not know all locks of its master, "
            "and is kept out of the vote for one max_ttl.",
        )


@node_rule()
def memory(report: NodeReport, _: Case) -> Iterator[Problem]:
    """Find nodes that may evict locks when their memory is full."""
    policy = report.status.info.get("maxmemory_policy", "noeviction")
    limit = int(report.status.info.get("maxmemory", "0"))
    if policy != "noeviction":
        fact = f"evicts keys ({policy}) when its memory is full"
        yield Problem(
            "eviction",
            ERROR if limit else NOTE,
            f"{fact} ({limit:,} bytes): the holder of an evicted lock has lost it"
            if limit
            else f"{fact}; it has no memory limit now",
            "Set maxmemory-policy to noeviction.",
        )


@node_rule()
def persistence(report: NodeReport, case: Case) -> Iterator[Problem]:
    """Say what a restart of the node costs."""
    if report.status.state is NodeState.SILENT:
        return
    appends = report.status.info.get("aof_enabled") == "1"
    file = "an append-only file"
    if not case.redlock.guard.enabled:
        writes = f"writes {file}" if appends else "does not write every change to disk"
        yield Problem(
            "persistence",
            WARNING if appends else ERROR,
            f"{writes}, and the restart guard is off: after a restart it may grant a "
            "lock that is held",
            "Set redlock_restart_guard = True. (Without it, only `appendonly yes` with "
            "`appendfsync always` keeps what was granted.)",
        )
    elif appends or report.saves:
        yield Problem(
            "persistence",
            NOTE,
            f"writes {file if appends else f'snapshots ({report.saves!r})'} to disk",
            "This is not needed: the restart guard does not rely on it, and keeps a "
            "restarted node out of the vote for "
            f"{case.redlock.timing.quarantine:.0f} s anyway. Writing can make the node "
            "pause.",
        )


@node_rule()
def permissions(report: NodeReport, case: Case) -> Iterator[Problem]:
    """Find nodes that deny our user a needed command or our keys."""
    commands = [name for name in report.denied if name != OUR_KEYS]
    denied = []
    if commands:
        denied.append(f"the commands {', '.join(commands)}")
    if OUR_KEYS in report.denied:
        denied.append(f"the keys {case.redlock.keys.prefix}:*")
    if denied:
        yield Problem(
            "acl",
            ERROR,
            f"denies our user {' and '.join(denied)}",
            "Allow what `celery -A proj redlock doctor --acl` prints.",
        )
