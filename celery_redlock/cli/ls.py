"""``ls``: the locks that are held."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.output.format import (
    LOCK_COLUMNS,
    finite,
    holder_document,
    lock_row,
    painted,
    plural,
    table,
    unseen_lines,
)
from celery_redlock.cli.output.session import DONE, ERROR, Command, Session
from celery_redlock.operations.scan import Scan, SeenHolder, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@click.command(cls=Command, short_help="List the locks that are held.")
@click.argument("pattern", default="*")
@click.option(
    "--all", "everything", is_flag=True, help="Also list keys without a majority."
)
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--every", default=2.0, show_default=True, help="Seconds between refreshes."
)
@click.pass_obj
def ls(
    session: Session, *, pattern: str, everything: bool, watch: bool, every: float
) -> int:
    """List the locks that are held.

    PATTERN selects keys: 'invoice:*'. All nodes are scanned at the same time and in
    small steps, so that tasks need not wait. A minority of the nodes may be down.
    """

    def frame(seen: Scan) -> tuple[Iterator[str], Callable[[], Any]]:
        shown = seen.found if everything else seen.held
        return _lines(seen, shown), lambda: _document(seen, shown)

    if watch:
        session.watch(lambda: frame(scan(session.redlock, pattern)), every)
        return DONE
    gc.disable()  # saves a fifth of the time with very many locks: there is no garbage
    try:
        seen = scan(session.redlock, pattern)
        session.tell(*frame(seen))
    finally:
        gc.enable()
    return DONE if seen.has_quorum else ERROR


def _lines(seen: Scan, shown: Sequence[SeenHolder]) -> Iterator[str]:
    nodes, held = len(seen.labels), len(seen.held)
    if shown:
        yield from table(
            LOCK_COLUMNS,
            [lock_row(lock, nodes=nodes, quorum=seen.quorum) for lock in shown],
        )
        yield ""
    answered = f"{nodes - len(seen.unseen)} of {plural(nodes, 'node')}"
    yield f"{plural(held, 'lock')} held, as seen on {answered}."
    if others := len(seen.found) - max(held, len(shown)):
        others_ = plural(others, "more key")
        yield f"{others_} on fewer nodes than a majority: --all shows them."
    yield from unseen_lines(seen.unseen)
    if not seen.has_quorum:
        yield painted("Too few nodes answered to tell which locks are held.", "bad")


def _document(seen: Scan, shown: Sequence[SeenHolder]) -> dict[str, Any]:
    """Return the JSON document. Durations are in seconds; None: for ever."""
    return {
        "nodes": list(seen.labels),
        "quorum": seen.quorum,
        "unseen": seen.unseen,
        "locks": [
            {
                "key": lock.key,
                **holder_document(lock.holder),
                "ttl_left": finite(lock.ttl_left),
                "votes": lock.votes,
                "held": lock.votes >= seen.quorum,
            }
            for lock in shown
        ],
    }
