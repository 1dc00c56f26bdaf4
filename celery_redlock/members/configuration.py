"""The settings on which all clients of a deployment must agree.

Clients that disagree about them do not exclude each other. So they are part of the view
(``members.view``) that every node stores, and that every script which grants, renews or
restores a lock, or claims a call, compares with that of its client. No argument skips
it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FORMAT = 4  # of what we keep on the nodes
SETTINGS = (
    rf"format {FORMAT}, max_ttl (?P<max_ttl>\d+(?:\.\d+)?(?:e[-+]\d+)?) s, "
    r"restart guard (?P<guard>on|off)"
)
_TEXT = re.compile(rf"{SETTINGS}, nodes (?P<nodes>.+)")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings that all clients of a deployment share.

    Attributes:
        labels: The names of the nodes, sorted.
        max_ttl: Seconds that no ttl exceeds.
        is_guarded: Whether a node that lost its memory stays out of the vote.
    """

    labels: tuple[str, ...]
    max_ttl: float
    is_guarded: bool

    @property
    def settings(self) -> str:
        """The text without the nodes."""
        guard = "on" if self.is_guarded else "off"
        max_ttl = in_full(self.max_ttl)
        return f"format {FORMAT}, max_ttl {max_ttl} s, restart guard {guard}"

    def __str__(self) -> str:
        return f"{self.settings}, nodes {', '.join(self.labels)}"

    @classmethod
    def parse(cls, text: str) -> Configuration | None:
        """Return the configuration in a text; None if it is of another version."""
        found = _TEXT.fullmatch(text)
        if not found:
            return None
        labels = tuple(found["nodes"].split(", "))
        return cls(labels, float(found["max_ttl"]), found["guard"] == "on")


def in_full(seconds: float) -> str:
    """Return a duration as text from which the same number is read: 60 for 60.0."""
    return repr(float(seconds)).removesuffix(".0")
