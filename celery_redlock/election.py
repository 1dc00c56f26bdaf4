"""Leader election: of many candidates one leads, and knows it by its own clock.

::

                    ┌───────────────────────────────────────────┐
                    ▼                                           │
    new ──────► standby ──granted──► leader ──validity ended────┤ lost
                │     ▲                │ ▲ │                    │
       held, or │     │        renewed │ │ └─a majority names───┘
      no quorum └─────┘                └─┘   another leader
                    ▲                    │
                    └─────── resign ◄────┘ the lock is free at once

The candidate takes every arrow in ``campaign``, which it calls again and again, or in
``resign``. Nothing renews in the background, on purpose: a candidate whose loop hangs
does not renew, and loses its term to another candidate.

=========================  ====================================================
what happens to a leader   then
=========================  ====================================================
it resigns                 the next one leads within half a second
it is killed or frozen     its lock ends after one ttl, and the next one leads; a
                           frozen leader that continues finds its term ended
a minority of nodes fails  nothing
a majority fails           its term ends with its validity, less than a ttl after
                           the last renewal; there is no leader until they are back
=========================  ====================================================

Two candidates never lead at once while clocks run at about the same rate: a term counts
its validity from before the request for the lock, and the nodes count from the grant.
Check ``term.is_valid()`` right before each action that only a leader may do. Pass
``term.number``, which only grows, to storage that can refuse a smaller number.

Source: C. G. Gray and D. R. Cheriton, "Leases: an efficient fault-tolerant mechanism
for distributed file cache consistency", SOSP 1989, for the trust in a local deadline.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_redlock.basics.backoff import jittered
from celery_redlock.basics.callbacks import call_safely
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.process import OfOneProcess
from celery_redlock.basics.timing import seconds_text
from celery_redlock.errors import LockContended, LockHeld, QuorumUnreachable
from celery_redlock.locking import watchdog_of
from celery_redlock.locks.lease import Holder, Lease, LeaseState, new_base
from celery_redlock.records.standbys import StandbyList
from celery_redlock.scripts.keys import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.locks.redlock import Redlock

__all__ = ["Elector", "Term"]

log = logging.getLogger(__name__)

_RENEW_AT = 1 / 3  # of the ttl
_TOO_EARLY = 1 / 6  # of the ttl: the least time between two renewals
_RETRY_AT = 1 / 12  # of the ttl, after a renewal that failed
_STANDBY_PAUSE = 0.5  # seconds between two attempts to lead
_SHORTEST_PAUSE = 0.01  # seconds
_LONGEST_SPLIT = 0.1  # seconds, after split votes
_NOT_RENEWED = object()  # a state to log, as a term and the name of a leader are


class Term:
    """The time for which one candidate leads.

    Attributes:
        number: Greater than the number of every earlier term.
        since: When the term began, in seconds since 1970 by this machine's clock.
        lease: The lock of the leader.
    """

    __slots__ = ("lease", "number", "since")

    def __init__(self, lease: Lease, since: float) -> None:
        self.lease = lease
        self.number = lease.fence
        self.since = since

    def remaining(self) -> float:
        """Return the seconds for which the term is valid without a renewal."""
        return self.lease.remaining()

    def is_valid(self) -> bool:
        """Tell whether no other candidate can lead now. Asks no node.

        It is never valid in a forked child: the term is its parent's.
        """
        return self.lease.is_valid()

    @property
    def was_lost(self) -> bool:
        """Whether the term ended by itself, and not by ``resign``."""
        return self.lease.state is LeaseState.LOST

    def __repr__(self) -> str:
        return f"<Term {self.number} of {self.lease.key!r}, {self.remaining():.1f} s>"


class Elector(OfOneProcess):
    """One candidate in the election of a leader. For use by one thread.

    ::

        elector = Elector(redlock, "reindexer")
        while True:
            term = elector.campaign()
            if term:
                reindex_a_little(term)   # much shorter than ttl / 3
            time.sleep(elector.pause)

    Args:
        redlock: The lock service.
        key: The name of the election. Candidates with the same key compete.
        ttl: Seconds after which a dead leader is replaced.
        name: The name of the candidate in logs and commands, such as "celery beat".
        on_elected: Called with the term when it begins.
        on_resigned: Called with the term when it ends; see ``term.was_lost``.

    Attributes:
        term: The term of this candidate, or None. It may have ended since the last
            ``campaign``: check ``term.is_valid()``.
        pause: Seconds after which to call ``campaign`` again, at the latest.

    Raises:
        ConfigurationError: The lock service does not allow this ttl, or the key cannot
            be used.
    """

    def __init__(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        redlock: Redlock,
        key: str,
        *,
        ttl: float = 15.0,
        name: str = "",
        on_elected: Callable[[Term], object] | None = None,
        on_resigned: Callable[[Term], object] | None = None,
    ) -> None:
        self.key = key_of([key])
        self.ttl = redlock.timing.checked(ttl)
        self._redlock = redlock
        watchdog_of(redlock)  # it resends a release that a node has missed
        self._clock = redlock.clock
        self._name = name
        self._on_elected = on_elected
        self._on_resigned = on_resigned
        super().__init__()
        self.forget_parent()

    def forget_parent(self) -> None:
        """Start anew, as a candidate that has no term and does not stand by."""
        self.term: Term | None = None
        self.pause = 0.0
        self._base = new_base()
        self._entry = self._holder_info()
        self._standbys = StandbyList(self._redlock, self.key, self.ttl)
        self._renewed_at = 0.0
        self._may_hold = False  # an interrupted attempt may have got the lock
        self._logged: object = None  # the state that was logged last

    def campaign(self) -> Term | None:
        """Begin to lead, go on leading, or find out which candidate leads.

        It takes milliseconds.

        Returns:
            The term, if this candidate leads.
        """
        self.notice_fork()
        if self.term is not None and self._renew(self.term):
            return self.term
        return self._try_to_lead()

    def resign(self) -> None:
        """End the term, so that another candidate leads at once, and do not stand by.

        Twice is harmless. The next ``campaign`` starts anew.
        """
        self.notice_fork()
        self._standbys.withdraw()
        term = self.term
        if term and term.lease.state is LeaseState.HELD and not term.is_valid():
            self._lose(term, "its validity has ended")
        term = self.term
        if term is not None:
            self._redlock.release(term.lease)
            self.term = None  # now: an interrupted release is repeated
            fields = log_fields("leader-resigned", election=self.key)
            log.info("Resigned as leader of %r.", self.key, extra=fields)
            self._logged = None
        elif self._may_hold:
            self._release_attempt()
        else:
            return
        self._may_hold = False
        # This process may be about to end, and a release waits for a majority only. An
        # inspection waits for the other nodes, so that they get the release, too.
        self._redlock.inspect(self.key)
        if term is not None:
            call_safely(self._on_resigned, term)

    # -- leading ---------------------------------------------------------------

    def _renew(self, term: Term) -> bool:
        """Renew the term when it is time. Return whether the term goes on."""
        now = self._clock.monotonic()
        self.pause = self.ttl * _RENEW_AT
        if not term.is_valid():
            self._lose(term, "its validity has ended")
            return False
        if now - self._renewed_at < self.ttl * _TOO_EARLY:
            return True
        if self._redlock.extend(term.lease):
            self._renewed_at = now
            if self._logged is _NOT_RENEWED:
                fields = log_fields("leader-renewed", election=self.key)
                text = "The leadership of %r is renewed again."
                log.info(text, self.key, extra=fields)
            self._logged = term
            return True
        # The last one: a renewal is repeated with a view that the nodes have told.
        ballot, operator = term.lease.renewal_ballot, term.lease.released_by
        reasons = ballot.reasons() if ballot else ""
        if ballot and ballot.top_taker[1] >= ballot.quorum:
            self._lose(term, f"{Holder.parse(ballot.holder_value())} leads")
        elif operator:
            self._lose(term, f"its lock was released by {operator}")
        elif not term.is_valid():
            self._lose(term, reasons or "its validity has ended")
        else:
            self.pause = self.ttl * _RETRY_AT
            self._log_failed_renewal(term, reasons)
        return self.term is not None

    def _log_failed_renewal(self, term: Term, reasons: str) -> None:
        if self._logged is not _NOT_RENEWED:
            log.warning(
                "The leadership of %r could not be renewed: %s. It ends in %s "
                "unless a renewal succeeds.",
                self.key,
                reasons or "too few votes for it",
                seconds_text(term.remaining()),
                extra=log_fields("leader-not-renewed", election=self.key),
            )
        self._logged = _NOT_RENEWED

    def _lose(self, term: Term, reason: str) -> None:
        lease = term.lease
        lease.state = LeaseState.LOST
        self.term, self._logged = None, None
        self._entry = self._holder_info()
        log.warning(
            "The leadership of %r is lost after %.0f s: %s.",
            self.key,
            lease.age(),
            reason,
            extra=log_fields("leader-lost", election=self.key, term=term.number),
        )
        # A lock that remains on some nodes would only delay the next leader.
        release = self._redlock.release_request(
            self.key, lease.token, since=lease.started_at
        )
        self._redlock.nodes.send(release)
        call_safely(self._on_resigned, term)

    # -- standing by -------------------------------------------------------------

    def _try_to_lead(self) -> Term | None:
        self.pause = min(_STANDBY_PAUSE, self.ttl * _RENEW_AT)
        if self._may_hold:  # and would refuse this candidate, as if another one led
            self._release_attempt()
        began = self._clock.monotonic()
        self._may_hold = True
        try:
            lease = self._redlock.acquire(
                self.key, self.ttl, base=self._base, holder=self._holder_info()
            )
            return self._begin_term(lease, began)
        except LockHeld as held:
            if held.retry_after is not None:  # try again when it ends
                left = max(held.retry_after, _SHORTEST_PAUSE)
                self.pause = min(self.pause, left)
            self._log_leader(held.holder)
        except LockContended:
            self.pause = jittered(_LONGEST_SPLIT, _SHORTEST_PAUSE / _LONGEST_SPLIT)
        except QuorumUnreachable as error:
            self._log_outage(error)
        self._may_hold = False
        self._standbys.enter(self._base, self._entry)
        return None

    def _release_attempt(self) -> None:
        """Release what an interrupted attempt may have got, and take another base.

        A node that is away gets this release when it is back, and a second later once
        more. It would end a term that was granted to this base meanwhile.
        """
        self._redlock.release_base(self.key, self._base)
        self._standbys.withdraw()
        self._base = new_base()

    def _begin_term(self, lease: Lease, began: float) -> Term:
        self.term = term = Term(lease, since=self._clock.wall())
        self._may_hold = False
        self._renewed_at, self._logged = began, term
        self.pause = self.ttl * _RENEW_AT
        self._standbys.withdraw()
        fields = log_fields("leader-elected", election=self.key, term=term.number)
        text = "Elected leader of %r (term %d)."
        log.info(text, self.key, term.number, extra=fields)
        call_safely(self._on_elected, term)
        return term

    def _log_leader(self, holder: Holder | None) -> None:
        leader = holder.base if holder else ""
        if self._logged != leader:
            fields = log_fields("standing-by", election=self.key)
            log.info("Standing by: %r is led by %s.", self.key, holder, extra=fields)
        self._logged = leader

    def _log_outage(self, error: QuorumUnreachable) -> None:
        if self._logged is not QuorumUnreachable:
            fields = log_fields("no-leader-elected", election=self.key)
            text = "No leader of %r can be elected. %s"
            log.error(text, self.key, error, extra=fields)
        self._logged = QuorumUnreachable

    def _holder_info(self) -> Holder:
        return Holder.here(task=self._name, started=self._clock.wall())
