"""``ls``: the locks that are held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.output.format import (
    LOCK_COLUMNS,
    doubt_lines,
    limit_lines,
    limits_document,
    lock_row,
    seen_document,
    table,
)
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import (
    DONE,
    ERROR,
    Command,
    Session,
    every_option,
)
from celery_redlock.operations.scan import Scan, SeenHolder, scan
from celery_redlock.operations.words import held_sentences, plural, unknown_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@click.command(cls=Command, short_help="List the locks that are held.")
@click.argument("pattern", default="*")
@click.option(
    "--all", "everything", is_flag=True, help="Also list keys without a majority."
)
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@every_option
@click.pass_obj
def ls(
    session: Session, *, pattern: str, everything: bool, watch: bool, every: float
) -> int:
    """List the locks that are held.

    PATTERN selects keys: 'invoice:*'. All nodes are scanned at the same time and in
    small steps, so that tasks need not wait. A minority of the nodes may be down.

    A permit of a key with a limit says which one it is. If PATTERN selects all permits
    of a limit, a line says how many of them are in use. A permit for a start (rate) is
    no held lock: it is kept for its period, and its run may have ended.

    Exits with 3 if too few nodes can tell which locks are held.
    """

    def frame(seen: Scan) -> tuple[Iterator[str], Callable[[], Any]]:
        shown = [lock for lock in seen.found if everything or lock.is_held is not False]
        return _lines(seen, shown), lambda: _document(seen, shown)

    if watch:
        session.watch(lambda: frame(scan(session.redlock, pattern)), every)
        return DONE
    seen = scan(session.redlock, pattern)
    session.tell(*frame(seen))
    return DONE if seen.nodes.most_can_tell else ERROR


def _lines(seen: Scan, shown: Sequence[SeenHolder]) -> Iterator[str]:
    nodes = len(seen.nodes)
    if shown:
        yield from table(LOCK_COLUMNS, [lock_row(lock, nodes=nodes) for lock in shown])
        yield ""
    if fact := unknown_text(seen):
        yield painted(fact, "bad")
    yield from held_sentences(seen)
    if seen.nodes.most_can_tell:
        yield from limit_lines(seen.limits)
    if starts := seen.starts:
        are = "is" if len(starts) == 1 else "are"
        if any(start.is_held is None for start in starts):
            are = "may be"
        fact = f"{plural(len(starts), 'permit')} for a start {are} kept until"
        yield f"{fact} the period has passed. The run may have ended."
    if others := len(seen.others):
        others_ = plural(others, "more key")
        if len(shown) < len(seen.found):
            yield f"{others_} on fewer nodes than a majority: --all shows them."
    yield from doubt_lines(seen.nodes.doubts, seen.nodes.settings)


def _document(seen: Scan, shown: Sequence[SeenHolder]) -> dict[str, Any]:
    """Return the JSON document. ``held`` is None where it cannot be told."""
    return {
        "nodes": [node.label for node in seen.nodes],
        "quorum": seen.nodes.quorum,
        "unseen": seen.nodes.silent,
        "doubts": seen.nodes.doubts,
        "settings": seen.nodes.settings or None,
        "known": seen.nodes.most_can_tell,
        "limits": limits_document(seen.limits) if seen.nodes.most_can_tell else None,
        "locks": [seen_document(lock) for lock in shown],
    }
