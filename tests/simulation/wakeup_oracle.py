"""The rule for waiters: a released lock wakes the first waiter of the queue in time.

It is checked in histories without faults: there no wake-up may get lost, so the first
waiter learns of a release at once, and not only when it polls the nodes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core import scripts

if TYPE_CHECKING:
    from tests.simulation.oracles import Oracle
    from tests.simulation.server import Server
    from tests.simulation.world import Thread

__all__ = ["WakeupOracle"]

# Seconds. A wake-up takes a few messages, and the longest pause between two tries if
# another client tries at the same moment. A waiter polls after 0.75 s at the earliest.
_WAKEUP_TAKES = 0.5
_POLLS_EVERY = 1.25 / 2  # at most, times the number of nodes; of one node as of two
_RATE = 1.005  # true seconds per second of a node's clock, at most

# The index in ARGV of the milliseconds for which a script keeps the lock.
_TTL_AT = {"acquire": 2, "extend": 2, "restore": 3, "release": 1}


class WakeupOracle:
    """Observes the waiters, and when a lock is free on all nodes.

    Args:
        oracle: Gets the findings.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._waiting: dict[Thread, tuple[str, float]] = {}
        self._ends: dict[tuple[str, str], float] = {}
        self._may_expire: set[str] = set()  # keys whose end no node announces

    def wait_begun(self, thread: Thread, key: str) -> None:
        """Observe a thread that begins to wait for a lock."""
        self._waiting[thread] = key, thread.world.now

    def wait_ended(self, thread: Thread) -> None:
        """Observe a thread that has got the lock."""
        self._waiting.pop(thread, None)

    def wait_timed_out(self, thread: Thread) -> None:
        """Observe a thread whose wait has timed out."""
        key, _ = self._waiting.get(thread, ("", 0.0))
        self._check(key, thread.world.now)
        self.wait_ended(thread)

    def executed(
        self,
        server: Server,
        name: str,
        keys: list[bytes],
        args: list[bytes],
        status: int,
    ) -> None:
        """Observe a node that executes a script."""
        key, now = keys[0].decode().rpartition(":")[2], server.world.now
        if name == "join_wait_queue" and status == scripts.FREE:
            self._check(key, now)
        if name not in _TTL_AT or status != scripts.GRANTED:  # RELEASE returns 1 too
            return
        if name == "acquire":
            self._check(key, now)
        if name == "release":
            self._may_expire.discard(key)
        else:
            self._may_expire.add(key)
        ttl = int(args[_TTL_AT[name]]) / 1000
        self._ends[key, server.name] = now + ttl * _RATE

    def _check(self, key: str, now: float) -> None:
        begun = [
            begun_at
            for thread, (wanted, begun_at) in self._waiting.items()
            if wanted == key and not thread.process.dead
        ]
        ends = [end for (of, _), end in self._ends.items() if of == key]
        if not begun or not ends:
            return
        free_for = now - max(min(begun), *ends)
        bound = _WAKEUP_TAKES
        if key in self._may_expire:
            bound += _POLLS_EVERY * max(2, self._oracle.nodes)
        if free_for > bound:
            self._oracle.find(
                "waiter not woken",
                f"{key} was free for {free_for:.3f} s while a client waited for it",
            )
