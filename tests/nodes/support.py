"""What tests on real servers share: clients, a look at the nodes, lines to break."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.redlock import Redlock
from celery_redlock.devnodes import DevNode, DevNodes
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_redlock.core.ballot import Ballot

__all__ = [
    "PATIENT",
    "Wire",
    "client",
    "counters",
    "kinds",
    "locks",
    "run_python",
    "until",
    "until_nothing_is_left",
    "values",
    "wires",
]

PATIENT = 0.2  # seconds for a node to answer, also on a machine that is busy


@contextlib.contextmanager
def client(nodes: DevNodes | Sequence[Any], **options: Any) -> Iterator[Redlock]:
    """Give a service on these nodes that is closed afterwards."""
    urls = nodes.urls if isinstance(nodes, DevNodes) else nodes
    redlock = Redlock(urls, **{"node_timeout": PATIENT, **options})
    try:
        yield redlock
    finally:
        redlock.close()


# -- Look --------------------------------------------------------------------------


def _nodes(nodes: DevNodes | Sequence[DevNode]) -> Sequence[DevNode]:
    all_nodes = nodes.nodes if isinstance(nodes, DevNodes) else nodes
    return [node for node in all_nodes if node.is_running]


def values(nodes: DevNodes | Sequence[DevNode], key: str) -> list[str | None]:
    """Return the value of this lock on each node that runs."""
    return [node.command("GET", f"redlock:lock:{key}") for node in _nodes(nodes)]


def locks(nodes: DevNodes | Sequence[DevNode], key: str = "") -> list[str]:
    """Return the locks on the nodes that run whose key contains this text."""
    pattern = f"*:lock:*{key}*"
    return [name for node in _nodes(nodes) for name in node.command("KEYS", pattern)]


def until_nothing_is_left(
    nodes: DevNodes | Sequence[DevNode], key: str = "", seconds: float = 5.0
) -> None:
    """Wait until no node has a lock whose key contains this text."""
    until(lambda: not locks(nodes, key), seconds, what=f"no lock left of {key!r}")


def counters(node: DevNode) -> dict[str, int]:
    """Return the fence counters of a node."""
    found = node.command("HGETALL", "redlock:fence")
    return {field: int(counter) for field, counter in found.items()}


def kinds(ballot: Ballot | None) -> list[VoteKind]:
    """Return what each node said; one that did not answer in time was silent."""
    assert ballot is not None
    return [vote.kind if vote else VoteKind.SILENT for vote in ballot.votes]


# -- Programs ----------------------------------------------------------------------


def run_python(source: str, *args: str, timeout: float = 60.0) -> list[str]:
    """Run a program in a process of its own and return the lines it printed.

    Raises:
        AssertionError: It failed, or did not end in time.
    """
    process = subprocess.Popen(  # noqa: S603  (a program of the tests)
        [sys.executable, "-c", source, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"it hung after\n{output}\n{errors}") from None
    assert process.returncode == 0, f"{output}\n{errors}"
    return output.splitlines()


# -- Lines -------------------------------------------------------------------------


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
def wires(nodes: DevNodes) -> Iterator[list[Wire]]:
    """Give a line to each node."""
    made = [Wire(node) for node in nodes.nodes]
    try:
        yield made
    finally:
        for wire in made:
            wire.close()
