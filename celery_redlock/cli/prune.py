"""``prune``: delete old records of calls."""

from __future__ import annotations

import click

from celery_redlock.cli.output.session import Command, Session
from celery_redlock.effects.call_records import delete_old_records
from celery_redlock.operations.words import plural


@click.command(cls=Command, asks_nodes=False, short_help="Delete old records of calls.")
@click.pass_obj
def prune(session: Session) -> None:
    """Delete the records of calls that are kept no longer.

    Tasks with ``exactly_once_in`` write these records into their databases, and keep
    each for ``record_keep``. The periodic task ``celery_redlock.prune`` does the same.
    """
    deleted = delete_old_records(session.loaded_app)
    session.tell(
        [f"{plural(deleted, 'record')} deleted."], lambda: {"deleted": deleted}
    )
