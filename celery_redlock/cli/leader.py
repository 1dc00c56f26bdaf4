"""``celery -A proj redlock leader``: which beat sends, and which stand by."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.lease import Holder
    from celery_redlock.leadership import Leadership

__all__ = ["leader"]

_NOBODY, _UNKNOWN = 1, 2  # exit codes


@click.command(cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_context
@handle_preload_options
def leader(ctx: click.Context, *, as_json: bool) -> None:
    """Show which beat leads since when, and which stand by.

    Ends with 0 if one leads, 1 if none does, and 2 if too few nodes can tell.
    """
    from celery_redlock.beat import election_key  # noqa: PLC0415
    from celery_redlock.errors import ConfigurationError  # noqa: PLC0415
    from celery_redlock.leadership import leadership_of  # noqa: PLC0415
    from celery_redlock.runtime import runtime_of  # noqa: PLC0415

    app = ctx.obj.app
    try:
        found = leadership_of(runtime_of(app).redlock, election_key(app))
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        ctx.obj.echo(json.dumps(_facts(found), indent=2))
    else:
        ctx.obj.echo("\n".join(_lines(found)))
    if found.leader is None:
        ctx.exit(_NOBODY if _is_known(found) else _UNKNOWN)


def _is_known(found: Leadership) -> bool:
    """Tell whether enough nodes answered for "nobody" to mean nobody."""
    return found.ballot.answered >= found.ballot.quorum


def _lines(found: Leadership) -> Iterator[str]:
    nodes = len(found.ballot.labels)
    if found.leader is not None:
        yield f"{found.key} is led by {found.leader}"
        yield f"  since    {_local(found.leader.started)}"
        yield f"  term     {found.leader.fence}"
        yield f"  votes    {found.votes} of {nodes} nodes"
        yield f"  ends in  {found.ttl_left:.1f} s, unless it is renewed"
    elif _is_known(found):
        yield f"Nobody leads {found.key}: nothing is sent."
    else:
        yield f"Who leads {found.key} is not known: too few nodes answer."
    if reasons := found.ballot.reasons():
        yield f"Not seen: {reasons}."
    if not found.standbys:
        yield "Nobody stands by."
    for standby in found.standbys:
        yield f"Standing by: {standby}, since {_local(standby.started)}"


def _facts(found: Leadership) -> dict[str, Any]:
    leader = found.leader
    return {
        "key": found.key,
        "leader": None
        if leader is None
        else {
            **_candidate(leader),
            "term": leader.fence,
            "votes": found.votes,
            "ends_in": round(found.ttl_left, 3),
        },
        "standbys": [_candidate(standby) for standby in found.standbys],
        "nodes": len(found.ballot.labels),
        "answered": found.ballot.answered,
        "problems": found.ballot.reasons(),
    }


def _candidate(holder: Holder) -> dict[str, Any]:
    since = datetime.fromtimestamp(holder.started).astimezone()
    return {"host": holder.host, "pid": holder.pid, "since": since.isoformat()}


def _local(started: float) -> str:
    return datetime.fromtimestamp(started).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
