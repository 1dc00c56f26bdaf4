"""Watch many keys from one thread, for calls that wait outside of it.

::

    watch ──► look: join the wait queues ──┬─ held ──► listen ──► woken ──► tell
                      ▲                    │              │
                      │                    │              └─ nothing for long ──┐
                      │                    └─ free ──► tell                     │
                      └───────── look again, asked or after a while ◄───────────┘

A call that waits in a thread has a `WaitQueue` of its own. A process that keeps
thousands of calls for a few keys joins the wait queue of each key once, with the rank
of the call that is to run first: a node that releases the lock wakes the process as it
wakes a thread. A wake-up takes the process out of the queue. It joins again with its
next look, under another name if it waits for one lock: nodes that are late may still
tell of the release before, and two calls must not start for one release.

What is told is a hint: nothing is held. Looks go on while nothing happens, so a wake-up
that is lost costs some seconds. Where too few nodes answer, nothing is told.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.basics.callbacks import log_safely
from celery_redlock.locks.failure import ends_in
from celery_redlock.locks.permits import names_of, occupancies, words_of
from celery_redlock.scripts import (
    JOIN_PERMIT_QUEUE,
    JOIN_WAIT_QUEUE,
    LEAVE_WAIT_QUEUE,
)
from celery_redlock.wire.requests import majority_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.locks.limits import Limits, Wanted
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.wire.pubsub import Waiter, WakeupListener


OTHERS_FIRST = -1  # for no holder is there room, since it is the turn of another call

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.5  # seconds for each node
_LEAST_LOOK_EVERY, _LONGEST_LOOK_EVERY = 1.0, 20.0
_LOOK_COST = 0.01  # seconds between two looks of a thread, on average
_GRACE = 0.02  # seconds for the other nodes to wake the process, too
_AFTER_END = 0.05  # seconds after the end of a ttl
_QUEUE_TTL_MS = 60_000  # a few times as long as the longest pause between two looks
_PAUSE_AFTER_ERROR = 1.0
_MS = 1000


@dataclass(slots=True)
class _Watch:
    """One watched key: its waiter, and when to look."""

    wanted: Wanted
    rank: int
    waiter: Waiter
    names: tuple[list[str], list[str]]  # of the locks, and of their wait queues
    look_at: float = 0.0
    has_joined: bool = False  # under the name of this waiter
    had_room: bool = False  # as of the last look
    woken_at: float = math.inf  # when the wake-ups of a majority are due
    is_turn: Callable[[], bool] | None = None
    waits_for_others: int = 0  # looks in a row, since it was woken


class KeyWatch:
    """A thread that tells when the locks of the watched keys get free.

    Args:
        redlock: The lock service.
        tell: Called in the thread, with what is wanted, the number of holders for which
            there is room now, and whether a release woke this process for it. Zero:
            all have a holder, as far as is known. `OTHERS_FIRST`: the lock is free, and
            in order it is for a call that is not here.

    Its methods may be called in any thread. None of them waits for nodes.
    """

    def __init__(
        self, redlock: Redlock, tell: Callable[[Wanted, int, bool], None]
    ) -> None:
        if redlock.listener is None:
            raise ValueError("This lock service has no listener for wake-ups.")
        self._listener: WakeupListener = redlock.listener
        self._nodes, self._keys = redlock.nodes, redlock.keys
        self._clock = redlock.clock
        self._tell = tell
        self._watches: dict[Wanted, _Watch] = {}  # of the thread
        self._orders: deque[Callable[[], None]] = deque()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def release(self) -> None:
        """Wake the thread. Waiters call it as their event."""
        self._news.set()

    def watch(
        self, wanted: Wanted, rank: int, is_turn: Callable[[], bool] | None = None
    ) -> None:
        """Watch a key from now on, or look at it again now.

        Args:
            wanted: The key.
            rank: µs since 1970. Of two waiters that one with the lower is woken first.
            is_turn: Tells whether there is room for the call that is first here, where
                calls run in order. It is asked when the lock is free.
        """
        self._order(lambda: self._begin(wanted, rank, is_turn))

    def forget(self, wanted: Wanted, *, passes_on: bool) -> None:
        """Watch a key no more. Where its lock is free, another waiter may be woken."""
        self._order(lambda: self._end(wanted, passes_on=passes_on))

    def stop(self) -> None:
        """Forget all keys, and end the thread soon."""
        self._is_stopping = True
        self._news.set()

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self._news.set()
        if self._thread is None:
            name = "redlock-key-watch"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread = thread  # before other greenlets run while it starts
            try:
                thread.start()
            except RuntimeError:
                self._thread = None  # the next order tries it again
                raise

    # -- the thread ----------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping:
            if not self._try(self._step):
                self._clock.sleep(_PAUSE_AFTER_ERROR)
        for wanted in list(self._watches):
            self._try(partial(self._end, wanted, passes_on=True))

    def _try(self, work: Callable[[], None]) -> bool:
        """Do a piece of work, or log its error; return whether it was done.

        Calls wait for this thread. Their countdowns end their wait, too.
        """
        try:
            work()
        except Exception:  # noqa: BLE001  (it is logged)
            text = "The watch of keys had an error and continues."
            log_safely(log, logging.ERROR, text, exc_info=True)
            return False
        return True

    def _step(self) -> None:
        """Look at the keys that are due, then wait for the next one."""
        self._news.clear()
        while self._orders and not self._is_stopping:
            self._orders.popleft()()
        next_at = math.inf
        for watch in list(self._watches.values()):
            self._hear(watch)
            now = self._clock.monotonic()
            if watch.woken_at <= now and watch.is_turn is not None:
                watch.waits_for_others = 0
                self._look(watch)  # a call in another worker may be before it
            elif watch.woken_at <= now:
                watch.waiter.reset()
                watch.woken_at, watch.look_at = math.inf, now + self._pause()
                self._tell(watch.wanted, 1, True)  # noqa: FBT003  (its only words)
            elif watch.look_at <= now:
                self._look(watch)
            next_at = min(next_at, watch.look_at, watch.woken_at)
            if self._orders:
                return
        pause = next_at - self._clock.monotonic()
        self._news.wait(None if pause == math.inf else max(0.0, pause))

    def _begin(
        self, wanted: Wanted, rank: int, is_turn: Callable[[], bool] | None
    ) -> None:
        watch = self._watches.get(wanted)
        if watch is None:
            names = names_of(wanted.key, wanted.limits, self._keys)
            watch = _Watch(wanted, rank, self._new_waiter(), names)
            self._watches[wanted] = watch
        watch.rank, watch.look_at, watch.is_turn = rank, 0.0, is_turn
        watch.waits_for_others = 0

    def _end(self, wanted: Wanted, *, passes_on: bool) -> None:
        if (watch := self._watches.pop(wanted, None)) is not None:
            self._leave(watch, 0 if passes_on else "")

    def _new_waiter(self) -> Waiter:
        waiter = self._listener.add_waiter()
        waiter.notify(self)
        return waiter

    def _leave(self, watch: _Watch, free_in_ms: int | str) -> None:
        self._listener.remove_waiter(watch.waiter)
        args = [watch.waiter.name, free_in_ms, 0]
        self._nodes.tell(LEAVE_WAIT_QUEUE, [*watch.names[0], *watch.names[1]], args)

    def _pause(self) -> float:
        """Return the seconds until the next look at an idle key."""
        every = max(_LEAST_LOOK_EVERY, _LOOK_EVERY * len(self._nodes.labels))
        every = max(every, _LOOK_COST * len(self._watches))
        return jittered(min(every, _LONGEST_LOOK_EVERY), 0.75, 1.25)

    def _hear(self, watch: _Watch) -> None:
        """Read wake-ups: a majority wakes a call, fewer are a reason to look."""
        waiter, quorum = watch.waiter, self._nodes.quorum
        wakeups = sorted(waiter.wakeups.values())
        if len(wakeups) >= quorum:
            watch.woken_at = wakeups[quorum - 1]
        elif wakeups or waiter.must_look:
            soon = self._clock.monotonic() + jittered(_GRACE)
            watch.look_at = min(watch.look_at, soon)

    def _look(self, watch: _Watch) -> None:
        """Join the wait queues, and tell whether there is room for a holder."""
        locks, queues = watch.names
        # A newcomer to several queues wakes others. So there the name stays, but after
        # a look that saw room: the nodes have then let it pass no wake-up on.
        is_alone = len(queues) == 1
        joins_anew = not watch.wanted.limits if is_alone else watch.had_room
        if watch.has_joined and joins_anew:
            self._leave(watch, "")
            watch.waiter = self._new_waiter()
        watch.waiter.reset()
        watch.woken_at, watch.has_joined = math.inf, True
        args: list[Any] = [watch.waiter.name, watch.rank, _QUEUE_TTL_MS]
        limits = watch.wanted.limits
        if limits:
            args += words_of(limits, self._keys)
            request = self._nodes.ask(
                JOIN_PERMIT_QUEUE, queues, args, done_when=majority_answered
            )
            room, left = _permits(limits, request.replies, request.ballot.quorum)
        else:
            request = self._nodes.ask(JOIN_WAIT_QUEUE, [*locks, *queues], args)
            ballot = request.ballot
            is_held = ballot.top_taker[1] >= ballot.quorum
            is_free = ballot.answered - ballot.taken >= ballot.quorum
            room = int(is_free) if is_free or is_held else None
            left = ends_in(ballot) if is_held else math.inf
        pause = min(self._pause(), left + jittered(_AFTER_END, 0.02))
        watch.look_at = self._clock.monotonic() + pause
        watch.had_room = bool(room)
        if room and watch.is_turn is not None and not watch.is_turn():
            room = OTHERS_FIRST
            # The call before may have left, and a node is late to hear of it.
            pause = min(pause, jittered(doubled(_GRACE, watch.waits_for_others, pause)))
            watch.waits_for_others += 1
            watch.look_at = self._clock.monotonic() + pause
        if room is not None:
            self._tell(watch.wanted, room, False)  # noqa: FBT003  (its only words)


def _permits(limits: Limits, replies: Any, quorum: int) -> tuple[int | None, float]:
    """Return the number of free permits (None: unknown), and seconds until the next."""
    found = occupancies(limits, replies, quorum)
    if found is None:
        return None, math.inf
    room, left = math.inf, 0.0
    for one in found:
        free = one.limit.most - len(one.held)
        room = min(room, free)
        if not free:
            left = max(left, one.free_in())
    return int(room), left if not room else math.inf
