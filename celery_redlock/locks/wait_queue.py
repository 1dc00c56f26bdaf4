"""Wait in a queue for a lock that another client holds.

::

    join the queue and look ──free──► try
        ▲                   └──held──► listen ──a majority wakes me──► try
        │                                 │
        └── a minority wakes me, ─────────┤ (after a moment of grace)
            or no node does for long, ────┘ or the holder's ttl ended

A look asks every node who holds the lock and joins its wait queue, in one command. So
a release that comes after the look finds the waiter in the queue. A node wakes the
first waiter alone, so a release does not stir up all of them. While nothing happens, N
nodes have to answer one look per waiter in N / 2 seconds (at least one second).

A wake-up may get lost: its process may be stopped just then, or a node may die. Then
the next look finds the lock free. While fewer than a majority of the nodes can be
listened to, waiters look more often instead.

The wall clocks of the waiters decide about their order. That is fairness and no
guarantee: a client that does not wait, or tries at the same moment, can be faster.

Of several permits some are nearly always on their way from one holder to the next. So a
waiter that finds a permit free, and was not woken for it, first waits for a moment.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.locks.failure import ends_in
from celery_redlock.locks.permits import names_of, occupancies, words_of
from celery_redlock.scripts import (
    JOIN_PERMIT_QUEUE,
    JOIN_WAIT_QUEUE,
    LEAVE_WAIT_QUEUE,
)
from celery_redlock.wire.requests import majority_answered
from celery_redlock.wire.steps import Ask, Listen, Sleep

if TYPE_CHECKING:
    from celery_redlock.locks.permits import Choice
    from celery_redlock.scripts.keys import Keys
    from celery_redlock.wire.pubsub import WakeupListener
    from celery_redlock.wire.requests import Nodes, ScriptRequest
    from celery_redlock.wire.steps import Steps


_LOOK_EVERY = 0.5  # seconds for each node
_LEAST_LOOK_EVERY = 1.0
_DEAF_LOOK_EVERY = 0.3  # while too few nodes can be listened to
_GRACE = 0.02  # seconds for the other nodes to wake the waiter, too
_FREE_LOOKS_AT_ONCE, _LONGEST_GRACE = 2, 64 * _GRACE
_TRIES_AT_ONCE = 2
_AFTER_END = 0.05  # seconds after the end of the holder's ttl
_QUEUE_TTL_MS = 60_000  # many times as long as the longest pause between two looks
_MS, _US = 1000, 1_000_000


class WaitQueue:
    """One execution's wait for one key. It joins the queues with its first look.

    Args:
        key: The name of the lock.
        nodes: The nodes of the deployment.
        keys: The names of the keys on the nodes.
        listener: Hears when a node wakes the waiter.
        choice: The permits that it tries for, if keys have limits. It then waits in
            the queue of each key, and each release of a permit wakes one waiter.
    """

    def __init__(
        self,
        key: str,
        nodes: Nodes,
        keys: Keys,
        listener: WakeupListener,
        choice: Choice | None = None,
    ) -> None:
        self._choice = choice
        limits = choice.limits if choice else ()
        self._limits = words_of(limits, keys)
        locks, self._queues = names_of(key, limits, keys)
        self._keys = (*locks, *self._queues)
        self._nodes = nodes
        self._clock = nodes.clock
        self._listener = listener
        self._was_woken = False
        self._free_looks = 0  # in a row, with tries that found the lock held
        # Who needs a start and another permit rests between tries.
        starts = [limit.period / limit.most for limit in limits if limit.period]
        needs_more = len(limits) > 1 and bool(starts)
        self._longest_rest = min(*starts, _LONGEST_GRACE) if needs_more else 0.0
        self._soon_tries, self._tried_at, self._start_at = 0, -math.inf, 0.0
        self._rank = round(self._clock.wall() * _US)
        self._waiter = listener.add_waiter()

    def pause(self, until: float) -> Steps[None]:
        """Wait until the lock seems worth another try, or until this instant."""
        self._note_try()
        self._was_woken = False
        while self._clock.monotonic() < until:
            self._waiter.reset()
            look_at = yield from self._look()
            if look_at is None:
                yield from self._slow_down(until)
                return
            self._free_looks = 0
            yield from self._rest(until)
            self._was_woken = yield from self._listen(min(look_at, until))
            if self._was_woken:
                return

    def end(self, *, acquired: bool) -> None:
        """Leave the queue. A waiter passes on a wake-up that it did not use.

        That is one of a waiter without the lock, or one for another permit than it
        got. The nodes then wake the next waiter, now or for the instant from which the
        lock is free (``hold_at_least``).
        """
        try:
            self._leave(acquired=acquired)
        except BaseException:  # it was interrupted, and others wait behind this waiter
            self._leave(acquired=acquired)
            raise

    def _leave(self, *, acquired: bool) -> None:
        self._listener.remove_waiter(self._waiter)
        has_permit = acquired and self._choice is not None and not self._was_woken
        free_in_ms: int | str = 0 if has_permit else ""
        if not acquired:
            free_in = self._waiter.free_at - self._clock.monotonic()
            free_in_ms = max(0, round(free_in * _MS))
        args = [self._waiter.name, free_in_ms, int(has_permit)]
        seconds = _QUEUE_TTL_MS / _MS
        self._nodes.tell(LEAVE_WAIT_QUEUE, self._keys, args, resend_for=seconds)

    def _look(self) -> Steps[float | None]:
        """Join the queue. Return when to look again; None when the lock is free."""
        if self._free_looks and len(self._keys) > 2:  # noqa: PLR2004  (one lock, one queue)
            # All keys were free, and it got none. A newcomer passes on the wake-up of
            # a key that it cannot use, so let it be one again.
            self._nodes.tell(LEAVE_WAIT_QUEUE, self._keys, [self._waiter.name, "", 0])
        args: list[Any] = [self._waiter.name, self._rank, _QUEUE_TTL_MS]
        if self._choice is None:
            request = self._nodes.request(JOIN_WAIT_QUEUE, self._keys, args)
        else:
            args += self._limits
            request = self._nodes.request(
                JOIN_PERMIT_QUEUE, self._queues, args, done_when=majority_answered
            )
        yield Ask(request)
        left = self._free_in(request)
        if left is None:
            return None
        every, nodes = _DEAF_LOOK_EVERY, len(self._nodes.labels)
        if self._listener.listening >= self._nodes.quorum:
            every = max(_LEAST_LOOK_EVERY, _LOOK_EVERY * nodes)
        pause = jittered(every, 0.75, 1.25)
        pause = min(pause, left + jittered(_AFTER_END, 0.02))
        return self._clock.monotonic() + pause

    def _free_in(self, request: ScriptRequest) -> float | None:
        """Return in how many seconds the lock ends by itself; None if it is free."""
        ballot = request.ballot
        if self._choice is None:
            is_held = ballot.top_taker[1] >= ballot.quorum
            # It may end in this very millisecond.
            return ends_in(ballot) if is_held else None
        found = occupancies(self._choice.limits, request.replies, ballot.quorum)
        full = [one for one in found or () if one.is_full]
        starts = [one.free_in() for one in full if one.limit.period]
        self._start_at = self._clock.monotonic() + max(starts, default=0.0)
        return max((one.free_in() for one in full), default=None)

    def _note_try(self) -> None:
        now = self._clock.monotonic()
        is_soon = now < self._tried_at + 2 * self._longest_rest
        self._soon_tries = self._soon_tries + 1 if is_soon else 0
        self._tried_at = now

    def _rest(self, until: float) -> Steps[None]:
        """Pause while a start is missing, where tries follow each other too soon.

        A node wakes a waiter for one permit, and cannot know that the waiter lacks
        another one. A try without success passes the wake-up on. So without a pause,
        waiters would wake each other for as long as the start is missing.
        """
        if self._soon_tries > _TRIES_AT_ONCE:
            pause = jittered(doubled(_GRACE, self._soon_tries, self._longest_rest))
            left = min(self._start_at, until) - self._clock.monotonic()
            yield Sleep(max(0.0, min(pause, left)))

    def _slow_down(self, until: float) -> Steps[None]:
        """Pause when looks say "free" and tries say "held", time after time.

        Nodes may refuse to answer a look: no memory, no permission. A permit that is
        free mostly belongs to the waiter that was woken for it: if all others tried
        for it, too, each run would cost many tries without success.
        """
        self._free_looks += 1
        if self._choice is not None or self._free_looks > _FREE_LOOKS_AT_ONCE:
            pause = jittered(doubled(_GRACE, self._free_looks, _LONGEST_GRACE))
            until = min(until, self._clock.monotonic() + pause)
            self._was_woken = yield from self._listen(until)
            if self._was_woken:
                self._free_looks = 0

    def _listen(self, until: float) -> Steps[bool]:
        """Listen until this instant, or until there is a reason to look.

        Returns:
            Whether a majority woke the waiter, so that no look is needed.
        """
        quorum, has_grace = self._nodes.quorum, False
        waiter = self._waiter
        while True:
            now, wakeups = self._clock.monotonic(), sorted(waiter.wakeups.values())
            if len(wakeups) >= quorum:
                until = min(until, wakeups[quorum - 1])
                if now >= wakeups[quorum - 1]:
                    return True
            elif (wakeups or waiter.must_look) and not has_grace:
                has_grace = True
                until = min(until, now + jittered(_GRACE))
            if now >= until:
                return False
            yield Listen(waiter, until - now)
