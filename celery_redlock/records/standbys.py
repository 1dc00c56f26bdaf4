"""The leader and the standbys of an election, for display. No safety rests on it.

The lock shows who leads. Standbys hold nothing, so they enter themselves in a list on
the nodes, again and again. An entry is removed by its owner, or expires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.locks.lease import Holder
from celery_redlock.scripts import LIST_STANDBYS, RECORD_STANDBY
from celery_redlock.wire.quorum import VoteKind
from celery_redlock.wire.requests import all_answered

if TYPE_CHECKING:
    from celery_redlock.locks.lease import Inspection
    from celery_redlock.locks.redlock import Redlock

_MS = 1000


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader and the standbys, as the nodes see them at one moment.

    Attributes:
        lock: The lock of the election, which the leader holds.
        standbys: The standbys, since ``started``; the longest first.
        is_whole: Whether a majority of the nodes told its list. Else there may be other
            standbys.
    """

    lock: Inspection
    standbys: tuple[Holder, ...]
    is_whole: bool

    @property
    def leader(self) -> Holder | None:
        """The leader, since ``started``; its ``fence`` is the number of the term.

        None if there is none, or too few nodes answered.
        """
        return self.lock.holder


def leadership_of(redlock: Redlock, key: str) -> Leadership:
    """Ask the nodes for the leader and the standbys. Changes nothing."""
    lock = redlock.inspect(key)
    request = redlock.nodes.ask(
        LIST_STANDBYS, [redlock.keys.standby(key)], done_when=all_answered
    )
    ballot, listed = request.ballot, dict[str, Holder]()
    for index in ballot.indexes(VoteKind.GRANTED):
        for value in request.replies[index][1:]:
            holder = Holder.parse(value.decode(errors="replace"))
            if lock.holder is None or holder.base != lock.holder.base:
                listed[holder.base] = holder
    standbys = sorted(listed.values(), key=lambda holder: holder.started)
    return Leadership(lock, tuple(standbys), ballot.granted >= ballot.quorum)


class StandbyList:
    """The entry of one candidate in the list of standbys of an election.

    It expires after a ttl in which it is not renewed.
    """

    def __init__(self, redlock: Redlock, key: str, ttl: float) -> None:
        self._redlock = redlock
        self._key = redlock.keys.standby(key)
        self._ttl = ttl
        self._entry = ""
        self._again_at = 0.0

    def enter(self, base: str, candidate: Holder) -> None:
        """Enter or renew the entry, three times per ttl; does not wait for replies."""
        now = self._redlock.clock.monotonic()
        self._entry = self._entry or f"{base}.\n0\n{candidate.info()}"
        if now >= self._again_at:
            self._record(self._ttl)
            self._again_at = now + self._ttl / 3

    def withdraw(self) -> None:
        """Remove the entry. Twice is harmless."""
        if self._entry:
            self._record(0.0)
        self._entry, self._again_at = "", 0.0

    def _record(self, ttl: float) -> None:
        args = [self._entry, round(ttl * _MS)]
        self._redlock.nodes.tell(RECORD_STANDBY, [self._key], args)
