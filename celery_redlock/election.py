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

Two never lead at once while clocks run at about the same rate: a term counts its
validity from before the lock was asked for, the nodes count from when they granted
it. Do ``if term.is_valid()`` right before what only a leader may do, and
hand ``term.number``, which only grows, to storage that can refuse a lesser one.

Source: the trust in a local deadline is that of C. G. Gray and D. R. Cheriton,
"Leases: an efficient fault-tolerant mechanism for distributed file cache
consistency", SOSP 1989.
"""

from __future__ import annotations

import logging
import os
import random
from typing import TYPE_CHECKING

from celery_redlock.core.lease import Holder, Lease, LeaseState, new_base
from celery_redlock.errors import LockContended, LockHeld, QuorumUnreachable
from celery_redlock.leadership import StandbyList
from celery_redlock.logs import about

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.redlock import Redlock

__all__ = ["Elector", "Term"]

log = logging.getLogger("celery_redlock.election")

_COME_BACK = 1 / 3  # of the ttl, after which a leader renews
_TOO_SOON = 1 / 6  # of the ttl: renewed so lately, it need not be renewed again
_RETRY_AT = 1 / 12  # of the ttl, after a renewal that failed
_LOOK_EVERY = 0.5  # seconds, whether the leader has resigned
_AT_ONCE = 0.01  # seconds
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

    @property
    def was_lost(self) -> bool:
        """Whether it ended by itself and not by being resigned."""
        return self.lease.state is LeaseState.LOST

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
        on_resigned: Called with the term when it is over; see ``term.was_lost``.

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
        on_resigned: Callable[[Term], object] | None = None,
    ) -> None:
        self.key = key
        self.ttl = redlock.timing.checked(ttl)
        self._redlock = redlock
        self._clock = redlock.clock
        self._name = name
        self._on_elected = on_elected
        self._on_resigned = on_resigned
        self._begin()

    def _begin(self) -> None:
        self.term: Term | None = None
        self.pause = 0.0
        self._pid = os.getpid()
        self._base = new_base()
        self._standing = self._here()
        self._list = StandbyList(self._redlock, self.key, self.ttl)
        self._renewed_at = 0.0
        self._is_asking = False  # a lock may have been granted that we know not of
        self._is_shaky = False
        self._said: object = None  # what the log last said of the state of things

    def campaign(self) -> Term | None:
        """Lead, go on leading, or find out who does. Takes milliseconds.

        Returns:
            The term, if this candidate leads.
        """
        if self._pid != os.getpid():
            self._begin()
        if self.term is not None and self._keep(self.term):
            return self.term
        return self._stand()

    def resign(self) -> None:
        """Lead no more, so that another one can at once, and stand by no more.

        Twice is harmless. ``campaign`` begins anew.
        """
        if self._pid != os.getpid():
            return
        self._list.leave()
        term, self.term = self.term, None
        if term is not None:
            self._redlock.release(term.lease)
            fields = about("leader-resigned", election=self.key)
            log.info("Resigned from leading %r.", self.key, extra=fields)
            self._said = None
        elif self._is_asking:  # it was interrupted, so that there may be a lock
            self._redlock.release_base(self.key, self._base)
        else:
            return
        self._is_asking = False
        # This process may be about to end. A release waits for a majority; let the
        # others hear it, too, also one whose connection is just being made anew.
        self._redlock.inspect(self.key)
        if term is not None:
            _tell(self._on_resigned, term)

    # -- leading ---------------------------------------------------------------

    def _keep(self, term: Term) -> bool:
        """Renew the term when it is time to. Return whether it goes on."""
        now = self._clock.monotonic()
        self.pause = self.ttl * _COME_BACK
        if not term.is_valid():
            self._lose(term, "its validity has ended")
            return False
        if now - self._renewed_at < self.ttl * _TOO_SOON:
            return True
        extension = self._redlock.commands.extension(term.lease)
        ballot = extension.question.ballot
        timeout = self._redlock.timing.node_timeout
        if extension.carry_through(self._redlock.transport, timeout):
            self._renewed_at = now
            if self._is_shaky:
                fields = about("leader-renewed", election=self.key)
                text = "The leadership of %r is renewed again."
                log.info(text, self.key, extra=fields)
            self._is_shaky = False
        elif ballot.top_taker[1] >= ballot.quorum:
            self._lose(term, f"{Holder.parse(ballot.holder_value())} has it")
        elif not term.is_valid():
            self._lose(term, ballot.reasons() or "its validity has ended")
        else:
            self.pause = self.ttl * _RETRY_AT
            self._note_failure(term, ballot.reasons())
        return self.term is not None

    def _note_failure(self, term: Term, reasons: str) -> None:
        if not self._is_shaky:
            log.warning(
                "The leadership of %r could not be renewed: %s. It ends in %.1f s "
                "unless it is.",
                self.key,
                reasons or "a majority of the nodes does not have it",
                term.remaining(),
                extra=about("leader-not-renewed", election=self.key),
            )
        self._is_shaky = True

    def _lose(self, term: Term, reason: str) -> None:
        lease = term.lease
        lease.state = LeaseState.LOST
        self.term, self._is_shaky, self._said = None, False, None
        self._standing = self._here()
        log.warning(
            "The leadership of %r is lost after %.0f s: %s. Standing by.",
            self.key,
            lease.age(),
            reason,
            extra=about("leader-lost", election=self.key, term=term.number),
        )
        # What is left of it would only keep others waiting.
        release = self._redlock.commands.release(
            self.key, lease.token, since=lease.started_at
        )
        self._redlock.transport.send(release)
        _tell(self._on_resigned, term)

    # -- standing by -------------------------------------------------------------

    def _stand(self) -> Term | None:
        self.pause = min(_LOOK_EVERY, self.ttl * _COME_BACK)
        began = self._clock.monotonic()
        self._is_asking = True
        try:
            lease = self._redlock.acquire(
                self.key, self.ttl, base=self._base, facts=self._here()
            )
            return self._lead(lease, began)
        except LockHeld as held:
            # Be there when it ends, which it does by itself unless it is renewed.
            self.pause = min(self.pause, max(held.retry_after or 0.0, _AT_ONCE))
            self._note_leader(held.holder)
        except LockContended:
            self.pause = random.uniform(_AT_ONCE, _LONGEST_SPLIT)  # noqa: S311  (no secret)
        except QuorumUnreachable as error:
            self._note_outage(error)
        self._is_asking = False
        self._list.enter(self._base, self._standing)
        return None

    def _lead(self, lease: Lease, began: float) -> Term:
        self.term = term = Term(lease, since=self._clock.wall_us() / 1e6)
        self._is_asking = False
        self._renewed_at, self._said = began, term
        self.pause = self.ttl * _COME_BACK
        self._list.leave()
        fields = about("leader-elected", election=self.key, term=term.number)
        text = "Elected leader of %r (term %d)."
        log.info(text, self.key, term.number, extra=fields)
        _tell(self._on_elected, term)
        return term

    def _note_leader(self, holder: Holder | None) -> None:
        leader = holder.base if holder else ""
        if self._said != leader:
            fields = about("standing-by", election=self.key)
            log.info("Standing by: %r is led by %s.", self.key, holder, extra=fields)
        self._said = leader

    def _note_outage(self, error: QuorumUnreachable) -> None:
        if self._said is not QuorumUnreachable:
            fields = about("nobody-elected", election=self.key)
            text = "Nobody can be elected leader of %r. %s"
            log.error(text, self.key, error, extra=fields)
        self._said = QuorumUnreachable

    def _here(self) -> Holder:
        return Holder.here(task=self._name, started=self._clock.wall_us() / 1e6)


def _tell(callback: Callable[[Term], object] | None, term: Term) -> None:
    """Call back; an error in there is its author's and ends no term."""
    if callback is None:
        return
    try:
        callback(term)
    except Exception:
        log.exception("The callback %r raised an error.", callback)
