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

A caller that is interrupted in the middle of a change throws the node away: `anew`
returns one without a connection, and the connection is closed. Requests in flight fail
there, and releases are owed. Nothing is repaired.

A suspect node gets all requests, but no call waits for it. A node is suspect, too, if
no call needs its vote and it is silent for longer than it takes to connect. Then a
second connection is made in the background. If that succeeds, it replaces the first
one.

Nothing here blocks; connections are made in the background, by ``connector``.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections import deque
from typing import TYPE_CHECKING

from celery_redlock.basics.resp import ErrorReply, refusal_of
from celery_redlock.wire.connection import ConnectionLost
from celery_redlock.wire.connector import Connector
from celery_redlock.wire.node_log import NodeLog
from celery_redlock.wire.pending_releases import PendingReleases
from celery_redlock.wire.quorum import LOST_SCRIPTS
from celery_redlock.wire.requests import UnreadableReply

if TYPE_CHECKING:
    import selectors
    from collections.abc import Sequence

    from celery_redlock.basics.clock import Clock
    from celery_redlock.wire.connection import Connection, NodeFacts
    from celery_redlock.wire.requests import ScriptRequest
    from celery_redlock.wire.store_connection import StoreConnection
    from celery_redlock.wire.url import NodeAddress


_GIVEN_UP_AFTER = 10.0  # seconds of silence


class _Conversation:
    """One connection, and the state that ends with it.

    Attributes:
        connection: The connection.
        events: What the selector waits for.
        pending: The requests that have no reply yet, in order.
        silent_since: Instant of the last reply, or of the first request after all were
            answered.
    """

    __slots__ = ("connection", "events", "pending", "silent_since")

    def __init__(self, connection: Connection | StoreConnection) -> None:
        self.connection = connection
        self.events = connection.events
        self.pending: deque[ScriptRequest] = deque()
        self.silent_since = math.inf


class Node:
    """One master, or a store. Used by one thread at a time, except for the connecting.

    Args:
        address: Where the node is.
        index: The index of its votes.
        clock: Reads time.
        connect_timeout: Seconds that a connection may take to be made.

    Attributes:
        label: The name of the node.
        is_store: Whether requests to it are carried out in this process.
        suspect: Whether it was late, and has not caught up since.
        unfit_because: Why it must not vote, in words; ``""`` when it may.
    """

    def __init__(
        self, address: NodeAddress, index: int, *, clock: Clock, connect_timeout: float
    ) -> None:
        self.label = address.name
        self._index = index
        self.is_store = address.is_store
        self.suspect = False
        self.unfit_because = ""
        self._clock = clock
        self._connector = Connector(address, clock=clock, timeout=connect_timeout)
        self._conversation: _Conversation | None = None
        self._selector: selectors.BaseSelector | None = None
        self._last_used_at = 0.0
        self._pending_releases = PendingReleases()
        self._down_because = ""
        # The requests that wait for the first connection, in order.
        self._backlog: deque[ScriptRequest] = deque()
        self._log = NodeLog(self.label, clock)

    # -- for the broadcast -------------------------------------------------------

    @property
    def facts(self) -> NodeFacts | None:
        """The server's description of itself, while there is a connection."""
        conversation = self._conversation  # read once: another thread may end it now
        return conversation.connection.facts if conversation else None

    @property
    def pending(self) -> Sequence[ScriptRequest]:
        """The requests that the node has not answered, in order."""
        conversation = self._conversation
        return conversation.pending if conversation else ()

    @property
    def silent_since(self) -> float:
        """Instant since which the node owes a reply and has sent none."""
        conversation = self._conversation
        if conversation is None or not conversation.pending:
            return math.inf
        return conversation.silent_since

    @property
    def is_connecting(self) -> bool:
        """Whether a connection is being made that is worth waiting for."""
        return not self._conversation and self._connector.is_hopeful

    @property
    def delay(self) -> str:
        """Why a request waits that was not sent, in words; "" if there is none."""
        return "" if self._conversation else self._connector.delay

    @property
    def is_working(self) -> bool:
        """Whether a store has commands that are not carried out."""
        conversation = self._conversation
        return bool(conversation and conversation.connection.is_working)

    @property
    def has_pending(self) -> bool:
        """Whether a request waits to be sent to this node, or to be resent.

        A request whose reply is late counts, too: it may have to be resent.
        """
        return bool(self._pending_releases) or bool(self._backlog) or self.suspect

    def send(self, requests: Sequence[ScriptRequest]) -> None:
        """Send requests at once, or enter why that is impossible."""
        conversation = self._conversation
        if conversation and not self.unfit_because:
            self._write(conversation, requests)
            return
        for request in requests:
            if self.unfit_because:
                self._fail(request, self.unfit_because)
            elif self.is_connecting:
                self._backlog.append(request)
            else:
                self._fail(request, self._down_because or "is not connected")

    def refuse(self, request: ScriptRequest) -> None:
        """Enter that this request cannot be sent, unless the node has voted on it."""
        self._fail(request, self._down_because or "could not be sent to")

    def drop(
        self, reason: str, *, may_be_done: bool = True, is_logged: bool = True
    ) -> None:
        """End the conversation, if there is one; ``maintain`` begins another.

        Args:
            reason: Why, in words.
            may_be_done: Whether the requests in flight may be done nevertheless.
            is_logged: Whether the log tells of it.
        """
        self._down_because, self.suspect = reason, False
        ended = self._conversation
        if ended is None:
            return
        self._note_end()
        if is_logged:
            self._log.lost(reason)
        if self._selector:
            with contextlib.suppress(KeyError, ValueError):  # it has ended
                self._selector.unregister(ended.connection.sock)
        ended.connection.close()
        self._end(ended, reason, may_be_done=may_be_done)
        self._conversation = None  # last: until then an interruption finds it

    @property
    def needs_maintenance(self) -> bool:
        """Whether ``maintain`` has something to do."""
        return not (
            self._conversation
            and not self.suspect
            and not self.unfit_because
            and not self._backlog
            and not self._pending_releases
        )

    def maintain(self, selector: selectors.BaseSelector) -> bool:
        """Take a new connection or begin to make one. Return whether one was taken."""
        self._selector = selector
        now = self._clock.monotonic()
        made = self._connector.take()
        taken = False
        if isinstance(made, str):
            self._connecting_failed(made)
        elif made is not None:
            taken = self._adopt(made)
        silence = now - self.silent_since if self.suspect else 0.0
        if silence > max(_GIVEN_UP_AFTER, self._connector.timeout):
            self.drop(f"has been silent for {silence:.0f} s")
        is_needed = self._conversation is None or bool(self.unfit_because)
        if is_needed or silence > self._connector.timeout:
            self._connector.begin()
        if self._backlog and not (self._conversation or self.is_connecting):
            self._connector.failures += 1
            seconds = self._connector.hope_lasts
            self._connecting_failed(f"has not let us connect for {seconds:g} s")
        return taken

    def send_backlog(self) -> None:
        """Send pending releases, then the requests that waited for the connection.

        In this order: one of them may ask for a lock that was released before.
        """
        if self._conversation is None:
            return
        if not self.unfit_because:
            for request in self._pending_releases.due(self._clock.monotonic()):
                self.send((request,))
        # Each of them once: if the connection ends now, those that are left join anew.
        for _ in range(len(self._backlog)):
            request = self._backlog[0]
            if request.ballot.votes[self._index] is None:
                self.send((request,))
            self._backlog.popleft()  # now: an interruption sends it once more

    def unsent_of(self, requests: Sequence[ScriptRequest]) -> list[ScriptRequest]:
        """Return the requests that this node was not sent yet."""
        sent = {id(request) for request in [*self.pending, *self._backlog]}
        return [
            request
            for request in requests
            if request.ballot.votes[self._index] is None and id(request) not in sent
        ]

    def disqualify(self, reason: str) -> None:
        """Give this node no vote for this reason; ``""`` lets it vote."""
        if reason:
            self._log.unfit(reason)
        self.unfit_because = reason

    def note_fitness(self) -> None:
        """Have the log tell it again if this node, which may vote now, is unfit."""
        if not self.unfit_because:
            self._log.fit()

    def receive(self) -> None:
        """Read replies, and enter each in its request. Never blocks."""
        conversation = self._conversation
        if conversation is None:
            return
        try:
            self._enter_replies(conversation)
        except ConnectionLost as error:
            self.drop(str(error), may_be_done=error.may_be_done)
            return
        except UnreadableReply as error:
            self.drop(f"does not speak the protocol of Redis: {error}")
            return
        if conversation.connection.events != conversation.events:
            self._wait_for(conversation)

    def flush(self) -> None:
        """Send the bytes that the socket did not take before."""
        conversation = self._conversation
        if conversation is None:
            return
        try:
            conversation.connection.flush()
        except ConnectionLost as error:
            self.drop(str(error), may_be_done=error.may_be_done)
            return
        if conversation.connection.events != conversation.events:
            self._wait_for(conversation)

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Have this selector wait for the connection, if there is one."""
        self._selector = selector
        if self._conversation:
            connection = self._conversation.connection
            self._conversation.events = connection.events
            selector.register(connection.sock, connection.events, self)

    def mark_suspect(self, since: float) -> None:
        """Note that a reply is late: from now on no call waits for this node.

        Args:
            since: An instant from which on it owes the reply. It may have owed others
                for longer, and may have sent replies to earlier requests since then.
        """
        if self.pending and not self.suspect:
            self.suspect = True
            since = min(since, self.silent_since)
            self._log.late(self._clock.monotonic() - since)

    def anew(self, reason: str) -> Node:
        """Return a copy of this node without its connection, which was interrupted.

        The requests in flight fail; the copy sends those again that must arrive. This
        node does not change, so an interruption of this call is harmless, too. After
        the copy has replaced this node, ``cut`` it.
        """
        made = copy.copy(self)
        made._begin_anew(self, reason)  # noqa: SLF001  (of this class)
        return made

    def _begin_anew(self, interrupted: Node, reason: str) -> None:
        self._conversation = self._selector = None
        self._down_because, self.suspect = reason, False
        self._backlog = deque(interrupted._backlog)
        if interrupted._conversation:
            self._note_end()
            self._log.lost(reason)
            self._end(interrupted._conversation, reason)
            self._connector.hurry()

    def cut(self) -> None:
        """Close the connection, and enter nothing; ``drop`` fails its requests.

        It is for a node that a copy has replaced (``anew``), which has done so, and for
        a store that has not finished in time (``Broadcast.finish``).
        """
        conversation, self._conversation = self._conversation, None
        self._backlog = deque()
        if conversation:
            conversation.connection.close()

    def forget_parent(self) -> None:
        """Start anew in a forked child: the connection is the parent's."""
        conversation, self._conversation = self._conversation, None
        self._backlog = deque()
        self._pending_releases = PendingReleases()
        self.suspect = False
        self._connector.forget_parent()
        self._down_because = self.unfit_because = ""
        if conversation:
            conversation.connection.disown()

    def close(self) -> None:
        """Drop the conversation, the attempt at another, and what is to be resent."""
        self._connector.abandon()
        self.drop("was closed", is_logged=False)
        self._pending_releases = PendingReleases()

    # -- the conversation --------------------------------------------------------

    def _write(
        self, conversation: _Conversation, requests: Sequence[ScriptRequest]
    ) -> None:
        owes_none = not conversation.pending
        conversation.pending.extend(requests)
        connection = conversation.connection
        try:
            connection.send(requests)
        except ConnectionLost as error:
            self.drop(str(error), may_be_done=error.may_be_done)
            return
        if owes_none:
            conversation.silent_since = self._clock.monotonic()
        if connection.events != conversation.events:
            self._wait_for(conversation)

    def _wait_for(self, conversation: _Conversation) -> None:
        """Have the selector wait for other events of the connection."""
        connection = conversation.connection
        conversation.events = connection.events
        if self._selector:
            with contextlib.suppress(KeyError, ValueError):  # it has ended
                self._selector.modify(connection.sock, connection.events, self)

    def _enter_replies(self, conversation: _Conversation) -> None:
        pending, index = conversation.pending, self._index
        for reply in conversation.connection.replies():
            try:
                request = pending.popleft()
            except IndexError:
                raise ConnectionLost("sent a reply to no request") from None
            try:
                if isinstance(reply, ErrorReply):
                    self._refused(conversation, request, reply)
                else:
                    request.answer(index, reply)
            except UnreadableReply:
                pending.appendleft(request)  # to fail with the others
                raise
        if pending:
            conversation.silent_since = self._clock.monotonic()
        elif self.suspect:
            self.suspect, self._connector.failures = False, 0
            self._log.in_time()

    def _refused(
        self, conversation: _Conversation, request: ScriptRequest, error: ErrorReply
    ) -> None:
        """Enter an error, or send a missing script; a release is sent again later."""
        is_unknown = str(error).startswith("NOSCRIPT")
        if is_unknown:
            conversation.connection.sent_scripts = set()
            # Behind a later request it would be late: after its own release, say.
            if not conversation.pending:
                self._write(conversation, (request,))
                return
        self._pending_releases.add_refused(request, self._clock.monotonic())
        if is_unknown:
            request.fail(self._index, LOST_SCRIPTS)
        else:
            request.answer(self._index, error)
            self._log.refused(refusal_of(str(error), request.script.source))

    def _fail(self, request: ScriptRequest, reason: str) -> None:
        is_used = self._conversation and not self.unfit_because
        if is_used or self._last_used_at >= request.resend_since:
            self._pending_releases.add(request, self._clock.monotonic())
        request.fail(self._index, reason)

    # -- the connection ----------------------------------------------------------

    def _note_end(self) -> None:
        """Note until when requests were sent: never to a node that is unfit."""
        if not self.unfit_because:
            self._last_used_at = self._clock.monotonic()

    def _end(
        self, ended: _Conversation, reason: str, *, may_be_done: bool = True
    ) -> None:
        """Let the requests in flight fail; keep those that must arrive."""
        now = self._clock.monotonic()
        for request in list(ended.pending):
            self._pending_releases.add(request, now)
            request.fail(self._index, reason, was_asked=may_be_done)

    def _connecting_failed(self, reason: str) -> None:
        if self._conversation is None:
            self._down_because = reason
        if self._connector.failures == 1:
            self._log.unreachable(reason)
        while self._backlog:
            self._fail(self._backlog[0], reason)
            self._backlog.popleft()

    def _adopt(self, made: Connection | StoreConnection) -> bool:
        if self._conversation and self.suspect:
            self.receive()  # it may have caught up while the other one was made
        if self._conversation and (self.suspect or self.unfit_because):
            late = "did not answer for too long, and has a new connection now"
            self.drop(late if self.suspect else "is asked again whether it may vote")
        if self._conversation:
            made.close()
            return False
        self._conversation = _Conversation(made)
        if self._connector.failures:
            self._log.back()
        if self._selector:
            with contextlib.suppress(ValueError):  # it has ended
                self._selector.register(made.sock, made.events, self)
        self._down_because = ""
        self.disqualify(made.facts.unfit_because)
        self._connector.accept(usable=not self.unfit_because)
        return True
