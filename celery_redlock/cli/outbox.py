"""``outbox``: show and publish the messages that wait in outboxes."""

from __future__ import annotations

from typing import Any

import click

from celery_redlock.cli.output.session import DONE, WARNING, Command, Session
from celery_redlock.effects.outbox import Outbox, outboxes_of
from celery_redlock.operations.words import duration, plural


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
        published = one.publish(grace=0.0, app=app) if publish else 0
        said, fact = _state(one, published, did_publish=publish)
        lines.append(said)
        facts.append(fact)
    session.tell(lines or ["The app has no outbox."], lambda: {"outboxes": facts})
    return WARNING if any(fact["waiting"] for fact in facts) else DONE


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
