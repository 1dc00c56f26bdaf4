"""Wait in line for a lock that somebody has.

::

    line up and look ──free──► try
        ▲         └───held───► listen ──a majority says it is my turn──► try
        │                        │
        └── a minority says so, ─┤ (then half a moment later)
            or nobody for long, ─┘ or the holder's ttl has ended

A look asks every node who has the lock and takes the place in line, in one command:
a release that comes after it finds the waiter there. The first in line is woken alone,
so a release does not stir up everybody; and one look in N / 2 seconds (one second at
least) per waiter is all that N nodes have to do while nothing happens.

A wake-up may get lost: its process may be stopped just then, a node may die. Then
whoever looks next finds the lock free. While a majority of the nodes cannot be
listened to, people look more often instead.

Who comes first is told by the wall clocks of those who wait. It is a matter of manners:
somebody who does not wait, or tries at the same moment, can be faster.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from celery_redlock.core.ballot import quorum_of
from celery_redlock.core.failure import ends_in

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.wakeup import Ears

__all__ = ["Waiting"]

_LOOK_EVERY = 0.5  # seconds for each node
_LEAST_LOOK_EVERY = 1.0
_DEAF_LOOK_EVERY = 0.3
_GRACE = 0.02  # seconds for the other nodes to say the same
_IN_VAIN_AT_ONCE, _MOST_DOUBLINGS = 2, 6
_AFTER_END = 0.05  # seconds after the end of the holder's ttl


class Waiting:
    """One execution's wait for one key, in line from now on.

    Args:
        key: The name of the lock.
        ears: What hears of releases.
        redlock: The service of which it waits for the lock.
    """

    def __init__(self, key: str, ears: Ears, redlock: Redlock) -> None:
        self._key = key
        self._ears = ears
        self._commands = redlock.commands
        self._transport = redlock.transport
        self._clock = clock = redlock.clock
        self._in_vain = 0
        self._rank = clock.wall_us()
        self._waiter = ears.enlist()

    def pause(self, until: float) -> None:
        """Return when the lock seems worth another try, or at this instant."""
        while self._clock.monotonic() < until:
            self._waiter.forget()
            look_at = self._look()
            if look_at is None:
                self._mind_the_pace(until)
                return
            self._in_vain = 0
            if self._listen(min(look_at, until)):
                return

    def end(self, *, acquired: bool) -> None:
        """Leave the line. Who goes without the lock passes on that it is free.

        Or that it will be, where that is what it has been told (`hold_at_least`).
        """
        self._ears.dismiss(self._waiter)
        name, free_in = self._waiter.name, None
        if not acquired:
            free_in = max(0.0, self._waiter.free_at - self._clock.monotonic())
        question = self._commands.step_out(self._key, name, free_in=free_in)
        self._transport.send(question)

    def _look(self) -> float | None:
        """Take the place in line. Return when to look again; None when it is free."""
        question = self._commands.line_up(self._key, self._waiter.name, self._rank)
        self._transport.ask(question)
        ballot = question.ballot
        token, votes = ballot.top_taker
        if votes < ballot.quorum:
            return None
        every = _DEAF_LOOK_EVERY
        if self._ears.listening >= ballot.quorum:
            every = max(_LEAST_LOOK_EVERY, _LOOK_EVERY * len(ballot.labels))
        pause = every * random.uniform(0.75, 1.25)  # noqa: S311  (jitter)
        left = ends_in(ballot, token)  # in this very millisecond, perhaps
        pause = min(pause, left + random.uniform(_AFTER_END / 50, _AFTER_END))  # noqa: S311
        return self._clock.monotonic() + pause

    def _mind_the_pace(self, until: float) -> None:
        """Pause, or until it is our turn, if looks say "free" and tries "held".

        Nodes may refuse to be looked at: no memory, no permission.
        """
        self._in_vain += 1
        if self._in_vain > _IN_VAIN_AT_ONCE:
            longest = _GRACE * 2 ** min(self._in_vain, _MOST_DOUBLINGS)
            pause = random.uniform(longest / 2, longest)  # noqa: S311  (jitter)
            self._listen(min(until, self._clock.monotonic() + pause))

    def _listen(self, until: float) -> bool:
        """Listen until then, or until there is a reason to look.

        Returns:
            Whether a majority says that it is our turn, so that no look is needed.
        """
        quorum, hurries = quorum_of(len(self._transport.labels)), False
        while True:
            now, turns = self._clock.monotonic(), sorted(self._waiter.turns.values())
            if len(turns) >= quorum:
                until = min(until, turns[quorum - 1])
                if now >= turns[quorum - 1]:
                    return True
            elif (turns or self._waiter.nudged) and not hurries:
                hurries = True
                grace = random.uniform(_GRACE / 2, _GRACE)  # noqa: S311  (jitter)
                until = min(until, now + grace)
            if now >= until:
                return False
            self._waiter.listen(until - now)
