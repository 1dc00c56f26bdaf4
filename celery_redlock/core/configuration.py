"""The settings on which all clients of a deployment must agree.

Clients that disagree about them do not exclude each other. So every node stores them as
one line of text, every script that grants, renews or restores a lock compares the line
with that of its client, and no argument skips it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FORMAT", "Configuration", "refusal"]

FORMAT = 2  # of what we keep on the nodes
_TEXT = re.compile(
    rf"format {FORMAT}, max_ttl (?P<max_ttl>\S+) s, "
    r"restart guard (?P<guard>on|off), nodes (?P<nodes>.+)"
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration.

    Attributes:
        labels: The names of the nodes, sorted.
        max_ttl: Seconds that no ttl exceeds.
        is_guarded: Whether a node that lost its memory stays out of the vote.
    """

    labels: tuple[str, ...]
    max_ttl: float
    is_guarded: bool

    def __str__(self) -> str:
        return (
            f"format {FORMAT}, max_ttl {self.max_ttl:g} s, "
            f"restart guard {'on' if self.is_guarded else 'off'}, "
            f"nodes {', '.join(self.labels)}"
        )

    @classmethod
    def parse(cls, text: str) -> Configuration | None:
        """Read what a node has stored; None if this version cannot read it."""
        found = _TEXT.fullmatch(text)
        if not found:
            return None
        labels = tuple(found["nodes"].split(", "))
        return cls(labels, float(found["max_ttl"]), found["guard"] == "on")


def refusal(theirs: str, ours: str) -> tuple[str, str]:
    """Return how the configuration of a node differs from ours, and the remedy.

    Args:
        theirs: The text that the node has stored; "" if it has none.
        ours: The text of this client.

    Returns:
        A clause that reads on after "the nodes", and a sentence without its full stop.
    """
    if not theirs:
        return (
            "have lost their memory",
            "They vote again by themselves. Run `celery -A proj redlock doctor`",
        )
    if theirs.startswith("closed"):
        command = "`celery -A proj redlock reconfigure`"
        remedy = f"Wait until {command} is done, or run it again with its arguments"
        return f"are {theirs}", remedy
    if theirs.startswith("protocol 1,"):
        return (
            f"were used by an older celery-redlock ({theirs})",
            "Stop all workers and beats, then run `celery -A proj redlock init`",
        )
    there, here = Configuration.parse(theirs), Configuration.parse(ours)
    if not there or not here:
        return (
            f"were used by another version of celery-redlock ({theirs})",
            "Use one version for all clients",
        )
    has, client_has, settings = [], [], []
    if there.max_ttl != here.max_ttl:
        has.append(f"max_ttl {there.max_ttl:g} s")
        client_has.append(f"max_ttl {here.max_ttl:g} s")
        settings.append(f"redlock_max_ttl = {there.max_ttl:g}")
    if there.is_guarded != here.is_guarded:
        words = {True: "the restart guard on", False: "the restart guard off"}
        has.append(words[there.is_guarded])
        client_has.append(words[here.is_guarded])
        settings.append(f"redlock_restart_guard = {there.is_guarded}")
    if there.labels != here.labels:
        has.append(f"the nodes {', '.join(there.labels)}")
        client_has.append(f"the nodes {', '.join(here.labels)}")
        settings.append("redlock_nodes to the same nodes")
    difference = f"{' and '.join(has)}; this client has {' and '.join(client_has)}"
    move = "move the nodes to yours with `celery -A proj redlock reconfigure`"
    return f"are set up with {difference}", f"Set {' and '.join(settings)}, or {move}"
