"""One renewal of one lease: extend where it is, restore where it is missing.

::

    EXTEND to all ──► majority yes ───────────────────────────► renewed
                │         └─ nodes without the key ──► RESTORE, not waited for
                ├─► no majority, but nodes without the key
                │         └──► RESTORE ──► majority of both ──► renewed
                └─► neither ──────────────────────────────────► not renewed

A majority must say yes AND the lease must still be valid when it does: an
extension never resurrects. Its new validity counts from before the first send.
RESTORE is not sent once the release has begun (asked in the fan-out's turn, so
nothing can come between), and a node where somebody else holds the key is left
alone. This is also how a renewal claims nodes that were away at acquire. A renewal
does not wait for all: whom it finds without the key too late, the next one restores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import LeaseState
from celery_redlock.core.question import Question, granted_or_hopeless
from celery_redlock.core.scripts import EXTEND, GRANTED, RESTORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.clock import Clock
    from celery_redlock.core.fanout import Transport
    from celery_redlock.core.lease import Lease

__all__ = ["Extension"]

_MS = 1000


class Extension:
    """A renewal under way. The caller sends its questions and calls ``advance``.

    Attributes:
        lease: What is renewed.
        question: What was sent last, and is waited for.
        started_at: Instant before the first send.
        result: None while under way; True when the lease's validity has moved;
            False when this try has failed, which ends nothing by itself.
        cancelled_by: Who has asked the holder to end, as some node said.
    """

    __slots__ = (
        "_args",
        "_before",
        "_clock",
        "_drift",
        "_extended",
        "_keys",
        "cancelled_by",
        "lease",
        "question",
        "result",
        "started_at",
    )

    def __init__(  # noqa: PLR0913  (made in one place, by name)
        self,
        lease: Lease,
        *,
        clock: Clock,
        labels: Sequence[str],
        keys: Sequence[str],
        config: str,
        stripe: int,
        drift: float,
    ) -> None:
        ttl_ms = round(lease.ttl * _MS)
        self.lease = lease
        self.started_at = clock.monotonic()
        self.result: bool | None = None
        self.cancelled_by = ""
        self._clock = clock
        self._drift = drift
        self._keys = keys
        self._args = [config, lease.token, lease.facts, ttl_ms, stripe, lease.fence]
        self._extended: Ballot | None = None
        self._before = lease.renewal_ballot
        self.question = Question(
            EXTEND,
            keys,
            [config, lease.token, ttl_ms],
            labels=labels,
            settle=granted_or_hopeless,
            withdrawn=self._is_over,
        )
        lease.renewal_ballot = self.question.ballot

    def carry_through(self, transport: Transport, node_timeout: float) -> bool:
        """Send, wait and restore until there is a result, and return it."""
        transport.send(self.question)
        while self.result is None:
            transport.wait(self.question, until=self._clock.monotonic() + node_timeout)
            # Settled, late, or out of reach: there is nothing more to wait for.
            again = self.advance(out_of_time=True)
            if again is not None:
                transport.send(again)
        return self.result

    def advance(self, *, out_of_time: bool) -> Question | None:
        """Judge what has come. Return a question to be sent now, if there is one.

        Args:
            out_of_time: Whether to judge now though the question is open. Until
                then nothing happens before it is settled.
        """
        if self.result is not None or not (self.question.is_settled() or out_of_time):
            return None
        ballot = self.question.ballot
        restoring = self._extended is not None
        if not restoring:
            self.cancelled_by = _who_cancels(self.question.replies)
        granted = set(ballot.indexes(VoteKind.GRANTED))
        if self._extended is not None:
            granted |= set(self._extended.indexes(VoteKind.GRANTED))
        if len(granted) >= ballot.quorum:
            self._renew(len(granted))
        missing = not restoring and (_lacks(ballot) or _lacks(self._before))
        if missing and self.lease.is_valid():
            return self._restore(ballot)
        if self.result is None:
            self.result = False
        return None

    def _renew(self, votes: int) -> None:
        self.result = self.lease.is_valid()
        if self.result:
            until = self.started_at + self.lease.ttl - self._drift
            self.lease.until = max(self.lease.until, until)
            self.lease.votes = votes

    def _restore(self, extended: Ballot) -> Question:
        def settled(ballot: Ballot) -> bool:
            yes = set(ballot.indexes(VoteKind.GRANTED))
            yes |= set(extended.indexes(VoteKind.GRANTED))
            out = sum(vote is None for vote in ballot.votes)
            return len(yes) >= ballot.quorum or not out

        self._extended = extended
        self.question = Question(
            RESTORE,
            self._keys,
            self._args,
            labels=extended.labels,
            settle=settled,
            withdrawn=self._is_over,
        )
        return self.question

    def _is_over(self) -> bool:
        return self.lease.state is not LeaseState.HELD or not self.lease.is_valid()


def _lacks(ballot: Ballot | None) -> bool:
    """Tell whether some node said that it is without the key."""
    return ballot is not None and bool(ballot.indexes(VoteKind.FREE))


def _who_cancels(replies: Sequence[Any]) -> str:
    """Return whom a node names besides: it is told by those who still have the key."""
    told = [r[2] for r in replies if isinstance(r, list) and r[0] == GRANTED and r[2:]]
    return str(told[0].decode(errors="replace")) if told else ""
