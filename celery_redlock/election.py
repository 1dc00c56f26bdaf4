"""Of many candidates one leads, and each of them knows it by a clock of its own.

::

                    ┌───────────────────────────────────────────┐
                    ▼                                           │
    new ──────► standby ──granted──► leader ──validity ended────┤ lost
                │     ▲                │ ▲ │                    │
       held, or │     │        renewed │ │ └─a majority names───┘
      no quorum └─────┘                └─┘   somebody else
                    ▲                    │
                    └─────── resign ◄────┘ the lock is free at once

Every arrow is taken in ``campaign``, which the candidate calls again and again, or
in ``resign``. Nothing runs in the background, on purpose: a candidate whose loop
hangs does not renew, and loses its term to one whose loop does not.

=========================  ====================================================
what happens to a leader   then
=========================  ====================================================
it resigns                 the next one leads within half a second
it is killed, or frozen    its lock ends after one ttl, and the next one leads;
                           back from the freeze it finds its term ended
a minority of nodes goes   nothing
a majority goes            its term ends with its validity, less than a ttl after
                           the last renewal; nobody leads until they are back
=========================  ====================================================

Two never lead at once as long as clocks run at about the same rate: a term counts
its validity from before the lock was asked for, the nodes count from when they
granted it. Do ``if term.is_valid()`` right before what only a leader may do, and
hand ``term.number``, which only grows, to storage that can refuse a lesser one.

Source: the trust in a local deadline is that of C. G. Gray and D. R. Cheriton,
"Leases: an efficient fault-tolerant mechanism for distributed file cache
consistency", SOSP 1989.
"""

from __future__ import annotations

import logging
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import Holder, Lease, LeaseState, new_base
from celery_redlock.core.question import Question, by_everyone, by_majority
from celery_redlock.core.scripts import STAND_BY, STANDBYS
from celery_redlock.errors import LockContended, LockHeld, QuorumUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.redlock import Redlock

__all__ = ["Elector", "Leadership", "Term", "leadership_of"]

log = logging.getLogger("celery_redlock.election")

_COME_BACK = 1 / 3  # of the ttl, after which a leader renews
_TOO_SOON = 1 / 6  # of the ttl: renewed so lately, it need not be renewed again
_RETRY_AT = 1 / 12  # of the ttl, after a renewal that failed
_LOOK_EVERY = 0.5  # seconds, whether the leader has resigned
_LONGEST_SPLIT = 0.1  # seconds, after split votes


class Term:
    """The time for which one candidate leads.

    Attributes:
        number: Greater than that of every term before it.
        since: When it began, in seconds since 1970 by this machine's clock.
        lease: What it rests on.
    """

    __slots__ = ("_pid", "lease", "number", "since")

    def __init__(self, lease: Lease, since: float) -> None:
        self.lease = lease
        self.number = lease.fence
        self.since = since
        self._pid = os.getpid()

    def remaining(self) -> float:
        """Return the seconds for which it can be trusted without a renewal."""
        # A forked child has a copy of it, but the term is its parent's.
        return self.lease.remaining() if self._pid == os.getpid() else 0.0

    def is_valid(self) -> bool:
        """Tell whether nobody else can lead at this moment. Free and local."""
        return self.remaining() > 0

    def __repr__(self) -> str:
        return f"<Term {self.number} of {self.lease.key!r}, {self.remaining():.1f} s>"


class Elector:
    """One candidate in the election of one leader. For one thread.

    ::

        elector = Elector(redlock, "reindexer")
        while True:
            term = elector.campaign()
            if term:
                reindex_a_little(term)   # much shorter than ttl / 3
            time.sleep(elector.pause)

    Args:
        redlock: The lock service.
        key: What is led: candidates with the same key compete.
        ttl: Seconds after which a leader that is gone is replaced.
        name: What others are told that the candidate is, such as "celery beat".
        on_elected: Called with the term when it begins.
        on_resigned: Called with the term when it is over, and whether it was lost.

    Attributes:
        term: The term of this candidate, or None. It may have ended since the last
            ``campaign``: ask ``term.is_valid()``.
        pause: Seconds after which ``campaign`` is to be called again, at the latest.

    Raises:
        ConfigurationError: The ttl does not go with the lock service.
    """

    def __init__(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        redlock: Redlock,
        key: str,
        *,
        ttl: float = 15.0,
        name: str = "",
        on_elected: Callable[[Term], object] | None = None,
        on_resigned: Callable[[Term, bool], object] | None = None,
    ) -> None:
        self.key = key
        self.ttl = redlock.timing.checked(ttl)
        self.term: Term | None = None
        self.pause = 0.0
        self._redlock = redlock
        self._clock = redlock.clock
        self._on_elected = on_elected
        self._on_resigned = on_resigned
        self._base = new_base()
        self._facts = Holder.here(task=name, started=self._clock.wall_us() / 1e6)
        self._renewed_at = 0.0
        self._is_shaky = False
        self._listed_until = 0.0
        self._said: object = None  # what the log last said of the state of things

    def campaign(self) -> Term | None:
        """Lead, go on leading, or find out who does. Takes milliseconds.

        Returns:
            The term, if this candidate leads.
        """
        if self.term is not None and self._keep(self.term):
            return self.term
        return self._stand()

    def resign(self) -> None:
        """Stop leading, so that another one can at once; stand by no more.

        Twice is harmless. ``campaign`` begins anew.
        """
        self._unlist()
        term, self.term = self.term, None
        if term is not None:
            self._redlock.release(term.lease)
            log.info("Resigned from leading %r.", self.key)
            self._said = None
            _tell(self._on_resigned, term, False)

    # -- leading ---------------------------------------------------------------

    def _keep(self, term: Term) -> bool:
        now = self._clock.monotonic()
        self.pause = self.ttl * _COME_BACK
        if term.is_valid() and now - self._renewed_at < self.ttl * _TOO_SOON:
            return True
        extension = self._redlock.commands.extension(term.lease)
        ballot = extension.question.ballot
        if term.is_valid():
            timeout = self._redlock.timing.node_timeout
            if extension.carry_through(self._redlock.transport, timeout):
                self._renewed_at = now
                if self._is_shaky:
                    log.info("The leadership of %r is renewed again.", self.key)
                self._is_shaky = False
                return True
        others = ballot.top_taker[1] >= ballot.quorum
        if term.is_valid() and not others:
            self.pause = self.ttl * _RETRY_AT
            if not self._is_shaky:
                log.warning(
                    "The leadership of %r cannot be renewed: %s. It lasts %.1f s more.",
                    self.key,
                    ballot.reasons() or "a majority does not name us",
                    term.remaining(),
                )
            self._is_shaky = True
            return True
        self._lose(term)
        return False

    def _lose(self, term: Term) -> None:
        self.term, self._is_shaky, self._said = None, False, None
        lease = term.lease
        lease.state = LeaseState.LOST
        log.warning(
            "The leadership of %r is lost, after %.0f s: it was last confirmed %.1f s "
            "ago. Standing by.",
            self.key,
            lease.age(),
            self._clock.monotonic() - self._renewed_at,
        )
        release = self._redlock.commands.release(
            self.key, lease.token, since=lease.started_at
        )
        self._redlock.transport.send(release)
        _tell(self._on_resigned, term, True)

    # -- standing by -------------------------------------------------------------

    def _stand(self) -> Term | None:
        self.pause = min(_LOOK_EVERY, self.ttl * _COME_BACK)
        began = self._clock.monotonic()
        try:
            lease = self._redlock.acquire(
                self.key, self.ttl, base=self._base, facts=self._facts_now()
            )
        except LockHeld as held:
            # Its lock ends by itself then, unless it is renewed: be there.
            self.pause = min(self.pause, max(held.retry_after or 0.0, 0.01))
            self._note_leader(held.holder)
        except LockContended:
            self.pause = random.uniform(0.01, _LONGEST_SPLIT)  # noqa: S311  (no secret)
        except QuorumUnreachable as error:
            self._note_outage(error)
        else:
            return self._lead(lease, began)
        self._list(began)
        return None

    def _lead(self, lease: Lease, began: float) -> Term:
        self.term = term = Term(lease, since=self._clock.wall_us() / 1e6)
        self._renewed_at = began
        self.pause = self.ttl * _COME_BACK
        self._unlist()
        log.info("Elected leader of %r, term %d.", self.key, term.number)
        self._said = term
        _tell(self._on_elected, term)
        return term

    def _facts_now(self) -> Holder:
        name = self._facts.task
        return Holder.here(task=name, started=self._clock.wall_us() / 1e6)

    def _note_leader(self, holder: Holder | None) -> None:
        leader = holder.base if holder else ""
        if self._said != leader:
            log.info("Standing by: %r is led by %s.", self.key, holder)
        self._said = leader

    def _note_outage(self, error: QuorumUnreachable) -> None:
        if self._said is not QuorumUnreachable:
            log.error("Nobody can lead %r now. %s", self.key, error)
        self._said = QuorumUnreachable

    # -- being seen ----------------------------------------------------------------

    def _list(self, now: float) -> None:
        """Be seen among those who stand by, until two ttls without a sign of life."""
        if now >= self._listed_until - self.ttl:
            self._stand_by(2 * self.ttl)
            self._listed_until = now + 2 * self.ttl

    def _unlist(self) -> None:
        if self._listed_until:
            self._stand_by(0.0)
        self._listed_until = 0.0

    def _stand_by(self, ttl: float) -> None:
        who = f"{self._base}.\n0\n{self._facts.facts()}"
        question = Question(
            STAND_BY,
            [_standby_key(self._redlock, self.key)],
            [who, round(ttl * 1000)],
            labels=self._redlock.labels,
            settle=by_majority,
        )
        self._redlock.transport.send(question)


# -- seen from outside -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads and who stands by, as the nodes say at one moment.

    Attributes:
        key: What is led.
        leader: Who leads, since ``started``, with the number of the term as
            ``fence``; None if nobody does.
        votes: How many nodes name the leader.
        ttl_left: Seconds until the term ends if it is not renewed.
        standbys: Who stands by, since ``started``; the longest first.
        ballot: What each node said.
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
    question = Question(
        STANDBYS,
        [_standby_key(redlock, key)],
        [],
        labels=redlock.labels,
        settle=by_everyone,
    )
    redlock.transport.ask(question)
    leader = inspection.holder
    listed = {}
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


def _standby_key(redlock: Redlock, key: str) -> str:
    return f"{redlock.guard.prefix}:standby:{key}"


def _tell(callback: Callable[..., object] | None, *facts: object) -> None:
    """Call back; an error in there is its author's and ends no term."""
    if callback is None:
        return
    try:
        callback(*facts)
    except Exception:
        log.exception("The callback %r raised an error.", callback)
