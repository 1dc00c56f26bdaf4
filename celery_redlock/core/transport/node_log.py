"""Rate-limited logging of a node's state changes.

Each change is logged once. For a node that is late a hundred times a second, the log
has one line a minute.
"""

from __future__ import annotations

import logging
import math

from celery_redlock.core.clock import SYSTEM_CLOCK, Clock
from celery_redlock.core.log_fields import log_fields

__all__ = ["NodeLog"]

log = logging.getLogger(__name__)

_LATE_EVERY = 60.0  # seconds, at least, between two lines about late replies


class NodeLog:
    """Logs the state changes of one node.

    Args:
        label: The name of the node.
        clock: Reads time.
    """

    __slots__ = ("_clock", "_label", "_late_count", "_quiet_until", "_unfit_because")

    def __init__(self, label: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._label = label
        self._clock = clock
        self._unfit_because = ""
        self._late_count = 0  # since the last line about late replies
        self._quiet_until = -math.inf

    def unfit(self, reason: str) -> None:
        """Log why the node gets no vote, unless the last line said the same."""
        if reason != self._unfit_because:
            self._unfit_because = reason
            text = "Node %s %s. It does not vote."
            self._log(logging.ERROR, "node-unfit", text, reason)

    def late(self) -> None:
        """Log that replies are late, or count it if the last line is too recent."""
        now = self._clock.monotonic()
        if now < self._quiet_until:
            self._late_count += 1
            return
        text = "Node %s is late; asking it without waiting for it."
        if self._late_count:
            text += f" Late {self._late_count} more times since the last report."
        self._late_count, self._quiet_until = 0, now + _LATE_EVERY
        self._log(logging.WARNING, "node-late", text)

    def in_time(self) -> None:
        """Log the recovery of a node that was logged as late."""
        if not self._late_count:
            self._log(logging.INFO, "node-in-time", "Node %s answers in time again.")

    def lost(self, reason: str) -> None:
        """Log that the connection is gone."""
        self._log(logging.INFO, "node-lost", "Node %s %s.", reason)

    def unreachable(self, reason: str) -> None:
        """Log that the node cannot be connected to."""
        self._log(logging.WARNING, "node-unreachable", "Node %s %s.", reason)

    def back(self) -> None:
        """Log that a node that could not be connected to is connected."""
        self._log(logging.INFO, "node-back", "Node %s is connected again.")

    def _log(self, level: int, event: str, text: str, *reason: str) -> None:
        facts = {"node": self._label, **dict(zip(("reason",), reason, strict=False))}
        log.log(level, text, self._label, *reason, extra=log_fields(event, **facts))
