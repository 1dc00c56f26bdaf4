"""What is said of one node in the log: when something changes, and once.

One that answers now in time and now too late, a hundred times a second, is spoken of
once a minute.
"""

from __future__ import annotations

import logging
import math

from celery_redlock.core.clock import SYSTEM_CLOCK, Clock
from celery_redlock.logs import about

__all__ = ["NodeVoice"]

log = logging.getLogger("celery_redlock.node")

_SAID_EVERY = 60.0  # seconds, at most, that a node is late


class NodeVoice:
    """Speaks of one node.

    Args:
        label: What it is called.
        clock: Reads time.
    """

    __slots__ = ("_clock", "_label", "_quiet_until", "_times", "_unfit_because")

    def __init__(self, label: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._label = label
        self._clock = clock
        self._unfit_because = ""
        self._times = 0  # it was late without a word
        self._quiet_until = -math.inf

    def unfit(self, reason: str) -> None:
        """Say why it gets no vote, unless that has been said."""
        if reason != self._unfit_because:
            self._unfit_because = reason
            text = "Node %s %s. It does not vote."
            self._say(logging.ERROR, "node-unfit", text, reason)

    def late(self) -> None:
        """Say that its answers do not come in time, unless that was said just now."""
        now = self._clock.monotonic()
        if now < self._quiet_until:
            self._times += 1
            return
        text = "Node %s is late; asking it without waiting for it."
        if self._times:
            text += f" It was so {self._times} times since that was said last."
        self._times, self._quiet_until = 0, now + _SAID_EVERY
        self._say(logging.WARNING, "node-late", text)

    def in_time(self) -> None:
        """Say that they do again, if it was said that they do not."""
        if not self._times:
            self._say(logging.INFO, "node-in-time", "Node %s answers in time again.")

    def lost(self, reason: str) -> None:
        """Say that its connection is gone."""
        self._say(logging.INFO, "node-lost", "Node %s %s.", reason)

    def unreachable(self, reason: str) -> None:
        """Say that it cannot be connected to."""
        self._say(logging.WARNING, "node-unreachable", "Node %s %s.", reason)

    def back(self) -> None:
        """Say that it is connected to, after it could not be."""
        self._say(logging.INFO, "node-back", "Node %s is connected again.")

    def _say(self, level: int, event: str, text: str, *reason: str) -> None:
        facts = {"node": self._label, **dict(zip(("reason",), reason, strict=False))}
        log.log(level, text, self._label, *reason, extra=about(event, **facts))
