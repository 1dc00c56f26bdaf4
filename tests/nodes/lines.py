"""Lines to nodes that tests can hold, cut, or lead to another node."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from celery_redlock.devnodes import DevNodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_redlock.devnodes import DevNode

__all__ = ["Wire", "wires"]


class Wire:
    """A way to a node that can be held, cut, or lead to another node.

    Attributes:
        url: Where clients connect to.
        target: The node that they get through to.
        longest_burst: The most bytes that came at once, in either direction.
    """

    def __init__(self, target: DevNode) -> None:
        self.target = target
        self.longest_burst = 0
        self._cut_at: bytes | None = None
        self._breaks = 0
        self._commands = threading.Event()
        self._replies = threading.Event()
        self._is_cut = threading.Event()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.resume()

    def hold(self) -> None:
        """Let nothing pass, and lose nothing: a line that is very slow."""
        self._commands.clear()
        self._replies.clear()

    def hold_replies(self) -> None:
        """Let commands pass and no replies."""
        self._replies.clear()

    def resume(self) -> None:
        """Let pass what was held, and all that follows."""
        self._commands.set()
        self._replies.set()

    def cut(self) -> None:
        """End all connections with all that was held, and make no new ones."""
        self._is_cut.set()
        self._break()
        self.resume()

    def mend(self) -> None:
        """Let connections be made again."""
        self._is_cut.clear()

    def cut_when(self, text: bytes | None) -> Callable[[], int]:
        """End each connection that would carry these bytes to the node.

        Returns:
            What tells how often that has happened since.
        """
        self._cut_at = text
        before = self._breaks
        return lambda: self._breaks - before

    def close(self) -> None:
        """End it."""
        self._is_cut.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()

    def _break(self) -> None:
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._is_cut.is_set():
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self.target.port))
            except OSError:
                near.close()
                continue
            self._ends += [near, far]
            if self._is_cut.is_set():
                self._break()
            for way in ((near, far, self._commands), (far, near, self._replies)):
                thread = threading.Thread(target=self._pump, args=way, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, gate: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                gate.wait()
                self.longest_burst = max(self.longest_burst, len(data))
                fatal = self._cut_at
                if fatal and gate is self._commands and fatal in data:
                    self._breaks += 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def wires(nodes: DevNodes | Sequence[DevNode]) -> Iterator[list[Wire]]:
    """Give a line to each node."""
    targets = nodes.nodes if isinstance(nodes, DevNodes) else nodes
    made = [Wire(node) for node in targets]
    try:
        yield made
    finally:
        for wire in made:
            wire.close()
