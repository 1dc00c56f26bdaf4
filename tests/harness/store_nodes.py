"""A store in place of lock nodes: the same tests, with the store that a variable names.

``REDLOCK_TEST_STORE=postgresql pytest tests/worker`` runs the scenarios of workers on
PostgreSQL. Tests read the store as a plain Redis client reads a node: `Front` serves
the store's connection on a port.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import redis

from celery_redlock.basics.resp import ErrorReply, new_reader
from celery_redlock.devnodes import DevStore, StoreNode
from celery_redlock.errors import RedlockError
from celery_redlock.stores.connection import StoreError, store_of
from tests.conftest import missing
from tests.harness.servers import PostgreSQL, find_postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.stores.connection import Store

Kind = TypeVar("Kind", bound=PostgreSQL)

STORE = os.environ.get("REDLOCK_TEST_STORE", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is about several nodes, where one store takes their place."""
    skip = pytest.mark.skip("it is about several Redis nodes")
    for item in items if STORE else ():
        if item.get_closest_marker("several_nodes"):
            item.add_marker(skip)


def store_servers(kind: str, **options: Any) -> DevStore:
    """Return the servers of a store, not started; skip the test if there are none."""
    try:
        return DevStore(kind, **options)
    except RedlockError as error:
        missing(str(error))


@contextlib.contextmanager
def postgresql(kind: type[Kind]) -> Iterator[Kind]:
    """Run a PostgreSQL; without its programs, skip here and fail in CI."""
    programs = find_postgresql()
    if programs is None:
        missing("PostgreSQL is not installed: on Debian, apt-get install postgresql")
    server = kind(programs)
    try:
        server.start()
        yield server
    finally:
        server.remove()


class Front:
    """A port that speaks Redis for a store."""

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with (
            sock,
            contextlib.suppress(StoreError, OSError),
        ):  # the client
            store = store_of(self._store_url)(self._store_url, 5.0)
            with closing(store):
                _answer(store, sock)

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()


def _answer(store: Store, sock: socket.socket) -> None:
    """Carry out what comes from a socket; what comes together, in one transaction."""
    reader = new_reader()
    while data := sock.recv(1 << 16):
        reader.feed(data)
        commands: list[list[bytes]] = []
        while (command := reader.gets()) is not False:
            commands.append(command)
        if commands and commands[-1][0].upper() == b"SUBSCRIBE":
            channel = commands[-1][1]
            for message in store.listen(channel, sock):
                words = [b"message", channel, message]
                found = words if message else [b"subscribe", channel, 1]
                sock.sendall(_encoded(found))
            return
        if commands == [[b"FLUSHALL"]]:
            ((_, names),) = store.run([[b"SCAN", b"0"]])
            store.run([[b"DEL", name] for name in names])
            sock.sendall(b"+OK\r\n")
        elif commands:
            sock.sendall(b"".join(map(_encoded, store.run(commands))))


def _encoded(reply: Any) -> bytes:
    """Return the bytes of a reply, in RESP2."""
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, ErrorReply):
        return b"-%b\r\n" % " ".join(str(reply).split()).encode()
    if isinstance(reply, str):
        return b"+%b\r\n" % reply.encode()
    return b"*%d\r\n" % len(reply) + b"".join(map(_encoded, reply))


class _ReadableNode:
    """A server of the store, which takes Redis's commands as a ``DevNode`` does.

    It has the other methods of its ``server``, in whose place another one may come.
    """

    _front: Front | None = None

    def __init__(self, server: StoreNode) -> None:
        self.server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    @property
    def front(self) -> Front:
        """The port that speaks Redis."""
        if self._front is None:
            self._front = Front(self.url)
        return self._front

    def command(self, *words: Any) -> Any:
        """Send one command and return the reply."""
        options: dict[str, Any] = {"decode_responses": True, "protocol": 2}
        try:
            with closing(redis.Redis.from_url(self.front.url, **options)) as client:
                return client.execute_command(*words)
        except redis.RedisError as error:
            raise RedlockError(f"The store refused {words[0]!r}: {error}") from error

    def restart(self, *, keep_memory: bool = True) -> None:
        """Start it again, with what it had."""
        del keep_memory
        self.server.restart()

    def stop(self) -> None:
        """End the server, and the port."""
        if self._front is not None:
            self._front.close()
        self.server.stop()


class StoreNodes(DevStore):
    """A store that tests read as they read Redis nodes."""

    def __init__(self, kind: str = STORE or "postgresql", **options: Any) -> None:
        try:
            super().__init__(kind, **options)
        except RedlockError as error:
            missing(str(error))
        self.nodes: list[Any] = [_ReadableNode(node) for node in self.nodes]

    @property
    def fronts(self) -> list[str]:
        """The URLs for a plain Redis client."""
        return [node.front.url for node in self.nodes]
