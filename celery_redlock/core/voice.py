"""What is said of one node in the log: when something changes, and once."""

from __future__ import annotations

import logging

from celery_redlock.logs import about

__all__ = ["NodeVoice"]

log = logging.getLogger("celery_redlock.node")


class NodeVoice:
    """Speaks of one node.

    Args:
        label: What it is called.
    """

    __slots__ = ("_label", "_unfit_because")

    def __init__(self, label: str) -> None:
        self._label = label
        self._unfit_because = ""

    def unfit(self, reason: str) -> None:
        """Say why it gets no vote, unless that has been said."""
        if reason != self._unfit_because:
            self._unfit_because = reason
            text = "Node %s %s. It does not vote."
            self._say(logging.ERROR, "node-unfit", text, reason)

    def late(self) -> None:
        """Say that its answers do not come in time."""
        text = "Node %s is late; asking it without waiting for it."
        self._say(logging.WARNING, "node-late", text)

    def in_time(self) -> None:
        """Say that they do again."""
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
