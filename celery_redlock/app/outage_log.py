"""The log of an outage: one line a minute in each process, and a summary at its end.

An outage begins with a try for a lock or a claim for which too few nodes vote. It is
over when they grant one in a later try of this process. An answer about a held lock
alone does not end it: a store whose disk is full, or which waits for an absent standby,
still tells who holds a lock. After a minute of such answers, without a try that has
failed, the first of them was its end. Each try is one line at DEBUG; the outage as a
whole is what an operator reads.
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

if TYPE_CHECKING:
    from celery_redlock.errors import LockUnavailable

log = logging.getLogger(__name__)

_MOST_CALLS = 10_000  # whose ids are remembered, to count them
_SURE_AFTER = 60.0  # seconds since an answer about a held lock; no try has failed since


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
        self._told_at: float | None = None  # of a lock, first after the last try
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
        self._end_if_sure()
        if not self.is_on:
            self._begin()
            self.is_on = True
        self._last, self._told_at = self._clock.monotonic(), None
        self._tries[answer] += 1
        if len(self._calls) < _MOST_CALLS:
            self._calls.add(task_id)
        if self._limit.take() is None:
            return
        fields = self._fields("outage", self._last)
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
                self._last - self._since,
                self._numbers(),
                error,
                extra=fields,
            )

    def end(self, *, granted: bool = True) -> None:
        """Log that the nodes vote again, if they did not.

        They have ``granted`` a lock or a claim, or told who holds it.
        """
        self.notice_fork()
        if not self.is_on:
            return
        if self._told_at is None:
            self._told_at = self._clock.monotonic()
        if granted:
            self._end_at(self._told_at)
        else:
            self._end_if_sure()

    def _end_if_sure(self) -> None:
        """End an outage in which answers about held locks alone came for a minute."""
        if not self.is_on or (told_at := self._told_at) is None:
            return
        if self._clock.monotonic() - told_at >= _SURE_AFTER:
            self._end_at(told_at)

    def _end_at(self, told_at: float) -> None:
        self.is_on = False
        # When they voted again in between, no try of this process has shown.
        text = (
            "The lock nodes vote again, %s after the first try for which too few "
            "did, and %s after the last one: %s."
        )
        fields = self._fields("outage-over", told_at)
        times = seconds_text(told_at - self._since), seconds_text(told_at - self._last)
        log.info(text, *times, self._numbers(), extra=fields)

    def _fields(self, event: str, now: float) -> dict[str, object]:
        calls, tries = len(self._calls), self._tries.total()
        seconds = round(now - self._since, 3)
        return log_fields(event, calls=calls, tries=tries, seconds=seconds)

    def _numbers(self) -> str:
        calls = len(self._calls)
        more = " or more" * (calls == _MOST_CALLS)
        answers = ", ".join(f"{answer} {n}" for answer, n in self._tries.most_common())
        return (
            f"{calls}{more} call{'s' * (calls != 1)} of this process got no lock in "
            f"{self._tries.total()} tries ({answers})"
        )
