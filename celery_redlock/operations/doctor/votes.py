"""Nodes that do not vote, and whether enough others do."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from celery_redlock.core.configuration import refusal
from celery_redlock.operations.doctor.rule import (
    ERROR,
    WARNING,
    Case,
    Finding,
    Problem,
    node_rule,
    rule,
)
from celery_redlock.operations.inspect import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.operations.inspect import NodeReport

__all__ = ["kind", "quorum", "same_server", "state", "unreachable"]


@rule(logged_at_start=True)
def quorum(case: Case) -> Iterator[Finding]:
    """Find that nothing can be locked, or that no more node may be lost."""
    nodes, needed, voting = len(case.reports), case.redlock.quorum, len(case.voting)
    denied = any(report.denied for report in case.reports)
    remedy = "The other findings say why the other nodes do not vote."
    if voting < needed:
        yield Finding(
            "no-quorum",
            ERROR,
            f"Only {voting} of {nodes} nodes vote, and {needed} are needed: nothing "
            "can be locked.",
            remedy,
        )
    elif voting == needed < nodes and not denied:
        yield Finding(
            "quorum-edge",
            WARNING,
            f"{voting} of {nodes} nodes vote, just enough: if one more is lost, "
            "nothing can be locked.",
            remedy,
        )


@node_rule(logged_at_start=True)
def unreachable(report: NodeReport, _: Case) -> Iterator[Problem]:
    """Find nodes that do not answer."""
    reason = report.status.reason
    if report.status.state is NodeState.SILENT and not report.denied:
        remedy = "Start it, or check the network and the firewall."
        if "credentials" in reason:
            remedy = "Correct its user and password in redlock_nodes."
        yield Problem("unreachable", WARNING, reason, remedy)


@node_rule(logged_at_start=True)
def state(report: NodeReport, case: Case) -> Iterator[Problem]:
    """Find nodes that answer and do not vote."""
    status = report.status
    problem = None if report.denied else _PROBLEMS.get(status.state)
    if problem:
        difference, remedy = refusal(status.reason, case.redlock.guard.config)
        fact = problem.fact.format(
            wait=status.wait,
            quarantine=case.redlock.timing.quarantine,
            reason=status.reason,
            difference=difference,
        )
        if status.state is NodeState.OTHER_CONFIG:
            problem = problem._replace(remedy=f"{remedy}.")
        yield problem._replace(fact=fact)


_BY_ITSELF = (
    "It votes again by itself. (For a brand-new deployment, `celery -A proj redlock "
    "init` ends the wait.)"
)
_PROBLEMS = {
    NodeState.QUARANTINED: Problem(
        "quarantine",
        WARNING,
        "is new or has restarted, and does not vote for {wait:.0f} s more",
        _BY_ITSELF,
    ),
    NodeState.NEW: Problem(
        "quarantine",
        WARNING,
        "is new or has restarted: it will not vote for {quarantine:.0f} s after the "
        "first request",
        _BY_ITSELF,
    ),
    NodeState.UNSYNCED: Problem(
        "unsynced",
        WARNING,
        "has restarted, and does not vote until it has recovered its fences from other "
        "nodes",
        "It recovers them with one of the next locks, if enough other nodes vote.",
    ),
    NodeState.CLOSED: Problem(
        "closed",
        ERROR,
        "is {reason}",
        "A reconfiguration is not finished: run `celery -A proj redlock reconfigure` "
        "again, with the same arguments.",
    ),
    NodeState.OTHER_CONFIG: Problem(
        "configuration",
        ERROR,
        "was set up by clients with other settings: the nodes {difference}",
        "",  # as `refusal` says
    ),
}


@rule(logged_at_start=True)
def same_server(case: Case) -> Iterator[Finding]:
    """Find servers that are listed more than once."""
    by_run_id = defaultdict(list)
    for report in case.reports:
        by_run_id[report.status.run_id].append(report.label)
    for run_id, labels in by_run_id.items():
        if run_id and len(labels) > 1:
            yield Finding(
                "same-server",
                ERROR,
                f"{' and '.join(labels)} are the same server: it has one vote, not "
                f"{len(labels)}.",
                "List each server once. A majority must be of independent servers.",
                labels[0],
            )


@node_rule(logged_at_start=True)
def kind(report: NodeReport, _: Case) -> Iterator[Problem]:
    """Find servers that are no independent masters."""
    if report.status.state is NodeState.UNFIT:
        replica = report.status.info.get("role") != "master"
        yield Problem(
            "replica" if replica else "cluster",
            ERROR,
            f"{report.status.reason.partition(';')[0]}: it has no vote",
            "Replace it by an independent Redis master. Replication and failover lose "
            "locks.",
        )
