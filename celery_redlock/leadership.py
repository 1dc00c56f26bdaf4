"""Who leads and who stands by, for people to see. No safety rests on it.

A leader is seen by its lock. Those who stand by hold nothing, so they put their
names on a list on the nodes, again and again: a name is struck out by its owner,
or ends by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import Holder
from celery_redlock.core.question import Question, by_everyone, by_majority
from celery_redlock.core.scripts import STAND_BY, STANDBYS

if TYPE_CHECKING:
    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.redlock import Redlock

__all__ = ["Leadership", "StandbyList", "leadership_of"]

_MS = 1000


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads and who stands by, as the nodes say at one moment.

    Attributes:
        key: What is led.
        leader: Who leads, since ``started``, with the number of the term as
            ``fence``; None if nobody does, or too few nodes tell.
        votes: How many nodes name the leader.
        ttl_left: Seconds until the term ends if it is not renewed.
        standbys: Who stands by, since ``started``; the longest first.
        ballot: What each node said of the leader.
    """

    key: str
    leader: Holder | None
    votes: int
    ttl_left: float
    standbys: tuple[Holder, ...]
    ballot: Ballot


def leadership_of(redlock: Redlock, key: str) -> Leadership:
    """Ask the nodes who leads and who stands by. Changes nothing."""
    inspection = redlock.inspect(key)
    leader = inspection.holder
    question = Question(
        STANDBYS,
        [_standby_key(redlock, key)],
        [],
        labels=redlock.labels,
        settle=by_everyone,
    )
    redlock.transport.ask(question)
    listed: dict[str, Holder] = {}
    for index in question.ballot.indexes(VoteKind.GRANTED):
        for value in question.replies[index][1:]:
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
    """The place of one candidate on the list of those who stand by.

    Args:
        redlock: The lock service.
        key: What is to be led.
        ttl: Seconds for which a name stays on the list without a sign of life.
    """

    def __init__(self, redlock: Redlock, key: str, ttl: float) -> None:
        self._redlock = redlock
        self._key = _standby_key(redlock, key)
        self._ttl = ttl
        self._who = ""
        self._again_at = 0.0

    def enter(self, base: str, facts: Holder) -> None:
        """Be on the list. Costs something three times per ttl; waits for nobody."""
        now = self._redlock.clock.monotonic()
        self._who = self._who or f"{base}.\n0\n{facts.facts()}"
        if now >= self._again_at:
            self._tell(self._ttl)
            self._again_at = now + self._ttl / 3

    def leave(self) -> None:
        """Be on the list no more. Twice is harmless."""
        if self._who:
            self._tell(0.0)
        self._who, self._again_at = "", 0.0

    def _tell(self, ttl: float) -> None:
        question = Question(
            STAND_BY,
            [self._key],
            [self._who, round(ttl * _MS)],
            labels=self._redlock.labels,
            settle=by_majority,
        )
        self._redlock.transport.send(question)


def _standby_key(redlock: Redlock, key: str) -> str:
    return f"{redlock.guard.prefix}:standby:{key}"
