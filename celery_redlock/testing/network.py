"""Fake nodes: what `Redlock` talks to instead of sockets.

::

    nodes = FakeNodes(5)                  # with a FakeClock of their own
    redlock = nodes.redlock(ttl=10)
    with lock(redlock, "report"):
        nodes.freeze(0, 1)                # two nodes hang
        nodes.clock.sleep(60)             # a minute passes in no time

Each node answers as a real server does (`testing.MemoryNode`). Between a client
and a node there is one ordered conversation, which breaks as a real one does:

=============  =================================================================
``freeze``     the node stops: what is sent to it is done when it is thawed
``partition``  nothing gets through to the node until it is healed
``mute``       what is sent is done at once; the answer arrives when it is healed
``latency``    each answer takes so long
``kill``       the node is gone: at once an error, and nothing sent before is done
``restart``    the same, and it is back: by default with nothing in its memory
=============  =================================================================

What they do not show: connecting takes no time, and neither does the sending.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from celery_redlock.core.debts import Debts
from celery_redlock.core.redlock import Redlock
from celery_redlock.testing.clock import FakeClock
from celery_redlock.testing.conversation import FakeNode, Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.clock import Clock
    from celery_redlock.core.question import Question

__all__ = ["FakeNodes"]

_REMEMBERED = 10_000


class FakeNodes:
    """All nodes of a deployment, as one client sees them (a `core.fanout.Transport`).

    Threads may share it; to move a `FakeClock` is for one of them.

    Args:
        nodes: How many, 3 by default; or those of another client, to share them.
        clock: Whose time everything runs in; a new `FakeClock` by default. With
            `core.clock.SYSTEM_CLOCK` the watchdog's thread works as it does live.
        node_timeout: Seconds that a node may take to answer.

    Attributes:
        labels: The names of the nodes.
        nodes: The nodes, to be killed and restarted.
        clock: What was given, or made.
        asked: The questions that were put last, newest at the end.
    """

    def __init__(
        self,
        nodes: int | Sequence[FakeNode] = 3,
        *,
        clock: Clock | None = None,
        node_timeout: float = 0.05,
    ) -> None:
        self.clock: Clock = FakeClock() if clock is None else clock
        self._fresh = {"fresh"} if isinstance(nodes, int) else set()
        if isinstance(nodes, int):
            names = [f"node-{number}:6379/0" for number in range(1, nodes + 1)]
            nodes = [FakeNode(name, self.clock) for name in names]
        self.nodes = nodes
        self.labels = tuple(node.label for node in nodes)
        self.asked: deque[Question] = deque(maxlen=_REMEMBERED)
        self._node_timeout = node_timeout
        self._lines = [Line(node, i, self.clock) for i, node in enumerate(nodes)]
        self._turn = threading.RLock()

    # -- for tests -------------------------------------------------------------

    @property
    def urls(self) -> list[str]:
        """What to give to `Redlock` as its nodes, beside ``transport=self``."""
        return [f"redis://{label}" for label in self.labels]

    def redlock(self, **options: Any) -> Redlock:
        """Return a service on these nodes, which vote from the start.

        Args:
            options: Of `Redlock`.
        """
        options = {"node_timeout": self._node_timeout, "clock": self.clock, **options}
        redlock = Redlock(self.urls, transport=self, **options)
        fresh = bool(self._fresh)
        self._fresh.clear()  # for all clients
        if fresh and redlock.guard.enabled:
            redlock.guard.initialize()
            self.asked.clear()
        return redlock

    def another_client(self) -> FakeNodes:
        """Return the same nodes as another process sees them."""
        other = FakeNodes(self.nodes, clock=self.clock, node_timeout=self._node_timeout)
        other._turn, other._fresh = self._turn, self._fresh
        return other

    def freeze(self, *indexes: int) -> None:
        """Stop these nodes, or all, until ``thaw``: they hang for everybody."""
        with self._turn:
            for line in self._some(indexes):
                line.node.freeze()

    def thaw(self, *indexes: int) -> None:
        """Let these nodes, or all, go on with what was sent to them."""
        with self._turn:
            for line in self._some(indexes):
                line.node.thaw()

    def partition(self, *indexes: int) -> None:
        """Cut this client off from these nodes, or all, until ``heal``."""
        with self._turn:
            for line in self._some(indexes):
                line.cut = True

    def mute(self, *indexes: int) -> None:
        """Hold back the answers of these nodes, or all, to this client."""
        with self._turn:
            for line in self._some(indexes):
                line.muted = True

    def heal(self, *indexes: int) -> None:
        """Let everything through again, first what has been held back."""
        with self._turn:
            for line in self._some(indexes):
                line.heal()

    def latency(self, seconds: float, *indexes: int) -> None:
        """Let answers of these nodes, or all, take so long from now on."""
        with self._turn:
            for line in self._some(indexes):
                line.latency = seconds

    def _some(self, indexes: tuple[int, ...]) -> list[Line]:
        return [self._lines[i] for i in indexes] if indexes else self._lines

    # -- the transport ---------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether a node that is away has to be told something."""
        return any(line.debts for line in self._lines)

    def send(self, *questions: Question, until: float | None = None) -> bool:  # noqa: ARG002  (nobody talks for long here)
        """Put questions to all nodes, in this order; do not wait for answers."""
        with self._turn:
            self._tell_owed()
            wanted = []
            for question in questions:
                if question.withdrawn is None or not question.withdrawn():
                    wanted.append(question)
                else:
                    for index in range(len(self.labels)):
                        question.fail(index, "was not asked any more")
            self.asked += wanted
            for line in self._lines:
                for question in wanted:
                    line.send(question)
        return True

    def wait(self, *questions: Question, until: float) -> None:
        """Return when all of them are settled, or at this instant."""
        while True:
            with self._turn:
                self._tell_owed()
                for line in self._lines:
                    line.deliver()
                unsettled = [q for q in questions if not q.is_settled()]
                now = self.clock.monotonic()
                if not unsettled or not self._worth_waiting(unsettled) or now >= until:
                    self._note_late(unsettled)
                    return
                wake_at = min(until, *(line.next_due() for line in self._lines))
            if isinstance(self.clock, FakeClock):
                self.clock.advance(min(wake_at, self.clock.next_event()) - now)
            else:
                self.clock.sleep(wake_at - now)

    def ask(self, question: Question) -> None:
        """Send one question and wait for it as long as nodes may take."""
        self.send(question)
        self.wait(question, until=self.clock.monotonic() + self._node_timeout)

    def drain(self, until: float) -> None:  # noqa: ARG002  (it never waits)
        """Read what has come without waiting."""
        self.wait(until=self.clock.monotonic())

    def close(self) -> None:
        """Close all connections. What was sent is done all the same."""
        with self._turn:
            for line in self._lines:
                line.break_off("was closed")
                line.debts = Debts()

    def _tell_owed(self) -> None:
        for line in self._lines:
            line.tell_owed()

    def _worth_waiting(self, questions: Sequence[Question]) -> bool:
        for question in questions:
            ballot = question.ballot
            if ballot.answered < ballot.quorum:
                return True
            votes = zip(ballot.votes, self._lines, strict=True)
            if any(vote is None and not line.suspect for vote, line in votes):
                return True
        return False

    def _note_late(self, questions: Sequence[Question]) -> None:
        for question in questions:
            for vote, line in zip(question.ballot.votes, self._lines, strict=True):
                line.suspect |= vote is None
