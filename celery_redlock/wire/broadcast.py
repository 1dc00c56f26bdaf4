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

One thread at a time *drives* the `Exchange`: it sends what is queued and reads what has
come. A caller that is alone drives by itself, which costs no change of threads. As soon
as a second caller waits, the I/O thread drives. It starts at that moment, and ends
after some idle seconds. What waits to be sent at the same moment leaves in one
``send`` for each node; what arrives together is read together.

While a driver waits for replies nothing is being changed. So an interruption there (a
time limit, KeyboardInterrupt, a killed greenlet) costs nothing. Anywhere else it leaves
a change half done. Then the exchange is thrown away. A successor is made of what
survives: the calls, the queue, the releases that are owed, and the connections that
were not being changed. The old exchange is only read for that. So the successor can be
made again if this is interrupted, too.

A signal handler or a finaliser that asks nodes while its thread waits for replies
drives in its place. In the middle of a change it closes all connections: requests in
flight fail, as if all nodes had closed them. `Redlock.acquire` then tries again.

No caller relies on another thread. It looks ten times a second whether it can drive
itself. If its time is over and a second later the driver has still not ended its call,
the driver is presumed dead: the caller drives a successor, without the old connections.
When the interpreter ends there are no other threads, and so it never waits for one.

No call waits for a *suspect* node, which was late before, unless no majority can answer
without it. Then it waits for one node timeout from when the caller came, or from the
last reply of the node, whichever is later. Replies that come after their request was
done are read at the next use, and entered where they belong.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import logging
import math
import os
import sys
import threading
import weakref
from collections import deque
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING

from celery_redlock.basics.callbacks import log_safely
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.process import OfOneProcess, start_thread
from celery_redlock.basics.selector import Waker, new_selector
from celery_redlock.wire.quorum import INTERRUPTED, SAME_SERVER, quorum_of

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Sequence

    from celery_redlock.basics.clock import Clock
    from celery_redlock.basics.timing import Timing
    from celery_redlock.wire.node import Node
    from celery_redlock.wire.quorum import Vote
    from celery_redlock.wire.requests import Event, ScriptRequest


log = logging.getLogger(__name__)

_IDLE = 0.5  # seconds after which connections are checked before they are used
_POLL_EVERY = 0.002  # seconds between two looks at a connection that is being made
_LOOK_EVERY = 0.1  # seconds after which a waiting caller looks if it can drive
_LATE_LOOKS = 10  # of a caller whose time is over, after which it takes over
_REST = 10.0  # seconds without work after which the I/O thread ends
_CROWD_LASTS = 0.01  # seconds for which the I/O thread waits for the next callers
_PAUSE_AFTER_ERROR = 0.1
_LAST_REQUESTS = 1.0  # seconds
_STARTING = -1  # in place of the number of the I/O thread
_MOST_SENDS = 8  # of a call whose drivers are interrupted, or meet an error, each time
_ONE = 0  # the key in a dict of one: `setdefault` is atomic


_all: weakref.WeakSet[Broadcast] = weakref.WeakSet()


def finish_requests() -> None:
    """Wait until all requests are sent, for a second at most.

    A process that ends takes its threads with it. Without this wait the nodes might
    never see the last requests, which wait for no reply: a claim that is released, a
    beat that stands by no longer.
    """
    give_up_at = SYSTEM_CLOCK.monotonic() + _LAST_REQUESTS
    for broadcast in list(_all):
        broadcast.finish(give_up_at)


atexit.register(finish_requests)


class InFlight:
    """Requests that were handed over together, and the caller that waits for them.

    Attributes:
        requests: The requests.
        unsent: The requests that the driver has still to send.
        unfinished: The requests that were not done at the last look.
        waits: Whether a caller waits. If not, the call is over when it was sent.
        came_at: Instant at which the caller came.
        until: Instant at which the call is over at the latest.
        due_at: Instant at which to judge the call if no reply comes before.
        sends: The number of attempts to send the requests.
        is_sent_before: Whether its requests were sent by an earlier call.
        is_over: Whether there is nothing more to wait for.
        has_news: Whether a vote came since the last look.
        inbox: Where the call is put when a vote comes; None before it is sent.
        event: Released when the call is over, if the caller waits. None afterwards.
    """

    __slots__ = (
        "came_at",
        "due_at",
        "event",
        "has_news",
        "inbox",
        "is_over",
        "is_sent_before",
        "requests",
        "sends",
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
        until: float = math.inf,
    ) -> None:
        self.requests = requests
        self.unsent: Sequence[ScriptRequest] = requests if sends else ()
        self.unfinished: Sequence[ScriptRequest] = requests
        self.waits = waits
        self.came_at = came_at
        self.until = until
        self.due_at = math.inf
        self.is_sent_before = not sends
        self.is_over = self.has_news = False
        self.sends = 0
        self.inbox: deque[InFlight] | None = None
        self.event: Event | None = None

    def is_due(self, now: float) -> bool:
        """Tell whether the call has passed its deadline, and is not over."""
        return not self.is_over and self.due_at <= now

    def note_vote(self) -> None:
        """Queue the call for the driver, which judges it."""
        if not self.has_news and self.inbox is not None:
            self.has_news = True
            self.inbox.append(self)


class Exchange:
    """The connections to all nodes, and the calls that wait for replies on them.

    All methods but `take`, `wake` and `successor` are for the driver.

    Args:
        nodes: The nodes, in the order of their votes.
        queue: The calls that wait to be sent. They outlive an exchange.
        clock: Reads time.
        timing: Limits the time for an answer, and for a connection if fewer than a
            quorum of the nodes are connected yet.
        new_selector: Makes the selector that waits for all nodes.

    Attributes:
        nodes: The same.
        waiting: The calls that wait for replies, where another thread may end them.
        is_steady: Whether nothing is being changed.
        is_over: Whether a successor has taken its place.
        looked_at: Instant of the last look at the sockets.
        blind_for: Seconds from the look before the present one, at most.
        observer_of: Returns the observer of a request that is sent, if there is one.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        queue: deque[InFlight],
        *,
        clock: Clock,
        timing: Timing,
        new_selector: Callable[[], selectors.BaseSelector],
    ) -> None:
        self.nodes = nodes
        self._stores = [node for node in nodes if node.is_store]
        self._queue = queue
        self._clock = clock
        self._timing = timing
        # Seconds without a reply after which a node is late that no call needs.
        self._patience = max(timing.node_timeout, timing.connect_timeout)
        self._late_at = 0.0  # until this instant, no other node can be that late
        self._new_selector = new_selector
        self.observer_of: (
            Callable[[ScriptRequest], Callable[[int, Vote], None]] | None
        ) = None
        self.waiting: dict[InFlight, None] = {}
        self._due: list[tuple[float, int, InFlight]] = []  # a heap
        self._count = itertools.count()
        self._inbox: deque[InFlight] = deque()  # calls with new votes
        self._selector: selectors.BaseSelector | None = None
        self._waker: Waker | None = None
        self._unready: list[Node] = []  # nodes that needed maintenance last time
        self._changing: object = None  # the node that is being changed
        self._driver: dict[int, int] = {}  # the thread that drives
        self._heir: dict[int, Exchange] = {}  # its successor
        self._sleeps = False  # whether the driver waits in its selector
        self.looked_at = self.blind_for = 0.0
        self.is_steady = True
        self.is_over = False

    # -- the driver ------------------------------------------------------------------

    @property
    def driver(self) -> int | None:
        """The thread that drives, if one does."""
        return self._driver.get(_ONE)

    def take(self, thread: int) -> bool:
        """Let this thread drive, unless another one does. Atomic, and never waits."""
        return self._driver.setdefault(_ONE, thread) == thread

    def take_over(self, thread: int) -> None:
        """Let this thread drive in place of one that is gone."""
        self._driver[_ONE] = thread

    def leave(self) -> None:
        """Let any thread drive."""
        self._driver.clear()

    def wake(self) -> None:
        """Have the driver look at the queue. For any thread."""
        waker = self._waker  # read once: the driver may close it now
        if self._sleeps and waker is not None:
            self._sleeps = False
            waker.wake()

    def successor(self, driver: int | None, *, keeps: bool) -> Exchange:
        """Return the only exchange that replaces this one.

        Args:
            driver: The thread that drives it.
            keeps: Whether to keep the connections that are not being changed; False
                where the driver of this exchange may still run.
        """
        return self._heir.setdefault(_ONE, self._anew(driver, keeps=keeps))

    def _anew(self, driver: int | None, *, keeps: bool) -> Exchange:
        nodes = [
            node if keeps and node is not self._changing else node.anew(INTERRUPTED)
            for node in self.nodes
        ]
        made = Exchange(
            nodes,
            self._queue,
            clock=self._clock,
            timing=self._timing,
            new_selector=self._new_selector,
        )
        made.observer_of = self.observer_of
        if driver is not None:
            made.take_over(driver)
        made.is_steady = driver is None
        for call in list(self.waiting):
            made.enlist(call)
        for call in [*self.waiting, *list(self._inbox)]:
            call.inbox, call.has_news = made._inbox, True
            made._inbox.append(call)
        return made

    def close(self, *keep: Node) -> None:
        """Close the selector, and all nodes but these. Twice is harmless.

        A driver that goes on afterwards, below a handler or in another thread, finds
        nothing to send: the queue is its successor's.
        """
        self._queue = deque()
        self.is_over = True
        for node in self.nodes:
            if node not in keep:
                node.cut()
        self._close_selector()

    def _close_selector(self) -> None:
        selector, self._selector = self._selector, None
        waker, self._waker = self._waker, None
        if selector:
            selector.close()
        if waker:
            waker.close()

    # -- work ------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Tell whether a call is queued or in flight, or a store works."""
        return bool(self.waiting or self._queue) or self.is_working()

    def is_working(self) -> bool:
        """Tell whether a store has commands that are not carried out."""
        return bool([node for node in self._stores if node.is_working])

    def leave_stores(self) -> None:
        """Close the connections to stores with commands that are not carried out."""
        for node in self._stores:
            if node.is_working:
                node.cut()

    def others_wait(self, call: InFlight) -> bool:
        """Tell whether a caller waits for another call."""
        if self.waiting and (len(self.waiting) > 1 or call not in self.waiting):
            return True
        if len(self._queue) <= 1:
            return False
        return any(other.waits and other is not call for other in list(self._queue))

    def enlist(self, call: InFlight) -> None:
        """Enter a call that waits, with its deadline."""
        self.waiting[call] = None
        heapq.heappush(self._due, (call.due_at, next(self._count), call))

    def turn(self, until: float = 0.0) -> None:
        """Send what is queued, read what has come, and end the calls that are over."""
        self.flush()
        self._look_at_news()
        due = self._due
        while due and due[0][2].is_over:
            heapq.heappop(due)
        if due:
            until = due[0][0]
        elif self.is_working():
            until = self._clock.monotonic() + _LOOK_EVERY
        self._sleep_until(until)
        self._look_at_news()
        now = self._clock.monotonic()
        if due and due[0][0] <= now:
            self._poll(0.0)  # this process itself may have been late
            self._look_at_news()
            while due and due[0][0] <= now:
                entry = due[0]
                self._end(entry[2])
                if due and due[0] is entry:  # it stays until its call was looked at
                    heapq.heappop(due)

    def look(self) -> None:
        """Send what is queued, and read what has come."""
        self.flush()
        self.blind_for = self._clock.monotonic() - self.looked_at
        self._poll(0.0)
        self._look_at_news()

    def shut(self) -> None:
        """Wait for replies as long as nodes may take, then close all connections.

        The next use opens them again.
        """
        self.flush()
        now = self._clock.monotonic()
        self.blind_for, until = now - self.looked_at, now + self._timing.node_timeout
        while [node for node in self.nodes if node.pending] and self._selector:
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            self._read(self._selector, left)
        for node in self.nodes:
            node.close()
        self._close_selector()

    # -- the end of a call -----------------------------------------------------------

    def _look_at_news(self) -> None:
        inbox = self._inbox
        while inbox:
            call = inbox.popleft()
            call.has_news = False
            if not call.is_over:
                self._judge(call)
            elif call in self.waiting:  # its driver was interrupted, or its caller
                self._conclude(call)

    def _conclude(self, call: InFlight) -> None:
        call.is_over = True
        for request in call.requests:
            request.asked_by = None
        if call.event is not None:
            try:  # noqa: SIM105
                call.event.release()
            except RuntimeError:  # it was released before
                pass
            call.event = None  # it leads to the caller's event loop
        self.waiting.pop(call, None)

    def _judge(self, call: InFlight) -> None:
        """End the call if its requests are done, or no node is worth waiting for."""
        unfinished = [r for r in call.unfinished if not r.ballot.is_done()]
        call.unfinished = unfinished
        if not unfinished:
            self._conclude(call)
        elif not self._is_worth_waiting(unfinished):
            silences = self._silences(unfinished)
            if not silences:
                self._conclude(call)
                return
            patience = max(call.came_at, *silences) + self._timing.node_timeout
            due_at = min(patience, call.until)
            if due_at != call.due_at:
                call.due_at = due_at
                if call in self.waiting:
                    self.enlist(call)

    def _end(self, call: InFlight) -> None:
        """End a call if its time is up, after the last look at the sockets."""
        if not call.is_due(self._clock.monotonic()):
            return
        self._poll(0.0)
        if not call.is_over:
            self._judge(call)
        now = self._clock.monotonic()
        if not call.is_due(now):
            return
        # A caller may wait for less time than nodes have.
        for request in [one for one in call.unfinished if one.deadline <= now]:
            for index, vote in enumerate(request.ballot.votes):
                if vote is None:
                    self.nodes[index].mark_suspect(call.came_at)
            request.ballot.delays = [node.delay for node in self.nodes]
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
        """Return since when each suspect is silent that a majority needs."""
        return [
            node.silent_since
            for request in requests
            if request.ballot.answered < request.ballot.quorum and not request.is_done()
            for vote, node in zip(request.ballot.votes, self.nodes, strict=True)
            if vote is None and node.suspect
        ]

    # -- sending ---------------------------------------------------------------------

    def flush(self) -> None:
        """Send what is queued, in the order of the queue."""
        if not self._queue:
            return
        now = self._clock.monotonic()
        if now - self.looked_at > _IDLE:
            # Connections may have been closed meanwhile, behind late replies.
            self._note_look(now)
            self._poll(0.0)
            self._poll(0.0)
            if self.is_over:
                return
        can_wait = self._maintain() is not None
        calls = list(self._queue)
        self._send(calls, self._wanted(calls) if can_wait else self._give_up(calls))
        self._file(calls)
        for call in calls:  # now: until then an interruption lets them be sent again
            queue = self._queue  # read anew: a successor may have taken it over
            if queue and queue[0] is call:
                queue.popleft()

    def _send(self, calls: Sequence[InFlight], wanted: list[ScriptRequest]) -> None:
        if not wanted:
            return
        is_first = all(call.sends == 1 for call in calls)
        for node in self.nodes:
            self._changing = node
            # A thread that was interrupted may have sent some.
            node.send(wanted if is_first else node.unsent_of(wanted))
        self._changing = None

    def _wanted(self, calls: Sequence[InFlight]) -> list[ScriptRequest]:
        """Return the requests to send; let those fail that no caller needs any more."""
        wanted = []
        for call in calls:
            call.sends += 1
            if call.sends > _MOST_SENDS:
                self._give_up([call])
            if call.waits:
                call.inbox = self._inbox
                for request in call.requests:
                    request.asked_by = call
            for request in call.unsent:
                # One thread drives: no other request can be sent before this one.
                if call.waits and call.is_over and not request.resend_until:
                    is_wanted = False  # its caller was interrupted
                else:
                    is_wanted = not (request.is_obsolete and request.is_obsolete())
                if is_wanted:
                    request.is_obsolete = None  # not called again, may hold a lease
                    if self.observer_of is not None:
                        request.observer = self.observer_of(request)
                    wanted.append(request)
                else:
                    for index in range(len(self.nodes)):
                        request.fail(index, "was not asked any more")
        return wanted

    def _file(self, calls: Sequence[InFlight]) -> None:
        """Enter that the calls were sent, and the deadlines of those that wait."""
        patience = self._reply_timeout()
        deadline = self._clock.monotonic() + patience
        is_uneasy = bool(self._suspects())
        for call in calls:
            for request in call.unsent:
                request.deadline, request.ballot.patience = deadline, patience
            call.unsent = ()
            if not call.waits or call.is_over:
                call.is_over = True
                continue
            # Also of those that are done: an interrupted driver may have sent them.
            deadlines = [request.deadline for request in call.requests]
            call.due_at = call.until = min([call.until, *deadlines])
            self.enlist(call)
            if is_uneasy or call.is_sent_before:
                call.note_vote()  # it may be over already

    def _give_up(self, calls: Sequence[InFlight]) -> list[ScriptRequest]:
        """Let the unsent requests of these calls fail at all nodes; return []."""
        for call in calls:
            for request in call.unsent:
                for node in self.nodes:
                    node.refuse(request)
            call.unsent = ()
            if call.waits:
                self._conclude(call)
        return []

    def _reply_timeout(self) -> float:
        if not self._unready:
            return self._timing.node_timeout
        connecting = len([node for node in self._unready if node.is_connecting])
        few = len(self.nodes) - connecting < quorum_of(len(self.nodes))
        to_connect = self._timing.connect_timeout if few else 0.0
        return to_connect + self._timing.node_timeout

    # -- sockets ---------------------------------------------------------------------

    def _sleep_until(self, until: float) -> None:
        """Wait for replies, or for a caller, until this instant."""
        now = self._clock.monotonic()
        self._note_look(now)
        self._sleeps = True
        if self._queue:
            until = now
        self._poll(max(0.0, until - now))
        self._sleeps = False

    def _note_look(self, now: float) -> None:
        self.blind_for = now - self.looked_at
        self.looked_at = now

    def _poll(self, timeout: float) -> None:
        if self.is_over:
            return
        selector = self._selector
        if selector is None or [n for n in self.nodes if n.needs_maintenance]:
            selector = self._maintain()
            if self._inbox:  # a connection failed: perhaps the last vote of a call
                timeout = 0.0
            elif any(node.is_connecting for node in self._unready):
                timeout = min(timeout, _POLL_EVERY)
        if selector is not None:
            self._read(selector, timeout)

    def _read(self, selector: selectors.BaseSelector, timeout: float) -> None:
        self.is_steady = True
        ready = selector.select(timeout)
        self.is_steady = False
        if self.is_over:  # a handler drove meanwhile, and was interrupted
            return
        for key, events in ready:
            self._changing = key.data
            if events & EVENT_READ:
                key.data.receive()
            if events & EVENT_WRITE:
                key.data.flush()
        self._changing = None
        if self.looked_at > self._late_at:
            self._look_for_late_nodes(self.looked_at)

    def _look_for_late_nodes(self, now: float) -> None:
        """Mark the nodes whose replies are late. What has come is read."""
        earliest = now
        for node in self.nodes:
            since = math.inf if node.is_store else node.silent_since
            if since < now - self._patience:
                node.mark_suspect(since)
            else:
                earliest = min(earliest, since)
        self._late_at = earliest + self._patience

    def _maintain(self) -> selectors.BaseSelector | None:
        """Take and begin connections. Return None where sockets cannot be watched."""
        selector = None if self.is_over else self._selector or self._watch()
        if selector is None:
            return None
        unready = self._unready = [n for n in self.nodes if n.needs_maintenance]
        for node in unready:
            self._changing = node
            if node.maintain(selector):
                self._refuse_same_server(node)
            node.send_backlog()
        self._changing = None
        return selector

    def _watch(self) -> selectors.BaseSelector | None:
        """Make the selector; without file descriptors, let all nodes fail."""
        selector = None
        try:
            selector = self._new_selector()
            waker = Waker()
        except OSError as error:
            if selector:
                selector.close()
            for node in self.nodes:
                node.drop(f"cannot be watched: {error.strerror or error}")
            return None
        selector.register(waker, EVENT_READ, waker)
        for node in self.nodes:
            node.watch(selector)
        self._selector, self._waker = selector, waker
        return selector

    def _refuse_same_server(self, newcomer: Node) -> None:
        """Disqualify a node that is the same server as another node that votes."""
        run_id = newcomer.facts.run_id if newcomer.facts else ""
        for node in self.nodes:
            known = node.facts.run_id if node.facts and not node.unfit_because else ""
            if run_id and run_id == known and node is not newcomer:
                newcomer.disqualify(f"{SAME_SERVER} {node.label}; list each one once")
        newcomer.note_fitness()


class Broadcast(OfOneProcess):
    """One conversation with all nodes of a deployment.

    Threads, greenlets and event loops may share it. A forked child starts anew with
    connections of its own.

    Args:
        nodes: The nodes, at least one.
        clock: Reads time.
        timing: Limits the time for an answer, and for a connection if fewer than a
            quorum of the nodes are connected yet.
        new_selector: Makes the selector that waits for all nodes.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        clock: Clock,
        timing: Timing,
        new_selector: Callable[[], selectors.BaseSelector] = new_selector,
    ) -> None:
        super().__init__()
        self.labels = tuple(node.label for node in nodes)
        self._clock = clock
        self._timing = timing
        self._new_selector = new_selector
        self._begin(nodes)
        _all.add(self)

    def _begin(self, nodes: Sequence[Node]) -> None:
        self._queue: deque[InFlight] = deque()
        self._exchange = Exchange(
            nodes,
            self._queue,
            clock=self._clock,
            timing=self._timing,
            new_selector=self._new_selector,
        )
        # The I/O thread: its number, whether it drives, the lock on which it rests.
        self._thread = 0
        self._is_driven = False
        self._rest = threading.Lock()
        self._closing = False
        self._is_wanted = False  # whether `close` wants to drive

    # -- for callers ---------------------------------------------------------------

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, in the order of their votes."""
        return self._exchange.nodes

    @property
    def observer(self) -> Callable[[ScriptRequest], Callable[[int, Vote], None]] | None:
        """Returns the observer of a request that is sent, if there is one."""
        return self._exchange.observer_of

    @observer.setter
    def observer(
        self, observer: Callable[[ScriptRequest], Callable[[int, Vote], None]] | None
    ) -> None:
        """Have this return the observer of each request from now on."""
        self._exchange.observer_of = observer

    @property
    def blind_for(self) -> float:
        """Seconds for which no reply was read before the last look at the sockets.

        A reply that this look has read may have come so much earlier.
        """
        return self._exchange.blind_for

    @property
    def has_pending(self) -> bool:
        """Whether a request waits to be sent, or to be resent, or a reply is late."""
        return bool(self._queue or [node for node in self.nodes if node.has_pending])

    @property
    def has_unanswered(self) -> bool:
        """Whether a node owes a reply."""
        return any(node.pending for node in self.nodes)

    def ask(self, request: ScriptRequest) -> None:
        """Send one request and wait for it as long as nodes may take.

        The time for a node that was late before counts from when the caller came: other
        callers may have waited for the node all the time.
        """
        if self.pid != os.getpid():
            self.notice_fork()
        call = InFlight((request,), self._clock.monotonic(), sends=True, waits=True)
        self._queue.append(call)
        self._see_through(call)

    def begin(self, request: ScriptRequest, event: Event) -> None:
        """Queue one request, and return at once: see ``Transport``."""
        if self.pid != os.getpid():
            self.notice_fork()
        call = InFlight((request,), self._clock.monotonic(), sends=True, waits=True)
        call.event = event
        self._queue.append(call)
        if not self._is_driven and not self._engage():
            # There can be no thread: this one is blocked, and waits by another event.
            self._see_through(call)
            event.release()

    def wake(self) -> None:
        """Have the I/O thread send what is queued."""
        self._exchange.wake()

    def send(self, *requests: ScriptRequest) -> None:
        """Send requests to all nodes, in this order: see ``Transport``."""
        if self.pid != os.getpid():
            self.notice_fork()
        call = InFlight(requests, self._clock.monotonic(), sends=True, waits=False)
        self._queue.append(call)
        self._try_to(Exchange.flush)

    def wait(self, *requests: ScriptRequest, until: float = math.inf) -> bool:
        """Return when all are done, or time is up: see ``Transport``."""
        if self.pid != os.getpid():
            self.notice_fork()
        now = self._clock.monotonic()
        call = InFlight(requests, now, sends=False, waits=True, until=until)
        self._queue.append(call)
        return self._see_through(call)

    def drain(self) -> None:
        """Read the replies that are there, unless another thread does so."""
        if self.pid != os.getpid():
            self.notice_fork()
        self._try_to(Exchange.look)

    def finish(self, until: float) -> None:
        """Wait until all requests are sent, and stores have carried them out.

        At ``until``, close the connections to stores that have not.
        """
        while self.pid == os.getpid() and (self._queue or self._exchange.is_working()):
            if SYSTEM_CLOCK.monotonic() > until:
                self._exchange.leave_stores()
                return
            self._try_to(Exchange.flush)
            SYSTEM_CLOCK.sleep(_POLL_EVERY)

    def close(self) -> None:
        """Close all connections. The next request opens them again.

        Wait for replies that are on their way, for as long as a node may take: a node
        that cannot deliver a reply drops the requests that it has not read yet, also
        releases.
        """
        if self.pid != os.getpid():
            self.notice_fork()
        give_up_at = self._clock.monotonic() + self._timing.node_timeout + 1.0
        self._is_wanted = True
        try:
            while not self._drive(Exchange.shut):
                self._exchange.wake()
                if self._clock.monotonic() > give_up_at:  # the driver is presumed dead
                    self._succeed(self._exchange, None, keeps=False)
                self._clock.sleep(_POLL_EVERY)
        finally:
            self._is_wanted = False
        self._closing = True
        if self._exchange.has_work():
            self._engage()
        else:
            self._unrest()

    def forget_parent(self) -> None:
        """Start anew in a forked child, touching nothing of the parent's."""
        exchange = self._exchange
        for node in exchange.nodes:
            node.forget_parent()
        observer = self.observer
        self._begin(exchange.nodes)
        self.observer = observer
        exchange.close(*exchange.nodes)

    # -- who drives ------------------------------------------------------------------

    def _drive(self, work: Callable[[Exchange], object]) -> bool:
        """Call a function with the exchange, unless another thread drives it.

        Returns:
            Whether it was done.
        """
        me, exchange = threading.get_ident(), self._exchange
        is_nested = exchange.driver == me
        if is_nested and not exchange.is_steady:
            # In the middle of a change, which goes on when this has returned.
            exchange, is_nested = self._succeed(exchange, me, keeps=False), False
        elif not exchange.take(me):
            if not sys.is_finalizing():
                return False
            if exchange.is_steady:
                exchange.take_over(me)
            else:
                exchange = self._succeed(exchange, me, keeps=False)
        try:
            exchange.is_steady = False
            work(exchange)
            exchange.is_steady = True
        except (OSError, ValueError, LookupError, AttributeError):
            if not exchange.is_over:  # else another thread has closed it
                raise
        finally:
            if not exchange.is_steady:
                self._succeed(exchange, None, keeps=True)
            elif not is_nested and exchange.driver == me:
                exchange.leave()
            if self._is_driven:
                self._unrest()
        return True

    def _is_nested(self) -> bool:
        """Tell whether this thread drives already, below a handler or a finaliser."""
        return self._exchange.driver == threading.get_ident()

    def _succeed(
        self, exchange: Exchange, driver: int | None, *, keeps: bool
    ) -> Exchange:
        """Let a successor take the place of this exchange, and return it."""
        if exchange.is_over:
            return self._exchange
        made = exchange.successor(driver, keeps=keeps)
        if self._exchange is exchange:
            self._exchange = made
        exchange.close(*made.nodes)
        return made

    def _try_to(self, work: Callable[[Exchange], object]) -> None:
        """Call a function with the exchange, or wake the thread that drives it."""
        is_nested = self._is_nested()
        if (
            self._is_driven and not (is_nested or sys.is_finalizing())
        ) or not self._drive(work):
            self._exchange.wake()
        elif not is_nested and not self._is_driven and self._exchange.has_work():
            self._hand_on()

    def _hand_on(self) -> None:
        """Leave waiting calls to the I/O thread; without any, send the queue."""
        exchange = self._exchange
        works = exchange.waiting or exchange.is_working()
        if works or any(call.waits for call in list(self._queue)):
            self._engage()
        else:
            self._try_to(Exchange.flush)

    def _see_through(self, call: InFlight) -> bool:
        """Return True when the call is over; False if it is not at its ``until``."""
        give_up_at = call.until
        try:
            see_through = partial(self._carry, call, is_nested=self._is_nested())
            self._try_to(see_through)
            return call.is_over or self._await(call, see_through, give_up_at)
        finally:
            if not call.is_over:  # interrupted, or given up: no caller waits for it
                call.is_over = True
                self._exchange.waiting.pop(call, None)

    def _await(
        self,
        call: InFlight,
        see_through: Callable[[Exchange], object],
        give_up_at: float,
    ) -> bool:
        """Wait while another thread drives; drive if it does not any more."""

        def anew(exchange: Exchange) -> None:
            self._thread = 0  # it would drive
            see_through(exchange)

        call.event = event = threading.Lock()
        event.acquire()
        late_looks = 0
        while not call.is_over:
            left = _LOOK_EVERY
            if give_up_at < math.inf:
                left = min(left, max(0.0, give_up_at - self._clock.monotonic()))
            if sys.is_finalizing() or (
                not event.acquire(timeout=left) and not call.is_over
            ):
                now = self._clock.monotonic()
                if now >= give_up_at:
                    return False
                late_looks += now > self._patience_of(call)
                if late_looks > _LATE_LOOKS:
                    self._succeed(self._exchange, None, keeps=False)
                    late_looks = 0
                self._is_driven = False
                self._try_to(anew)
        return True

    def _patience_of(self, call: InFlight) -> float:
        """Return the instant by which another thread has to end this call."""
        if call.due_at < math.inf:
            return call.due_at
        return call.came_at + self._timing.connect_timeout + self._timing.node_timeout

    def _carry(self, call: InFlight, exchange: Exchange, *, is_nested: bool) -> None:
        """Send and read until this call is over, or until another caller waits."""
        while not call.is_over and not exchange.is_over:
            if not is_nested and exchange.others_wait(call) and self._engage():
                return
            exchange.turn()  # for all, where no other thread can drive

    def _engage(self) -> bool:
        """Let the I/O thread drive. Return False if there can be no thread."""
        self._is_driven, self._closing = True, False
        if self._thread:
            self._unrest()
            return True
        self._thread = _STARTING
        if not start_thread(self._run):
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
        # A lock of its own: gevent may have been patched since the last thread.
        self._rest = rest = threading.Lock()
        self._thread = me = threading.get_ident()
        while self._thread == me:
            try:
                was_free = self._drive(self._serve)
            except Exception:  # noqa: BLE001  (it is logged)
                text = "The I/O thread met an error and continues."
                log_safely(log, logging.ERROR, text, exc_info=True)
                self._clock.sleep(_PAUSE_AFTER_ERROR)
                continue
            if not was_free:  # the driver wakes this thread when it leaves
                self._exchange.wake()
                rest.acquire(timeout=_LOOK_EVERY)
            elif self._is_wanted:
                self._clock.sleep(_POLL_EVERY)
            elif self._exchange.has_work():
                self._is_driven = True  # a caller came at the last moment
            elif self._closing or not rest.acquire(timeout=_REST):
                self._thread = 0
                if self._is_driven:
                    self._engage()

    def _serve(self, exchange: Exchange) -> None:
        """Drive until no caller waits."""
        crowded_at = self._clock.monotonic()
        while not self._is_wanted and not exchange.is_over:
            if exchange.has_work():
                exchange.turn(crowded_at + _CROWD_LASTS)
                if len(exchange.waiting) > 1:
                    crowded_at = exchange.looked_at
            elif not self._closing and self._clock.monotonic() < (
                crowded_at + _CROWD_LASTS
            ):
                exchange.turn(crowded_at + _CROWD_LASTS)
            else:
                self._is_driven = False
                if not exchange.has_work():
                    return
                self._is_driven = True
