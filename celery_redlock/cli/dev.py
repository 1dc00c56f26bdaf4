"""``dev``: nodes on this machine, for trying things out."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from celery_redlock.cli.output.format import painted, plural
from celery_redlock.cli.output.session import Command, Session
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.devnodes import DevNodes

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_TTL = 60.0  # the default of redlock_max_ttl
# In seconds. CPython does not notice a signal that comes between its last look for one
# and a system call that blocks, until that call returns.
_LONGEST_SLEEP = 0.5


@click.command(cls=Command, short_help="Run nodes on this machine.")
@click.option("--nodes", default=5, show_default=True, help="How many.")
@click.option("--max-ttl", default=_MAX_TTL, show_default=True, help="In seconds.")
@click.pass_obj
def dev(session: Session, *, nodes: int, max_ttl: float) -> None:
    """Run real nodes on this machine until Ctrl-C, and print their settings.

    Their data are lost at the end: for trying things out, not for production.
    """
    # A service manager ends a service by SIGTERM, and the nodes must end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with DevNodes(nodes, max_ttl=max_ttl) as running:
        document = {"redlock_nodes": running.urls, "redlock_max_ttl": max_ttl}
        try:
            session.tell(_lines(running.urls, max_ttl), lambda: document)
            while True:
                SYSTEM_CLOCK.sleep(_LONGEST_SLEEP)
        except KeyboardInterrupt:
            session.say("", f"Stopped {plural(nodes, 'node')}. Their data are lost.")


def _lines(urls: Sequence[str], max_ttl: float) -> list[str]:
    settings = ["app.conf.redlock_nodes = [", *(f'    "{url}",' for url in urls), "]"]
    if max_ttl != _MAX_TTL:
        settings.append(f"app.conf.redlock_max_ttl = {max_ttl:g}")
    return [
        f"{plural(len(urls), 'node')} of a new deployment. Paste into your settings:",
        "",
        *(f"    {line}" for line in settings),
        "",
        painted("Press Ctrl-C to stop them.", "faint"),
    ]
