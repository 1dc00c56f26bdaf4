"""``leaked``: keys of ours that never end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_redlock.cli.session import DONE, ERROR, WARNING, Command, Session
from celery_redlock.cli.table import Column, painted, table, terminal_width
from celery_redlock.cli.words import plural, unseen_lines
from celery_redlock.core.survey import eternal_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["leaked"]


@click.command(cls=Command, short_help="List keys that nobody will ever free.")
@click.pass_context
def leaked(ctx: click.Context) -> None:
    """List keys of ours that have no ttl: locks that nobody will ever free.

    This package writes none; another program may have, or somebody by hand. Exits
    with 1 when there are some.
    """
    session: Session = ctx.obj
    service = session.redlock
    found, unseen = eternal_keys(
        service.addresses, service.guard.prefix, timeout=service.timing.connect_timeout
    )
    document = {"nodes": list(service.labels), "unseen": unseen, "leaked": found}
    seen = len(service.labels) - len(unseen)
    lines = _lines(found, service.guard.prefix)
    if not found:
        lines = [f"Every key on {plural(seen, 'node')} has a ttl."]
    lines += [painted(line, "warning") for line in unseen_lines(unseen)]
    session.tell(lines, document)
    if found:
        ctx.exit(WARNING)
    ctx.exit(DONE if seen >= service.quorum else ERROR)


def _lines(found: Mapping[str, Sequence[str]], prefix: str) -> list[str]:
    rows = [[node, key] for node, keys in found.items() for key in keys]
    columns = (Column("NODE"), Column("KEY WITHOUT A TTL", cut="end"))
    return [
        *table(columns, rows, width=terminal_width()),
        "",
        f"What follows {prefix}:lock: is the KEY for `celery -A proj redlock release`.",
        "Delete others by hand, with redis-cli, once you know what they are.",
    ]
