"""How long a lock lies free while somebody waits for it.

Looked at while nothing goes wrong: then whoever is first in line hears of a release at
once, and does not find out only when it looks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts

if TYPE_CHECKING:
    from tests.simulation.server import Server
    from tests.simulation.witness import Witness
    from tests.simulation.world import Thread

__all__ = ["Handovers"]

# Seconds. A woken one is there after some messages, and after the longest pause
# between two tries if somebody came at the same moment; a look comes in 0.75 or later.
_AT_ONCE = 0.5
_LOOK_EVERY = 1.25 / 2  # for each of two nodes or more, at most
_FAST = 1.005  # how much longer than a true one a node's second may be


class Handovers:
    """Sees who waits, and when a lock is free on all nodes.

    Args:
        witness: To whom a lock that lies free is told.
    """

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._waiting: dict[Thread, tuple[str, float]] = {}
        self._ends: dict[tuple[str, str], float] = {}
        self._unheard: set[str] = set()  # keys of whose end nobody hears at once

    def begin(self, thread: Thread, key: str) -> None:
        """See a thread begin to wait for a lock."""
        self._waiting[thread] = key, thread.world.now

    def end(self, thread: Thread) -> None:
        """See it get the lock."""
        self._waiting.pop(thread, None)

    def give_up(self, thread: Thread) -> None:
        """See its time run out."""
        key, _ = self._waiting.get(thread, ("", 0.0))
        self._check(key, thread.world.now)
        self.end(thread)

    def executed(
        self,
        server: Server,
        name: str,
        keys: list[bytes],
        args: list[bytes],
        reply: Any,
    ) -> None:
        """See a node execute a script."""
        key, now = keys[0].decode().rpartition(":")[2], server.world.now
        status = reply[0] if isinstance(reply, list) else reply
        if name == "line_up" and status == scripts.FREE:
            self._check(key, now)
        if name not in _MS or status != scripts.GRANTED:  # RELEASE says 1 as well
            return
        if name == "acquire":
            self._check(key, now)
        if name == "release":
            self._unheard.discard(key)
        else:  # it may end with its ttl
            self._unheard.add(key)
        self._ends[key, server.name] = now + int(args[_MS[name]]) / 1000 * _FAST

    def _check(self, key: str, now: float) -> None:
        since = [
            begun
            for thread, (wanted, begun) in self._waiting.items()
            if wanted == key and not thread.process.dead
        ]
        ends = [end for (of, _), end in self._ends.items() if of == key]
        if not since or not ends:
            return
        free_for = now - max(min(since), *ends)
        bound = _AT_ONCE
        if key in self._unheard:
            bound += _LOOK_EVERY * max(2, self._witness.nodes)
        if free_for > bound:
            self._witness.find(
                "nobody woken",
                f"{key} was free for {free_for:.3f} s while somebody waited for it",
            )


# Where ARGV says how long a lock is kept.
_MS = {"acquire": 2, "extend": 2, "restore": 3, "release": 1}
