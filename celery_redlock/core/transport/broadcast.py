"""Ask all nodes at once on one selector; stop at a verdict or the deadline.

The packed command goes out to every node first, and the replies are read after. So N
nodes cost little more than one. A call returns as soon as the request is done or its
time has run out. Before a node counts as silent, the sockets are read once more without
waiting, because this process itself may have been late.

No call waits for a *suspect* node, which was late before, unless no majority can answer
without it. Then callers wait for it at the same time, and others can send meanwhile.
Replies that come after their request was done are read at the next use, and
entered where they belong.
"""

from __future__ import annotations

import math
import os
import selectors
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_redlock.core.quorum import quorum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.clock import Clock
    from celery_redlock.core.quorum import Vote
    from celery_redlock.core.timing import Timing
    from celery_redlock.core.transport.node import Node
    from celery_redlock.core.transport.requests import ScriptRequest

__all__ = ["Broadcast"]

_IDLE = 0.5  # seconds after which connections are checked before they are used
_POLL_EVERY = 0.002  # seconds between two looks at a connection that is being made
_MOST_PAUSES = 25  # of that length, for threads with a deadline

_all_broadcasts: weakref.WeakSet[Broadcast] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for broadcast in list(_all_broadcasts):
        broadcast.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Broadcast:
    """One conversation with all nodes of a deployment.

    Threads and greenlets may share it; one of them uses it at a time. Those with a
    deadline, which renew, go first. A forked child starts anew with connections of its
    own.

    Args:
        nodes: The nodes, at least one.
        clock: Reads time.
        timing: Limits the time for an answer, and for a connection if fewer than a
            quorum of the nodes are connected yet.
        new_selector: Makes the selector that waits for all nodes.

    Attributes:
        observer: Returns the observer of a request that is sent.
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
        self.observer: Callable[[ScriptRequest], Callable[[int, Vote], None]] | None = (
            None
        )
        self._forget_threads()
        self._selector: selectors.BaseSelector | None = None
        self._polled_at = 0.0
        self._unready: list[Node] = []  # nodes that needed maintenance last time
        _all_broadcasts.add(self)

    @property
    def has_pending(self) -> bool:
        """Whether a request waits to be sent, or to be resent."""
        return any(node.has_pending for node in self.nodes)

    @property
    def has_unanswered(self) -> bool:
        """Whether a request was sent of which some reply has not been read."""
        return any(node.pending for node in self.nodes)

    def ask(self, request: ScriptRequest) -> None:
        """Send one request and wait for it as long as nodes may take.

        The time for a node that was late before counts from when the caller came: other
        callers may have waited for the node all the time.
        """
        came_at = self._clock.monotonic()
        until = self._in_turn(self._ask, request)
        self._wait_for_suspects((request,), came_at, until, self._poll_in_turn)

    def _ask(self, request: ScriptRequest) -> float:
        self._send((request,))
        until = self._clock.monotonic() + self._reply_timeout()
        self._wait((request,), until)
        return until

    def _poll_in_turn(self) -> bool:
        self._in_turn(self._poll, 0.0)
        return True

    def send(self, *requests: ScriptRequest, until: float | None = None) -> bool:
        """Send requests to all nodes, in this order: see ``Transport``."""
        if until is None:
            self._in_turn(self._send, requests)
            return True
        return self._exclusively(until, self._send, requests)

    def wait(
        self, *requests: ScriptRequest, until: float, give_up_at: float = math.inf
    ) -> bool:
        """Return when all of them are done, or at ``until``: see ``Transport``.

        Until then other threads may use the connections, which is no silence of the
        nodes. So their replies are read once more before they are judged.
        """
        if not self._exclusively(give_up_at, self._wait, requests, until):
            return False
        poll = partial(self._exclusively, give_up_at, self._poll, 0.0)
        return self._wait_for_suspects(requests, until, until, poll)

    def drain(self, until: float) -> None:
        """Read the replies that are there; give up a busy transport at ``until``."""
        self.wait(until=self._clock.monotonic(), give_up_at=until)

    def forget(self) -> None:
        """Start anew in a forked child, touching nothing of the parent's."""
        selector, self._selector = self._selector, None
        self._forget_threads()
        if selector:
            selector.close()
        for node in self.nodes:
            node.forget()

    def _forget_threads(self) -> None:
        self._mutex = threading.RLock()  # it knows its owner: see _exclusively
        self._gate = threading.RLock()  # of the threads without a deadline
        self._urgent: set[int] = set()  # threads with a deadline that wait for it
        self._inside: set[int] = set()  # threads with a deadline that may have it

    def close(self) -> None:
        """Close all connections. The next request opens them again.

        Wait for replies that are on their way, for as long as a node may take: a node
        that cannot deliver a reply drops the requests that it has not read yet, also
        releases.
        """
        with self._mutex:
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

    def _in_turn(self, do: Callable[..., Any], *args: Any) -> Any:
        """Do this with the mutex, after the threads with a deadline that wait for it.

        Threads without a deadline wait at the gate. So one of them at most waits for
        the mutex itself, or has it, and a renewal is next.
        """
        if threading.get_ident() in self._inside:
            # A signal handler or a finaliser, perhaps with the mutex. The thread that
            # has the gate would wait for this one, and this one for the gate.
            with self._mutex:
                return do(*args)
        with self._gate:
            for _ in range(_MOST_PAUSES):
                if not self._urgent:
                    break
                # This thread would get the mutex before one that is still waking up.
                self._clock.sleep(_POLL_EVERY)
            with self._mutex:
                return do(*args)

    def _exclusively(self, until: float, do: Callable[..., None], *args: Any) -> bool:
        """Do this with the mutex; return False if it is not free before ``until``.

        CPython throws the exception of a time limit into a thread just after
        ``acquire`` has returned, before a line can note that it succeeded. So the
        mutex is released in any case, and knows by itself whether this thread had it.
        """
        me, left = threading.get_ident(), -1.0  # for ever
        if until < math.inf:
            left = max(0.0, until - self._clock.monotonic())
        try:
            self._inside.add(me)
            self._urgent.add(me)
            if not self._mutex.acquire(timeout=left):
                return False
            self._urgent.discard(me)
            do(*args)
            return True
        finally:
            try:  # noqa: SIM105  (no call, and so no exception, before the release)
                self._mutex.release()
            except RuntimeError:
                pass
            self._urgent.discard(me)
            self._inside.discard(me)

    # -- with the mutex ----------------------------------------------------------

    def _send(self, requests: Sequence[ScriptRequest]) -> None:
        now = self._clock.monotonic()
        if now - self._polled_at > _IDLE:
            # Connections may have been closed meanwhile, behind late replies.
            self._polled_at = now
            self._poll(0.0)
            self._poll(0.0)
        self._maintain()
        wanted = []
        for request in requests:
            # Called with the mutex: no other request can be sent before this one.
            if request.is_obsolete is None or not request.is_obsolete():
                request.is_obsolete = None  # not called again, and may hold a lease
                wanted.append(request)
            else:
                for index in range(len(self.nodes)):
                    request.fail(index, "was not asked any more")
        if self.observer is not None:
            for request in wanted:
                request.observer = self.observer(request)
        if wanted:
            packed = b"".join([request.packed() for request in wanted])
            for index, node in enumerate(self.nodes):
                node.send(wanted, index, packed)

    def _reply_timeout(self) -> float:
        connecting = len([node for node in self._unready if node.is_connecting])
        few = len(self.nodes) - connecting < quorum_of(len(self.nodes))
        to_connect = self._timing.connect_timeout if few else 0.0
        return to_connect + self._timing.node_timeout

    def _wait(self, requests: Sequence[ScriptRequest], until: float) -> None:
        began = self._clock.monotonic()
        unfinished = [r for r in requests if not r.is_done()]
        while unfinished and self._is_worth_waiting(unfinished):
            self._polled_at = self._clock.monotonic()
            left = until - self._polled_at
            if left <= 0:
                break
            self._poll(left)
            unfinished = [r for r in unfinished if not r.is_done()]
        else:
            if requests:
                return
        self._poll(0.0)
        for request in unfinished:
            for index, vote in enumerate(request.ballot.votes):
                if vote is None:
                    self.nodes[index].mark_suspect(began)

    def _is_worth_waiting(self, requests: Sequence[ScriptRequest]) -> bool:
        if not [node for node in self.nodes if node.suspect]:
            return any(request.ballot.pending for request in requests)
        return any(
            vote is None and not node.suspect
            for request in requests
            for vote, node in zip(request.ballot.votes, self.nodes, strict=True)
        )

    def _wait_for_suspects(
        self,
        requests: Sequence[ScriptRequest],
        came_at: float,
        until: float,
        poll: Callable[[], bool],
    ) -> bool:
        """Wait for suspects without the mutex, if no majority answers without them.

        Each has one node timeout, from when it answered last or the caller came.
        """
        while silences := self._silences(requests):
            now = self._clock.monotonic()
            patience = max(came_at, *silences) + self._timing.node_timeout
            left = min(patience, until) - now
            if left > 0:
                self._clock.sleep(min(left, _POLL_EVERY))
            if not poll():
                return False
            if left <= 0 and (until <= now or silences == self._silences(requests)):
                break
        return True

    def _silences(self, requests: Sequence[ScriptRequest]) -> list[float]:
        """Return since when suspects are silent without which no majority answers."""
        return [
            node.silent_since
            for request in requests
            if request.ballot.answered < request.ballot.quorum and not request.is_done()
            for vote, node in zip(request.ballot.votes, self.nodes, strict=True)
            if vote is None and node.suspect
        ]

    def _poll(self, timeout: float) -> None:
        selector = self._selector
        if selector is None or [n for n in self.nodes if n.needs_maintenance]:
            selector = self._maintain()
            if any(node.is_connecting for node in self._unready):
                timeout = min(timeout, _POLL_EVERY)
        self._read(selector, timeout)

    @staticmethod
    def _read(selector: selectors.BaseSelector, timeout: float) -> None:
        for key, events in selector.select(timeout):
            if events & selectors.EVENT_READ:
                key.data.receive()
            if events & selectors.EVENT_WRITE:
                key.data.flush()

    def _maintain(self) -> selectors.BaseSelector:
        selector = self._selector
        if selector is None:
            # Looked up late: gevent and eventlet replace it when they patch.
            made = (self._new_selector or selectors.DefaultSelector)()
            if self._selector is None:
                self._selector = made
            else:
                made.close()  # a signal handler came first
            selector = self._selector
        unready = self._unready = [n for n in self.nodes if n.needs_maintenance]
        for node in unready:
            if node.maintain(selector):
                self._refuse_same_server(node)
        for node in unready:
            node.send_backlog()
        return selector

    def _refuse_same_server(self, newcomer: Node) -> None:
        """Disqualify a node that is the same server as another node that votes."""
        run_id = newcomer.facts.run_id if newcomer.facts else ""
        for node in self.nodes:
            known = node.facts.run_id if node.facts and not node.unfit_because else ""
            if run_id and run_id == known and node is not newcomer:
                same_server = f"is the same server as {node.label}; list each one once"
                newcomer.disqualify(same_server)
