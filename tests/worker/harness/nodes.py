"""The lock nodes as the nodes themselves see them, without the package's help."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis

from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.devnodes import DevNode, DevNodes

__all__ = ["LockNodes"]

PREFIX = "redlock:lock:"
NO_SUCH_KEY = -2  # as PTTL says it
FOREIGN = f"{'f' * 32}.{'0' * 16}"


class LockNodes:
    """Five lock nodes, and what tests look for and do to them.

    Attributes:
        dev: The servers.
        urls: As for ``redlock_nodes``.
    """

    def __init__(self, dev: DevNodes) -> None:
        self.dev = dev
        self.urls = list(dev.urls)
        self._paused_nodes: list[DevNode] = []
        self._clients = [
            redis.Redis.from_url(
                url, decode_responses=True, socket_timeout=5, protocol=2
            )
            for url in self.urls
        ]

    @property
    def quorum(self) -> int:
        """The smallest majority."""
        return len(self.urls) // 2 + 1

    def _alive(self) -> Iterator[Any]:
        for client, node in zip(self._clients, self.dev.nodes, strict=True):
            if node.is_running and node not in self._paused_nodes:
                yield client

    # -- Look --------------------------------------------------------------

    def holders(self, key: str) -> list[str]:
        """Return the value of this lock on each node that has it."""
        values = (client.get(PREFIX + key) for client in self._alive())
        return [value for value in values if value is not None]

    def tokens(self, key: str) -> set[str]:
        """Return who holds this lock: one token where all nodes agree."""
        return {value.partition("\n")[0] for value in self.holders(key)}

    def locks(self, text: str = "") -> list[str]:
        """Return what each node has of the locks whose key contains this text."""
        return [
            f"{name} on {client.connection_pool.connection_kwargs['port']}"
            for client in self._alive()
            for name in client.scan_iter(f"{PREFIX}*{text}*", count=1000)
        ]

    def until_held(self, key: str) -> None:
        """Wait until a majority has this lock."""
        until(lambda: len(self.holders(key)) >= self.quorum, what=f"a lock on {key}")

    def until_free(self, text: str = "", seconds: float = 6.0) -> None:
        """Wait until no node has a lock whose key contains this text."""
        left: list[str] = []

        def is_free() -> bool:
            left[:] = self.locks(text)
            return not left

        try:
            until(is_free, seconds)
        except AssertionError:
            message = f"after {seconds:g} s there still is {left}"
            raise AssertionError(message) from None

    def until_renewed(self, key: str, times: int) -> None:
        """Wait until this lock's ttl has been set anew so often on one node."""
        client = next(self._alive())
        before, renewals = client.pttl(PREFIX + key), 0

        def are_enough() -> bool:
            nonlocal before, renewals
            now = client.pttl(PREFIX + key)
            if now == NO_SUCH_KEY:
                raise AssertionError(f"the lock on {key} ended")
            renewals += now > before
            before = now
            return bool(renewals >= times)

        until(are_enough, what=f"{times} renewals of {key}")

    def is_stolen(self, key: str) -> bool:
        """Tell whether the token of ``steal`` holds this lock on a majority."""
        values = self.holders(key)
        return sum(value.startswith(FOREIGN) for value in values) >= self.quorum

    # -- Do ----------------------------------------------------------------

    def steal(self, key: str, seconds: float, *, nodes: int | None = None) -> None:
        """Let another token hold this lock on so many nodes (default: all)."""
        for client in list(self._alive())[:nodes]:
            client.set(PREFIX + key, f"{FOREIGN}\n1", px=round(seconds * 1000))

    def give_back(self, key: str) -> None:
        """Delete this lock where ``steal`` took it."""
        for client in self._alive():
            if str(client.get(PREFIX + key)).startswith(FOREIGN):
                client.delete(PREFIX + key)

    def rename_holder(self, key: str, task_id: str) -> None:
        """Let the nodes say that it is this task that holds the lock."""
        # Nodes that the holder was still connecting to get it with a renewal.
        here = list(self._alive())
        until(lambda: len(self.holders(key)) == len(here), 15, what=f"{key} everywhere")
        for client in here:
            fields = str(client.get(PREFIX + key)).split("\n")
            fields[3] = task_id
            client.set(PREFIX + key, "\n".join(fields), keepttl=True)

    def split(self, key: str, seconds: float) -> None:
        """Let two tokens hold this lock on two nodes each, and nobody on the rest."""
        for number, client in enumerate(self._clients[:4]):
            token = f"{number % 2:032x}.{'0' * 16}"
            client.set(PREFIX + key, f"{token}\n1", px=round(seconds * 1000))

    def forget(self, key: str, *, nodes: int) -> None:
        """Delete this lock on so many nodes."""
        for client in self._clients[:nodes]:
            client.delete(PREFIX + key)

    def forget_next(self, key: str) -> None:
        """Delete on all nodes who of those that wait for this lock is the next."""
        for client in self._clients:
            for name in client.scan_iter(f"redlock:next:{key}:*", count=1000):
                client.delete(name)

    @contextmanager
    def majority_paused(self) -> Iterator[None]:
        """Stop so many nodes that the rest is no quorum, while the block runs."""
        with self._paused(self.quorum):
            yield

    @contextmanager
    def majority_killed(self) -> Iterator[None]:
        """Kill so many nodes that the rest is no quorum; restart them empty after."""
        nodes = self.dev.nodes[: self.quorum]
        for node in nodes:
            node.kill()
        try:
            yield
        finally:
            for node in nodes:
                node.restart()

    @contextmanager
    def minority_paused(self) -> Iterator[None]:
        """Stop as many nodes as a quorum can do without, while the block runs."""
        with self._paused(len(self.urls) - self.quorum):
            yield

    @contextmanager
    def _paused(self, count: int) -> Iterator[None]:
        nodes = self.dev.nodes[:count]
        for node in nodes:
            node.pause()
        self._paused_nodes = nodes
        try:
            yield
        finally:
            self._paused_nodes = []
            for node in nodes:
                node.resume()

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()
