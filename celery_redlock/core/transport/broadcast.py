"""Ask all nodes at once; the requests of many callers travel together.

The packed command goes out to every node first, and the replies are read after. So N
nodes cost little more than one. A call is over as soon as the request is done or its
time has run out. Before a node counts as silent, the sockets are read once more without
waiting, because this process itself may have been late.

::

    a caller ──► queue ──► is another caller waiting?
                              │no                │yes
                              ▼                  ▼
                 it sends and reads     the I/O thread sends and reads
                 by itself              for all; the caller waits for
                              │         its own verdict only
                              │ another caller comes          │ no caller
                              └──────► (hands on) ──────►     │ waits
                                                              └──► rests

One thread at a time *drives*: it has the mutex, sends what is queued and reads what has
come. A caller that is alone drives by itself, which costs no change of threads. As soon
as a second caller waits, the I/O thread drives. It starts at that moment, and ends
after some idle seconds. What waits to be sent at the same moment leaves in one
``send`` for each node; what arrives together is read together.

An asynchronous exception (a time limit, LockLost) can interrupt any line of a caller. A
caller that waits has nothing that it could spoil. One that drives spoils a connection
that no other caller waits for. If a driver ends without handing on, the callers that
wait find the mutex free after a moment, and one of them drives.

No call waits for a *suspect* node, which was late before, unless no majority can answer
without it. Then it waits for one node timeout from when the caller came, or from the
last reply of the node. Replies that come after their request was done are read at the
next use, and entered where they belong.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import logging
import math
import os
import threading
import weakref
from collections import deque
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING

from celery_redlock.core.quorum import quorum_of
from celery_redlock.core.selector import Waker, new_selector

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Sequence

    from celery_redlock.core.clock import Clock
    from celery_redlock.core.quorum import Vote
    from celery_redlock.core.timing import Timing
    from celery_redlock.core.transport.node import Node
    from celery_redlock.core.transport.requests import Bell, ScriptRequest

__all__ = ["Broadcast", "Call"]

log = logging.getLogger(__name__)

_IDLE = 0.5  # seconds after which connections are checked before they are used
_POLL_EVERY = 0.002  # seconds between two looks at a connection that is being made
_LOOK_EVERY = 0.1  # seconds after which a waiting caller looks if any thread drives
_REST = 10.0  # seconds without work after which the I/O thread ends
_CROWD_LASTS = 0.01  # seconds for which the I/O thread waits for the next callers
_PAUSE_AFTER_ERROR = 0.1
_STARTING = -1  # in place of the number of the I/O thread

_all_broadcasts: weakref.WeakSet[Broadcast] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for broadcast in list(_all_broadcasts):
        broadcast.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Call:
    """Requests that were handed over together, and the caller that waits for them.

    Attributes:
        requests: The requests.
        unsent: Those that the driver has still to send.
        unfinished: Those that are not done, as of the last look.
        is_taken: Whether it was taken out of the queue to be sent.
        waits: Whether a caller waits. If not, the call is over when it was sent.
        came_at: Instant at which the caller came.
        sent_at: Instant from which the nodes are waited for.
        until: Instant at which the call is over; None for the time that nodes may take.
        due_at: Instant at which to judge the call if no reply comes before.
        is_sent_before: Whether its requests were sent by an earlier call.
        is_over: Whether there is nothing more to wait for.
        has_news: Whether a vote came since the last look.
        inbox: Where the call is put when a vote comes; None before it is sent.
        bell: Rung when the call is over, if the caller waits for that.
    """

    __slots__ = (
        "bell",
        "came_at",
        "due_at",
        "has_news",
        "inbox",
        "is_over",
        "is_sent_before",
        "is_taken",
        "requests",
        "sent_at",
        "unfinished",
        "unsent",
        "until",
        "waits",
    )

    def __init__(
        self,
        requests: Sequence[ScriptRequest],
        came_at: float,
        *,
        sends: bool,
        waits: bool,
        until: float | None = None,
    ) -> None:
        self.requests = requests
        self.unsent: Sequence[ScriptRequest] = requests if sends else ()
        self.unfinished: Sequence[ScriptRequest] = requests
        self.waits = waits
        self.came_at = self.sent_at = came_at
        self.until = until
        self.due_at = math.inf
        self.is_sent_before = not sends
        self.is_over = self.is_taken = self.has_news = False
        self.inbox: deque[Call] | None = None
        self.bell: Bell | None = None

    def is_due(self, now: float) -> bool:
        """Tell whether its time is up, and it is not over yet."""
        return not self.is_over and self.due_at <= now

    def note_vote(self) -> None:
        """Have the driver look at this call."""
        if not self.has_news and self.inbox is not None:
            self.has_news = True
            self.inbox.append(self)


class _Batch:
    """Calls whose requests leave together.

    Attributes:
        calls: The calls, in order.
        wanted: The requests to be sent; None until it is known which are.
    """

    __slots__ = ("calls", "wanted")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.wanted: list[ScriptRequest] | None = None


class Broadcast:
    """One conversation with all nodes of a deployment.

    Threads, greenlets and event loops may share it. A forked child starts anew with
    connections of its own.

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
        new_selector: Callable[[], selectors.BaseSelector] = new_selector,
    ) -> None:
        self.labels = tuple(node.label for node in nodes)
        self.nodes = nodes
        self._clock = clock
        self._timing = timing
        self._new_selector = new_selector
        self.observer: Callable[[ScriptRequest], Callable[[int, Vote], None]] | None = (
            None
        )
        self._selector: selectors.BaseSelector | None = None
        self._waker: Waker | None = None
        self._polled_at = 0.0
        self._unready: list[Node] = []  # nodes that needed maintenance last time
        self._forget_callers()
        _all_broadcasts.add(self)

    def _forget_callers(self) -> None:
        self._mutex = threading.RLock()  # of the driver
        self._queue: deque[Call] = deque()  # in the order in which they are sent
        self._urgent: deque[Call] = deque()  # sent before the queue
        self._orphans: deque[_Batch] = deque()  # whose senders were interrupted
        self._waiting: dict[Call, None] = {}  # calls that the I/O thread may end
        self._due: list[tuple[float, int, Call]] = []  # a heap of these
        self._count = itertools.count()
        self._inbox: deque[Call] = deque()  # calls with new votes
        self._sleeps = False  # whether the driver waits in its selector
        self._visitors: list[int] = []  # threads that want the mutex for something else
        # The I/O thread: its number, whether it drives, the lock on which it rests.
        self._thread = 0
        self._is_driven = False
        self._driver = 0  # the thread that has, or had, the mutex
        self._rest = threading.Lock()
        self._closing = False

    # -- for callers ---------------------------------------------------------------

    @property
    def has_pending(self) -> bool:
        """Whether a request waits to be sent, or to be resent, or a reply is late."""
        return bool(
            self._queue
            or self._urgent
            or self._orphans
            or [node for node in self.nodes if node.has_pending]
        )

    @property
    def has_unanswered(self) -> bool:
        """Whether a request was sent of which some reply has not been read."""
        return any(node.pending for node in self.nodes)

    def ask(self, request: ScriptRequest) -> None:
        """Send one request and wait for it as long as nodes may take.

        The time for a node that was late before counts from when the caller came: other
        callers may have waited for the node all the time.
        """
        call = Call((request,), self._clock.monotonic(), sends=True, waits=True)
        self._queue.append(call)
        self._see_through(call)

    def begin(self, request: ScriptRequest, bell: Bell) -> None:
        """Send one request, and return at once: see ``Transport``."""
        call = Call((request,), self._clock.monotonic(), sends=True, waits=True)
        call.bell = bell
        self._queue.append(call)
        if not self._is_driven:
            self._engage()
        self._wake()

    def send(self, *requests: ScriptRequest, until: float | None = None) -> bool:
        """Send requests to all nodes, in this order: see ``Transport``."""
        call = Call(requests, self._clock.monotonic(), sends=True, waits=False)
        (self._queue if until is None else self._urgent).append(call)
        self._try_to(self._flush)
        return True

    def wait(
        self, *requests: ScriptRequest, until: float, give_up_at: float = math.inf
    ) -> bool:
        """Return when all of them are done, or at ``until``: see ``Transport``."""
        now = self._clock.monotonic()
        call = Call(requests, now, sends=False, waits=True, until=until)
        self._urgent.append(call)
        return self._see_through(call, give_up_at)

    def drain(self, until: float) -> None:
        """Read the replies that are there; give up a busy transport at ``until``."""
        del until  # a driver reads them anyway
        self._try_to(self._look)

    def close(self) -> None:
        """Close all connections. The next request opens them again.

        Wait for replies that are on their way, for as long as a node may take: a node
        that cannot deliver a reply drops the requests that it has not read yet, also
        releases.
        """
        self._visitors.append(0)
        try:
            self._wake()
            with self._mutex:
                self._close()
                self._closing = True
        finally:
            self._visitors.pop()
        if self._has_work():
            self._engage()
        else:
            self._unrest()

    def forget(self) -> None:
        """Start anew in a forked child, touching nothing of the parent's."""
        selector, self._selector = self._selector, None
        waker, self._waker = self._waker, None
        self._forget_callers()
        if selector:
            selector.close()
        if waker:
            waker.close()
        for node in self.nodes:
            node.forget()

    # -- who drives ------------------------------------------------------------------

    def _try_to(self, do: Callable[..., object], *args: object) -> None:
        """Do this with the mutex, or wake the driver."""
        me = threading.get_ident()
        is_nested = self._driver == me  # a signal handler, or a finaliser
        if self._is_driven and not is_nested:
            self._wake()
            return
        owns: bool | None = None
        try:
            owns = self._mutex.acquire(blocking=False)
            if owns:
                self._driver = me
                do(*args, is_nested=is_nested)
        finally:
            # CPython throws the exception of a time limit into a thread just after
            # ``acquire`` has returned, before a line can note that it succeeded. So the
            # mutex is released unless it was refused. It knows its owner.
            if owns is not False:
                self._driver = me if is_nested else 0
                try:  # noqa: SIM105  (no call before the release)
                    self._mutex.release()
                except RuntimeError:
                    pass
        if not owns:
            self._wake()
        elif self._has_work() and not is_nested:
            self._hand_on()

    def _hand_on(self) -> None:
        """Have calls seen to that came while this thread drove."""
        if self._is_driven:
            return
        if self._waiting or any(c.waits for c in [*self._urgent, *self._queue]):
            self._engage()
        else:
            self._try_to(self._flush)

    def _see_through(self, call: Call, give_up_at: float = math.inf) -> bool:
        """Return True when the call is over; False if it is not at ``give_up_at``."""
        try:
            self._try_to(self._drive, call)
            return call.is_over or self._await(call, give_up_at)
        finally:
            if not call.is_over:  # interrupted, or given up: no caller waits for it
                call.is_over = True
                self._waiting.pop(call, None)

    def _await(self, call: Call, give_up_at: float) -> bool:
        """Wait while another thread drives."""
        call.bell = bell = threading.Lock()
        bell.acquire()
        while not call.is_over:
            left = _LOOK_EVERY
            if give_up_at < math.inf:
                left = min(left, max(0.0, give_up_at - self._clock.monotonic()))
            if not bell.acquire(timeout=left) and not call.is_over:
                if self._clock.monotonic() >= give_up_at:
                    return False
                # Perhaps the driver has ended without a word: see for ourselves.
                self._is_driven, self._sleeps = False, True
                self._try_to(partial(self._drive, anew=True), call)
        return True

    def _drive(self, call: Call, *, is_nested: bool, anew: bool = False) -> None:
        """Send and read until this call is over, or until another caller waits."""
        if anew:
            self._thread = 0  # it would have the mutex
        while not call.is_over:
            if self._others_wait(call):
                if call.due_at < math.inf and call not in self._waiting:
                    self._enlist(call)
                if not is_nested and self._engage():
                    return
                self._turn()  # for all: no other thread can have the mutex
            else:
                self._turn_alone(call)

    def _turn_alone(self, call: Call) -> None:
        self._flush(call)
        self._look_at_news()
        if call.is_over:
            return
        self._sleep_until(call.due_at)
        self._look_at_news()
        self._end(call)

    def _others_wait(self, call: Call) -> bool:
        if self._waiting and (len(self._waiting) > 1 or call not in self._waiting):
            return True
        if len(self._queue) + len(self._urgent) <= 1:
            return False
        queued = [*self._queue, *self._urgent]
        return any(other.waits and other is not call for other in queued)

    def _wake(self) -> None:
        """Let the driver look at the queue."""
        if self._sleeps and self._waker is not None:
            self._sleeps = False
            self._waker.wake()

    def _engage(self) -> bool:
        """Let the I/O thread drive. Return False if there can be no thread."""
        self._is_driven, self._closing = True, False
        if self._thread:
            self._unrest()
            return True
        self._thread = _STARTING
        try:
            # Not by `threading`, whose `start` waits for the thread: the exception of
            # a time limit inside it would spoil the lock that both share.
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # too many threads
            self._is_driven, self._thread = False, 0
            return False
        return True

    def _unrest(self) -> None:
        try:  # noqa: SIM105
            self._rest.release()
        except RuntimeError:  # it does not rest
            pass

    # -- the I/O thread ----------------------------------------------------------------

    def _run(self) -> None:
        mutex, rest, me = self._mutex, self._rest, threading.get_ident()
        self._thread = me
        while self._thread == me:
            try:
                with mutex:
                    self._driver = me
                    self._serve()
                    self._driver = 0
            except Exception:
                log.exception("The I/O thread met an error and continues.")
                self._clock.sleep(_PAUSE_AFTER_ERROR)
                continue
            if self._visitors:
                self._clock.sleep(_POLL_EVERY)
            elif self._has_work():
                self._is_driven = True  # a caller came at the last moment
            elif self._closing or not rest.acquire(timeout=_REST):
                self._thread = 0
                if self._is_driven:
                    self._engage()

    def _serve(self) -> None:
        """Drive until no caller waits."""
        crowded_at = self._clock.monotonic()
        while not self._visitors:
            if self._has_work():
                self._turn(crowded_at + _CROWD_LASTS)
                if len(self._waiting) > 1:
                    crowded_at = self._polled_at
            elif not self._closing and self._clock.monotonic() < (
                crowded_at + _CROWD_LASTS
            ):
                self._turn(crowded_at + _CROWD_LASTS)
            else:
                self._is_driven = False
                if not self._has_work():
                    return
                self._is_driven = True

    def _has_work(self) -> bool:
        return bool(self._waiting or self._queue or self._urgent or self._orphans)

    # -- with the mutex ------------------------------------------------------------

    def _turn(self, until: float = 0.0) -> None:
        """Send what is queued, read what has come, and end the calls that are over."""
        self._flush()
        self._look_at_news()
        due = self._due
        while due and due[0][2].is_over:
            heapq.heappop(due)
        if due:
            until = due[0][0]
        self._sleep_until(until)
        self._look_at_news()
        now = self._clock.monotonic()
        if due and due[0][0] <= now:
            self._poll(0.0)  # this process itself may have been late
            self._look_at_news()
            while due and due[0][0] <= now:
                _, _, call = heapq.heappop(due)
                self._end(call)

    def _look_at_news(self) -> None:
        inbox = self._inbox
        while inbox:
            call = inbox.popleft()
            call.has_news = False
            if not call.is_over:
                self._judge(call)

    def _look(self, *, is_nested: bool = False) -> None:
        del is_nested
        self._flush()
        self._poll(0.0)
        self._look_at_news()

    def _enlist(self, call: Call) -> None:
        """Have the thread that drives end this call."""
        self._waiting[call] = None
        heapq.heappush(self._due, (call.due_at, next(self._count), call))

    def _conclude(self, call: Call) -> None:
        call.is_over = True
        self._waiting.pop(call, None)
        for request in call.requests:
            request.asked_by = None
        if call.bell is not None:
            call.bell.release()

    def _judge(self, call: Call) -> None:
        """End the call if all its requests are done, or no node is worth waiting."""
        unfinished = [r for r in call.unfinished if not r.is_done()]
        call.unfinished = unfinished
        if not unfinished:
            self._conclude(call)
        elif not self._is_worth_waiting(unfinished):
            silences = self._silences(unfinished)
            if not silences:
                self._conclude(call)
                return
            patience = max(call.came_at, *silences) + self._timing.node_timeout
            due_at = min(patience, call.until or math.inf)
            if due_at != call.due_at:
                call.due_at = due_at
                if call in self._waiting:
                    self._enlist(call)

    def _end(self, call: Call) -> None:
        """End a call if its time is up, after the last look at the sockets."""
        if not call.is_due(self._clock.monotonic()):
            return
        self._poll(0.0)
        self._judge(call)
        if not call.is_due(self._clock.monotonic()):
            return
        for request in call.unfinished:
            for index, vote in enumerate(request.ballot.votes):
                if vote is None:
                    self.nodes[index].mark_suspect(call.sent_at)
        self._conclude(call)

    def _suspects(self) -> list[Node]:
        return [node for node in self.nodes if node.suspect]

    def _is_worth_waiting(self, requests: Sequence[ScriptRequest]) -> bool:
        if not self._suspects():
            return any(request.ballot.pending for request in requests)
        return any(
            vote is None and not node.suspect
            for request in requests
            for vote, node in zip(request.ballot.votes, self.nodes, strict=True)
        )

    def _silences(self, requests: Sequence[ScriptRequest]) -> list[float]:
        """Return since when suspects are silent without which no majority answers."""
        return [
            node.silent_since
            for request in requests
            if request.ballot.answered < request.ballot.quorum and not request.is_done()
            for vote, node in zip(request.ballot.votes, self.nodes, strict=True)
            if vote is None and node.suspect
        ]

    def _flush(self, alone: Call | None = None, *, is_nested: bool = False) -> None:
        """Send what is queued: the urgent first, then in the order of the queue.

        Args:
            alone: The call of the caller that drives, if no other caller waits.
            is_nested: Whether the thread has the mutex already; unused.
        """
        del is_nested
        while self._orphans:
            self._complete(self._orphans[0])
        if not self._queue and not self._urgent:
            return
        now = self._clock.monotonic()
        if now - self._polled_at > _IDLE:
            # Connections may have been closed meanwhile, behind late replies.
            self._polled_at = now
            self._poll(0.0)
            self._poll(0.0)
        self._maintain()
        batch = _Batch()
        try:
            self._take(batch)
            wanted = batch.wanted = self._wanted(batch)
            if wanted:
                packed = b"".join([request.packed() for request in wanted])
                for index, node in enumerate(self.nodes):
                    node.send(wanted, index, packed)
            self._file(batch, alone)
        except BaseException:
            self._orphans.append(batch)
            raise

    def _take(self, batch: _Batch) -> None:
        """Take the calls out of the queues; a handler may do so in between."""
        for queue in (self._urgent, self._queue):
            while queue:
                call = queue[0]
                if not call.is_taken:
                    batch.calls.append(call)
                    call.is_taken = True
                if queue and queue[0] is call:
                    queue.popleft()

    def _wanted(self, batch: _Batch) -> list[ScriptRequest]:
        """Return the requests that are still wanted; enter why others are not sent."""
        wanted = []
        for call in batch.calls:
            if call.waits:
                call.inbox = self._inbox
                for request in call.requests:
                    request.asked_by = call
            for request in call.unsent:
                # Called with the mutex: no other request can be sent before this one.
                if request.is_obsolete is None or not request.is_obsolete():
                    request.is_obsolete = None  # not called again, may hold a lease
                    if self.observer is not None:
                        request.observer = self.observer(request)
                    wanted.append(request)
                else:
                    for index in range(len(self.nodes)):
                        request.fail(index, "was not asked any more")
        return wanted

    def _file(self, batch: _Batch, alone: Call | None = None) -> None:
        """Note that the calls were sent, and have those that wait judged in time."""
        sent_at = self._clock.monotonic()
        is_uneasy = bool(self._suspects())
        for call in batch.calls:
            call.unsent = ()
            if not call.waits or call.is_over:
                call.is_over = True
                continue
            call.sent_at = sent_at
            if call.until is None:
                call.until = sent_at + self._reply_timeout()
            call.due_at = call.until
            if call is not alone:
                self._enlist(call)
            if is_uneasy or call.is_sent_before:
                call.note_vote()  # it may be over already

    def _complete(self, batch: _Batch) -> None:
        """Send the rest of a batch whose sender was interrupted."""
        for call in batch.calls:
            call.is_taken = True
        if batch.wanted is None:
            batch.wanted = self._wanted(batch)
        for index, node in enumerate(self.nodes):
            sent = {id(request) for request, _ in [*node.pending, *node.backlog]}
            rest = [
                request
                for request in batch.wanted
                if request.ballot.votes[index] is None and id(request) not in sent
            ]
            if rest:
                node.send(rest, index)
        self._file(batch)
        if self._orphans and self._orphans[0] is batch:
            self._orphans.popleft()

    def _reply_timeout(self) -> float:
        if not self._unready:
            return self._timing.node_timeout
        connecting = len([node for node in self._unready if node.is_connecting])
        few = len(self.nodes) - connecting < quorum_of(len(self.nodes))
        to_connect = self._timing.connect_timeout if few else 0.0
        return to_connect + self._timing.node_timeout

    def _sleep_until(self, until: float) -> None:
        """Wait for replies, or for a caller, until this instant."""
        self._polled_at = now = self._clock.monotonic()
        self._sleeps = True
        if self._queue or self._urgent or self._visitors:
            until = now
        self._poll(max(0.0, until - now))
        self._sleeps = False

    def _poll(self, timeout: float) -> None:
        selector = self._selector
        if selector is None or [n for n in self.nodes if n.needs_maintenance]:
            selector = self._maintain()
            if self._inbox:  # a connection failed: perhaps the last vote of a call
                timeout = 0.0
            elif any(node.is_connecting for node in self._unready):
                timeout = min(timeout, _POLL_EVERY)
        self._read(selector, timeout)

    @staticmethod
    def _read(selector: selectors.BaseSelector, timeout: float) -> None:
        for key, events in selector.select(timeout):
            if events & EVENT_READ:
                key.data.receive()
            if events & EVENT_WRITE:
                key.data.flush()

    def _maintain(self) -> selectors.BaseSelector:
        selector = self._selector
        if selector is None:
            made = self._new_selector()
            if self._selector is None:
                self._selector = made
            else:
                made.close()  # a signal handler came first
            selector = self._selector
        if self._waker is None:
            waker = self._waker = Waker()
            selector.register(waker, EVENT_READ, waker)
        unready = self._unready = [n for n in self.nodes if n.needs_maintenance]
        for node in unready:
            if node.maintain(selector):
                self._refuse_same_server(node)
        for node in unready:
            node.send_backlog()
        return selector

    def _close(self) -> None:
        self._flush()
        until = self._clock.monotonic() + self._timing.node_timeout
        while [node for node in self.nodes if node.pending] and self._selector:
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            self._read(self._selector, left)
        for node in self.nodes:
            node.close()
        selector, self._selector = self._selector, None
        waker, self._waker = self._waker, None
        if selector:
            selector.close()
        if waker:
            waker.close()

    def _refuse_same_server(self, newcomer: Node) -> None:
        """Disqualify a node that is the same server as another node that votes."""
        run_id = newcomer.facts.run_id if newcomer.facts else ""
        for node in self.nodes:
            known = node.facts.run_id if node.facts and not node.unfit_because else ""
            if run_id and run_id == known and node is not newcomer:
                same_server = f"is the same server as {node.label}; list each one once"
                newcomer.disqualify(same_server)
