"""``dev``: nodes on this machine, to try things with."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import click

from celery_redlock.cli.session import Command, Session
from celery_redlock.cli.table import painted
from celery_redlock.cli.words import plural
from celery_redlock.devnodes import DevNodes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["dev"]

_MAX_TTL = 60.0  # the default of redlock_max_ttl


@click.command(cls=Command, short_help="Run nodes on this machine to try.")
@click.option("--nodes", default=5, show_default=True, help="How many.")
@click.option("--max-ttl", default=_MAX_TTL, show_default=True, help="In seconds.")
@click.pass_context
def dev(ctx: click.Context, *, nodes: int, max_ttl: float) -> None:
    """Run real nodes on this machine until Ctrl-C, and print the settings.

    They are new and remember nothing: for trying things out, not for production.
    """
    session: Session = ctx.obj
    # A service is told to end by SIGTERM, and the nodes shall end with us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with DevNodes(nodes, max_ttl=max_ttl) as running:
        document = {"redlock_nodes": running.urls, "redlock_max_ttl": max_ttl}
        session.tell(_lines(running.urls, max_ttl), document)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            session.say("", f"Stopped, with all that {plural(nodes, 'node')} knew.")


def _lines(urls: Sequence[str], max_ttl: float) -> list[str]:
    settings = ["app.conf.redlock_nodes = [", *(f'    "{url}",' for url in urls), "]"]
    if max_ttl != _MAX_TTL:
        settings.append(f"app.conf.redlock_max_ttl = {max_ttl:g}")
    return [
        f"{plural(len(urls), 'node')} of a new deployment. Paste into your settings:",
        "",
        *(f"    {line}" for line in settings),
        "",
        painted("Ctrl-C ends them.", "faint"),
    ]
