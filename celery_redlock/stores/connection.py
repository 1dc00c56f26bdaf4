"""redis-py's connection to a store, and the thread of this process that serves it.

::

    Node, NodeClient, WakeupListener ◄── RESP ──► thread ◄── driver ──► the store
                                      socket pair

So a store is used, given up and connected to again as a Redis node is. What is sent
together runs in one transaction. The thread ends when either side closes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import selectors
import socket
import threading
from collections.abc import Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import ErrorReply, new_reader
from celery_redlock.basics.selector import new_selector
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis.connection import AbstractConnection

    from celery_redlock.basics.secret import SecretUrl
    from celery_redlock.stores.commands import Command

__all__ = [
    "GRANT",
    "STORES",
    "Server",
    "Store",
    "StoreError",
    "Waits",
    "as_url",
    "connection_to",
    "finish_requests",
    "is_store",
    "readable",
    "store_of",
]

# Scheme -> module and class. The name of the extra is that of the module.
STORES = {
    "postgresql": "celery_redlock.stores.postgresql:PostgreSQL",
    "postgres": "celery_redlock.stores.postgresql:PostgreSQL",
    "etcd": "celery_redlock.stores.etcd:Etcd",
    "etcds": "celery_redlock.stores.etcd:Etcd",
    "zookeeper": "celery_redlock.stores.zookeeper:ZooKeeper",
}

# "django://default", and "host=db dbname=app", both of PostgreSQL alone.
_OTHER_NOTATION = re.compile(r"django://|\s*\w+\s*=")
_READ_SIZE = 1 << 16
_MOST = 2**63 - 1  # of an integer reply
_LAST_REQUESTS, _POLL_EVERY = 1.0, 0.002  # seconds


T = TypeVar("T")
Waits: TypeAlias = Generator[int, None, T]
"""What a store does without blocking. Where it must wait it yields for which events of
its socket."""

# Ends the reason of a `StoreError` where our user lacks a permission.
GRANT = "grant what `celery -A proj redlock doctor --acl` prints"


class StoreError(Exception):
    """The store cannot be used. The text reads on after the node's name.

    Where the remedy is another one than to start the server, it follows a semicolon.
    """


class Store(Protocol):
    """One connection to a store. Used by one thread, but for ``interrupt``."""

    server_socket: int | None
    """The number of a socket that can be read when its server has closed it."""

    grants: str
    """How to give ``{user}`` the permissions that it needs, for operators."""

    empties: str
    """How to delete all our keys, for operators."""

    @classmethod
    def name_of(cls, url: str) -> str:
        """Return the name of the store at this URL, without credentials.

        Raises:
            ValueError: The URL cannot be used. The text says why, without it.
        """

    @classmethod
    def hosts_of(cls, url: str) -> list[str]:
        """Return the hosts of all its servers; none for a unix socket."""

    @classmethod
    def prepare(cls, url: str, timeout: float) -> None:
        """Make what the store needs for our keys, unless it is there.

        Raises:
            StoreError: The store cannot be used.
        """

    def __init__(self, url: str, timeout: float) -> None:
        """Connect.

        Raises:
            StoreError: The store cannot be used.
        """

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Carry commands out in one transaction, and return the replies.

        Raises:
            StoreError: The connection is lost.
        """

    def listen(self, channel: bytes, until_closed: socket.socket) -> Iterator[bytes]:
        """Yield the messages on a channel, until the socket can be read.

        Yields ``b""`` first, as soon as it listens.

        Raises:
            StoreError: The connection is lost.
        """

    def interrupt(self) -> None:
        """End what another thread waits for. May be called twice."""

    def close(self) -> None:
        """Close the connection."""


def as_url(spec: str) -> str:
    """Return the URL of a store that is written in another notation; others as given.

    Raises:
        ConfigurationError: Its driver is not installed.
        ValueError: It cannot be read, or leads nowhere. The text says why, without it.
    """
    if not _OTHER_NOTATION.match(spec):
        return spec
    store_of("postgresql://")  # or its driver is not installed
    from celery_redlock.stores.postgresql_url import url_of  # noqa: PLC0415

    return url_of(spec)


def readable(
    *files: Any, timeout: float | None = None, events: int = selectors.EVENT_READ
) -> set[Any]:
    """Return the sockets that are readable, after a wait with a time limit.

    Not by `select.select`, which knows no file of a number above 1,023.

    Args:
        files: The sockets.
        timeout: Seconds; None for a wait without an end.
        events: What to wait for instead.
    """
    with new_selector() as selector:
        for file in files:
            selector.register(file, events)
        return {key.fileobj for key, _ in selector.select(timeout)}


def is_store(url: SecretUrl | str) -> bool:
    """Tell whether a URL is that of a store, and not of a Redis node."""
    return str(url).partition("://")[0] in STORES


def store_of(url: SecretUrl | str) -> type[Store]:
    """Return the class of the store at this URL.

    Raises:
        ConfigurationError: Its driver is not installed.
    """
    scheme = str(url).partition("://")[0]
    module, _, name = STORES[scheme].partition(":")
    try:
        found: type[Store] = getattr(import_module(module), name)
    except ImportError as error:
        extra = module.rpartition(".")[2]
        raise ConfigurationError(
            f"A node at {scheme}:// needs a driver that cannot be "
            f"imported ({error}). Install it: pip install 'celery-redlock[{extra}]'"
        ) from error
    return found


def connection_to(url: SecretUrl, timeout: float) -> AbstractConnection:
    """Build redis-py's connection to a store; it is not opened."""
    import redis  # noqa: F401, PLC0415  (60 ms; see `NodeAddress.connection`)
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.connection import AbstractConnection  # noqa: PLC0415
    from redis.exceptions import ConnectionError  # noqa: A004, PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    class StoreConnection(AbstractConnection):
        """A connection whose other end is served in this process."""

        host = ""
        _server: Server | None = None

        def __init__(self) -> None:
            super().__init__(
                socket_timeout=timeout, protocol=2, retry=Retry(NoBackoff(), 0)
            )

        def repr_pieces(self) -> list[tuple[str, Any]]:
            """Return nothing: the URL may hold a password."""
            return []

        def _host_error(self) -> str:
            return ""

        def _connect(self) -> socket.socket:
            try:
                store = store_of(url)(url.reveal(), timeout)
            except StoreError as error:
                refused = ConnectionError(str(error))
                refused.told = str(error)  # type: ignore[attr-defined]
                raise refused from None
            ours, theirs = socket.socketpair()
            self._server = Server(store, theirs)
            ours.settimeout(timeout)
            return ours

        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            """Close both ends."""
            super().disconnect(*args, **kwargs)  # type: ignore[no-untyped-call]
            server, self._server = self._server, None
            # A forked child has copies of both sockets: to end one would end the
            # parent's. redis-py calls this when it collects the copy, too.
            if server and self.pid == os.getpid():
                server.stop()

    return StoreConnection()


def finish_requests() -> None:
    """Wait until the stores have carried out what was sent, for a second at most.

    A process that ends takes its threads with it. A Redis node reads what was sent to
    it before; a store would never see the last requests, which wait for no reply: a
    claim that is released, a beat that stands by no longer.
    """
    give_up_at = SYSTEM_CLOCK.monotonic() + _LAST_REQUESTS
    for server in list(_servers):
        while server.has_requests() and SYSTEM_CLOCK.monotonic() < give_up_at:
            SYSTEM_CLOCK.sleep(_POLL_EVERY)


_servers: set[Server] = set()
atexit.register(finish_requests)


class Server:
    """The thread that serves one connection.

    Args:
        store: A connection to the store, for this thread alone.
        sock: Where the commands come from.
    """

    def __init__(self, store: Store, sock: socket.socket) -> None:
        self._store = store
        self._sock = sock
        self._pid = os.getpid()
        self._is_busy = False
        _servers.add(self)
        threading.Thread(target=self._run, name="redlock-store", daemon=True).start()

    def stop(self) -> None:
        """Have the thread end soon, also if the store does not answer."""
        self._store.interrupt()

    def has_requests(self) -> bool:
        """Tell whether this process has sent what the thread has not carried out."""
        if self._pid != os.getpid():  # the thread is in the parent
            return False
        try:
            return bool(readable(self._sock, timeout=0)) or self._is_busy
        except (OSError, ValueError):  # it is closed
            return False

    def _run(self) -> None:
        try:
            self._serve()
        except (StoreError, OSError):
            pass  # the other end sees that its connection is closed
        finally:
            _servers.discard(self)
            self._is_busy = False
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()
            self._store.close()

    def _serve(self) -> None:
        reader = new_reader()
        while self._is_asked() and (data := self._receive()):
            reader.feed(data)
            commands: list[Command] = []
            while (command := reader.gets()) is not False:
                commands.append(command)
            channel = b""
            if commands and commands[-1][0].upper() == b"SUBSCRIBE":
                channel = commands.pop()[1]
            if commands:
                self._answer(commands)
            self._is_busy = False
            if channel:
                self._subscribe(channel)
                return

    def _is_asked(self) -> bool:
        """Wait for a command. Tell whether the store has not ended meanwhile.

        So the other end notices that before it sends the next command, as with Redis.
        """
        server = self._store.server_socket
        watched = [self._sock] if server is None else [self._sock, server]
        return server not in readable(*watched)

    def _receive(self) -> bytes:
        self._is_busy = True  # before there is nothing to read any more
        return self._sock.recv(_READ_SIZE)

    def _answer(self, commands: Sequence[Command]) -> None:
        try:
            replies = self._store.run(commands)
        except StoreError as error:  # the other end tells it, and connects again
            reply = _encoded(ErrorReply(f"ERR {error}"))
            self._sock.sendall(reply * len(commands))
            raise
        self._sock.sendall(b"".join(map(_encoded, replies)))

    def _subscribe(self, channel: bytes) -> None:
        for message in self._store.listen(channel, self._sock):
            if message:
                reply: list[Any] = [b"message", channel, message]
            else:
                reply = [b"subscribe", channel, 1]
            self._sock.sendall(_encoded(reply))


def _encoded(reply: Any) -> bytes:
    """Return the bytes of a reply, in RESP2."""
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % max(-_MOST - 1, min(_MOST, reply))
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, ErrorReply):
        return b"-%b\r\n" % " ".join(str(reply).split()).encode()
    if isinstance(reply, str):
        return b"+%b\r\n" % reply.encode()
    return b"*%d\r\n" % len(reply) + b"".join(map(_encoded, reply))
