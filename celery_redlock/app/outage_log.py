"""The log of an outage: one line a minute in each process, and a summary at its end.

An outage begins with a try for a lock or a claim for which too few nodes vote. It is
over when they vote in a later try of this process. Where a node refuses to write, for
example since its disk is full, it is over when they grant: such a node can still tell
who holds a lock. Each try is one line at DEBUG; the outage as a whole is what an
operator reads.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from celery_redlock.basics.clock import SYSTEM_CLOCK, Clock
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.log_limit import LogLimit
from celery_redlock.basics.process import OfOneProcess
from celery_redlock.basics.timing import seconds_text
from celery_redlock.wire.quorum import VoteKind

if TYPE_CHECKING:
    from celery_redlock.errors import LockUnavailable

log = logging.getLogger(__name__)

_MOST_CALLS = 10_000  # whose ids are remembered, to count them


class OutageLog(OfOneProcess):
    """Logs the outages of one app in this process.

    A forked child has outages of its own. Threads share it without a mutex, because a
    time limit may interrupt any line: a number may be too small by a few. It ``is_on``
    while there is an outage, as far as this process knows.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._clock = clock
        self.forget_parent()

    def forget_parent(self) -> None:
        """Forget the outage of the parent process."""
        self.is_on = False
        self._begin()

    def _begin(self) -> None:
        self._limit = LogLimit(self._clock)
        self._since = self._last = self._clock.monotonic()
        self._refuses = False  # some node has refused the last try
        self._calls: set[str] = set()
        self._tries: Counter[str] = Counter()

    def add(
        self, call: object, task_id: str, answer: str, text: str, error: LockUnavailable
    ) -> None:
        """Note a try without success, and log the outage if a line is due.

        ``answer`` is the word of the policy, or ``"unclaimed"``. The text is what
        happens to the call, as it follows after "will".
        """
        self.notice_fork()
        if not self.is_on:
            self._begin()
            self.is_on = True
        self._last = self._clock.monotonic()
        self._tries[answer] += 1
        votes = error.ballot.votes if error.ballot else ()
        self._refuses = any(v and v.kind is VoteKind.REFUSED for v in votes)
        if len(self._calls) < _MOST_CALLS:
            self._calls.add(task_id)
        if self._limit.take() is None:
            return
        fields = self._fields("outage")
        if self._tries.total() == 1:
            log.warning(
                "%s will %s. %s From now on, this process logs this outage once a "
                "minute.",
                call,
                text,
                error,
                extra=fields,
            )
        else:
            log.warning(
                "Too few lock nodes have voted for %.0f s: %s. The last reason: %s",
                self._seconds,
                self._numbers(),
                error,
                extra=fields,
            )

    def end(self, *, granted: bool = True) -> None:
        """Log that the nodes vote again, if they did not.

        They have ``granted`` a lock or a claim, or told who holds it.
        """
        self.notice_fork()
        if not self.is_on or (self._refuses and not granted):
            return
        self.is_on = False
        # When they voted again in between, no try of this process has shown.
        text = (
            "The lock nodes vote again, %s after the first try for which too few "
            "did, and %s after the last one: %s."
        )
        since_last = self._clock.monotonic() - self._last
        fields = self._fields("outage-over")
        times = seconds_text(self._seconds), seconds_text(since_last)
        log.info(text, *times, self._numbers(), extra=fields)

    def _fields(self, event: str) -> dict[str, object]:
        calls, tries = len(self._calls), self._tries.total()
        return log_fields(event, calls=calls, tries=tries, seconds=self._seconds)

    @property
    def _seconds(self) -> float:
        """Seconds since the first try."""
        return round(self._clock.monotonic() - self._since, 3)

    def _numbers(self) -> str:
        calls = len(self._calls)
        more = " or more" * (calls == _MOST_CALLS)
        answers = ", ".join(f"{answer} {n}" for answer, n in self._tries.most_common())
        return (
            f"{calls}{more} call{'s' * (calls != 1)} of this process got no lock in "
            f"{self._tries.total()} tries ({answers})"
        )
