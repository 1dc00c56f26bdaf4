"""Talk to nodes one by one and wait for what they say: the questions of people.

Tasks ask all nodes at once and wait for none (``core.fanout``). Whoever looks after
nodes has time and wants to hear each of them out: here every node has a connection
and a thread of its own, and that it cannot be reached is a fact like any other.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from celery_redlock.core.link import open_link
from celery_redlock.core.wire import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from celery_redlock.core.address import NodeAddress

__all__ = ["NodeSilent", "Probe", "each_node"]

_READ_SIZE = 1 << 16
T = TypeVar("T")


class NodeSilent(Exception):  # noqa: N818  (an outcome, that ends in a table)
    """A node could not be reached, or stopped talking. The text says how."""


class Probe:
    """A conversation with one node: a context manager.

    Args:
        address: Where it is.
        timeout: Seconds to connect, and to wait for the answers to a batch.

    Attributes:
        label: The node's name.
        facts: What the server said of itself.
        database: The number of the database that the node is.
        user: Who we are there; ``""`` for Redis's default user.

    Raises:
        NodeSilent: It cannot be connected to.
    """

    def __init__(self, address: NodeAddress, timeout: float) -> None:
        link = open_link(address, timeout)
        if isinstance(link, str):
            raise NodeSilent(link)
        link.sock.settimeout(timeout)
        self.label = address.name
        self.facts = link.facts
        self.database: int = link.connection.db
        self.user: str = link.connection.username or ""
        self._link = link
        self._timeout = timeout

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands in one go and return their replies, in order.

        An error is a reply too: an ``ErrorReply``.

        Raises:
            NodeSilent: Not all replies came in time.
        """
        packed = b"".join(pack(*command) for command in commands)
        return self.converse(packed, len(commands))

    def converse(self, packed: bytes, replies: int) -> list[Any]:
        """Send commands that are packed already and wait for so many replies.

        Raises:
            NodeSilent: Not all of them came in time.
        """
        link = self._link
        heard: list[Any] = []
        try:
            link.sock.sendall(packed)
            while len(heard) < replies:
                reply = link.reader.gets()
                if reply is not False:
                    heard.append(reply)
                elif data := link.sock.recv(_READ_SIZE):
                    link.reader.feed(data)
                else:
                    raise NodeSilent("closed the connection")
        except TimeoutError:
            raise NodeSilent(f"did not answer within {self._timeout:g} s") from None
        except OSError as error:
            raise NodeSilent(f"lost its connection: {error}") from None
        return heard

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()


def each_node(
    addresses: Sequence[NodeAddress], look: Callable[[Probe], T], *, timeout: float
) -> list[T | NodeSilent]:
    """Look at all nodes at the same time.

    Args:
        addresses: The nodes.
        look: Called for each that can be reached, in a thread of its own.
        timeout: Seconds, as of ``Probe``.

    Returns:
        What it returned, or why there was nothing to look at, in node order.
    """
    seen: list[Any] = [None] * len(addresses)

    def visit(index: int) -> None:
        try:
            with Probe(addresses[index], timeout) as probe:
                seen[index] = look(probe)
        except Exception as error:  # noqa: BLE001  (raised again below)
            seen[index] = error

    # Daemons, so that Ctrl-C need not wait for a node that hangs.
    threads = [
        threading.Thread(target=visit, args=(index,), daemon=True)
        for index in range(len(addresses))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in seen:
        if isinstance(outcome, Exception) and not isinstance(outcome, NodeSilent):
            raise outcome
    return seen
