"""``prune``: delete old records of calls."""

from __future__ import annotations

import click

from celery_redlock.cli.output.session import (
    ERROR,
    Command,
    Failure,
    Session,
    reason_of,
)
from celery_redlock.effects.call_records import delete_old_records
from celery_redlock.errors import RedlockError
from celery_redlock.operations.words import plural


@click.command(cls=Command, asks_nodes=False, short_help="Delete old records of calls.")
@click.pass_obj
def prune(session: Session) -> None:
    """Delete the records of calls that are kept no longer.

    Tasks with ``exactly_once_in`` write these records into their databases, and keep
    each for ``record_keep``. The periodic task ``celery_redlock.prune`` does the same.
    """
    app = session.loaded_app
    try:
        deleted = delete_old_records(app)
    except RedlockError:
        raise
    except Exception as error:  # each driver has its own
        what = "A database failed; what was deleted before stays deleted"
        raise Failure(f"{what}: {reason_of(error)}.", ERROR) from error
    session.tell(
        [f"{plural(deleted, 'record')} deleted."], lambda: {"deleted": deleted}
    )
