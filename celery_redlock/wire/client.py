"""A client for operators' commands: one blocking conversation with each node.

Tasks use ``broadcast``: it asks all nodes at once and stops waiting when the verdict is
certain. An operator's command wants the answer of every node instead. Here each node
has a connection and a thread of its own, and a node that cannot be reached is a result
like any other.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.glob import escaped, head_of, matcher
from celery_redlock.basics.resp import ErrorReply, pack, refusal_of
from celery_redlock.wire.connection import NO_ANSWER, ConnectionLost, open_connection
from celery_redlock.wire.store_connection import StoreConnection, open_store

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from celery_redlock.wire.connection import Connection
    from celery_redlock.wire.url import NodeAddress


BATCH = 250  # keys or commands for a node in one go
_PAUSE = 0.001  # seconds between two batches: a busy node serves others meanwhile
_READ_SIZE = 1 << 16
T = TypeVar("T")


class NodeUnreachable(Exception):  # noqa: N818  (a result, shown in a table)
    """A node was not reached, or refused. The text reads on after the node's name."""


class NodeClient:
    """A connection to one node that waits for each answer: a context manager.

    Args:
        address: The node.
        timeout: Seconds to connect, and to wait for the answers to a batch.

    Attributes:
        label: The node's name.
        is_store: Whether it is a database, an etcd or a ZooKeeper.
        facts: What the server said about itself.
        database: The number of the database.
        user: The name of our user on the node; ``""`` for Redis's default user.

    Raises:
        NodeUnreachable: The connection failed.
    """

    def __init__(self, address: NodeAddress, timeout: float) -> None:
        opened = (
            open_store(address, timeout)
            if address.is_store
            else open_connection(address, timeout, load_scripts=False)
        )
        if isinstance(opened, str):
            raise NodeUnreachable(opened)
        self.label, self.is_store = address.name, address.is_store
        self.facts = opened.facts
        self.database, self.user = 0, ""
        if not isinstance(opened, StoreConnection):
            self.database = opened.connection.db
            self.user = opened.connection.username or ""
        self._connection = opened
        self._timeout = timeout

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands together and return their replies in order.

        An error is a reply too: an ``ErrorReply``.

        Raises:
            NodeUnreachable: Not all replies came in time.
        """
        connection = self._connection
        if not isinstance(connection, StoreConnection):
            packed = b"".join(pack(tuple(command)) for command in commands)
            return self._ask_packed(connection, packed, len(commands))
        try:
            return connection.ask(commands)
        except ConnectionLost as error:
            raise NodeUnreachable(str(error)) from None

    def carry_out(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands as ``ask`` does, where an error is no answer.

        Raises:
            NodeUnreachable: The node refused a command, or not all replies came in
                time. It may have carried out others.
        """
        return _without_errors(self.ask(*commands))

    def _ask_packed(
        self, connection: Connection, packed: bytes, replies: int
    ) -> list[Any]:
        """Send commands that are packed already, and return this many replies."""
        received: list[Any] = []
        give_up_at = SYSTEM_CLOCK.monotonic() + self._timeout
        connection.sock.settimeout(self._timeout)
        try:
            connection.sock.sendall(packed)
            while len(received) < replies:
                reply = connection.reader.gets()
                if reply is not False:
                    received.append(reply)
                    continue
                _set_deadline(connection.sock, give_up_at)
                if data := connection.sock.recv(_READ_SIZE):
                    connection.reader.feed(data)
                else:
                    raise NodeUnreachable("closed the connection")
        except TimeoutError:
            late = NO_ANSWER.format(timeout=self._timeout)
            raise NodeUnreachable(late) from None
        except OSError as error:
            raise NodeUnreachable(f"lost its connection: {error}") from None
        except ErrorReply as error:
            raise NodeUnreachable(
                f"does not speak the protocol of Redis: {error}"
            ) from None
        return received

    def scan(
        self, pattern: str, *commands: str
    ) -> Iterator[tuple[list[bytes], list[Any]]]:
        """Yield the node's keys in batches, with the replies to commands about each.

        SCAN in small steps lets the node serve others in between. A key that is changed
        meanwhile may be yielded twice.

        Args:
            pattern: Which keys; see ``basics.glob``. A node is only told how they
                begin.
            commands: Commands whose only argument is the key. Replies come key by key.

        Raises:
            NodeUnreachable: The node stopped answering, or denies a command or a key.
        """
        cursor, whole = b"0", pattern.encode(errors="replace")
        matches, head = matcher(whole), escaped(head_of(whole)) + b"*"
        while True:
            scan = ("SCAN", cursor, "MATCH", head, "COUNT", BATCH)
            ((cursor, names),) = self.carry_out(scan)
            keys = [name for name in names if matches(name)]
            yield from self.look_up(keys, *commands)  # a store replies with all keys
            if cursor == b"0":
                return
            SYSTEM_CLOCK.sleep(_PAUSE)

    def look_up(
        self, keys: list[bytes], *commands: str
    ) -> Iterator[tuple[list[bytes], list[Any]]]:
        """Yield these keys in batches, as ``scan`` does; a node may lack them."""
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            yield part, _without_errors(self._ask_of_each(part, commands))

    def _ask_of_each(self, keys: list[bytes], commands: Sequence[str]) -> list[Any]:
        """Send these commands about each key, and return the replies key by key."""
        connection = self._connection
        if isinstance(connection, StoreConnection):
            return self.ask(*[(c, key) for key in keys for c in commands])
        # For thousands of keys, everything but the key is packed once.
        heads = [b"*2\r\n$%d\r\n%b\r\n" % (len(c), c.encode()) for c in commands]
        heads = [head + b"$%d\r\n%b\r\n" for head in heads]
        packed = b"".join([head % (len(key), key) for key in keys for head in heads])
        return self._ask_packed(connection, packed, len(keys) * len(commands))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _set_deadline(sock: socket.socket, give_up_at: float) -> None:
    """Let a socket wait no longer, though each part of an answer may come in time."""
    left = give_up_at - SYSTEM_CLOCK.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def _without_errors(replies: list[Any]) -> list[Any]:
    """Return the replies, if none is an error.

    An error about the type of a key is an answer: another program wrote that key.

    Raises:
        NodeUnreachable: One is an error.
    """
    for reply in replies:
        if isinstance(reply, ErrorReply) and not str(reply).startswith("WRONGTYPE"):
            raise NodeUnreachable(refusal_of(str(reply)))
    return replies


@dataclass(frozen=True, slots=True)
class PerNode(Generic[T]):
    """The result of a function for each node.

    Attributes:
        results: What the function returned, by the node's name, in node order.
        unseen: Why the other nodes could not be reached or read, by name.
    """

    results: dict[str, T]
    unseen: dict[str, str]


def each_node(
    addresses: Sequence[NodeAddress],
    visit: Callable[[NodeClient], T],
    *,
    timeout: float,
) -> PerNode[T]:
    """Call a function for all nodes at the same time.

    Args:
        addresses: The nodes.
        visit: Called for each node that can be reached, in a thread of its own.
        timeout: Seconds, as for ``NodeClient``.
    """
    outcomes: list[Any] = [None] * len(addresses)

    def run(index: int) -> None:
        try:
            with NodeClient(addresses[index], timeout) as client:
                outcomes[index] = visit(client)
        except Exception as error:  # noqa: BLE001  (raised again below)
            outcomes[index] = error

    # Daemon threads, so that Ctrl-C need not wait for a node that hangs.
    threads = [
        threading.Thread(target=run, args=(index,), daemon=True)
        for index in range(len(addresses))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: PerNode[T] = PerNode({}, {})
    for address, outcome in zip(addresses, outcomes, strict=True):
        if isinstance(outcome, NodeUnreachable):
            found.unseen[address.name] = str(outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            found.results[address.name] = outcome
    return found
