"""``leaked``: keys that never expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_redlock.basics.command import COMMAND
from celery_redlock.cli.output.format import Column, table, unseen_lines
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import DONE, ERROR, WARNING, Command, Session
from celery_redlock.operations.scan import keys_without_ttl
from celery_redlock.operations.words import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_redlock.locks.redlock import Redlock


@click.command(cls=Command, short_help="List keys that never expire.")
@click.pass_obj
def leaked(session: Session) -> int:
    """List keys under our prefix that have no ttl. A lock among them never expires.

    The key meta, which a node must never forget, is left out. This package writes no
    other such key. Another program may have, or a person with redis-cli. Exits with 1
    if there are any, and with 3 if too few nodes answered.
    """
    redlock = session.redlock
    nodes = keys_without_ttl(redlock)
    found = {node: keys for node, keys in nodes.results.items() if keys}
    answered = len(nodes.results)
    if found:
        lines = _lines(found, redlock)
    elif answered >= redlock.quorum:
        some = plural(answered, "node")
        lines = [f"Every key on {some} that should expire has a ttl."]
    else:
        total = len(redlock.labels)
        few = f"{answered} of {total} nodes answered"
        few = "the node did not answer" if total == 1 else few
        fact = f"It cannot be told whether there are keys without a ttl: {few}."
        lines = [painted(fact, "bad")]
    document = {"nodes": list(redlock.labels), "unseen": nodes.unseen}
    session.tell(
        [*lines, *unseen_lines(nodes.unseen)],
        lambda: {**document, "leaked": found},
    )
    if answered < redlock.quorum:
        return ERROR
    return WARNING if found else DONE


def _lines(found: Mapping[str, Sequence[str]], redlock: Redlock) -> list[str]:
    rows = [[node, key] for node, keys in found.items() for key in keys]
    tool, look = "with redis-cli", " (redis-cli TYPE)"
    if redlock.addresses[0].is_store:
        tool, look = "by hand", ""
    return [
        *table((Column("NODE"), Column("KEY WITHOUT A TTL", cut="end")), rows),
        "",
        f"A key that begins with {redlock.keys.lock('')} is a lock. Release it with",
        f"`{COMMAND} release KEY`, where KEY is the rest of its name.",
        f"Delete other keys {tool}, when you know what they are; also a lock",
        f"that is no text{look}: only another program writes such a key.",
    ]
