"""``leader``: which beat sends, and which stand by."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.beat import election_key
from celery_redlock.cli.session import DONE, ERROR, WARNING, Command, Session
from celery_redlock.cli.words import age_of, holder_document
from celery_redlock.core.ballot import VoteKind
from celery_redlock.leadership import leadership_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.lease import Holder
    from celery_redlock.leadership import Leadership

__all__ = ["leader"]


@click.command(cls=Command, short_help="Show which beat sends, and which stand by.")
@click.pass_context
def leader(ctx: click.Context) -> None:
    """Show which beat sends since when, and which stand by.

    Exits with 1 when nobody leads, and with 3 when too few nodes can tell.
    """
    session: Session = ctx.obj
    found = leadership_of(session.redlock, election_key(session.app))
    session.tell(list(_lines(found)), _document(found))
    ctx.exit(DONE if found.leader else WARNING if _is_known(found) else ERROR)


def _is_known(found: Leadership) -> bool:
    """Tell whether enough nodes answered for "nobody" to mean nobody."""
    return found.ballot.answered >= found.ballot.quorum


def _lines(found: Leadership) -> Iterator[str]:
    if found.leader is not None:
        yield f"{found.key} is led by {found.leader}"
        yield f"  since    {_since(found.leader)}"
        yield f"  term     {found.leader.fence}"
        yield f"  votes    {found.votes} of {len(found.ballot.labels)} nodes"
        yield f"  ends in  {found.ttl_left:.1f} s, unless it is renewed"
    elif _is_known(found):
        yield f"Nobody leads {found.key}: no beat sends anything."
    else:
        yield f"Who leads {found.key} is not known: too few nodes answer."
    for standby in found.standbys:
        yield f"Standing by: {standby}, since {_since(standby)}"
    if not found.standbys:
        yield "Nobody stands by."
    if reasons := found.ballot.reasons():
        yield f"Not seen: {reasons}."


def _document(found: Leadership) -> dict[str, Any]:
    seen = {}
    if found.leader is not None:
        seen = {**_candidate(found.leader), "term": found.leader.fence}
        seen |= {"votes": found.votes, "ends_in": found.ttl_left}
    return {
        "key": found.key,
        "leader": seen or None,
        "standbys": [_candidate(standby) for standby in found.standbys],
        "nodes": list(found.ballot.labels),
        "unseen": {
            label: vote.reason if vote else "had not answered"
            for label, vote in zip(found.ballot.labels, found.ballot.votes, strict=True)
            if vote is None or vote.kind in (VoteKind.SILENT, VoteKind.REFUSED)
        },
    }


def _candidate(holder: Holder) -> dict[str, Any]:
    facts = holder_document(holder)
    return {name: facts[name] for name in ("host", "pid", "started", "age")}


def _since(holder: Holder) -> str:
    began = datetime.fromtimestamp(holder.started).astimezone()
    return f"{began:%Y-%m-%d %H:%M:%S %Z} ({age_of(holder) or 0:.0f} s ago)"
