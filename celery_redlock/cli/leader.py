"""``leader``: the beat that sends the scheduled tasks, and the standbys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_redlock.beat import election_key
from celery_redlock.cli.output.format import holder_document, since
from celery_redlock.cli.output.session import DONE, ERROR, WARNING, Command, Session
from celery_redlock.core.quorum import VoteKind
from celery_redlock.core.records.standbys import Leadership, leadership_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.lease import Holder


@click.command(cls=Command, short_help="Show the leading beat and the standbys.")
@click.pass_obj
def leader(session: Session) -> int:
    """Show which beat sends the scheduled tasks, and which beats stand by.

    Exits with 1 if there is no leader, and with 3 if too few nodes answered to tell.
    """
    found = leadership_of(session.redlock, election_key(session.app))
    session.tell(_lines(found), lambda: _document(found))
    return DONE if found.leader else WARNING if _is_known(found) else ERROR


def _is_known(found: Leadership) -> bool:
    """Tell whether enough nodes answered to be sure that there is no leader."""
    return found.ballot.answered >= found.ballot.quorum


def _lines(found: Leadership) -> Iterator[str]:
    if found.leader is not None:
        yield f"{found.key} is led by {found.leader}"
        yield f"  since    {since(found.leader)}"
        yield f"  term     {found.leader.fence}"
        yield f"  votes    {found.votes} of {len(found.ballot.labels)} nodes"
        yield f"  expires  in {found.ttl_left:.1f} s, unless renewed"
    elif _is_known(found):
        yield f"{found.key} has no leader: no beat sends anything."
    else:
        yield f"Too few nodes answered to tell which beat leads {found.key}."
    for standby in found.standbys:
        yield f"Standing by: {standby}, since {since(standby)}"
    if not found.standbys:
        yield "No beat stands by."
    for problem in found.ballot.problems():
        yield f"Node {problem}."


def _document(found: Leadership) -> dict[str, Any]:
    leader = None
    if found.leader is not None:
        leader = {**_candidate(found.leader), "term": found.leader.fence}
        leader |= {"votes": found.votes, "ends_in": found.ttl_left}
    return {
        "key": found.key,
        "leader": leader,
        "standbys": [_candidate(standby) for standby in found.standbys],
        "nodes": list(found.ballot.labels),
        "unseen": {
            label: vote.reason if vote else "had not answered"
            for label, vote in zip(found.ballot.labels, found.ballot.votes, strict=True)
            if vote is None or vote.kind in (VoteKind.SILENT, VoteKind.REFUSED)
        },
    }


def _candidate(holder: Holder) -> dict[str, Any]:
    document = holder_document(holder)
    return {name: document[name] for name in ("host", "pid", "started", "age")}
