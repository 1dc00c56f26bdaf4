"""The record of a release by an operator, as the nodes store it.

Each node that an operator's release reaches deletes the lock and writes, in the same
step, who took the lock away from its holder, when, from where and why. The holder, if
it is alive, learns it from its next renewal (``locks.extension``): its lease is lost
then, and the log says by whom. One node with the record is enough, so a node that lacks
it does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.text import line_of, printable_line, seconds_in
from celery_redlock.scripts import FREE, TAKEN
from celery_redlock.scripts.keys import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable


MOST_FIELD = 600
"""The bytes of the longest field of a record: 200 letters in any script."""

_BETWEEN_KEYS = "\x1f"  # in a record: the unit separator of ASCII


@dataclass(frozen=True, slots=True)
class ForcedRelease:
    """A release of one lock by an operator.

    Attributes:
        key: The name of the lock; of several keys, one a line.
        holder: The holder, for display.
        who: The operator: the name of a user.
        host: The machine on which the operator worked.
        tool: The program: a command, or the Django admin.
        reason: The reason that the operator gave, or ``""``.
        at: Seconds since 1970, by the operator's clock.
        killed: Whether the holder was killed before.
        nodes: On how many nodes the lock was deleted, as those that answered say.
    """

    key: str
    holder: str
    who: str
    host: str = ""
    tool: str = ""
    reason: str = ""
    at: float = 0.0
    killed: bool = False
    nodes: int = 0

    def text(self) -> str:
        """Return the record as nodes store it, one field per line.

        Each field is cut, and a character that cannot be printed becomes a space: a
        user types the reason, and nodes keep it for a month.
        """
        key = line_of(self.key.replace("\n", _BETWEEN_KEYS), MOST_BYTES)
        fields = (self.holder, self.who, self.host, self.tool, self.reason)
        clean = [printable_line(field, MOST_FIELD) for field in fields]
        return "\n".join((key, *clean, f"{self.at:.3f}", str(int(self.killed))))

    @classmethod
    def parse(cls, value: str) -> ForcedRelease:
        """Read what a node has stored. Parts that are missing or foreign stay empty."""
        _, nodes, key, holder, who, host, tool, reason, at, killed, *_ = (
            *value.split("\n"),
            *[""] * 10,
        )
        there = int(nodes == "1")
        key = key.replace(_BETWEEN_KEYS, "\n")
        text = (key, holder, who, host, tool, reason)
        return cls(*text, at=seconds_in(at), killed=killed == "1", nodes=there)

    @property
    def place(self) -> str:
        """The operator and its machine, for display."""
        where = f" on {self.host}" if self.host else ""
        return f"{self.who or 'an unknown user'}{where}"

    @property
    def when(self) -> str:
        """The instant, for display."""
        at = datetime.fromtimestamp(self.at, tz=timezone.utc)
        return f"{at:%Y-%m-%d %H:%M:%S} UTC"

    def __str__(self) -> str:
        tool = f" with {self.tool}" if self.tool else ""
        why = f": {self.reason}" if self.reason else " (no reason given)"
        return f"an operator, {self.place}{tool}, at {self.when}{why}"


def records_in(replies: Iterable[Any]) -> list[ForcedRelease]:
    """Return the records that nodes name in their replies to a renewal."""
    lists = [reply for reply in replies if isinstance(reply, list)]
    # The record is the last item; before it, TAKEN has two items for each key.
    records = [
        reply[-1]
        for reply in lists
        if (reply[0] in (FREE, TAKEN) and len(reply) % 2 == 0)
    ]
    texts = [one.decode(errors="replace") for one in records if type(one) is bytes]
    return [ForcedRelease.parse(text) for text in texts]
