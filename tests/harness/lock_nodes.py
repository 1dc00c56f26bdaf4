"""The lock nodes as a plain Redis client sees them, without the package's help."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import redis

from celery_redlock.devnodes import DevNode, DevNodes
from tests.harness.kept_nodes import IDLE
from tests.harness.store_nodes import STORE, StoreNodes
from tests.harness.waiting import until

PREFIX = "redlock:lock:"
CLAIM = "redlock:claim:"
COOLDOWN = "redlock:cooldown:"
CALLS = "redlock:call:"  # the locks that copies of one call share
NO_SUCH_KEY = -2  # the reply of PTTL
A_RENEWAL_ADDS = 0.2  # seconds to the end of a lock, at least
FREED_WITHIN = 25.0  # seconds: before the end of the usual ttl, which is 30
FOREIGN = f"{'f' * 32}.{'0' * 16}"


class LockNodes:
    """Lock nodes, with what tests read from them and do to them.

    Attributes:
        dev: The servers.
        urls: The URLs for this process.
        addresses: What workers get as ``redlock_nodes``.
    """

    def __init__(self, dev: DevNodes) -> None:
        self.dev = dev
        self.urls = list(dev.urls)
        self.addresses = getattr(dev, "inside", self.urls)  # Docker's names differ
        self._paused_nodes: list[DevNode] = []
        self._clients = [
            redis.Redis.from_url(
                url, decode_responses=True, socket_timeout=5, protocol=2
            )
            for url in getattr(dev, "fronts", self.urls)
        ]

    @property
    def quorum(self) -> int:
        """The smallest majority."""
        return len(self.urls) // 2 + 1

    def _alive(self) -> Iterator[Any]:
        for client, node in zip(self._clients, self.dev.nodes, strict=True):
            if node.is_running and node not in self._paused_nodes:
                yield client

    # -- Read --------------------------------------------------------------

    def holders(self, key: str) -> list[str]:
        """Return the value of this lock on each node that has the lock."""
        values = (client.get(PREFIX + key) for client in self._alive())
        return [value for value in values if value is not None]

    def tokens(self, key: str) -> set[str]:
        """Return the tokens that hold this lock: one, if all nodes agree."""
        return {value.partition("\n")[0] for value in self.holders(key)}

    def claimant(self, key: str) -> str | None:
        """Return the id of the job that has the claim on a majority; None: no job."""
        values = [client.get(CLAIM + key) for client in self._alive()]
        ids = [value.split("\n")[3] for value in values if value is not None]
        first = max(ids, key=ids.count, default=None)
        return first if ids.count(first) >= self.quorum else None

    def cools_down(self, key: str) -> bool:
        """Tell whether a node has noted that the call has just succeeded."""
        return any(one.pttl(COOLDOWN + key) != NO_SUCH_KEY for one in self._alive())

    def locks(self, text: str = "") -> list[str]:
        """Return the locks on each node whose key contains this text."""
        patterns = [f"{head}*{text}*" for head in (PREFIX, CALLS)]
        return [
            f"{name} on {client.connection_pool.connection_kwargs['port']}"
            for client in self._alive()
            for pattern in patterns
            for name in client.scan_iter(pattern, count=1000)
        ]

    def until_held(self, key: str) -> None:
        """Wait until a majority has this lock."""
        until(lambda: len(self.holders(key)) >= self.quorum, what=f"a lock on {key}")

    def until_all_see_the_end(self) -> None:
        """Wait until each client sees the end of a key that this process sees.

        etcd tells its time in whole seconds. A client that has just connected knows
        least of it.
        """
        now = time.time()
        until(lambda: all(self._time(node) > now for node in self.dev.nodes))

    @staticmethod
    def _time(node: DevNode) -> float:
        """Return the time that a new client gets from a node."""
        seconds, microseconds = map(int, node.command("TIME")[:2])
        return seconds + microseconds / 1_000_000

    def until_free(self, text: str = "", seconds: float = FREED_WITHIN) -> None:
        """Wait until no node has a lock whose key contains this text."""
        left: list[str] = []

        def is_free() -> bool:
            left[:] = self.locks(text)
            return not left

        try:
            until(is_free, seconds)
        except AssertionError:
            message = f"after {seconds:g} s nodes still have {left}"
            raise AssertionError(message) from None

    def until_renewed(self, key: str, times: int) -> None:
        """Wait until one node has renewed this lock this number of times."""
        # A node to which the holder connects late may not have the lock yet.
        client = next(one for one in self._alive() if one.get(PREFIX + key))

        def ends_at() -> float:
            asked_at = time.monotonic()
            left = client.pttl(PREFIX + key)
            if left == NO_SUCH_KEY:
                raise AssertionError(f"the lock on {key} ended")
            return asked_at + float(left) / 1000

        before, renewals = ends_at(), 0

        def are_enough() -> bool:
            nonlocal before, renewals
            after = ends_at()
            # Without a renewal it is never later, however slowly this test polls.
            if after > before + A_RENEWAL_ADDS:
                before, renewals = after, renewals + 1
            return renewals >= times

        until(are_enough, what=f"{times} renewals of {key}")

    def is_stolen(self, key: str) -> bool:
        """Tell whether the token of ``steal`` holds this lock on a majority."""
        values = self.holders(key)
        return sum(value.startswith(FOREIGN) for value in values) >= self.quorum

    # -- Change ------------------------------------------------------------

    def end_cool_down(self, key: str) -> None:
        """Delete what the nodes noted of the success of the call."""
        for client in self._alive():
            client.delete(COOLDOWN + key)

    def steal(self, key: str, seconds: float) -> None:
        """Let another token hold this lock on all nodes."""
        for client in self._alive():
            client.set(PREFIX + key, f"{FOREIGN}\n1", px=round(seconds * 1000))

    def undo_steal(self, key: str) -> None:
        """Delete this lock on the nodes on which ``steal`` took it."""
        for client in self._alive():
            if str(client.get(PREFIX + key)).startswith(FOREIGN):
                client.delete(PREFIX + key)

    def rename_holder(self, key: str, task_id: str) -> None:
        """Change the holder's task id in this lock on all nodes."""
        # A node to which the holder connects late gets the lock with a renewal.
        here = list(self._alive())
        until(lambda: len(self.holders(key)) == len(here), 15, what=f"{key} everywhere")
        for client in here:
            fields = str(client.get(PREFIX + key)).split("\n")
            fields[3] = task_id
            client.set(PREFIX + key, "\n".join(fields), keepttl=True)

    def split(self, key: str, seconds: float) -> None:
        """Let two tokens hold this lock on two nodes each; the rest has no lock."""
        for number, client in enumerate(self._clients[:4]):
            token = f"{number % 2:032x}.{'0' * 16}"
            client.set(PREFIX + key, f"{token}\n1", px=round(seconds * 1000))

    def forget(self, key: str, *, nodes: int) -> None:
        """Delete this lock on this number of nodes."""
        for client in self._clients[:nodes]:
            client.delete(PREFIX + key)

    def published(self, key: str, task: str) -> int:
        """Return how many calls wait, as the node says that knows the fewest."""
        name = f"redlock:order:{key}:{task}"
        counts = (
            len(one.zrangebyscore(name, "(1e12", "+inf", start=0, num=1_000_000))
            for one in self._clients
        )
        return min(counts)

    @property
    def _majority(self) -> int:
        """The smallest majority of the servers. A store of several is one node."""
        return len(self.dev.nodes) // 2 + 1

    @contextmanager
    def majority_paused(self) -> Iterator[None]:
        """Stop so many servers that the rest is no majority, while the block runs."""
        with self._paused(self._majority):
            yield

    @contextmanager
    def majority_killed(self) -> Iterator[None]:
        """Kill so many servers that the rest is no majority; restart them then."""
        nodes = self.dev.nodes[: self._majority]
        for node in nodes:
            node.kill()
        try:
            yield
        finally:
            for node in nodes:
                node.restart()

    @contextmanager
    def minority_paused(self) -> Iterator[None]:
        """Stop as many servers as a majority does not need, while the block runs."""
        with self._paused(len(self.dev.nodes) - self._majority):
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


@contextmanager
def lock_nodes(
    count: int = 5, *, store: str = STORE, members: int = 1, **options: Any
) -> Iterator[LockNodes]:
    """Start lock nodes, or a store of so many members; stop them after the block.

    Other options as for `DevNodes`.
    """
    started: Any
    if store:
        options.pop("binary", None)
        started = StoreNodes(store, members=members, **options)
    else:
        started = DevNodes(count, **{"options": IDLE, **options})
    with started as dev, closing(LockNodes(dev)) as nodes:
        yield nodes
