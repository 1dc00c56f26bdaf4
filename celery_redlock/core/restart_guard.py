"""Admit a node to the vote: quarantine, recovery of fences, a new deployment.

A node that lost its memory must not vote for one max_ttl. Otherwise it admits a second
holder beside one that it forgot. The node judges itself, inside the script that votes,
so that this holds through proxies and connection pools::

                       run_id differs from the marker, or there is no marker
                       (restart, wipe, FLUSHALL, another server at the address)
          ┌──────────────────────────────────────────────────────────┐
          ▼                                                          │
     quarantined ──max_ttl × 1.02 + 1 s──► unsynced ──recovered──► voting
                                            (refuses)

Each loss of memory begins a new *incarnation* of the node, so that counters that were
read for an earlier one cannot end the quarantine of a later one.

What the node knows of itself is one hash: to lose a part of it is to lose all. The wait
begins when the loss is noticed. So no clock that lies about the past can shorten it.

Fence counters are recovered at the END of the quarantine: an attempt that was under way
when the node restarted may still be granted with its vote, and only after a max_ttl is
that certainly over. The counters are merged from r = N − q + 1 other nodes that vote
themselves: any quorum of the past, without this node, shares one with these. The node
sets a *floor* under all of its counters, its own TIME and the tolerance for the clocks
of clients, when the nodes say that r cannot be had (a majority restarted, N = 1), or
when too few answered for a whole max_ttl. It sets none while some node belongs to
another configuration. The log then warns that the order of fences rests on clocks.

Whether nodes guard is part of the configuration (``core.configuration``), and so the
same for all clients. Where they do not, a node that lost its memory votes as soon as
the others have told their counters, or have all said that they know none.

Source: the recovery is that of crash-consistent quorums, Michael et al.,
"Recovering shared objects without stable storage", DISC 2017.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts
from celery_redlock.core.configuration import Configuration
from celery_redlock.core.log_fields import log_fields
from celery_redlock.core.quorum import Ballot, VoteKind
from celery_redlock.core.transport.requests import all_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.keys import Keys
    from celery_redlock.core.timing import Timing
    from celery_redlock.core.transport.requests import Nodes, ScriptRequest

__all__ = ["RestartGuard", "greatest"]

log = logging.getLogger(__name__)

_MS = 1000
_PAUSE_BETWEEN_RECOVERIES = 0.2  # seconds


class RestartGuard:
    """Brings nodes that may not vote yet back to the vote.

    Args:
        nodes: The nodes of the deployment.
        keys: The names of the keys on the nodes.
        timing: The deployment's durations.
        enabled: ``redlock_restart_guard``. When off, a node votes at once after
            a restart: two clients may hold a lock, and fences may repeat.

    Attributes:
        config: The configuration, as the nodes store it.
        quarantine_ms: For how long a node without memory does not vote.
        hint_tolerance_us: By how much the clock of a client may differ from a node's.
    """

    def __init__(
        self, nodes: Nodes, *, keys: Keys, timing: Timing, enabled: bool
    ) -> None:
        self.enabled = enabled
        self.keys = keys
        labels = tuple(sorted(nodes.labels))
        self.config = str(Configuration(labels, timing.max_ttl, is_guarded=enabled))
        self.quarantine_ms = round(timing.quarantine * _MS) if enabled else 0
        self.hint_tolerance_us = round(timing.max_ttl / 4 * 1_000_000)
        self._nodes = nodes
        self._max_ttl = timing.max_ttl
        self._next_recovery_at = 0.0
        self._short: dict[str, tuple[float, float]] = {}  # incarnation: first, last

    def ask(self, script: scripts.Script, args: Sequence[Any]) -> ScriptRequest:
        """Ask all nodes by a script about the admission of nodes to the vote."""
        return self._nodes.ask(script, (self.keys.meta,), args, done_when=all_answered)

    def recover(self, ballot: Ballot) -> bool:
        """Recover the fence counters of the unsynced nodes of this ballot.

        Returns:
            Whether a node votes now that did not vote before. There is at most one
            try in 0.2 s; other calls in that time return False at once.
        """
        unsynced = ballot.indexes(VoteKind.UNSYNCED)
        if not unsynced:
            return False
        now = self._nodes.clock.monotonic()
        if now < self._next_recovery_at:
            return False
        self._next_recovery_at = now + _PAUSE_BETWEEN_RECOVERIES
        counters = self.ask(scripts.COUNTERS, [self.config])
        return sum(self._recover_node(i, ballot, counters) for i in unsynced) > 0

    def initialize(self) -> Ballot:
        """Let the nodes of a new deployment vote at once."""
        now_us = round(self._nodes.clock.wall() * 1_000_000)
        args = (self.config, now_us, self.hint_tolerance_us)
        return self.ask(scripts.INITIALIZE, args).ballot

    def _recover_node(
        self, index: int, ballot: Ballot, counters: ScriptRequest
    ) -> bool:
        label = ballot.labels[index]
        vote = ballot.votes[index]
        incarnation = vote.value if vote else ""
        sources = [i for i in counters.ballot.indexes(VoteKind.GRANTED) if i != index]
        enough = len(sources) >= self._needed
        if enough:
            self._short.clear()
        floor = not enough and self._is_hopeless(index, incarnation, counters.ballot)
        if not enough and not floor:
            return False
        pairs: list[Any] = []
        for source in sources:
            pairs += counters.replies[source][1:]
        args = (self.config, incarnation, int(floor), self.hint_tolerance_us)
        sync = self.ask(scripts.SYNC, [*args, *greatest(pairs)])
        vote = sync.ballot.votes[index]
        if vote is None or vote.kind is not VoteKind.GRANTED:
            return False
        if floor and self.enabled:
            log.warning(
                "Node %s votes again, but too few other nodes knew the fences that "
                "were granted: its own TIME is the floor of its counters now. The "
                "order of fences across this moment rests on clocks.",
                label,
                extra=log_fields("node-floor", node=label),
            )
        else:
            log.info(
                "Node %s votes again; fences recovered from %d nodes.",
                label,
                len(sources),
                extra=log_fields("node-recovered", node=label),
            )
        return True

    @property
    def _needed(self) -> int:
        return len(self._nodes.labels) - self._nodes.quorum + 1

    def _is_hopeless(self, index: int, incarnation: str, counters: Ballot) -> bool:
        """Tell whether waiting for more nodes to tell their counters does not help."""
        others = [vote for i, vote in enumerate(counters.votes) if i != index]
        if any(
            vote and vote.kind is VoteKind.REFUSED and vote.value for vote in others
        ):
            return False  # a node of another configuration: no new start beside it
        kinds = [vote.kind for vote in others if vote is not None]
        forgetful = kinds.count(VoteKind.UNSYNCED) + kinds.count(VoteKind.QUARANTINED)
        if self.enabled:
            cannot_be_had = len(others) - forgetful < self._needed
        else:  # all others have told what they know
            knowing = kinds.count(VoteKind.GRANTED)
            cannot_be_had = forgetful + knowing == len(others)
        if cannot_be_had:
            return True
        return self._is_long_short(incarnation)

    def _is_long_short(self, incarnation: str) -> bool:
        """Tell whether too few nodes told their counters for one max_ttl on end.

        That is, at every look in that time. Looks that are more than half a max_ttl
        apart do not count as one time: the nodes may have been there in between.
        """
        now = self._nodes.clock.monotonic()
        first, last = self._short.get(incarnation, (now, now))
        if now - last > self._max_ttl / 2:
            first = now
        self._short[incarnation] = first, now
        return now - first > self._max_ttl


def greatest(pairs: list[Any]) -> list[Any]:
    """Merge field, counter, field, counter, ... keeping the greatest counters."""
    merged: dict[bytes, int] = {}
    for field, counter in zip(pairs[::2], pairs[1::2], strict=True):
        merged[field] = max(merged.get(field, 0), int(counter))
    return [item for pair in merged.items() for item in pair]
