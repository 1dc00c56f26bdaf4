"""``init`` and ``reconfigure``: begin a deployment, and change it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from celery_redlock.cli.session import ERROR, Command, Failure, Session
from celery_redlock.cli.table import Cell, Column, Row, duration, painted, table
from celery_redlock.cli.words import plural, standing_cell
from celery_redlock.core import reconfiguration
from celery_redlock.core.examination import glance
from celery_redlock.core.redlock import Redlock
from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_redlock.core.address import NodeAddress

__all__ = ["init", "reconfigure"]


@click.command(cls=Command, short_help="Start a brand-new deployment.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def init(ctx: click.Context, *, yes: bool) -> None:
    """Start a brand-new deployment of nodes without waiting.

    A node that has lost its memory does not vote for as long as a lock can last, and
    a new node looks just like that. This command says that there is nothing to
    remember. It refuses when a node holds live locks.
    """
    session: Session = ctx.obj
    service = session.redlock
    rows: list[Row] = [[seen.label, standing_cell(seen)] for seen in glance(service)]
    session.say(*table((Column("NODE"), Column("NOW")), rows), "")
    lasted = duration(service.timing.max_ttl)
    question = f"Has nobody taken a lock on them for {lasted} (redlock_max_ttl)?"
    session.confirm(question, yes=yes)
    service.initialize()
    session.tell(
        ["They vote from now on."],
        {"nodes": list(service.labels), "config": service.guard.config},
    )


@click.command(cls=Command, short_help="Change the nodes, or max_ttl.")
@click.option("--from", "old", metavar="NODES", help="The nodes that there are.")
@click.option("--to", "new", metavar="NODES", help="The nodes that there shall be.")
@click.option("--from-max-ttl", type=float, help="The redlock_max_ttl that there is.")
@click.option("--max-ttl", type=float, help="The redlock_max_ttl that there shall be.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def reconfigure(  # noqa: PLR0913  (an argument for each option)
    ctx: click.Context,
    *,
    old: str | None,
    new: str | None,
    from_max_ttl: float | None,
    max_ttl: float | None,
    yes: bool,
) -> None:
    """Change the list of nodes, or max_ttl, without two holders.

    What is not given is as in the app's settings. NODES are URLs with commas between
    them, name=URL for a node with a name, or @FILE with one in each line, which keeps
    passwords from the list of processes.

    Nothing is locked for about as long as the greater max_ttl. When interrupted, run
    it again with the same arguments: it goes on where it stopped.
    """
    session: Session = ctx.obj
    if all(given is None for given in (old, new, from_max_ttl, max_ttl)):
        raise click.UsageError("Say what shall change: --from, --to or --max-ttl.")
    before = _service(session, old, from_max_ttl)
    after = _service(session, new, max_ttl)
    session.say(*_comparison(before, after))
    session.confirm("Change it now?", yes=yes)
    steps: list[str] = []

    def step(sentence: str) -> None:
        steps.append(sentence)
        session.say(sentence)

    again = "Nothing is locked until you run it again, with the same arguments."
    try:
        reconfiguration.reconfigure(before, after, on_step=step)
    except ConfigurationError:
        raise
    except RedlockError as error:
        raise Failure(str(error), ERROR) from error
    except KeyboardInterrupt:
        raise Failure(f"Interrupted. {again}", ERROR) from None
    gone = [label for label in before.labels if label not in after.labels]
    lines = [
        "",
        "Give all clients the new settings now: with the old ones they get none.",
    ]
    if gone:
        lines.append(f"Shut down what was taken off the list: {', '.join(gone)}.")
    session.tell(lines, {"config": after.guard.config, "steps": steps, "gone": gone})


def _service(session: Session, nodes: str | None, max_ttl: float | None) -> Redlock:
    settings = session.settings
    longest = settings.max_ttl if max_ttl is None else max_ttl
    return Redlock(
        settings.nodes if nodes is None else _nodes_in(nodes),
        ttl=min(settings.ttl, longest),
        max_ttl=longest,
        node_timeout=settings.node_timeout,
        connect_timeout=settings.connect_timeout,
        prefix=settings.prefix,
        restart_guard=settings.restart_guard,
    )


def _nodes_in(text: str) -> Sequence[str | Mapping[str, str] | NodeAddress]:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"{text[1:]} cannot be read ({error.strerror}). Nothing was done."
            ) from None
    nodes: list[str | dict[str, str]] = []
    for spec in re.split(r"[,\s]+", text.strip()):
        name, equals, url = spec.partition("=")
        has_name = bool(equals) and "://" not in name
        nodes.append({"name": name, "url": url} if has_name else spec)
    return nodes


def _comparison(before: Redlock, after: Redlock) -> list[str]:
    rows: list[Row] = []
    for label in dict.fromkeys((*before.labels, *after.labels)):
        there, stays = label in before.labels, label in after.labels
        fate = (
            Cell("stays", "faint")
            if there and stays
            else Cell("new" if stays else "taken out", "good" if stays else "warning")
        )
        rows.append([label, fate])
    old_ttl, new_ttl = (service.timing.max_ttl for service in (before, after))
    longest = max(service.timing.quarantine for service in (before, after))
    max_ttl = f"redlock_max_ttl is {old_ttl:g} s"
    if old_ttl != new_ttl:
        max_ttl += f", and {new_ttl:g} s afterwards"
    return [
        *table((Column("NODE"), Column("AFTERWARDS")), rows),
        "",
        f"{plural(len(before.labels), 'node')}, {len(after.labels)} afterwards.",
        f"{max_ttl}.",
        painted(
            f"Nothing is locked or renewed for about {duration(longest)}.", "warning"
        ),
        "A task that runs for longer than its ttl meanwhile loses its lock.",
        "",
    ]
