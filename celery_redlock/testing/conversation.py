"""A fake node, and what is said between it and one client, in one order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from celery_redlock.core.debts import Debts
from celery_redlock.testing.nodes import MemoryNode

if TYPE_CHECKING:
    from celery_redlock.core.clock import Clock
    from celery_redlock.core.question import Question

__all__ = ["FakeNode", "Line"]


class FakeNode:
    """One fake server, for all of its clients.

    Attributes:
        label: Its name.
        memory: What it knows.
        is_running: Whether there is a server; a frozen one runs.
        is_frozen: Whether it does nothing at the moment.
    """

    def __init__(self, label: str, clock: Clock) -> None:
        self.label = label
        self.memory = MemoryNode(clock)
        self.is_running = True
        self.is_frozen = False
        self._lines: list[Line] = []
        self._inbox: deque[tuple[Line, int, Question]] = deque()

    def freeze(self) -> None:
        """Stop the server (SIGSTOP): it takes what is sent and does nothing."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Let the server go on, and first do what was sent to it meanwhile."""
        self.is_frozen = False
        while self._inbox:
            self._run(*self._inbox.popleft())

    def kill(self) -> None:
        """End the server at once (SIGKILL). What it has not done is never done."""
        self.is_running = self.is_frozen = False
        self._inbox.clear()
        for line in self._lines:
            line.break_off("closed the connection")

    def restart(self, *, keep_memory: bool = False) -> None:
        """End the server if it runs, and start it again.

        Args:
            keep_memory: By default it comes back empty.
        """
        self.kill()
        self.memory.restart(keep_memory=keep_memory)
        self.is_running = True

    def connect(self, line: Line) -> None:
        """Take a client's conversation."""
        self._lines.append(line)

    def take(self, line: Line, epoch: int, question: Question) -> None:
        """Take what a client sent, and do it unless frozen."""
        if self.is_frozen:
            self._inbox.append((line, epoch, question))
        else:
            self._run(line, epoch, question)

    def _run(self, line: Line, epoch: int, question: Question) -> None:
        line.reply(epoch, question, self.memory.execute(*question.call))

    def __repr__(self) -> str:
        state = "dead" if not self.is_running else "frozen" if self.is_frozen else "up"
        return f"<FakeNode {self.label} {state}>"


class Line:
    """The conversation of one client with one node: one order, both ways.

    Attributes:
        latency: Seconds until an answer arrives.
        cut: Whether nothing gets through.
        muted: Whether answers do not get through.
        suspect: Whether the last answer was late: nobody waits for the next.
        debts: What could not be sent and has to be, when the node is back.
    """

    def __init__(self, node: FakeNode, index: int, clock: Clock) -> None:
        self.node = node
        self.latency = 0.0
        self.cut = self.muted = self.suspect = False
        self.debts = Debts()
        self._index = index
        self._clock = clock
        self._epoch = 0  # a new connection; nothing of the last one reaches it
        self._outbox: deque[Question] = deque()
        self._pending: deque[Question] = deque()
        self._replies: deque[tuple[float, Question, Any]] = deque()
        self._broken = ""
        self._is_open = False
        self._last_open_at = 0.0
        node.connect(self)

    def send(self, question: Question) -> None:
        """Send a question; it may not arrive."""
        self._pending.append(question)
        if self.cut:
            self._outbox.append(question)
        elif self.node.is_running:
            self._is_open = True
            self.node.take(self, self._epoch, question)
        else:
            self.break_off("refused the connection")

    def reply(self, epoch: int, question: Question, reply: Any) -> None:
        """Take the node's answer, which is under way from now on."""
        if epoch == self._epoch:
            due_at = self._clock.monotonic() + self.latency
            self._replies.append((due_at, question, reply))

    def deliver(self) -> None:
        """Enter the answers that have arrived by now."""
        while self.next_due() <= self._clock.monotonic():
            _, question, reply = self._replies.popleft()
            self._pending.popleft()
            question.answer(self._index, reply)
        if not self._pending:
            self.suspect = False

    def next_due(self) -> float:
        """Return when the next answer arrives, as things stand."""
        held = self.cut or self.muted or not self._replies
        return float("inf") if held else self._replies[0][0]

    def heal(self) -> None:
        """Let everything through, first what has been held back."""
        self.cut = self.muted = False
        if self._broken:
            self.break_off(self._broken)
        outbox, self._outbox = self._outbox, deque()
        for question in outbox:
            if self.node.is_running:
                self.node.take(self, self._epoch, question)
            else:
                self.break_off("refused the connection")
                return

    def break_off(self, reason: str) -> None:
        """End this connection; a client that is cut off notices when healed."""
        if self.cut:
            self._broken = reason
            return
        now = self._clock.monotonic()
        self._last_open_at = now if self._is_open else self._last_open_at
        self._is_open, self._broken = False, ""
        self._epoch += 1
        self._outbox.clear()
        self._replies.clear()
        failed, self._pending = self._pending, deque()
        for question in failed:
            question.fail(self._index, reason)
            if self._last_open_at >= question.insist_since:
                self.debts.owe(question, self._index, now)

    def tell_owed(self) -> None:
        """Tell the node what it missed, if it is back."""
        if self.node.is_running and not self.cut:
            for question, _ in self.debts.due(self._clock.monotonic()):
                self.send(question)
