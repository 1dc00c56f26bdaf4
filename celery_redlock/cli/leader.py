"""``leader``: the beat that sends the scheduled tasks, and the standbys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_redlock.basics.text import on_nodes
from celery_redlock.beat import election_key
from celery_redlock.cli.output.format import doubt_lines, finite, holder_document
from celery_redlock.cli.output.session import DONE, ERROR, WARNING, Command, Session
from celery_redlock.operations.inspect import LockStatus, node_status
from celery_redlock.operations.words import expiry, few_can_tell, since
from celery_redlock.records.standbys import Leadership, leadership_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.locks.lease import Holder


@click.command(cls=Command, short_help="Show the leading beat and the standbys.")
@click.pass_obj
def leader(session: Session) -> int:
    """Show which beat sends the scheduled tasks, and which beats stand by.

    Exits with 1 if there is no leader, and with 3 if too few nodes answered to tell.
    """
    redlock = session.redlock
    found = leadership_of(redlock, election_key(session.app))
    status = LockStatus(found.lock, node_status(redlock))
    lines = [*_lines(found, status), *doubt_lines(status.doubts, status.nodes.settings)]
    session.tell(lines, lambda: _document(found, status))
    return {True: DONE, False: WARNING, None: ERROR}[status.is_held]


def _lines(found: Leadership, status: LockStatus) -> Iterator[str]:
    key, votes, nodes = found.lock.key, found.lock.votes, len(status.nodes)
    if found.leader is not None:
        yield f"{key} is led by {found.leader}"
        yield f"  since    {since(found.leader)}"
        yield f"  term     {found.leader.fence}"
        yield f"  nodes    {on_nodes(votes, nodes)}"
        yield f"  expires  {expiry(found.lock.ttl_left)}"
    elif status.is_held is None:
        yield f"It cannot be told which beat leads {key}: {few_can_tell(nodes)}."
    else:
        yield f"{key} has no leader: no beat sends scheduled tasks."
    for standby in found.standbys:
        yield f"Standing by: {standby}, since {since(standby)}"
    if not _knows_standbys(found, status):
        other = "another beat" if found.standbys else "a beat"
        yield f"It cannot be told whether {other} stands by: {few_can_tell(nodes)}."
    elif not found.standbys:
        yield "No beat stands by."


def _knows_standbys(found: Leadership, status: LockStatus) -> bool:
    return found.is_whole and status.nodes.most_can_tell


def _document(found: Leadership, status: LockStatus) -> dict[str, Any]:
    leader = None
    if found.leader is not None:
        leader = {**_candidate(found.leader), "term": found.leader.fence}
        leader |= {"votes": found.lock.votes, "ends_in": finite(found.lock.ttl_left)}
    return {
        "key": found.lock.key,
        "leader": leader,
        "known": status.is_held is not None,
        "standbys": [_candidate(standby) for standby in found.standbys],
        "standbys_known": _knows_standbys(found, status),
        "nodes": list(found.lock.ballot.labels),
        "unseen": status.doubts,
        "settings": status.nodes.settings or None,
    }


def _candidate(holder: Holder) -> dict[str, Any]:
    document = holder_document(holder)
    return {name: document[name] for name in ("host", "pid", "started", "age")}
