"""Some nodes on sockets that do what a test says, and the conversation with them."""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Any, cast

from celery_redlock.core.fanout import Fanout
from celery_redlock.core.node import Node
from celery_redlock.core.question import by_everyone, verdict_certain
from celery_redlock.core.timing import Timing
from tests.unit.core.support import kinds
from tests.unit.core.wires import (
    Address,
    Connection,
    Selector,
    Sock,
    encoded,
    let_connect,
    question,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.ballot import VoteKind
    from celery_redlock.core.question import Question
    from celery_redlock.testing import FakeClock


NODE_TIMEOUT, CONNECT_TIMEOUT = 0.05, 1.0  # seconds
GRANTED, TAKEN, FREE = [1, 7], [2, b"other.1\n1", 900], [3]


class ClockedSelector(Selector):
    """Moves time on to what comes next, or to the end of the wait.

    Attributes:
        waits: How long each look could last.
        coming: What will be received, when and by whom.
        on_select: Called at each look.
    """

    def __init__(
        self,
        clock: FakeClock,
        on_select: list[Callable[[], Any]],
        nodes: list[Node],
    ) -> None:
        super().__init__()
        self.clock = clock
        self.nodes = nodes
        self.waits: list[float] = []
        self.coming: list[tuple[float, Sock, bytes]] = []
        self.on_select = on_select
        self.is_closed = False

    def select(self, timeout: float) -> list[tuple[Any, int]]:
        """Return who can be read, as a selector does."""
        self.waits.append(timeout)
        for call in list(self.on_select):
            call()
        let_connect(*self.nodes, seconds=0.005)  # some are behind a closed gate
        now = self.clock.monotonic()
        next_at = min((at for at, _, _ in self.coming), default=float("inf"))
        next_at = now if any(sock.inbox for sock in self.registered) else next_at
        self.clock.advance(max(0.0, min(next_at, now + timeout) - now))
        now = self.clock.monotonic()
        for item in [item for item in self.coming if item[0] <= now]:
            self.coming.remove(item)
            item[1].inbox.append(item[2])
        ready = []
        for sock, (events, node) in self.registered.items():
            mask = selectors.EVENT_READ if sock.inbox else 0
            mask |= events & selectors.EVENT_WRITE if sock.room else 0
            if mask:
                key = selectors.SelectorKey(sock, 0, events, node)
                ready.append((key, mask))
        return ready

    def close(self) -> None:
        """Watch nothing any more."""
        super().close()
        self.is_closed = True


class Net:
    """Some nodes, and the conversation with them."""

    def __init__(self, clock: FakeClock, *run_ids: str) -> None:
        self.clock = clock
        self.connections = [Connection(run_id) for run_id in run_ids]
        self.addresses = [
            Address(connection, name=f"node-{index}")
            for index, connection in enumerate(self.connections)
        ]
        self.selectors: list[ClockedSelector] = []
        self.on_select: list[Callable[[], Any]] = []
        self.nodes = [
            Node(cast("Any", address), clock=clock, connect_timeout=CONNECT_TIMEOUT)
            for address in self.addresses
        ]
        self.fanout = Fanout(
            self.nodes,
            clock=clock,
            timing=Timing(30.0, 60.0, NODE_TIMEOUT, CONNECT_TIMEOUT),
            new_selector=cast("Any", self._new_selector),
        )

    def _new_selector(self) -> ClockedSelector:
        self.selectors.append(ClockedSelector(self.clock, self.on_select, self.nodes))
        return self.selectors[-1]

    @property
    def selector(self) -> ClockedSelector:
        """The selector in use."""
        return self.selectors[-1]

    @property
    def socks(self) -> list[Sock]:
        """The sockets of the nodes."""
        return [connection.sock for connection in self.connections]

    def connect(self) -> None:
        """Let all connections be made."""
        asked = self.question(settle=by_everyone)
        self.fanout.ask(asked)
        for index, sock in enumerate(self.socks):
            if sock.sent and asked.ballot.votes[index] is None:
                self.comes(index, 0.0, FREE)
        self.fanout.drain(0.0)
        self.selector.waits.clear()
        for node in self.nodes:
            node.suspect = False
        for sock in self.socks:
            sock.sent.clear()

    def comes(self, index: int, seconds: float, reply: Any) -> None:
        """Let a node's reply arrive in so many seconds."""
        at = self.clock.monotonic() + seconds
        self.selector.coming.append((at, self.socks[index], encoded(reply)))

    def question(self, key: str = "k", **options: Any) -> Question:
        """Return a question to all nodes."""
        options.setdefault("settle", verdict_certain)
        return question(key, nodes=len(self.nodes), **options)

    def kinds(self, asked: Question) -> list[VoteKind | None]:
        """Return how each node voted."""
        return kinds(asked.ballot)
