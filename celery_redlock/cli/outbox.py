"""``outbox``: show and publish the messages that wait in outboxes."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import DONE, WARNING, Command, Session
from celery_redlock.effects.outbox import Outbox, outboxes_of
from celery_redlock.operations.words import duration, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    Exits with 1 if messages wait.
    """
    app = session.loaded_app
    lines, facts = [], []
    for one in outboxes_of(app):
        with _told() as kept:
            published = one.publish(grace=0.0, app=app) if publish else 0
        said, fact = _state(one, published, did_publish=publish)
        lines += [said, *(painted(text, "warning") for text in kept[:_MOST_TOLD])]
        if len(kept) > _MOST_TOLD:
            more = plural(len(kept) - _MOST_TOLD, "more message")
            lines.append(f"and {more} that could not be published.")
        facts.append({**fact, "kept": kept})
    session.tell(lines or ["The app has no outbox."], lambda: {"outboxes": facts})
    return WARNING if any(fact["waiting"] for fact in facts) else DONE


class _Kept(logging.Handler):
    """Collects why messages stay: the log tells it, and the command shows no log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of a line."""
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def _told() -> Iterator[list[str]]:
    """Give the list of why messages stay, while the block publishes."""
    handler = _Kept()
    _LOGGER.addHandler(handler)
    try:
        yield handler.texts
    finally:
        _LOGGER.removeHandler(handler)


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
