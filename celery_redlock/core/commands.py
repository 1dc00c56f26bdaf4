"""With which keys and arguments each script is called.

The tables in ``core.scripts`` read from the other side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core.extension import Extension
from celery_redlock.core.fence import stripe_of
from celery_redlock.core.question import (
    Question,
    by_everyone,
    by_majority,
    verdict_certain,
)
from celery_redlock.core.scripts import ACQUIRE, INSPECT, LINE_UP, RELEASE, STEP_OUT
from celery_redlock.core.timing import drift_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.clock import Clock
    from celery_redlock.core.guard import Guard
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.scripts import Script

__all__ = ["Commands"]

_MS = 1000
_LINE_TTL_MS = 60_000  # many times as long as anybody in it takes to look again


class Commands:
    """Puts questions about locks into the words of the scripts.

    Args:
        labels: The nodes that will be asked.
        guard: Whose keys and configuration go with each question.
        clock: Reads the wall clock, for hints.
        insist: Seconds for which a release is told to a node that was away.
    """

    def __init__(
        self, labels: Sequence[str], *, guard: Guard, clock: Clock, insist: float
    ) -> None:
        self._labels = labels
        self._guard = guard
        self._clock = clock
        self._insist = insist

    def lock_key(self, key: str) -> str:
        """Return the name of the lock's key on a node."""
        return f"{self._guard.prefix}:lock:{key}"

    def line_key(self, key: str) -> str:
        """Return the name of the line of those who wait for the lock on a node."""
        return f"{self._guard.prefix}:line:{key}"

    def acquire(
        self,
        key: str,
        *,
        ttl: float,
        token: str,
        facts: str,
        settle: Callable[[Ballot], bool] = verdict_certain,
    ) -> Question:
        """Ask for the lock."""
        guard = self._guard
        return Question(
            ACQUIRE,
            [
                self.lock_key(key),
                guard.fence_key,
                guard.meta_key,
                guard.quarantine_key,
            ],
            [
                token,
                facts,
                round(ttl * _MS),
                stripe_of(key),
                self._clock.wall_us(),
                guard.hint_tolerance_us,
                guard.config,
                guard.quarantine_ms,
            ],
            labels=self._labels,
            settle=settle,
        )

    def extension(self, lease: Lease) -> Extension:
        """Begin a renewal of this lease."""
        guard = self._guard
        return Extension(
            lease,
            clock=self._clock,
            labels=self._labels,
            keys=[self.lock_key(lease.key), guard.fence_key, guard.meta_key],
            config=guard.config,
            stripe=stripe_of(lease.key),
            drift=drift_of(lease.ttl),
        )

    def release(
        self, key: str, prefix: str, *, keep: float = 0.0, since: float = 0.0
    ) -> Question:
        """Let go of the lock whose token begins so, now or in ``keep`` seconds.

        A node that has been away since before ``since``, when the lock was first
        asked for, has nothing to let go of and is not told when it is back.
        """
        return Question(
            RELEASE,
            [self.lock_key(key), self.line_key(key)],
            [prefix, max(0, round(keep * _MS))],
            labels=self._labels,
            settle=by_majority,
            insist_since=since,
            insist_until=self._clock.monotonic() + self._insist,
        )

    def inspect(self, key: str) -> Question:
        """Ask who holds the lock."""
        return Question(
            INSPECT,
            [self.lock_key(key)],
            [],
            labels=self._labels,
            settle=by_everyone,
        )

    def line_up(self, key: str, waiter: str, rank: int) -> Question:
        """Take or keep a place in the line for the lock, and ask who holds it."""
        return self._of_line(LINE_UP, key, [waiter, rank, _LINE_TTL_MS])

    def step_out(self, key: str, waiter: str, *, free_in: float | None) -> Question:
        """Leave the line.

        Pass on that the lock is free, where it is, or that it will be in so many
        seconds; None passes nothing on.
        """
        ms = "" if free_in is None else max(0, round(free_in * _MS))
        return self._of_line(STEP_OUT, key, [waiter, ms])

    def _of_line(self, script: Script, key: str, args: Sequence[Any]) -> Question:
        keys = [self.lock_key(key), self.line_key(key)]
        return Question(script, keys, args, labels=self._labels, settle=verdict_certain)
