"""``outbox``: show and publish the messages that wait in outboxes."""

from __future__ import annotations

import logging
import sys
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.basics.timing import duration
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import (
    DONE,
    ERROR,
    WARNING,
    Command,
    Session,
    reason_of,
)
from celery_redlock.effects.outbox import Outbox, outboxes_of
from celery_redlock.operations.words import plural

if TYPE_CHECKING:
    from celery import Celery

_LOGGER = logging.getLogger("celery_redlock.effects.outbox")
_MOST_TOLD = 5  # messages that stay


@click.command(cls=Command, short_help="Show and publish messages in outboxes.")
@click.option("--publish", is_flag=True, help="Publish them now.")
@click.pass_obj
def outbox(session: Session, *, publish: bool) -> int:
    """Show how many messages wait in the outboxes of the app.

    A message is published right after the commit of its transaction. It waits if its
    process was killed then, or if the broker was away. The periodic task
    ``celery_redlock.publish_outbox`` publishes it; so does ``--publish``, at once.

    Exits with 1 if messages wait, and with 3 if a database could not be used.
    """
    app = session.loaded_app
    lines: list[str] = []
    facts: list[dict[str, Any]] = []
    for one in outboxes_of(app):
        try:
            published, kept = _publish(one, app) if publish else (0, [])
            said, fact = _state(one, published, did_publish=publish)
        except Exception as error:  # noqa: BLE001  (each driver has its own)
            reason = reason_of(error)
            text = f"The outbox of {one.name!r} cannot be used: {reason}."
            lines.append(painted(text, "bad"))
            facts.append({"outbox": one.name, "error": reason})
            continue
        lines += [said, *(painted(text, "warning") for text in kept[:_MOST_TOLD])]
        if len(kept) > _MOST_TOLD:
            more = plural(len(kept) - _MOST_TOLD, "more message")
            lines.append(f"and {more} that could not be published.")
        facts.append({**fact, "kept": kept})
    session.tell(lines or ["The app has no outbox."], lambda: {"outboxes": facts})
    if any("error" in fact for fact in facts):
        return ERROR
    return WARNING if any(fact["waiting"] for fact in facts) else DONE


def _publish(one: Outbox, app: Celery) -> tuple[int, list[str]]:
    """Publish, and return how many messages; and why others stay, as the log says."""
    handler = BufferingHandler(sys.maxsize)
    handler.setLevel(logging.WARNING)
    _LOGGER.addHandler(handler)
    try:
        published = one.publish(grace=0.0, app=app)
    finally:
        _LOGGER.removeHandler(handler)
    return published, [record.getMessage() for record in handler.buffer]


def _state(
    one: Outbox, published: int, *, did_publish: bool
) -> tuple[str, dict[str, Any]]:
    waiting = one.waiting()
    done = f"{plural(published, 'message')} published, " if did_publish else ""
    rest = plural(waiting.messages, "message") + " waiting"
    since = f", the oldest for {duration(waiting.oldest)}" if waiting.messages else ""
    text = f"The outbox of {one.name!r}: {done}{rest}{since}."
    fact = {"outbox": one.name, "published": published}
    fact |= {"waiting": waiting.messages, "oldest": waiting.oldest}
    return text, fact
