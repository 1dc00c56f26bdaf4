"""A node on a real socket, that is as slow or as mad as a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from celery_redlock.core.scripts import ALL_SCRIPTS
from celery_redlock.core.wire import ErrorReply, PythonReader
from celery_redlock.testing import MemoryNode
from tests.unit.core.wires import encoded

__all__ = ["SOON", "TinyServer", "stored"]

BY_SHA = {script.sha.encode(): script for script in ALL_SCRIPTS}
BY_SOURCE = {script.source.encode(): script for script in ALL_SCRIPTS}
SOON = 10.0  # seconds


class TinyServer:
    """One node that listens on loopback.

    Attributes:
        node: What it knows.
        reads: While it is clear, nothing is read from connections.
        speaks: While it is clear, nothing is answered.
        greets: While it is clear, nothing is said to who connects.
        piece: Of how many bytes each packet is.
        greeting: What is sent to who connects, before anything is asked.
        connections: How many there were.
    """

    def __init__(self) -> None:
        self.node = MemoryNode()
        self.reads, self.speaks = threading.Event(), threading.Event()
        self.greets = threading.Event()
        for gate in (self.reads, self.speaks, self.greets):
            gate.set()
        self.piece = 1 << 20
        self.greeting = b""
        self.connections = 0
        self._turn = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def hang_up(self) -> None:
        """Close all connections."""
        while self._open:
            sock = self._open.pop()
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End it, and what it has started."""
        for gate in (self.reads, self.speaks, self.greets):
            gate.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(SOON)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        reader = PythonReader()
        with contextlib.suppress(OSError), sock:
            assert self.greets.wait(SOON)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.greeting:
                sock.sendall(self.greeting)
            while True:
                self.reads.wait(SOON)
                data = sock.recv(65536)
                if not data:
                    return
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    answer = encoded(self._do(words))
                    self.speaks.wait(SOON)
                    for start in range(0, len(answer), self.piece):
                        sock.sendall(answer[start : start + self.piece])

    def _do(self, words: list[bytes]) -> Any:
        name = words[0].upper()
        if name == b"INFO":
            return (
                f"redis_mode:standalone\r\nrole:master\r\nrun_id:{self.node.run_id}\r\n"
            ).encode()
        if name == b"SCRIPT":
            return b"sha"
        if name in (b"EVAL", b"EVALSHA"):
            script = BY_SHA.get(words[1]) or BY_SOURCE.get(words[1])
            assert script is not None
            count = int(words[2])
            with self._turn:
                return self.node.execute(
                    script, words[3 : 3 + count], words[3 + count :]
                )
        return (
            ("OK",) if name in (b"CLIENT", b"SELECT") else ErrorReply(f"ERR {name!r}")
        )


def stored(servers: list[TinyServer], key: str = "k") -> list[bool]:
    """Return on which servers there is a lock."""
    name = f"redlock:lock:{key}".encode()
    return [server.node.redis.get(name) is not None for server in servers]
