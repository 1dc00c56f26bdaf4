"""One master: its ordered conversation, and connecting in the background.

::

               ┌──────────────── backoff ────────────────┐
               ▼                                         │
    new ─► connecting ──handshake done──► ready ──lost──►┤
               │                            │            │
               └───────────failed───────────┼──────► down┘
                                            │
                         silent past its time: *suspect* (still ready)

Commands travel on ONE connection in the order in which they were sent, so a
release can never overtake the acquire or the renewal before it. A time-out does
not close the connection: the late reply ends up in the question that it answers.
While a node is suspect it is asked and not waited for; once it has been silent for
longer than it takes to connect, a second connection is tried in the background, and
replaces the first if it gets through.

Nothing here blocks; connecting is done in the background, by ``core.connector``.
"""

from __future__ import annotations

import contextlib
import selectors
from collections import deque
from typing import TYPE_CHECKING

from celery_redlock.core.connector import Connector
from celery_redlock.core.debts import Debts
from celery_redlock.core.link import would_block
from celery_redlock.core.question import Lesson, Question, UnreadableReply
from celery_redlock.core.voice import NodeVoice
from celery_redlock.core.wire import ErrorReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.address import NodeAddress
    from celery_redlock.core.clock import Clock
    from celery_redlock.core.link import Link, NodeFacts
    from celery_redlock.core.wire import ReplyReader

__all__ = ["Node"]

_READ_SIZE = 65536
_READ_AND_WRITE = selectors.EVENT_READ | selectors.EVENT_WRITE
_MOST_UNSENT = 1 << 22  # bytes: a node that takes no more than this is gone
_GIVEN_UP_AFTER = 10.0  # seconds of silence


class Node:
    """One master. Used under its fan-out's lock, except for the connecting."""

    def __init__(
        self, address: NodeAddress, *, clock: Clock, connect_timeout: float
    ) -> None:
        self.label = address.name
        self.suspect = False
        self.misfit = ""
        self.pending: deque[tuple[Question | Lesson, int]] = deque()
        self._clock = clock
        self._connector = Connector(address, clock=clock, timeout=connect_timeout)
        self._link: Link | None = None
        self._selector: selectors.BaseSelector | None = None
        self._out = bytearray()
        self._is_tls = False
        self._torn = False
        self._silent_since = 0.0
        self._last_seen_at = 0.0
        self._debts = Debts()
        self._down_because = ""
        self._backlog: list[tuple[Question, int]] = []
        self._voice = NodeVoice(self.label, clock)

    # -- what the fan-out asks ---------------------------------------------

    @property
    def facts(self) -> NodeFacts | None:
        """What the server said of itself, while there is a connection."""
        return self._link.facts if self._link else None

    @property
    def is_arriving(self) -> bool:
        """Whether a connection is being made that is worth waiting for."""
        return not self._link and self._connector.is_hopeful

    @property
    def owes(self) -> bool:
        """Whether this node has to be told something when it is there."""
        return bool(self._debts) or bool(self._backlog)

    def send(
        self, questions: Sequence[Question], index: int, packed: bytes = b""
    ) -> None:
        """Put questions on the wire at once, or enter why that cannot be.

        Args:
            questions: What to ask.
            index: The place of this node's votes.
            packed: The bytes of all questions, which the nodes can share.
        """
        if self._link and not self.misfit:
            packed = packed or b"".join([question.packed() for question in questions])
            self._write([(question, index) for question in questions], packed)
            return
        for question in questions:
            if self.misfit:
                question.fail(index, self.misfit)
            elif self.is_arriving:
                self._backlog.append((question, index))
            else:
                self._fail(question, index, self._down_because or "is not connected")

    @property
    def wants_tending(self) -> bool:
        """Whether ``tend`` has something to do."""
        return self._link is None or bool(
            self.suspect or self._torn or self.misfit or self._debts
        )

    def tend(self, selector: selectors.BaseSelector) -> bool:
        """Take a new connection or start one. Return whether one was taken."""
        self._selector = selector
        now = self._clock.monotonic()
        if self._torn:
            self._drop("had its connection closed after an interruption")
        arrival = self._connector.take()
        taken = False
        if isinstance(arrival, str):
            self._turned_away(arrival)
        elif arrival is not None:
            taken = self._welcome(arrival)
        silence = now - self._silent_since if self.suspect else 0.0
        if silence > max(_GIVEN_UP_AFTER, self._connector.timeout):
            self._drop(f"has been silent for {silence:.0f} s")
        if self._link is None or silence > self._connector.timeout or self.misfit:
            self._connector.begin()
        return taken

    def catch_up(self) -> None:
        """Send what waited for the connection, and tell what is owed."""
        if self._link is None:
            return
        backlog, self._backlog = self._backlog, []
        for question, index in backlog:
            self.send((question,), index)
        if not self.misfit:
            for question, index in self._debts.due(self._clock.monotonic()):
                self.send((question,), index)

    def disqualify(self, misfit: str) -> None:
        """Give this node no vote, and say why."""
        if misfit:
            self._voice.unfit(misfit)
        self.misfit = misfit

    def receive(self) -> None:
        """Read what has come, and enter it where it belongs. Never blocks."""
        link = self._link
        if link is None:
            return
        self._torn = True
        try:
            data = link.sock.recv(_READ_SIZE)
            while data:
                link.reader.feed(data)
                if len(data) < _READ_SIZE and not self._is_tls:
                    break
                data = link.sock.recv(_READ_SIZE)
        except OSError as error:
            if not would_block(error):
                self._drop(f"lost its connection: {error}")
                return
            data = b"."
        if not data:
            self._drop("closed the connection")
            return
        try:
            self._deliver(link.reader)
        except (ErrorReply, UnreadableReply) as error:
            self._drop(f"does not speak the protocol of Redis: {error}")
        self._torn = False

    def flush(self) -> None:
        """Send on what the socket did not take before."""
        if self._link is None:
            return
        self._torn = True
        try:
            del self._out[: self._link.sock.send(self._out)]
        except OSError as error:
            if not would_block(error):
                self._drop(f"lost its connection: {error}")
                return
        if not self._out and self._selector:
            self._selector.modify(self._link.sock, selectors.EVENT_READ, self)
        self._torn = False

    def overdue(self) -> None:
        """Note that an answer is late: ask on, but wait for it no more."""
        if self._link and not self.suspect:
            self.suspect = True
            self._silent_since = self._clock.monotonic()
            self._voice.late()

    def forget(self) -> None:
        """Start anew in a forked child: the connection is the parent's."""
        link, self._link = self._link, None
        self.pending, self._backlog, self._debts = deque(), [], Debts()
        self._out, self._torn, self.suspect = bytearray(), False, False
        self._connector.forget()
        self._down_because = self.misfit = ""
        if link:
            link.disown()

    def close(self) -> None:
        """Close the connection. What was on its way is entered as failed."""
        self._connector.abandon()
        self._drop("was closed")
        self._debts = Debts()

    def _write(
        self, asked: Sequence[tuple[Question | Lesson, int]], packed: bytes
    ) -> None:
        link = self._link
        if link is None:
            return
        # An asynchronous exception (a time limit, LockLost) may strike between
        # any two of these lines; a connection left torn is never used again.
        self._torn = True
        self.pending.extend(asked)
        if self._out:
            self._out += packed
        else:
            try:
                sent = link.sock.send(packed)
            except OSError as error:
                if not would_block(error):
                    self._drop(f"lost its connection: {error}")
                    return
                sent = 0
            if sent < len(packed):
                self._out += packed[sent:]
                if self._selector:
                    self._selector.modify(link.sock, _READ_AND_WRITE, self)
        self._torn = False
        if self._out and len(self._out) > _MOST_UNSENT:
            self._drop("took nothing more from a full connection")

    def _deliver(self, reader: ReplyReader) -> None:
        while (reply := reader.gets()) is not False:
            if not self.pending:
                self._drop("spoke without being asked")
                return
            question, index = self.pending.popleft()
            forgot = isinstance(reply, ErrorReply) and str(reply).startswith("NOSCRIPT")
            try:
                if forgot and isinstance(question, Question):
                    self._explain(question, index)
                else:
                    question.answer(index, reply)
            except UnreadableReply:
                self.pending.appendleft((question, index))  # to fail with the rest
                raise
        if not self.pending and self.suspect:
            self.suspect, self._connector.failures = False, 0
            self._voice.in_time()

    def _explain(self, question: Question, index: int) -> None:
        """Send the script itself, unless that would overtake a later command."""
        key = question.call[1][0]
        if any(later.call[1][0] == key for later, _ in self.pending):
            lesson = Lesson(question.script)
            self._write([(lesson, index)], lesson.packed())
            self._fail(question, index, "had forgotten its scripts")
        else:
            self._write([(question, index)], question.packed_source())

    def _drop(self, reason: str) -> None:
        self._torn = True  # until all is done: it may be interrupted at any line
        if self._link:
            self._last_seen_at = self._clock.monotonic()
            if self._selector:
                with contextlib.suppress(KeyError, ValueError):  # interrupted before
                    self._selector.unregister(self._link.sock)
            self._link.close()
            self._voice.lost(reason)
        self._link = None
        pending, self.pending = self.pending, deque()
        self._out, self._torn, self.suspect = bytearray(), False, False
        self._down_because = reason
        for question, index in pending:
            self._fail(question, index, reason)

    def _fail(self, question: Question | Lesson, index: int, reason: str) -> None:
        question.fail(index, reason)
        was_there = self._link or self._last_seen_at >= question.insist_since
        if was_there and isinstance(question, Question):
            self._debts.owe(question, index, self._clock.monotonic())

    def _turned_away(self, reason: str) -> None:
        if self._link is None:
            self._down_because = reason
        if self._connector.failures == 1:
            self._voice.unreachable(reason)
        backlog, self._backlog = self._backlog, []
        for question, index in backlog:
            self._fail(question, index, reason)

    def _welcome(self, arrival: Link) -> bool:
        if self._link and self.suspect:
            self.receive()  # it may have come round while the other was made
        if self._link and not self.suspect and not self.misfit:
            arrival.close()
            return False
        if self._link:
            self._drop("was silent for too long and has been connected to anew")
        if self._connector.failures:
            self._voice.back()
        if self._selector:
            self._selector.register(arrival.sock, selectors.EVENT_READ, self)
        self._is_tls = hasattr(arrival.sock, "pending")  # may hold more than it shows
        self._link, self._down_because = arrival, ""
        self.disqualify(arrival.facts.misfit)
        self._connector.settle(usable=not self.misfit)
        return True
