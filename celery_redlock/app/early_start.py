"""Start refused calls of a worker as soon as their lock or permit is free.

A refused call that returns to its queue has a countdown. Celery's worker takes it out
of the queue at once, and keeps it in the memory of its main process until the countdown
is over. So a release can start it there, without a message and without a process that
waits::

    message with a countdown ──► Celery's strategy ──► timer of the main process
                                        │                     │ countdown over
                                        ▼                     ▼
                              ``EarlyStarts.add``      still held: wait on (``retry``)
                                        │              else:       start
                                        ▼
      calls of the key, by the time of publishing ──► the first one: start
                                        ▲
      a node: released, or free ──► KeyWatch (thread) ──► event loop

A worker joins the wait queues of the nodes once for each key, with the rank of its
first call. A release wakes the first worker of the queue. It starts one call and joins
again. The call then tries for its lock as each call does: the lock alone decides.

A call that was started has its lock a moment after a process has begun with it, or was
refused once more. Until then it counts as *trying*, and takes the room that looks find.
If no process begins with it for a minute, as where Celery's ``rate_limit`` keeps it,
others start.

Everything here runs in Celery's event loop, but for `KeyWatch`. In a pool of greenlets,
which has no such loop, each entry of Celery's timer is a greenlet, and so is each look
at the news; none of them is interrupted in between. A greenlet of its own hands a call
to the pool, since it waits there while the pool is full. Calls wait for their countdown
where a worker has neither (other pools with a broker that kombu polls), where the
broker delays calls (quorum queues), and where too few nodes answer.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state

from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.backoff import jittered
from celery_redlock.basics.clock import SYSTEM_CLOCK, Clock
from celery_redlock.basics.selector import Waker
from celery_redlock.line.backlog import is_first, keep_place
from celery_redlock.line.key_watch import OTHERS_FIRST, KeyWatch
from celery_redlock.options.broker import has_quorum_queues, longest_wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker.request import Request

    from celery_redlock.locks.limits import Waits, Wanted
    from celery_redlock.locks.redlock import Redlock

log = logging.getLogger(__name__)

_MOST_KEYS = 2000  # calls of more keys wait for their countdown
_TRIES_FOR = 1.0  # seconds in which a call that has begun tries for its lock
_BELIEVED_FOR = 60.0  # seconds, of the last look
_BEGINS_WITHIN = 60.0  # seconds
_STAYS_FOR = 600.0  # seconds; RabbitMQ closes the channel of a message after 30 minutes
_SHORTEST_PAUSE = 1.0


@dataclass(eq=False, slots=True)
class WaitingCall:
    """A refused call in the memory of a worker's main process.

    Attributes:
        start: What Celery does when the countdown is over.
        pause: Seconds of its countdown.
        leave_at: Instant from which it starts when its countdown is over, also while
            its lock is held: its policy is asked again, or the broker would deliver its
            message once more.
        entry: Its entry in Celery's timer; None while its countdown is not running.
        started_at: Instant of its start; 0 before.
        waits_for_lock: Whether it waits for its lock, too. If calls of too many keys
            wait, it only waits for its countdown.
    """

    starts: EarlyStarts
    request: Request
    waits: Waits
    start: Callable[[], Any]
    priority: int
    pause: float
    leave_at: float
    entry: Any = None
    started_at: float = 0.0
    waits_for_lock: bool = False


@dataclass(eq=False, slots=True)
class _KeyCalls:
    """The refused calls of one key in this worker.

    Attributes:
        heap: A heap of rank, number, call. Calls that were started are passed over.
        trying: The calls that were started and may still try for their lock.
        room: How many calls could have got the key at the last look; `OTHERS_FIRST`: it
            is the turn of a call in another worker. That call may have ended, so the
            first one here starts when its countdown is over, and asks.
        seen_at: Instant of this look.
        is_watched: Whether `KeyWatch` looks at the key.
    """

    heap: list[tuple[int, int, WaitingCall]] = field(default_factory=list)
    trying: set[WaitingCall] = field(default_factory=set)
    room: int = 0
    seen_at: float = -math.inf
    is_watched: bool = False

    def tries(self, now: float) -> int:
        """Return how many calls may still try for the lock."""
        since = now - _BEGINS_WITHIN
        self.trying = {call for call in self.trying if call.started_at > since}
        return len(self.trying)

    def has_room(self, now: float) -> bool:
        """Tell whether the last look saw room for more calls than try for locks."""
        return self.room > self.tries(now)

    def head(self) -> WaitingCall | None:
        """Return the waiting call that was published first."""
        while self.heap and self.heap[0][2].started_at:
            heapq.heappop(self.heap)
        return self.heap[0][2] if self.heap else None


class EarlyStarts:
    """The refused calls that wait in the main process of one worker.

    Args:
        redlock: The lock service.
        timer: Celery's.
        hub: Celery's event loop, which runs the timer; None in a pool of greenlets.
        is_open: Tells whether the connection that brings the calls is still in use. In
            a pool of greenlets, calls of a lost one would start while others clean up.
        stays_for: Seconds for which a message may stay in a worker that does not
            acknowledge it.
        clock: Reads time.
    """

    def __init__(  # noqa: PLR0913  (three have defaults)
        self,
        redlock: Redlock,
        timer: Any,
        hub: Any,
        *,
        is_open: Callable[[], bool] = lambda: True,
        stays_for: float = _STAYS_FOR,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._timer, self._clock, self._stays_for = timer, clock, stays_for
        self._redlock, self._hub, self._is_open = redlock, hub, is_open
        self._by_key: dict[Wanted, _KeyCalls] = {}
        self._calls: set[WaitingCall] = set()  # those with an entry in the timer
        self._news: deque[Callable[[], None]] = deque()
        self._number = 0
        self._is_stopped = False
        self._stopping = threading.Lock()  # held while the loop is woken, or left
        self._waker: Waker | None = None
        if hub is not None:
            self._waker = Waker()
            hub.add_reader(self._waker, self._read, self._waker)
        self._watch = KeyWatch(redlock, self._tell)

    # -- the event loop --------------------------------------------------------------

    def stop(self) -> None:
        """Forget all calls: the connection that has brought them is closed."""
        self._watch.stop()
        self._by_key.clear()
        while self._calls:
            # The broker delivers it again. Celery runs timers in a thread while a pool
            # of processes ends, which takes no further calls.
            self._timer.cancel(self._calls.pop().entry)
        with self._stopping:
            self._is_stopped = True
            if self._waker is not None:
                self._hub.remove_reader(self._waker)
                self._waker.close()

    def _tell(self, wanted: Wanted, room: int, is_woken: bool) -> None:  # noqa: FBT001
        self._in_loop(lambda: self._when_told(wanted, room, is_woken=is_woken))

    def _in_loop(self, do: Callable[[], None]) -> None:
        """Run a function soon in the event loop. Thread-safe."""
        self._news.append(do)
        with self._stopping:
            if self._is_stopped:
                return
            if self._waker is not None:
                self._waker.wake()
            else:
                self._timer.call_after(0, self._look_at_news)

    def _read(self, waker: Waker) -> None:
        waker.receive()
        self._look_at_news()

    def _look_at_news(self) -> None:
        while self._news and not self._is_stopped:
            self._apply(self._news.popleft())

    def _apply(self, do: Callable[[], Any]) -> None:
        """Run a function as the timer does, which logs its error."""
        self._timer.apply_entry(self._timer.Entry(do))

    def _when_told(self, wanted: Wanted, room: int, *, is_woken: bool) -> None:
        """Start as many calls as can have the key, and watch it for the rest."""
        key_calls = self._by_key.get(wanted)
        if key_calls is None or not key_calls.is_watched:
            return
        key_calls.room, key_calls.seen_at = room, self._clock.monotonic()
        # A release wakes this worker for a call that is not on its way yet.
        number = room if is_woken else room - key_calls.tries(key_calls.seen_at)
        started = 0
        while started < number and (head := key_calls.head()) is not None:
            self._start(head, key_calls)
            started += 1
        if key_calls.head() is None:
            self._forget(wanted, key_calls, passes_on=not started and number > 0)
        elif started:
            self._look(wanted, key_calls)

    # -- calls -------------------------------------------------------------------------

    def add(
        self,
        request: Request,
        waits: Waits,
        *,
        at: float,
        start: Callable[[], Any],
        priority: int = 0,
    ) -> Any:
        """Let a call wait until its lock is free, or until its countdown is over.

        That is ``at`` this instant of the timer's clock. Returns its entry there.
        """
        now, wanted = self._clock.monotonic(), waits.wanted
        call = WaitingCall(
            starts=self,
            request=request,
            waits=waits,
            start=start,
            priority=priority,
            pause=max(_SHORTEST_PAUSE, at - now),
            leave_at=now + self._stays_for if waits.stays_after_countdown else now,
        )
        self._enter(call, at)
        key_calls = self._by_key.get(wanted)
        if key_calls is None and (self._is_stopped or len(self._by_key) >= _MOST_KEYS):
            return call.entry
        if key_calls is None:
            key_calls = self._by_key[wanted] = _KeyCalls()
        request.redlock_waiting, call.waits_for_lock = call, True
        self._number += 1
        heapq.heappush(key_calls.heap, (waits.rank, self._number, call))
        has_turn = wanted.in_order and call is key_calls.head()
        if not key_calls.is_watched or key_calls.has_room(now) or has_turn:
            self._look(wanted, key_calls)
        return call.entry

    def _enter(self, call: WaitingCall, at: float) -> None:
        """Enter a call in Celery's timer; ``inspect scheduled`` finds the request."""
        call.entry = self._timer.call_at(
            at, self._when_due, (call.request, call), priority=call.priority
        )
        self._calls.add(call)

    def _when_due(self, request: Request, call: WaitingCall) -> None:
        """Start a call whose countdown is over, unless its lock is held.

        Calls that were started since the last look may have taken the room that it saw.
        If all that are due started, they would fill the pool.
        """
        if call.started_at or self._is_closed():
            return
        # A greenlet that is the entry would end itself with it.
        call.entry = None
        self._calls.discard(call)
        key_calls = self._by_key.get(call.waits.wanted) if call.waits_for_lock else None
        if key_calls is None:
            self._hand_over(call, None)
            return
        now = self._clock.monotonic()
        is_for_head = key_calls.room == OTHERS_FIRST and call is key_calls.head()
        is_known = now - key_calls.seen_at < _BELIEVED_FOR
        is_held = not (key_calls.has_room(now) or is_for_head) and is_known
        pause = jittered(call.pause, 0.75, 1.25)
        if is_held and now + pause < call.leave_at and not _is_over(request):
            self._enter(call, now + pause)
            if hasattr(request, "_eta_timer_entry"):  # Celery 5.7 cancels it by this
                request._eta_timer_entry = call.entry  # noqa: SLF001
            self._keep_place(call, pause)
            return
        self._start(call, key_calls)
        if key_calls.head() is None:
            self._forget(call.waits.wanted, key_calls, passes_on=False)

    def _keep_place(self, call: WaitingCall, seconds: float) -> None:
        waits = call.waits
        if waits.backlog:
            keep_place(
                self._redlock,
                waits.backlog,
                call.request.id,
                since=waits.rank,
                seconds=seconds + waits.margin,
                only_if_there=True,
            )

    def _start(self, call: WaitingCall, key_calls: _KeyCalls) -> None:
        """Let a call begin soon, as Celery does when its countdown is over."""
        entry, call.entry = call.entry, None
        self._calls.discard(call)
        call.started_at = self._clock.monotonic()
        key_calls.trying.add(call)
        if self._hub is not None:
            self._hand_over(call, entry)
        else:
            self._timer.call_after(0, self._hand_over, (call, entry))

    def _hand_over(self, call: WaitingCall, entry: Any) -> None:
        """Hand a call to the pool. A greenlet waits here while the pool is full."""
        if entry is not None:
            self._timer.cancel(entry)  # eventlet lets other greenlets run meanwhile
        if not self._is_closed():
            self._apply(call.start)

    @property
    def in_greenlets(self) -> bool:
        """Whether calls begin in greenlets, in a pool without an event loop."""
        return self._hub is None

    def _is_closed(self) -> bool:
        return self._is_stopped or not self._is_open()

    def accepted(self, call: WaitingCall, pid: int) -> bool:
        """Note that a call begins: in a moment it has its lock, or is refused.

        Returns False if it must not begin. Only a pool of processes is given no more
        calls than it has processes. A call has waited for a thread or a greenlet, and
        may have been revoked, have expired, or come back with the next connection.

        This and ``ended`` may be called in any thread: a pool of threads does so.
        """
        begins_here = self._hub is None or pid == os.getpid()
        if begins_here and (self._is_closed() or call.request.revoked()):
            return False
        self._in_loop(
            lambda: self._timer.call_after(_TRIES_FOR, self._has_tried, (call,))
        )
        return True

    def ended(self, call: WaitingCall) -> None:
        """Note that a call needs its lock no more. Twice is harmless."""
        self._in_loop(lambda: self._has_tried(call))

    def _has_tried(self, call: WaitingCall) -> None:
        key_calls = self._by_key.get(call.waits.wanted)
        if key_calls is None or call not in key_calls.trying:
            return
        key_calls.trying.discard(call)
        if key_calls.head() is not None:
            if key_calls.room:
                self._look(call.waits.wanted, key_calls)
        elif not key_calls.trying:
            del self._by_key[call.waits.wanted]

    def _look(self, wanted: Wanted, key_calls: _KeyCalls) -> None:
        """Let `KeyWatch` look at a key now, and watch it from now on."""
        head = key_calls.head()
        if head is None:
            return
        is_turn = None
        if wanted.in_order:
            is_turn = partial(is_first, self._redlock, wanted.key, head.request.id)
        try:
            self._watch.watch(wanted, head.waits.rank, is_turn)
        except RuntimeError:  # no further thread can start
            log.warning("Calls wait for their countdowns: no further thread starts.")
        else:
            key_calls.is_watched = True

    def _forget(self, wanted: Wanted, key_calls: _KeyCalls, *, passes_on: bool) -> None:
        """Watch a key no more: no call waits for it."""
        if key_calls.is_watched:
            key_calls.is_watched = False
            self._watch.forget(wanted, passes_on=passes_on)
        if not key_calls.trying:
            self._by_key.pop(wanted, None)


def _is_over(request: Request) -> bool:
    """Tell whether a call was revoked or has expired: then Celery ends it."""
    if request.id in state.revoked or (
        request.stamped_headers and state.revoked_stamps
    ):
        return True
    expires = request.expires
    if not expires or request.redlock_is_copy:  # which expires under its lock alone
        return False
    return bool(datetime.now(timezone.utc if expires.tzinfo else None) > expires)


# -- in Celery's worker ---------------------------------------------------------------


class EarlyStartStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets the calls of one connection to the broker start early."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def create(self, parent: Any) -> None:
        """Put our timer in the place of Celery's, before tasks look for it."""
        parent.timer = self._timer = _Timer(parent.timer)

    def start(self, parent: Any) -> None:
        """Make the `EarlyStarts` of a connection in a pool of greenlets."""
        if parent.hub is None and getattr(parent.pool, "is_green", False):
            self._begin(parent)

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Make the `EarlyStarts` of a connection, where there is an event loop."""
        self._begin(parent, hub)

    def _begin(self, parent: Any, hub: Any = None) -> None:
        redlock = runtime_of(parent.app).redlock
        if redlock.listener is None:
            return
        stays_for = min(_STAYS_FOR, longest_wait(parent.app))
        if has_quorum_queues(parent.app):
            stays_for = 0.0  # each takes the place of another call in the prefetch
        connection = parent.connection
        self._timer.starts = EarlyStarts(
            redlock,
            self._timer.usual,
            hub,
            is_open=lambda: parent.connection is connection,
            stays_for=stays_for,
        )

    def stop(self, parent: Any) -> None:  # noqa: ARG002  (Celery's)
        """Forget the calls of this connection."""
        starts, self._timer.starts = self._timer.starts, None
        if starts is not None:
            starts.stop()


class _Timer:
    """The timer of Celery's consumer, which leaves refused calls to `EarlyStarts`."""

    def __init__(self, usual: Any) -> None:
        self.usual = usual
        self.starts: EarlyStarts | None = None  # of the present connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.usual, name)

    def call_at(
        self,
        at: float,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
        priority: int = 0,
    ) -> Any:
        """Enter a call in the timer; if it waits for a lock, by `EarlyStarts.add`."""
        waits = getattr(args[0], "redlock_waits", None) if args else None
        if self.starts is None or waits is None:
            return self.usual.call_at(at, function, args, kwargs, priority)
        start = partial(function, *args)
        return self.starts.add(args[0], waits, at=at, start=start, priority=priority)
