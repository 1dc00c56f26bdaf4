"""``release``: take a lock away from whoever holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.claims import release_reservations
from celery_redlock.cli.session import DONE, ERROR, WARNING, Command, Failure, Session
from celery_redlock.cli.table import duration, painted
from celery_redlock.cli.words import holder_document, plural, unseen_lines
from celery_redlock.core.lease import Holder
from celery_redlock.core.removal import is_ours, remove, values_on

if TYPE_CHECKING:
    from celery_redlock.core.lease import Inspection

__all__ = ["release"]

_MS = 1000


@click.command(cls=Command, short_help="Take a lock away from its holder.")
@click.argument("key", required=False)
@click.option("--claims", is_flag=True, help="Not a lock: claims of jobs that wait.")
@click.option("--cool-downs", is_flag=True, help="Not a lock: what unique_for made.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def release(  # noqa: PLR0913  (click gives each option by name)
    ctx: click.Context,
    *,
    key: str | None,
    claims: bool,
    cool_downs: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Take the lock KEY away from its holder.

    Wait instead, if you can: a lock whose holder is gone ends by itself within its
    ttl. What is released is what was shown: should somebody else have taken the lock
    meanwhile, it is left alone. Exits with 1 when there is nothing to release.

    With --claims or --cool-downs KEY is a pattern, and may be left out: '*'. After
    `celery purge`, claims of jobs that are gone keep their calls from being published.
    """
    session: Session = ctx.obj
    if claims and cool_downs:
        raise click.UsageError("Give --claims or --cool-downs, one at a time.")
    if claims or cool_downs:
        kind = "claim" if claims else "cooldown"
        code = release_reservations(session, kind, key or "*", dry_run=dry_run, yes=yes)
        ctx.exit(code)
    if key is None:
        raise click.UsageError("Missing argument 'KEY'.")
    seen = session.redlock.inspect(key)
    values = values_on(seen.ballot)
    if not values:
        if seen.ballot.answered < seen.ballot.quorum:
            raise Failure(f"Too few nodes answered: {seen.ballot.reasons()}.", ERROR)
        session.tell([f"Nobody holds {key}."], {"key": key, "released": {}})
        ctx.exit(WARNING)
    session.say(*_explanation(seen, values))
    released: dict[str, Any] = {}
    lines = ["Nothing was done."]
    if not dry_run:
        session.confirm("Release it?", yes=yes)
        released = remove(session.redlock, key, values)
        lines = _outcome(released)
    holders = [holder_document(Holder.parse(value)) for value in values]
    session.tell(
        lines,
        {"key": key, "dry_run": dry_run, "holders": holders, "released": released},
    )
    ctx.exit(DONE if dry_run or True in released.values() else WARNING)


def _explanation(seen: Inspection, values: dict[str, list[str]]) -> list[str]:
    lines = []
    for value, nodes in values.items():
        where = f"on {len(nodes)} of {plural(len(seen.ballot.labels), 'node')}"
        if is_ours(value):
            lines.append(f"{seen.key} is held by {Holder.parse(value)}, {where}.")
        else:
            lines.append(f"{seen.key} was not written by celery-redlock, {where}.")
    if seen.holder:
        lines.append(
            f"It ends by itself in {duration(seen.ttl_left)}, unless it is renewed."
        )
    return [
        *lines,
        "",
        painted("If its holder is alive, two may run once you release it.", "warning"),
        "A holder that is alive learns of it when it next renews its lock: if somebody",
        "has it by then, it is told that it lost it; if nobody has, it takes it back.",
        "",
    ]


def _outcome(released: dict[str, Any]) -> list[str]:
    done = [label for label, one in released.items() if one is True]
    silent = {label: one for label, one in released.items() if isinstance(one, str)}
    lines = [f"Released on {len(done)} of {plural(len(released), 'node')}."]
    if not done:
        lines = ["It had changed hands or ended meanwhile: nothing was released."]
    if silent:
        lines += [painted(line, "warning") for line in unseen_lines(silent)]
        lines.append("What they have of the lock stays there until its ttl has ended.")
    return lines
