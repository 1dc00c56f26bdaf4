"""One node: its ordered conversation, and its connections.

::

               ┌──────────────── backoff ────────────────┐
               ▼                                         │
    new ─► connecting ──handshake done──► ready ──lost──►┤
               │                            │            │
               └───────────failed───────────┼──────► down┘
                                            │
                         silent past its time: *suspect* (still ready)

Requests travel on ONE connection in the order in which they were sent. So a release
can never overtake the acquire or the renewal before it. A time-out does not close the
connection: the late reply is entered in the request that it answers.

A suspect node gets all requests, but no call waits for it. When it has been silent for
longer than it takes to connect, a second connection is made in the background. If that
succeeds, it replaces the first one.

Nothing here blocks; connections are made in the background, by ``connector``.
"""

from __future__ import annotations

import contextlib
import selectors
from collections import deque
from typing import TYPE_CHECKING

from celery_redlock.core.transport.connection import would_block
from celery_redlock.core.transport.connector import Connector
from celery_redlock.core.transport.node_log import NodeLog
from celery_redlock.core.transport.pending_releases import PendingReleases
from celery_redlock.core.transport.requests import (
    ScriptLoad,
    ScriptRequest,
    UnreadableReply,
)
from celery_redlock.core.transport.resp import ErrorReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.clock import Clock
    from celery_redlock.core.transport.connection import Connection, NodeFacts
    from celery_redlock.core.transport.resp import ReplyReader
    from celery_redlock.core.transport.url import NodeAddress

__all__ = ["Node"]

_READ_SIZE = 65536
_READ_AND_WRITE = selectors.EVENT_READ | selectors.EVENT_WRITE
_MOST_UNSENT = 1 << 22  # bytes: a node that takes no more than this is gone
_GIVEN_UP_AFTER = 10.0  # seconds of silence


class Node:
    """One master. Used with the mutex of its broadcast, except for the connecting.

    Attributes:
        label: The name of the node.
        suspect: Whether it was late, and has not caught up since.
        unfit_because: Why it must not vote, in words; ``""`` when it may.
        pending: The requests that it has not answered, in order.
    """

    def __init__(
        self, address: NodeAddress, *, clock: Clock, connect_timeout: float
    ) -> None:
        self.label = address.name
        self.suspect = False
        self.unfit_because = ""
        self.pending: deque[tuple[ScriptRequest | ScriptLoad, int]] = deque()
        self._clock = clock
        self._connector = Connector(address, clock=clock, timeout=connect_timeout)
        self._connection: Connection | None = None
        self._selector: selectors.BaseSelector | None = None
        self._unsent = bytearray()
        self._is_tls = False
        self._torn = False  # interrupted in the middle of a change
        self._silent_since = 0.0
        self._last_seen_at = 0.0
        self._pending_releases = PendingReleases()
        self._down_because = ""
        self._backlog: list[tuple[ScriptRequest, int]] = []
        self._log = NodeLog(self.label, clock)

    # -- for the broadcast -------------------------------------------------------

    @property
    def facts(self) -> NodeFacts | None:
        """The server's description of itself, while there is a connection."""
        return self._connection.facts if self._connection else None

    @property
    def is_connecting(self) -> bool:
        """Whether a connection is being made that is worth waiting for."""
        return not self._connection and self._connector.is_hopeful

    @property
    def has_pending(self) -> bool:
        """Whether a request waits for this node to reconnect."""
        return bool(self._pending_releases) or bool(self._backlog)

    def send(
        self, requests: Sequence[ScriptRequest], index: int, packed: bytes = b""
    ) -> None:
        """Send requests at once, or enter why that is impossible.

        Args:
            requests: The requests.
            index: The index of this node's votes.
            packed: The bytes of all requests, which the nodes can share.
        """
        if self._connection and not self.unfit_because:
            packed = packed or b"".join([request.packed() for request in requests])
            self._write([(request, index) for request in requests], packed)
            return
        for request in requests:
            if self.unfit_because:
                request.fail(index, self.unfit_because)
            elif self.is_connecting:
                self._backlog.append((request, index))
            else:
                self._fail(request, index, self._down_because or "is not connected")

    @property
    def needs_maintenance(self) -> bool:
        """Whether ``maintain`` has something to do."""
        return self._connection is None or bool(
            self.suspect or self._torn or self.unfit_because or self._pending_releases
        )

    def maintain(self, selector: selectors.BaseSelector) -> bool:
        """Take a new connection or begin to make one. Return whether one was taken."""
        self._selector = selector
        now = self._clock.monotonic()
        if self._torn:
            self._drop("had its connection closed after an interruption")
        made = self._connector.take()
        taken = False
        if isinstance(made, str):
            self._connecting_failed(made)
        elif made is not None:
            taken = self._adopt(made)
        silence = now - self._silent_since if self.suspect else 0.0
        if silence > max(_GIVEN_UP_AFTER, self._connector.timeout):
            self._drop(f"has been silent for {silence:.0f} s")
        is_needed = self._connection is None or bool(self.unfit_because)
        if is_needed or silence > self._connector.timeout:
            self._connector.begin()
        return taken

    def send_backlog(self) -> None:
        """Send the requests that waited for the connection, and pending releases."""
        if self._connection is None:
            return
        backlog, self._backlog = self._backlog, []
        for request, index in backlog:
            self.send((request,), index)
        if not self.unfit_because:
            for request, index in self._pending_releases.due(self._clock.monotonic()):
                self.send((request,), index)

    def disqualify(self, reason: str) -> None:
        """Give this node no vote for this reason; ``""`` lets it vote."""
        if reason:
            self._log.unfit(reason)
        self.unfit_because = reason

    def receive(self) -> None:
        """Read what has come, and enter it where it belongs. Never blocks."""
        connection = self._connection
        if connection is None:
            return
        self._torn = True
        try:
            data = connection.sock.recv(_READ_SIZE)
            while data:
                connection.reader.feed(data)
                if len(data) < _READ_SIZE and not self._is_tls:
                    break
                data = connection.sock.recv(_READ_SIZE)
        except OSError as error:
            if not would_block(error):
                self._drop(f"lost its connection: {error}")
                return
            data = b"."
        if not data:
            self._drop("closed the connection")
            return
        try:
            self._enter_replies(connection.reader)
        except (ErrorReply, UnreadableReply) as error:
            self._drop(f"does not speak the protocol of Redis: {error}")
        self._torn = False

    def flush(self) -> None:
        """Send bytes that the socket did not take before."""
        if self._connection is None:
            return
        self._torn = True
        try:
            del self._unsent[: self._connection.sock.send(self._unsent)]
        except OSError as error:
            if not would_block(error):
                self._drop(f"lost its connection: {error}")
                return
        if not self._unsent and self._selector:
            self._selector.modify(self._connection.sock, selectors.EVENT_READ, self)
        self._torn = False

    def mark_suspect(self) -> None:
        """Note that a reply is late: from now on no call waits for this node."""
        if self._connection and not self.suspect:
            self.suspect = True
            self._silent_since = self._clock.monotonic()
            self._log.late()

    def forget(self) -> None:
        """Start anew in a forked child: the connection is the parent's."""
        connection, self._connection = self._connection, None
        self.pending, self._backlog = deque(), []
        self._pending_releases = PendingReleases()
        self._unsent, self._torn, self.suspect = bytearray(), False, False
        self._connector.forget()
        self._down_because = self.unfit_because = ""
        if connection:
            connection.disown()

    def close(self) -> None:
        """Close the connection. Requests without a reply are entered as failed."""
        self._connector.abandon()
        self._drop("was closed")
        self._pending_releases = PendingReleases()

    # -- the conversation --------------------------------------------------------

    def _write(
        self, sent: Sequence[tuple[ScriptRequest | ScriptLoad, int]], packed: bytes
    ) -> None:
        connection = self._connection
        if connection is None:
            return
        # An asynchronous exception (a time limit, LockLost) may come between any two
        # of these lines. A connection that was left torn is never used again.
        self._torn = True
        self.pending.extend(sent)
        if self._unsent:
            self._unsent += packed
        else:
            try:
                count = connection.sock.send(packed)
            except OSError as error:
                if not would_block(error):
                    self._drop(f"lost its connection: {error}")
                    return
                count = 0
            if count < len(packed):
                self._unsent += packed[count:]
                if self._selector:
                    self._selector.modify(connection.sock, _READ_AND_WRITE, self)
        self._torn = False
        if self._unsent and len(self._unsent) > _MOST_UNSENT:
            self._drop("took nothing more from a full connection")

    def _enter_replies(self, reader: ReplyReader) -> None:
        while (reply := reader.gets()) is not False:
            if not self.pending:
                self._drop("sent a reply to no request")
                return
            request, index = self.pending.popleft()
            forgot = isinstance(reply, ErrorReply) and str(reply).startswith("NOSCRIPT")
            try:
                if forgot and isinstance(request, ScriptRequest):
                    self._send_source(request, index)
                else:
                    request.answer(index, reply)
            except UnreadableReply:
                self.pending.appendleft((request, index))  # to fail with the others
                raise
        if not self.pending and self.suspect:
            self.suspect, self._connector.failures = False, 0
            self._log.in_time()

    def _send_source(self, request: ScriptRequest, index: int) -> None:
        """Send the script itself, unless that would overtake a later command."""
        key = request.call[1][0]
        if any(later.call[1][0] == key for later, _ in self.pending):
            load = ScriptLoad(request.script)
            self._write([(load, index)], load.packed())
            self._fail(request, index, "had forgotten its scripts")
        else:
            self._write([(request, index)], request.packed_source())

    def _fail(
        self, request: ScriptRequest | ScriptLoad, index: int, reason: str
    ) -> None:
        request.fail(index, reason)
        was_there = self._connection or self._last_seen_at >= request.resend_since
        if was_there and isinstance(request, ScriptRequest):
            self._pending_releases.add(request, index, self._clock.monotonic())

    # -- the connection ----------------------------------------------------------

    def _drop(self, reason: str) -> None:
        self._torn = True  # until all is done: it may be interrupted at any line
        if self._connection:
            self._last_seen_at = self._clock.monotonic()
            if self._selector:
                with contextlib.suppress(KeyError, ValueError):  # interrupted before
                    self._selector.unregister(self._connection.sock)
            self._connection.close()
            self._log.lost(reason)
        self._connection = None
        pending, self.pending = self.pending, deque()
        self._unsent, self._torn, self.suspect = bytearray(), False, False
        self._down_because = reason
        for request, index in pending:
            self._fail(request, index, reason)

    def _connecting_failed(self, reason: str) -> None:
        if self._connection is None:
            self._down_because = reason
        if self._connector.failures == 1:
            self._log.unreachable(reason)
        backlog, self._backlog = self._backlog, []
        for request, index in backlog:
            self._fail(request, index, reason)

    def _adopt(self, made: Connection) -> bool:
        if self._connection and self.suspect:
            self.receive()  # it may have caught up while the other one was made
        if self._connection and not self.suspect and not self.unfit_because:
            made.close()
            return False
        if self._connection:
            self._drop("was silent for too long and has been connected to anew")
        if self._connector.failures:
            self._log.back()
        if self._selector:
            self._selector.register(made.sock, selectors.EVENT_READ, self)
        self._is_tls = hasattr(made.sock, "pending")  # may hold more than it shows
        self._connection, self._down_because = made, ""
        self.disqualify(made.facts.unfit_because)
        self._connector.accept(usable=not self.unfit_because)
        return True
