"""``init``: start a brand-new deployment."""

from __future__ import annotations

import click

from celery_redlock.cli.output.format import node_lines
from celery_redlock.cli.output.session import Command, Session
from celery_redlock.operations.inspect import NodeState, node_status
from celery_redlock.operations.words import duration


@click.command(cls=Command, short_help="Start a brand-new deployment.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def init(session: Session, *, yes: bool) -> None:
    """Start a brand-new deployment of nodes without waiting.

    A node that lost its memory does not vote for as long as a lock can last, and a new
    node looks the same. This command says that there is nothing to remember. It refuses
    if a node holds live locks or belongs to another deployment. After a power cut it
    refuses, too, if a client that has used the nodes before has asked them since: one
    may hold a lock that the nodes have forgotten. Then it says for how long to wait. It
    cannot know of a client that has not asked them yet.
    """
    redlock = session.redlock
    statuses = node_status(redlock)
    states = {node.state for node in statuses}
    # All vote already, or one cannot be read, so that nothing can be changed.
    is_known = states == {NodeState.VOTES} or NodeState.SILENT in states
    session.say(*node_lines(statuses, "NOW"), "")
    span = duration(redlock.timing.max_ttl)
    where = "on this node" if len(statuses) == 1 else "on these nodes"
    session.confirm(
        f"Is it certain that no worker held a lock {where} in the last {span} "
        "(redlock_max_ttl)?",
        yes=yes or is_known,
    )
    redlock.initialize()
    session.tell(
        [f"All nodes vote now: {len(redlock.labels)}."],
        lambda: {
            "nodes": list(redlock.labels),
            "config": str(redlock.guard.configuration),
        },
    )
