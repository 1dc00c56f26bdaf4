"""A connection that is made after its client has closed is closed as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.redlock import Redlock
from celery_redlock.core.scripts import INSPECT
from tests.nodes.support import until

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNode


def made(node: DevNode) -> int:
    """Return how many connections the node has accepted since its start."""
    return int(node.command("INFO", "stats")["total_connections_received"])


def open_connections(node: DevNode) -> int:
    """Return how many connections the node has besides the one that asks."""
    return len(node.command("CLIENT", "LIST").splitlines()) - 1


def test_connection_that_is_made_after_close_is_closed(node: DevNode) -> None:
    """A client that was closed keeps no connection open to a slow node."""
    before = made(node)
    redlock = Redlock([node.url], connect_timeout=30.0)
    node.pause()
    try:
        redlock.nodes.tell(INSPECT, [redlock.keys.lock("k")])
        redlock.close()
    finally:
        node.resume()

    until(lambda: made(node) > before, 10, what="the connection to be made")
    until(lambda: open_connections(node) == 0, 10, what="it to be closed again")
