"""``dev``: nodes on this machine, for trying things out."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import click

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import Command, Session
from celery_redlock.devnodes import STORES, DevNodes, DevStore
from celery_redlock.operations.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

_NODES = 5
_MAX_TTL = 60.0  # the default of redlock_max_ttl
# In seconds. CPython does not notice a signal that comes between its last look for one
# and a system call that blocks, until that call returns.
_LONGEST_SLEEP = 0.5


@click.command(cls=Command, asks_nodes=False, short_help="Run nodes on this machine.")
@click.option("--nodes", type=int, help=f"How many; {_NODES} by default.")
@click.option("--store", type=click.Choice(STORES), help="Run a store instead.")
@click.option("--max-ttl", default=_MAX_TTL, show_default=True, help="In seconds.")
@click.pass_obj
def dev(
    session: Session, *, nodes: int | None, store: str | None, max_ttl: float
) -> None:
    """Run real nodes on this machine until Ctrl-C, and print their settings.

    With --store, run one store that takes their place: a PostgreSQL, or three members
    of etcd or ZooKeeper.

    Their data are lost at the end: for trying things out, not for production.
    """
    if store and nodes is not None:
        raise click.UsageError("A store decides alone: --store has no --nodes.")
    # A service manager ends a service by SIGTERM, and the nodes must end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    servers: DevNodes | DevStore
    if store:
        servers = DevStore(store, max_ttl=max_ttl)
        what = plural(len(servers.nodes), f"{servers.title} server")
    else:
        servers = DevNodes(_NODES if nodes is None else nodes, max_ttl=max_ttl)
        what = plural(len(servers.nodes), "node")
    with servers as running:
        document = {"redlock_nodes": running.urls, "redlock_max_ttl": max_ttl}
        with contextlib.suppress(KeyboardInterrupt):
            session.tell(_lines(what, running.urls, max_ttl), lambda: document)
            while True:
                SYSTEM_CLOCK.sleep(_LONGEST_SLEEP)
    session.say("", "Everything is stopped, and the data are lost.")


def _lines(what: str, urls: Sequence[str], max_ttl: float) -> list[str]:
    settings = ["app.conf.redlock_nodes = [", *(f'    "{url}",' for url in urls), "]"]
    if max_ttl != _MAX_TTL:
        settings.append(f"app.conf.redlock_max_ttl = {max_ttl:g}")
    return [
        f"{what} of a new deployment. Paste into your settings:",
        "",
        *(f"    {line}" for line in settings),
        "",
        painted("Press Ctrl-C to stop.", "faint"),
    ]
