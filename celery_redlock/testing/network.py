"""Fake nodes: a transport for `Redlock` without sockets.

::

    nodes = FakeNodes(5)                  # with a FakeClock of their own
    redlock = nodes.redlock(ttl=10)
    with lock(redlock, "report"):
        nodes.freeze(0, 1)                # two nodes hang
        nodes.clock.sleep(60)             # a minute passes at once

Each node replies as a real server does (`testing.MemoryNode`). Between a client and a
node there is one ordered connection, which fails as a real one does:

=============  =================================================================
``freeze``     the node stops: it runs what it receives after ``thaw``
``partition``  nothing reaches the node, and no reply the client, until ``heal``
``mute``       the node runs what it receives; the replies arrive after ``heal``
``latency``    each reply takes this time
``kill``       the connection fails at once; what the node has not run is lost
``restart``    ``kill``, and the node is back: by default with no keys
=============  =================================================================

Their limit: to connect and to send takes no time.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.resp import ErrorReply
from celery_redlock.errors import ConfigurationError
from celery_redlock.locks.redlock import Redlock
from celery_redlock.members.view import View
from celery_redlock.scripts import COUNTERS, INITIALIZE, JOIN
from celery_redlock.testing.clock import FakeClock
from celery_redlock.testing.memory_node import MemoryNode
from celery_redlock.wire.pending_releases import PendingReleases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_redlock.basics.clock import Clock
    from celery_redlock.wire.requests import Event, ScriptRequest

_KEPT_REQUESTS = 10_000


class FakeNodes:
    """All nodes of a deployment, as one client reaches them: a fake ``Transport``.

    Several threads may use it. With a `FakeClock`, only one of them may move it.

    Args:
        nodes: The number of nodes, 3 by default; or the nodes of another client, to
            share them.
        clock: The time of nodes and client; a new `FakeClock` by default. With
            `basics.clock.SYSTEM_CLOCK` the watchdog's thread works as in production.
        node_timeout: Seconds in which a node must reply.

    Raises:
        ConfigurationError: The nodes are neither.

    Attributes:
        labels: The names of the nodes.
        nodes: The nodes, for tests to kill and to restart.
        clock: The clock, as given or as made.
        asked: The last requests to the nodes, newest at the end.
    """

    def __init__(
        self,
        nodes: int | Sequence[FakeNode] = 3,
        *,
        clock: Clock | None = None,
        node_timeout: float = 0.05,
    ) -> None:
        self.clock: Clock = FakeClock() if clock is None else clock
        self._new: list[bool] = [isinstance(nodes, int)]  # one list for all clients
        given = nodes
        if isinstance(nodes, int):
            names = [f"node-{number}:6379/0" for number in range(1, nodes + 1)]
            nodes = [FakeNode(name, self.clock) for name in names]
        if not nodes or not all(isinstance(node, FakeNode) for node in nodes):
            raise ConfigurationError(
                f"FakeNodes was given {given!r}; it takes the number of nodes, or the "
                "nodes of another one."
            )
        self.nodes = nodes
        self.labels = tuple(node.label for node in nodes)
        self.asked: deque[ScriptRequest] = deque(maxlen=_KEPT_REQUESTS)
        self._node_timeout = node_timeout
        self._connections = [
            _Connection(node, index, self.clock) for index, node in enumerate(nodes)
        ]
        self._lock = threading.RLock()

    # -- for tests -------------------------------------------------------------

    @property
    def urls(self) -> list[str]:
        """The nodes of a `Redlock` that is given ``transport=self``."""
        return [f"redis://{label}" for label in self.labels]

    def redlock(self, **options: Any) -> Redlock:
        """Return a service on these nodes, which vote from the start.

        The options are those of `Redlock`.
        """
        options = {"node_timeout": self._node_timeout, "clock": self.clock, **options}
        redlock = Redlock(self.urls, transport=self, **options)
        self._node_timeout = redlock.timing.node_timeout
        is_new, self._new[0] = self._new[0], False
        if is_new:
            self._initialize(redlock)
        else:  # learn the view, which a client learns with its first request
            redlock.guard.adopt(redlock.guard.ask(COUNTERS, [""]).ballot)
        self.asked.clear()
        return redlock

    def _initialize(self, redlock: Redlock) -> None:
        """Let the nodes vote, also those that a test has frozen or cut off."""
        meta, identities = [redlock.keys.meta], {}
        for node in self.nodes:
            reply = node.memory.execute(JOIN, meta, [secrets.token_hex(4), ""])
            identities[node.label] = reply[3].decode()
        configuration = redlock.guard.configuration
        view = View.first_of_epoch(configuration, identities, before=None)
        hint_us = round(self.clock.wall() * 1_000_000)
        args = [str(view), hint_us, redlock.guard.hint_tolerance_us]
        for node in self.nodes:
            node.memory.execute(INITIALIZE, meta, args)
        redlock.guard.use(view)

    def another_client(self) -> FakeNodes:
        """Return the same nodes as another process reaches them."""
        other = FakeNodes(self.nodes, clock=self.clock, node_timeout=self._node_timeout)
        other._lock, other._new = self._lock, self._new
        return other

    def freeze(self, *indexes: int) -> None:
        """Stop these nodes, or all, until ``thaw``: they hang for all clients."""
        for connection in self._some(indexes):
            connection.node.freeze()

    def thaw(self, *indexes: int) -> None:
        """Continue these nodes, or all; they run what they received meanwhile."""
        for connection in self._some(indexes):
            connection.node.thaw()

    def partition(self, *indexes: int) -> None:
        """Cut this client off from these nodes, or all, until ``heal``."""
        for connection in self._some(indexes):
            connection.is_cut = True

    def mute(self, *indexes: int) -> None:
        """Hold back the replies of these nodes, or all, to this client."""
        for connection in self._some(indexes):
            connection.is_muted = True

    def heal(self, *indexes: int) -> None:
        """End partition and mute; deliver first what was held back."""
        for connection in self._some(indexes):
            connection.heal()

    def latency(self, seconds: float, *indexes: int) -> None:
        """Set how long replies of these nodes, or all, take from now on."""
        for connection in self._some(indexes):
            connection.latency = seconds

    def _some(self, indexes: tuple[int, ...]) -> Iterator[_Connection]:
        """Yield the connections to these nodes, or all, while no thread uses them."""
        with self._lock:
            yield from [self._connections[i] for i in indexes] or self._connections

    # -- the transport ---------------------------------------------------------

    @property
    def has_pending(self) -> bool:
        """Whether there are releases to resend, or a reply is late."""
        return any(each.pending or each.is_suspect for each in self._connections)

    @property
    def has_unanswered(self) -> bool:
        """Whether a request was sent of which some reply has not been read."""
        return any(connection.has_unanswered for connection in self._connections)

    def send(self, *requests: ScriptRequest) -> None:
        """Send requests to all nodes, in this order; do not wait for replies."""
        with self._lock:
            self._resend()
            deadline = self.clock.monotonic() + self._node_timeout
            for request in requests:
                request.deadline = deadline
                request.ballot.patience = self._node_timeout
                if request.is_obsolete is None or not request.is_obsolete():
                    self.asked.append(request)
                    for connection in self._connections:
                        connection.send(request)
                else:
                    for index in range(len(self.labels)):
                        request.fail(index, "was not asked any more")

    def wait(self, *requests: ScriptRequest, until: float = math.inf) -> bool:
        """Return when all are done, at the first ``deadline``, or at ``until``."""
        while True:
            with self._lock:
                self._resend()
                for connection in self._connections:
                    connection.deliver()
                undecided = [request for request in requests if not request.is_done()]
                now = self.clock.monotonic()
                end = min([until, *[request.deadline for request in requests]])
                if not undecided or not self._worth_waiting(undecided) or now >= end:
                    self._note_late(undecided)
                    return True
                wake_at = min(end, *(each.next_due() for each in self._connections))
            if isinstance(self.clock, FakeClock):
                self.clock.advance(min(wake_at, self.clock.next_event()) - now)
            else:
                self.clock.sleep(wake_at - now)

    def ask(self, request: ScriptRequest) -> None:
        """Send one request and wait for it, for one node time-out at most."""
        self.send(request)
        self.wait(request)

    def begin(self, request: ScriptRequest, event: Event) -> None:
        """Ask, and release the event: fake time passes at once."""
        self.ask(request)
        event.release()

    def wake(self) -> None:
        """Nothing was left to be sent."""

    def drain(self) -> None:
        """Read the replies that have arrived, without waiting."""
        self.wait(until=self.clock.monotonic())

    def close(self) -> None:
        """Close all connections. The nodes still run what was sent."""
        with self._lock:
            for connection in self._connections:
                connection.break_off("was closed")
                connection.pending = PendingReleases()

    def _resend(self) -> None:
        for connection in self._connections:
            connection.resend()

    def _worth_waiting(self, requests: Sequence[ScriptRequest]) -> bool:
        for request in requests:
            ballot = request.ballot
            if ballot.answered < ballot.quorum:
                return True
            votes = zip(ballot.votes, self._connections, strict=True)
            if any(vote is None and not each.is_suspect for vote, each in votes):
                return True
        return False

    def _note_late(self, requests: Sequence[ScriptRequest]) -> None:
        for request in requests:
            votes = zip(request.ballot.votes, self._connections, strict=True)
            for vote, connection in votes:
                connection.is_suspect |= vote is None


class FakeNode:
    """One fake server, for all of its clients.

    Attributes:
        label: Its name.
        memory: Its keys and scripts.
        is_running: Whether the server process exists; a frozen one exists.
        is_frozen: Whether the process is stopped.
    """

    def __init__(self, label: str, clock: Clock) -> None:
        self.label = label
        self.memory = MemoryNode(clock)
        self.is_running = True
        self.is_frozen = False
        self._connections: list[_Connection] = []
        self._received: deque[tuple[_Connection, int, ScriptRequest]] = deque()

    def freeze(self) -> None:
        """Stop the server (SIGSTOP): it receives requests and runs none."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Continue the server with the requests of the meantime."""
        self.is_frozen = False
        while self._received:
            self._run(*self._received.popleft())

    def kill(self) -> None:
        """End the server at once (SIGKILL). What it has not run is lost."""
        self.is_running = self.is_frozen = False
        self._received.clear()
        for connection in self._connections:
            connection.break_off("closed the connection")

    def restart(self, *, keep_memory: bool = False) -> None:
        """Restart the server. By default it loses its keys."""
        self.kill()
        self.memory.restart(keep_memory=keep_memory)
        self.is_running = True

    def _receive(
        self, connection: _Connection, epoch: int, request: ScriptRequest
    ) -> None:
        if self.is_frozen:
            self._received.append((connection, epoch, request))
        else:
            self._run(connection, epoch, request)

    def _run(self, connection: _Connection, epoch: int, request: ScriptRequest) -> None:
        connection.reply(epoch, request, self.memory.execute(*request.call))

    def __repr__(self) -> str:
        state = "dead" if not self.is_running else "frozen" if self.is_frozen else "up"
        return f"<FakeNode {self.label} {state}>"


class _Connection:
    """The connection of one client to one node; both directions keep their order.

    Attributes:
        latency: Seconds until a reply arrives.
        is_cut: Whether nothing gets through.
        is_muted: Whether replies do not get through.
        is_suspect: Whether the last reply was late: no request waits for the next.
        pending: Releases to resend.
    """

    def __init__(self, node: FakeNode, index: int, clock: Clock) -> None:
        self.node = node
        self.latency = 0.0
        self.is_cut = self.is_muted = self.is_suspect = False
        self.pending = PendingReleases()
        self._index = index
        self._clock = clock
        self._epoch = 0  # each new connection has another; replies to old ones drop
        self._outbox: deque[ScriptRequest] = deque()
        self._unanswered: deque[ScriptRequest] = deque()
        self._replies: deque[tuple[float, ScriptRequest, Any]] = deque()
        self._broken = ""
        self._is_open = False
        self._last_open_at = 0.0
        node._connections.append(self)  # noqa: SLF001  (of this file)

    @property
    def has_unanswered(self) -> bool:
        """Whether a request has no reply yet."""
        return bool(self._unanswered)

    def send(self, request: ScriptRequest) -> None:
        """Send a request; it may not arrive."""
        self._unanswered.append(request)
        if self.is_cut:
            self._outbox.append(request)
        elif self.node.is_running:
            self._is_open = True
            self.node._receive(self, self._epoch, request)  # noqa: SLF001
        else:
            self.break_off("refused the connection")

    def reply(self, epoch: int, request: ScriptRequest, reply: Any) -> None:
        """Send the node's reply, which arrives after the latency."""
        if epoch == self._epoch:
            due_at = self._clock.monotonic() + self.latency
            self._replies.append((due_at, request, reply))

    def deliver(self) -> None:
        """Enter the replies that have arrived by now."""
        while self.next_due() <= self._clock.monotonic():
            _, request, reply = self._replies.popleft()
            self._unanswered.popleft()
            if isinstance(reply, ErrorReply):
                now = self._clock.monotonic()
                self.pending.add_refused(request, now)
            request.answer(self._index, reply)
        if not self._unanswered:
            self.is_suspect = False

    def next_due(self) -> float:
        """Return when the next reply arrives; infinity while there is none."""
        held = self.is_cut or self.is_muted or not self._replies
        return float("inf") if held else self._replies[0][0]

    def heal(self) -> None:
        """End partition and mute; deliver first what was held back."""
        self.is_cut = self.is_muted = False
        if self._broken:
            self.break_off(self._broken)
        outbox, self._outbox = self._outbox, deque()
        for request in outbox:
            if self.node.is_running:
                self.node._receive(self, self._epoch, request)  # noqa: SLF001
            else:
                self.break_off("refused the connection")
                return

    def break_off(self, reason: str) -> None:
        """End this connection; a client that is cut off notices after ``heal``."""
        if self.is_cut:
            self._broken = reason
            return
        now, was_open = self._clock.monotonic(), self._is_open
        self._last_open_at = now if was_open else self._last_open_at
        self._is_open, self._broken = False, ""
        self._epoch += 1
        self._outbox.clear()
        self._replies.clear()
        failed, self._unanswered = self._unanswered, deque()
        for request in failed:
            request.fail(self._index, reason, was_asked=was_open)
            if self._last_open_at >= request.resend_since:
                self.pending.add(request, now)

    def resend(self) -> None:
        """Send the releases that the node missed, if it is back."""
        if self.node.is_running and not self.is_cut:
            for request in self.pending.due(self._clock.monotonic()):
                self.send(request)
