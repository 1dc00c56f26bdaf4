"""A connection that is made too late for its client is closed, and not kept open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.redlock import Redlock
from tests.nodes.support import until

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNode


def made(node: DevNode) -> int:
    """Return how many connections the node has ever had."""
    return int(node.command("INFO", "stats")["total_connections_received"])


def open_connections(node: DevNode) -> int:
    """Return how many connections it has besides the one that asks."""
    return len(node.command("CLIENT", "LIST").splitlines()) - 1


def test_connection_that_is_made_after_close_is_closed(node: DevNode) -> None:
    """Else a client that gave up on a slow node would keep one open to it."""
    before = made(node)
    redlock = Redlock([node.url], connect_timeout=30.0)
    node.pause()
    try:
        redlock.transport.send(redlock.commands.inspect("k"))
        redlock.close()
    finally:
        node.resume()

    until(lambda: made(node) > before, 10, what="the connection to be made")
    until(lambda: open_connections(node) == 0, 10, what="it to be closed again")
