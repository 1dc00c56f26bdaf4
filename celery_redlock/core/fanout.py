"""Ask all nodes at once on one selector; stop at a verdict or the deadline.

The packed command goes out to every node first and the replies are read after,
so that N nodes cost little more than one. A call returns as soon as the question
is settled or its time has run out; before silence is counted there is one more
look at 0 ms, because the one that was late may have been this process itself.

Nobody waits for a node that is *suspect* (late before), unless without it no
majority can answer at all. Replies that come after their question was settled
are drained at the next use and entered where they belong.
"""

from __future__ import annotations

import os
import selectors
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from celery_redlock.core.ballot import quorum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.ballot import Vote
    from celery_redlock.core.clock import Clock
    from celery_redlock.core.node import Node
    from celery_redlock.core.question import Question
    from celery_redlock.core.timing import Timing

__all__ = ["Fanout", "Transport"]

_IDLE = 0.5  # seconds after which connections are looked at before they are used
_GLANCE = 0.002  # seconds between two looks at a connection that is being made


class Transport(Protocol):
    """How questions reach the nodes: the seam at which tests replace the network.

    Attributes:
        labels: The names of the nodes, in the order of their votes.
    """

    labels: tuple[str, ...]

    def send(self, *questions: Question, until: float | None = None) -> bool:
        """Put questions to all nodes, in this order; do not wait for answers.

        Returns False when others were still talking at that instant.
        """

    def wait(self, *questions: Question, until: float) -> None:
        """Return when all of them are settled, or at this instant."""

    def ask(self, question: Question) -> None:
        """Send one question and wait for it as long as nodes may take."""

    def drain(self, until: float) -> None:
        """Read what has come without waiting; give up a busy line at ``until``."""

    @property
    def owes(self) -> bool:
        """Whether a node that is away has to be told something."""

    def close(self) -> None:
        """Close all connections. The next question opens them again."""


_all_fanouts: weakref.WeakSet[Fanout] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for fanout in list(_all_fanouts):
        fanout.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Fanout:
    """The conversation with all nodes of one deployment.

    Threads and greenlets may share it; one of them talks at a time. A forked
    child starts anew with connections of its own.

    Args:
        nodes: The nodes, at least one.
        clock: Reads time.
        timing: How long a node may take to answer; and to be connected to, for
            which is waited when fewer than a quorum are connected yet.
        new_selector: Makes what waits for several nodes.

    Attributes:
        observer: Asked for the observer of each question that is sent.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        clock: Clock,
        timing: Timing,
        new_selector: Callable[[], selectors.BaseSelector] | None = None,
    ) -> None:
        self.labels = tuple(node.label for node in nodes)
        self.nodes = nodes
        self._clock = clock
        self._timing = timing
        self._new_selector = new_selector
        self.observer: Callable[[Question], Callable[[int, Vote], None]] | None = None
        self._turn = threading.RLock()  # it knows its owner: see _in_turn
        self._hurried: set[int] = set()  # threads with a deadline that want a turn
        self._selector: selectors.BaseSelector | None = None
        self._polled_at = 0.0
        self._needy: list[Node] = []  # at the last look
        _all_fanouts.add(self)

    @property
    def owes(self) -> bool:
        """Whether a node that is away has to be told something."""
        return any(node.owes for node in self.nodes)

    def ask(self, question: Question) -> None:
        """Send one question and wait for it as long as nodes may take."""
        if self._hurried:
            # Who has just had its turn would get the next one before a thread that
            # is still waking up, and locks would not be renewed.
            self._clock.sleep(_GLANCE)
        with self._turn:
            self._send((question,))
            until = self._clock.monotonic() + self._patience()
            self._wait((question,), until)

    def send(self, *questions: Question, until: float | None = None) -> bool:
        """Put questions to all nodes, in this order; do not wait for answers.

        Args:
            questions: What to ask.
            until: Instant at which to give up, sending nothing, because others
                are still talking. For threads with a deadline of their own.

        Returns:
            Whether they were sent.
        """
        if until is None:
            with self._turn:
                self._send(questions)
            return True
        return self._in_turn(until, self._send, questions)

    def wait(self, *questions: Question, until: float) -> None:
        """Return when all of them are settled, or at this instant.

        For threads with a deadline of their own: also the wait for one's turn
        ends then.
        """
        self._in_turn(until, self._wait, questions, until)

    def drain(self, until: float) -> None:
        """Read what has come without waiting; give up a busy line at ``until``."""
        self.wait(until=max(until, self._clock.monotonic()))

    def forget(self) -> None:
        """Start anew in a forked child, touching nothing of the parent's."""
        selector, self._selector = self._selector, None
        self._turn, self._hurried = threading.RLock(), set()
        if selector:
            selector.close()
        for node in self.nodes:
            node.forget()

    def close(self) -> None:
        """Close all connections. The next question opens them again.

        Not over answers that are on their way, for as long as a node may take: a
        node that cannot deliver one drops what it has not read yet, releases too.
        """
        with self._turn:
            until = self._clock.monotonic() + self._timing.node_timeout
            while [node for node in self.nodes if node.pending] and self._selector:
                left = until - self._clock.monotonic()
                if left <= 0:
                    break
                self._read(self._selector, left)
            for node in self.nodes:
                node.close()
            selector, self._selector = self._selector, None
            if selector:
                selector.close()

    def _in_turn(self, until: float, do: Callable[..., None], *args: Any) -> bool:
        """Do this when it is our turn; return False if that is not before ``until``.

        CPython throws the exception of a time limit into a thread just after
        ``acquire`` has returned, before a line can note that it was granted. So the
        turn is given back in any case, and the lock knows whether we had it.
        """
        left, me = max(0.0, until - self._clock.monotonic()), threading.get_ident()
        try:
            self._hurried.add(me)
            if not self._turn.acquire(timeout=left):
                return False
            self._hurried.discard(me)
            do(*args)
            return True
        finally:
            try:  # noqa: SIM105  (no call, and so no exception, before the release)
                self._turn.release()
            except RuntimeError:
                pass
            self._hurried.discard(me)

    # -- in our turn ----------------------------------------------------------

    def _send(self, questions: Sequence[Question]) -> None:
        now = self._clock.monotonic()
        if now - self._polled_at > _IDLE:
            # Connections may have been closed meanwhile, behind late answers.
            self._polled_at = now
            self._poll(0.0)
            self._poll(0.0)
        self._tend()
        wanted = []
        for question in questions:
            # Asked here, in our turn: nothing can be sent between this and that.
            if question.withdrawn is None or not question.withdrawn():
                question.withdrawn = None  # is not asked again, and may hold a lease
                wanted.append(question)
            else:
                for index in range(len(self.nodes)):
                    question.fail(index, "was not asked any more")
        if self.observer is not None:
            for question in wanted:
                question.observer = self.observer(question)
        if wanted:
            packed = b"".join([question.packed() for question in wanted])
            for index, node in enumerate(self.nodes):
                node.send(wanted, index, packed)

    def _patience(self) -> float:
        arriving = len([node for node in self._needy if node.is_arriving])
        few = len(self.nodes) - arriving < quorum_of(len(self.nodes))
        return self._timing.connect_timeout if few else self._timing.node_timeout

    def _wait(self, questions: Sequence[Question], until: float) -> None:
        unsettled = [q for q in questions if not q.is_settled()]
        while unsettled and self._worth_waiting(unsettled):
            self._polled_at = self._clock.monotonic()
            left = until - self._polled_at
            if left <= 0:
                break
            self._poll(left)
            unsettled = [q for q in unsettled if not q.is_settled()]
        else:
            if questions:
                return
        self._poll(0.0)
        if unsettled:
            self._note_late(unsettled)

    def _worth_waiting(self, questions: Sequence[Question]) -> bool:
        if not [node for node in self.nodes if node.suspect]:
            return any(question.ballot.pending for question in questions)
        for question in questions:
            ballot = question.ballot
            out = (i for i, vote in enumerate(ballot.votes) if vote is None)
            if ballot.answered < ballot.quorum:
                return True
            if any(not self.nodes[index].suspect for index in out):
                return True
        return False

    def _note_late(self, questions: Sequence[Question]) -> None:
        for question in questions:
            for index, vote in enumerate(question.ballot.votes):
                if vote is None:
                    self.nodes[index].overdue()

    def _poll(self, timeout: float) -> None:
        selector = self._selector
        if selector is None or [node for node in self.nodes if node.wants_tending]:
            selector = self._tend()
            if any(node.is_arriving for node in self._needy):
                timeout = min(timeout, _GLANCE)
        self._read(selector, timeout)

    @staticmethod
    def _read(selector: selectors.BaseSelector, timeout: float) -> None:
        for key, events in selector.select(timeout):
            if events & selectors.EVENT_READ:
                key.data.receive()
            if events & selectors.EVENT_WRITE:
                key.data.flush()

    def _tend(self) -> selectors.BaseSelector:
        selector = self._selector
        if selector is None:
            # Looked up late: gevent and eventlet replace it when they patch.
            new = self._new_selector or selectors.DefaultSelector
            selector = self._selector = new()
        needy = self._needy = [node for node in self.nodes if node.wants_tending]
        for node in needy:
            if node.tend(selector):
                self._expose_twin(node)
        for node in needy:
            node.catch_up()
        return selector

    def _expose_twin(self, newcomer: Node) -> None:
        """Give no vote to a node that is the same server as one that has voted."""
        run_id = newcomer.facts.run_id if newcomer.facts else ""
        for node in self.nodes:
            known = node.facts.run_id if node.facts and not node.misfit else ""
            if run_id and run_id == known and node is not newcomer:
                twin = f"is the same server as {node.label}; list each one once"
                newcomer.disqualify(twin)
