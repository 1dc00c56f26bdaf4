"""Nodes that do not vote, and whether enough others do."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from celery_redlock.basics.command import COMMAND
from celery_redlock.members.view import CLOSED, View, may_be_new, refusal
from celery_redlock.operations.doctor.rule import (
    ERROR,
    WARNING,
    Case,
    Finding,
    as_sentence,
    rule,
)
from celery_redlock.operations.inspect import NodeState
from celery_redlock.wire.quorum import SAME_SERVER, UNSURE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.operations.inspect import NodeReport, NodeStatus


@rule(skipped_at_start=True)
def quorum(case: Case) -> Iterator[Finding]:
    """Find that nothing can be locked, or that no more node may be lost."""
    found = case.nodes
    nodes, needed, voting = len(found), found.quorum, len(found.voting)
    denied = any(report.lacks_commands for report in case.reports)
    remedy = "The other findings say why the other nodes do not vote."
    if any(node.waits_for_a_client for node in found):
        return  # the only node: it votes with the next lock
    if voting < needed:
        votes = f"Only {voting} of {nodes} nodes vote, and {needed} are needed"
        if nodes == 1:
            is_store = case.redlock.addresses[0].is_store
            votes = f"The {'store' if is_store else 'only node'} does not vote"
            remedy = "The other findings say why."
        fact = f"{votes}: nothing can be locked."
        yield Finding("no-quorum", ERROR, fact, remedy)
    elif voting == needed < nodes and not denied:
        yield Finding(
            "quorum-edge",
            WARNING,
            f"{voting} of {nodes} nodes vote, just enough: if one more is lost, "
            "nothing can be locked.",
            remedy,
        )


@rule("Node", skipped_at_start=True)
def unreachable(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find nodes that do not answer."""
    reason = report.status.reason
    if report.status.state is NodeState.SILENT and not report.lacks_commands:
        fact, *advice = reason.split("; ", 1)
        remedy = "".join(advice) or _START
        yield Finding("unreachable", WARNING, fact, as_sentence(remedy))


@rule("Node")
def unreachable_members(report: NodeReport, case: Case) -> Iterator[Finding]:
    """Find members of a cluster that do not answer, while the others do."""
    listed = sum(len(one.members) for one in case.redlock.addresses)
    members = int(report.status.info.get("members") or listed)
    for name, reason in report.silent_members.items():
        fact, *advice = reason.split("; ", 1)
        remedy = as_sentence("".join(advice) or _START)
        if members < listed:
            fact += (
                f"; redlock_nodes lists {listed} members, and the cluster has {members}"
            )
            remedy = _REMOVED_MEMBER.format(name=report.label)
        yield Finding(
            "unreachable",
            WARNING,
            f"has the member {name}, which {fact}",
            f"{remedy} Locks are granted while a majority of the members answers.",
        )


@rule("Node")
def refused_writes(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find nodes that answer, and grant nothing because they take no writes."""
    status = report.status
    named = report.lacks_commands or status.info.get("denied")  # findings themselves
    if status.state is NodeState.REFUSES and not named:
        fact, *advice = status.reason.split("; ", 1)
        remedies = (it for sign, it in _WRITES.items() if sign in fact)
        remedy = as_sentence(advice[0]) if advice else next(remedies, _LOG)
        yield Finding("refused-writes", ERROR, fact, remedy)


@rule("Node", skipped_at_start=True)
def state(report: NodeReport, case: Case) -> Iterator[Finding]:
    """Find nodes that answer and do not vote."""
    status = report.status
    if report.lacks_commands:
        return
    nodes = case.nodes
    difference, advice = refusal(status.reason, nodes.view or nodes.config)
    wait = f"and does not vote {_wait(case, status)}"
    by_itself = f"{_BY_ITSELF} {_OR_INIT}" if _is_new(case) else _BY_ITSELF
    match status.state:
        case NodeState.QUARANTINED:
            why = _WITH_ALL if status.waits_with_all else UNSURE
            yield Finding("quarantine", WARNING, f"{why}, {wait}", by_itself)
        case NodeState.NEW if not nodes.voting and _some_differ(case):
            why = "while other nodes are set up differently"
            fact = f"{UNSURE}, and does not vote {why}"
            yield Finding("quarantine", WARNING, fact, _DIFFER)
        case NodeState.NEW:
            until = "until a majority of the nodes has been asked for a lock; then"
            fact = f"{UNSURE}, and does not vote {until} {_wait(case, status)}"
            yield Finding("quarantine", WARNING, fact, by_itself)
        case NodeState.UNSYNCED if status.waits_for_a_client:
            fact = "does not vote before a client asks it for a lock"
            yield Finding("unsynced", WARNING, fact, "It votes with the next lock.")
        case NodeState.UNSYNCED if status.waits_with_all:
            yield Finding("unsynced", WARNING, f"{_WITH_ALL}, {wait}", by_itself)
        case NodeState.UNSYNCED:
            fact = "does not vote until enough other nodes confirm it"
            yield Finding("unsynced", WARNING, fact, _CONFIRMED)
        case NodeState.CLOSED:
            fact = f"does not vote: the nodes {difference}"
            remedy = _REMOVED if _is_removed(case, report) else f"{advice}."
            yield Finding("closed", ERROR, fact, remedy)
        case NodeState.OTHER_CONFIG:
            fact = f"has another view of the deployment: the nodes {difference}"
            remedy = f"{advice}.{_if_aborted(case, status)}"
            yield Finding("configuration", ERROR, fact, remedy)


def _wait(case: Case, status: NodeStatus) -> str:
    """Return how long a node does not vote, at most, with what this depends on."""
    timing, silent = case.redlock.timing, case.nodes.awaited
    answer = f"{timing.max_ttl:g} s for {silent} to answer"
    if status.state is NodeState.NEW:
        if not silent:
            return f"for {timing.quarantine:.0f} s more at most"
        return (
            f"for {timing.max_ttl + timing.quarantine:.0f} s more at most, while "
            f"clients go on asking: {answer}, and then {timing.quarantine:.0f} s"
        )
    if not status.waits_with_all:
        return f"for {math.ceil(status.wait)} s more"
    wait = max(it.wait for it in case.nodes if it.waits_with_all)
    words = f"for {math.ceil(wait)} s more" if wait else "until the others confirm it"
    later = f", or until a client has waited {answer}, if that is later"
    return words + (later if silent else "")


def _some_differ(case: Case) -> bool:
    """Tell whether nodes have other settings: no deployment is founded beside them."""
    states = {node.state for node in case.nodes}
    return not states.isdisjoint((NodeState.OTHER_CONFIG, NodeState.CLOSED))


def _is_new(case: Case) -> bool:
    """Tell whether the deployment may be brand-new, so that `init` ends the wait."""
    views = (node.view for node in case.nodes)
    is_alone = not case.nodes.voting and not _some_differ(case)
    return is_alone and all(map(may_be_new, views))


def _is_removed(case: Case, report: NodeReport) -> bool:
    """Tell whether a finished reconfiguration has removed this closed node."""
    plan = View.parse(report.status.reason.removeprefix(CLOSED))
    if report.status.state is not NodeState.CLOSED or plan is None:
        return False
    views = [View.parse(node.reason or node.view) for node in case.nodes]
    has_opened = any(plan.is_same_epoch(view) for view in views if view)
    return has_opened and report.label not in plan.configuration.labels


def _if_aborted(case: Case, status: NodeStatus) -> str:
    """Return a remedy for the case that the reconfiguration of a node was aborted."""
    theirs = View.parse(status.reason)
    ours = View.parse(case.nodes.view)
    if not theirs or not ours or theirs.deployment != ours.deployment:
        return ""
    is_later = theirs.epoch > ours.epoch
    if not is_later or theirs.configuration == ours.configuration:
        return ""
    if len(case.nodes.voting) >= case.nodes.quorum:
        return (
            " If that reconfiguration was aborted, the node comes back by itself with "
            "one of the next locks."
        )
    return (
        " If that reconfiguration was aborted while this node was away, abort it again "
        "with the same arguments."
    )


_BY_ITSELF = "It votes again by itself."
_OR_INIT = f"(For a brand-new deployment, `{COMMAND} init` ends the wait.)"
_DIFFER = "The findings of those nodes say what to do."
# Also of one that has its memory.
_WITH_ALL = f"waits with all nodes, as a majority of them {UNSURE}"
_CONFIRMED = (
    "They do with one of the next locks, if enough of them vote and have known it for "
    "one max_ttl. If a member is gone for good, replace it with "
    f"`{COMMAND} reconfigure`."
)
_REMOVED = (
    "A reconfiguration has removed it, and other nodes vote in the new configuration: "
    "set redlock_nodes to the new nodes, and shut this one down if nothing else uses "
    "it."
)
_REMOVED_MEMBER = (
    "If it was removed from the cluster, leave it out of the URL in redlock_nodes, and "
    'keep the name of the node: {{"url": …, "name": "{name}"}}. Else start it.'
)
_START = "start it, or check the network and the firewall"
_LOG = "Its log says why. It votes again as soon as it takes writes."
# What the reason of a refusal to write has in it -> what to do.
_WRITES = {
    "QuotaExceeded": "It has a quota on /redlock, or above it: raise that (setquota), "
    "or delete it (delquota).",
    "AOF file": "Its log says why it cannot write to its disk, which may be "
    "full. Free space, or write no append-only file (CONFIG SET appendonly no): locks "
    "need none.",
    "MISCONF": "Its log says why it cannot write to its disk, which may be full. Free "
    "space, or write no snapshots (CONFIG SET save ''): locks need none.",
    "OOM ": "Its memory is full: raise maxmemory, or give what else it holds a server "
    "of its own.",
    "NOREPLICAS": "It waits for replicas, which locks do not need: set "
    "min-replicas-to-write to 0.",
    "No space left on device": "Free space on its disk. It votes again as soon as it "
    "takes writes.",
    "has not finished a write": "A PostgreSQL waits for each synchronous standby that "
    "is away: bring it back, or take it out of synchronous_standby_names. Else its "
    "disk may hang; its log says more.",
}


@rule(skipped_at_start=True)
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


@rule("Node", skipped_at_start=True)
def kind(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find servers that are no independent masters."""
    # These are findings themselves.
    is_other = report.status.reason.startswith(("may evict", SAME_SERVER))
    is_store = "store" in report.status.info
    if report.status.state is NodeState.UNFIT and not is_other and not is_store:
        replica = report.status.info.get("role", "master") != "master"
        yield Finding(
            "replica" if replica else "cluster",
            ERROR,
            f"{report.status.reason.partition(';')[0]}: it has no vote",
            "Replace it with an independent Redis master. Replication and failover "
            "lose locks.",
        )
