"""Servers that tests use one after another: three to start cost a tenth of a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil

from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from celery_redlock.devnodes.deployment import initialize
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from typing_extensions import Self

# For servers that wait most of the time, many at once: they look for what has expired
# once a second, not ten times. A command finds what has expired by itself.
IDLE = ServerOptions(config={"hz": "1"})

_MAX_TTL = 60.0  # seconds; the usual one of `DevNodes`


class KeptNodes:
    """Servers in their usual configuration, without a trace of the tests before.

    Servers that a test has killed, paused, restarted or configured are used by no other
    test: a process, its configuration and its users have to be the same.
    """

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._free: list[DevNodes] = []
        self._as_started: dict[DevNode, Any] = {}

    def take(self, count: int) -> DevNodes:
        """Return running servers, which no other test uses before `give_back`."""
        for nodes in self._free:
            if len(nodes.nodes) == count:
                self._free.remove(nodes)
                return nodes
        nodes = DevNodes(count, binary=self._binary, max_ttl=_MAX_TTL, options=IDLE)
        nodes.start()
        for node in nodes.nodes:
            self._as_started[node] = _what_it_is(node)
        return nodes

    def give_back(self, nodes: DevNodes) -> None:
        """Keep these servers for other tests, or stop them where a test changed one."""
        try:
            is_as_started = all(
                _what_it_is(node) == self._as_started[node] for node in nodes.nodes
            )
            if is_as_started:
                for node in nodes.nodes:
                    _forget_all(node)
                initialize(nodes.urls, _MAX_TTL)
                self._free.append(nodes)
                return
        except RedlockError:
            pass  # one of them is down
        nodes.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for nodes in self._free:
            nodes.stop()


def _what_it_is(node: DevNode) -> Any:
    """Return what a test may have changed in a server, besides its data.

    Raises:
        RedlockError: It does not run, or is paused.
    """
    if psutil.Process(node.pid).status() == psutil.STATUS_STOPPED:
        raise RedlockError(f"{node!r} is paused.")
    return node.pid, node.command("CONFIG", "GET", "*"), node.command("ACL", "LIST")


def _forget_all(node: DevNode) -> None:
    for kind in ("normal", "pubsub"):
        node.command("CLIENT", "KILL", "TYPE", kind)
    node.command("CLIENT", "UNPAUSE")
    node.command("FLUSHALL")
    node.command("SCRIPT", "FLUSH")
    node.command("CONFIG", "RESETSTAT")
    node.command("SLOWLOG", "RESET")
