"""Three nodes that can be broken, fake or real, behind the same few methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from celery_redlock.core.redlock import Redlock
from celery_redlock.testing import FakeClock, FakeNodes
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


PATIENT = 0.3  # seconds for a node to answer, also on a machine that is busy


class Deployment(ABC):
    """Three nodes that can be broken."""

    @abstractmethod
    def redlock(self, **options: Any) -> Redlock:
        """Return the service of another process on these nodes."""

    @abstractmethod
    def freeze(self, *indexes: int) -> None:
        """Stop servers."""

    @abstractmethod
    def thaw(self, *indexes: int) -> None:
        """Let servers go on."""

    @abstractmethod
    def kill(self, index: int) -> None:
        """End a server."""

    @abstractmethod
    def restart(self, index: int, *, keep_memory: bool = False) -> None:
        """End a server and start it again."""

    @abstractmethod
    def forget(self, index: int, key: str) -> None:
        """Delete a lock on a server, as an operator does."""

    @abstractmethod
    def holders(self, key: str) -> list[str]:
        """Return the token that each node names; "" for none, or for a dead node."""

    @abstractmethod
    def wait_until(self, event: Callable[[], Any]) -> None:
        """Let time pass until this is so."""


class Fakes(Deployment):
    """In memory."""

    def __init__(self) -> None:
        self._nodes = FakeNodes(3, node_timeout=PATIENT)
        self._nodes.redlock()
        self._clients: list[FakeNodes] = []

    def redlock(self, **options: Any) -> Redlock:
        """Return the service of another process on these nodes."""
        self._clients.append(self._nodes.another_client())
        return self._clients[-1].redlock(**options)

    def freeze(self, *indexes: int) -> None:
        """Stop servers."""
        self._nodes.freeze(*indexes)

    def thaw(self, *indexes: int) -> None:
        """Let servers go on."""
        self._nodes.thaw(*indexes)

    def kill(self, index: int) -> None:
        """End a server."""
        self._nodes.nodes[index].kill()

    def restart(self, index: int, *, keep_memory: bool = False) -> None:
        """End a server and start it again."""
        self._nodes.nodes[index].restart(keep_memory=keep_memory)

    def forget(self, index: int, key: str) -> None:
        """Delete a lock on a server, as an operator does."""
        self._nodes.nodes[index].memory.redis.delete(f"redlock:lock:{key}".encode())

    def holders(self, key: str) -> list[str]:
        """Return the token that each node names; "" for none, or for a dead node."""
        for client in self._clients:
            client.drain(client.clock.monotonic())
        found = []
        for node in self._nodes.nodes:
            node.memory.redis.look_at_clock()
            value = node.memory.redis.get(f"redlock:lock:{key}".encode())
            found.append((value or b"").decode().partition("\n")[0])
        return found

    def wait_until(self, event: Callable[[], Any]) -> None:
        """Let time pass until this is so."""
        clock = self._nodes.clock
        assert isinstance(clock, FakeClock)
        deadline = clock.monotonic() + 10.0
        while not event():
            assert clock.monotonic() < deadline
            clock.sleep(0.01)


class Servers(Deployment):
    """Real ones."""

    def __init__(self, nodes: DevNodes) -> None:
        self._nodes = nodes
        self._services: list[Redlock] = []

    def redlock(self, **options: Any) -> Redlock:
        """Return the service of another process on these nodes."""
        self._services.append(
            Redlock(self._nodes.urls, **{"node_timeout": PATIENT, **options})
        )
        return self._services[-1]

    def close(self) -> None:
        """Close all connections."""
        for service in self._services:
            service.close()

    def freeze(self, *indexes: int) -> None:
        """Stop servers."""
        for index in indexes:
            self._nodes.nodes[index].pause()

    def thaw(self, *indexes: int) -> None:
        """Let servers go on."""
        for index in indexes:
            self._nodes.nodes[index].resume()

    def kill(self, index: int) -> None:
        """End a server."""
        self._nodes.nodes[index].kill()

    def restart(self, index: int, *, keep_memory: bool = False) -> None:
        """End a server and start it again."""
        self._nodes.nodes[index].restart(keep_memory=keep_memory)

    def forget(self, index: int, key: str) -> None:
        """Delete a lock on a server, as an operator does."""
        self._nodes.nodes[index].command("DEL", f"redlock:lock:{key}")

    def holders(self, key: str) -> list[str]:
        """Return the token that each node names; "" for none, or for a dead node."""
        for service in self._services:  # what a node had forgotten is told again
            service.transport.drain(service.clock.monotonic())
        values = [
            node.command("GET", f"redlock:lock:{key}") if node.is_running else ""
            for node in self._nodes.nodes
        ]
        return [(value or "").partition("\n")[0] for value in values]

    def wait_until(self, event: Callable[[], Any]) -> None:
        """Let time pass until this is so."""
        until(event)
