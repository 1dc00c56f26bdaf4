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
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.backoff import doubled, jittered
from celery_redlock.core.failure import ends_in
from celery_redlock.core.scripts import JOIN_WAIT_QUEUE, LEAVE_WAIT_QUEUE

if TYPE_CHECKING:
    from celery_redlock.core.keys import Keys
    from celery_redlock.core.transport.pubsub import WakeupListener
    from celery_redlock.core.transport.requests import Nodes

__all__ = ["WaitQueue"]

_LOOK_EVERY = 0.5  # seconds for each node
_LEAST_LOOK_EVERY = 1.0
_DEAF_LOOK_EVERY = 0.3  # while too few nodes can be listened to
_GRACE = 0.02  # seconds for the other nodes to wake the waiter, too
_FREE_LOOKS_AT_ONCE, _LONGEST_GRACE = 2, 64 * _GRACE
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
    """

    def __init__(
        self, key: str, nodes: Nodes, keys: Keys, listener: WakeupListener
    ) -> None:
        self._keys = (keys.lock(key), keys.wait_queue(key))
        self._nodes = nodes
        self._clock = nodes.clock
        self._listener = listener
        self._free_looks = 0  # in a row, with tries that found the lock held
        self._rank = round(self._clock.wall() * _US)
        self._waiter = listener.add_waiter()

    def pause(self, until: float) -> None:
        """Return when the lock seems worth another try, or at this instant."""
        while self._clock.monotonic() < until:
            self._waiter.reset()
            look_at = self._look()
            if look_at is None:
                self._slow_down(until)
                return
            self._free_looks = 0
            if self._listen(min(look_at, until)):
                return

    def end(self, *, acquired: bool) -> None:
        """Leave the queue. A waiter without the lock passes its wake-up on.

        The nodes then wake the next waiter, now or for the instant from which the
        lock is free (``hold_at_least``).
        """
        self._listener.remove_waiter(self._waiter)
        free_in_ms: int | str = ""
        if not acquired:
            free_in = self._waiter.free_at - self._clock.monotonic()
            free_in_ms = max(0, round(free_in * _MS))
        self._nodes.tell(LEAVE_WAIT_QUEUE, self._keys, [self._waiter.name, free_in_ms])

    def _look(self) -> float | None:
        """Join the queue. Return when to look again; None when the lock is free."""
        args = [self._waiter.name, self._rank, _QUEUE_TTL_MS]
        ballot = self._nodes.ask(JOIN_WAIT_QUEUE, self._keys, args).ballot
        token, votes = ballot.top_taker
        if votes < ballot.quorum:
            return None
        every = _DEAF_LOOK_EVERY
        if self._listener.listening >= ballot.quorum:
            every = max(_LEAST_LOOK_EVERY, _LOOK_EVERY * len(ballot.labels))
        pause = jittered(every, 0.75, 1.25)
        left = ends_in(ballot, token)  # in this very millisecond, perhaps
        pause = min(pause, left + jittered(_AFTER_END, 0.02))
        return self._clock.monotonic() + pause

    def _slow_down(self, until: float) -> None:
        """Pause when looks say "free" and tries say "held", time after time.

        Nodes may refuse to answer a look: no memory, no permission.
        """
        self._free_looks += 1
        if self._free_looks > _FREE_LOOKS_AT_ONCE:
            pause = jittered(doubled(_GRACE, self._free_looks, _LONGEST_GRACE))
            self._listen(min(until, self._clock.monotonic() + pause))

    def _listen(self, until: float) -> bool:
        """Listen until then, or until there is a reason to look.

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
            waiter.listen(until - now)
