"""``init``: start a brand-new deployment."""

from __future__ import annotations

import click

from celery_redlock.basics.timing import duration
from celery_redlock.cli.output.format import node_lines
from celery_redlock.cli.output.session import Command, Session
from celery_redlock.errors import RedlockError
from celery_redlock.members.deployment import check_new, unusable
from celery_redlock.operations.inspect import NodeState, node_status


@click.command(cls=Command, short_help="Start a brand-new deployment.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def init(session: Session, *, yes: bool) -> None:
    """Start a brand-new deployment of nodes without waiting.

    A node that lost its memory does not vote for as long as a lock can last, and a new
    node looks the same. This command says that there is nothing to remember. It refuses
    if a node holds live locks or is set up differently. After a power cut it
    refuses, too, once a client that had used the nodes before has told them: one may
    hold a lock that the nodes have forgotten. Then it says for how long to wait. A
    client tells them when it asks for a lock, or renews one while they wait. It cannot
    know of a client that has done neither yet.

    A store gets its table first. Where a table was dropped under running workers,
    answer no: their locks are forgotten, and the new one votes after redlock_max_ttl.
    """
    redlock = session.redlock
    redlock.prepare()  # what was made just now has no memory, as a new node
    statuses = node_status(redlock)
    session.say(*node_lines(statuses, "NOW"), "")
    # One that is read a moment later would be initialized without a question.
    for node in statuses:
        if node.state in (NodeState.SILENT, NodeState.REFUSES):
            raise RedlockError(unusable(node.label, node.reason))
    check_new(redlock.guard, redlock.addresses, redlock.timing.connect_timeout)
    span = duration(redlock.timing.max_ttl)
    where = "on this node" if len(statuses) == 1 else "on these nodes"
    session.confirm(
        f"Is it certain that no worker held a lock {where} in the last {span} "
        "(redlock_max_ttl)?",
        yes=yes or {node.state for node in statuses} == {NodeState.VOTES},
        otherwise="No wait was ended: nodes vote by themselves when theirs is over.",
    )
    redlock.initialize()
    nodes = len(redlock.labels)
    session.tell(
        ["The node votes now." if nodes == 1 else f"All nodes vote now: {nodes}."],
        lambda: {
            "nodes": list(redlock.labels),
            "config": str(redlock.guard.configuration),
        },
    )
