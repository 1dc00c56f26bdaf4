"""Rate-limited logging of a node's state changes.

Each change is logged once. For a node that is late a hundred times a second, or loses
one connection after the other for the same reason, the log has one line a minute.
"""

from __future__ import annotations

import logging
import sys

from celery_redlock.basics.clock import SYSTEM_CLOCK, Clock
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.log_limit import LogLimit
from celery_redlock.basics.timing import seconds_text

log = logging.getLogger(__name__)


class NodeLog:
    """Logs the state changes of one node.

    Args:
        label: The name of the node.
        clock: Reads time.
    """

    __slots__ = (
        "_clock",
        "_label",
        "_late",
        "_lost",
        "_lost_because",
        "_refused",
        "_unfit_because",
    )

    def __init__(self, label: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._label = label
        self._clock = clock
        self._unfit_because = self._lost_because = ""
        self._late, self._lost = LogLimit(clock), LogLimit(clock)
        self._refused = LogLimit(clock)

    def unfit(self, reason: str) -> None:
        """Log why the node gets no vote, unless the last line said the same."""
        if reason != self._unfit_because:
            self._unfit_because = reason
            text = "Node %s %s. It does not vote."
            self._log(logging.ERROR, "node-unfit", text, reason)

    def fit(self) -> None:
        """Note that the node may vote."""
        self._unfit_because = ""

    def late(self, owed: float) -> None:
        """Log that replies are late, or count it if the last line is too recent.

        Args:
            owed: Seconds for which it has owed a reply, as far as that is known.
        """
        others = self._late.take()
        if others is None:
            return
        text = "Node %s answers late: %s. Calls wait for it only if they need its vote."
        if others:
            text += f" Late {others} more times since the last report."
        reason = f"no reply for {seconds_text(owed)}"
        self._log(logging.WARNING, "node-late", text, reason)

    def in_time(self) -> None:
        """Log the recovery of a node that was logged as late."""
        if not self._late.held_back:
            self._log(logging.INFO, "node-in-time", "Node %s answers in time again.")

    def refused(self, reason: str) -> None:
        """Log that the node replied with an error, or count it.

        A node with a full memory still renews locks, so no line says that it is over.
        """
        others = self._refused.take()
        if others is None:
            return
        text = "Node %s %s."
        if others:  # also for other reasons
            text += f" It has refused {others} more requests since the last report."
        self._log(logging.WARNING, "node-refused", text, reason)

    def lost(self, reason: str) -> None:
        """Log that the connection is gone, or count it if the last line said so."""
        if reason != self._lost_because:
            self._lost_because, self._lost = reason, LogLimit(self._clock)
        others = self._lost.take()
        if others is None:
            return
        text = "Node %s %s."
        if others:
            text += f" This happened {others} more times since the last report."
        self._log(logging.INFO, "node-lost", text, reason)

    def unreachable(self, reason: str) -> None:
        """Log that the node cannot be connected to."""
        self._log(logging.WARNING, "node-unreachable", "Node %s %s.", reason)

    def back(self) -> None:
        """Log that a node that could not be connected to is connected."""
        self._log(logging.INFO, "node-back", "Node %s is connected again.")

    def _log(self, level: int, event: str, text: str, *reason: str) -> None:
        if sys.is_finalizing():
            return  # no operator can do anything about a process that ends
        facts = {"node": self._label, **dict(zip(("reason",), reason, strict=False))}
        log.log(level, text, self._label, *reason, extra=log_fields(event, **facts))
