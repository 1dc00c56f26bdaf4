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
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.wire.quorum import Ballot


_MS = 1000


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader and the standbys, as the nodes see them at one moment.

    Attributes:
        key: The name of the election.
        leader: The leader, since ``started``, with the number of the term as
            ``fence``. None if there is none, or too few nodes answered.
        votes: How many nodes name the leader.
        ttl_left: Seconds until the term ends if it is not renewed.
        standbys: The standbys, since ``started``; the longest first.
        ballot: The votes of the nodes on the leader.
    """

    key: str
    leader: Holder | None
    votes: int
    ttl_left: float
    standbys: tuple[Holder, ...]
    ballot: Ballot


def leadership_of(redlock: Redlock, key: str) -> Leadership:
    """Ask the nodes for the leader and the standbys. Changes nothing."""
    inspection = redlock.inspect(key)
    leader = inspection.holder
    request = redlock.nodes.ask(
        LIST_STANDBYS, [redlock.keys.standby(key)], done_when=all_answered
    )
    listed: dict[str, Holder] = {}
    for index in request.ballot.indexes(VoteKind.GRANTED):
        for value in request.replies[index][1:]:
            holder = Holder.parse(value.decode(errors="replace"))
            if leader is None or holder.base != leader.base:
                listed[holder.base] = holder
    return Leadership(
        key=key,
        leader=leader,
        votes=inspection.votes,
        ttl_left=inspection.ttl_left,
        standbys=tuple(sorted(listed.values(), key=lambda holder: holder.started)),
        ballot=inspection.ballot,
    )


class StandbyList:
    """The entry of one candidate in the list of standbys.

    Args:
        redlock: The lock service.
        key: The name of the election.
        ttl: Seconds after which an entry that is not renewed expires.
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
