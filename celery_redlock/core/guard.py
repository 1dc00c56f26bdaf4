"""Admit a node to the vote: quarantine, late recovery of fences, start-up.

A node that lost its memory must not vote for one max_ttl, or it lets a second
holder in beside one that it forgot. The node judges itself, inside the script
that votes, so that this holds through proxies and connection pools::

                       run_id differs from the marker, or there is no marker
                       (restart, wipe, FLUSHALL, another server at the address)
          ┌──────────────────────────────────────────────────────────┐
          ▼                                                          │
     quarantined ──max_ttl × 1.02 + 1 s──► unsynced ──recovered──► voting
                                            (refuses)

Each loss of memory begins a new *life* of the node, so that what was read for an
earlier one cannot end the quarantine of a later one.

The marker and the quarantine are keys of ours on the node; the wait is the ttl
of one of them, begun after the loss was noticed, so that no clock that lies
about the past can shorten it.

Fence counters are recovered at the END of the quarantine: an attempt that was
under way when the node restarted may still be granted with its vote, and only
after a max_ttl is that certainly over. They are merged from r = N − q + 1 other
nodes that are themselves voting: any quorum of the past, without this node,
shares one with these. When the nodes say that r cannot be had (a majority
restarted, N = 1), or the others have been silent for a max_ttl, the node sets a
*floor*, its own TIME in µs, under all of its counters, and the log warns that
the order of fences now rests on clocks.

The configuration (protocol, max_ttl, node names) is stored on each node, since
clients that disagree about it do not exclude each other. One that differs is
refused with the difference.

Source: the recovery is that of crash-consistent quorums, Michael et al.,
"Recovering shared objects without stable storage", DISC 2017.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts
from celery_redlock.core.ballot import Ballot, VoteKind, quorum_of
from celery_redlock.core.question import Question, by_everyone
from celery_redlock.logs import about

if TYPE_CHECKING:
    from celery_redlock.core.clock import Clock
    from celery_redlock.core.fanout import Transport
    from celery_redlock.core.timing import Timing

__all__ = ["PROTOCOL", "Guard", "config_text", "greatest"]

log = logging.getLogger("celery_redlock.guard")

PROTOCOL = 1
_MS = 1000
_PAUSE_BETWEEN_RECOVERIES = 0.2  # seconds


def config_text(labels: tuple[str, ...], max_ttl: float) -> str:
    """Return what all clients of a deployment must agree on, readably."""
    nodes = ", ".join(sorted(labels))
    return f"protocol {PROTOCOL}, max_ttl {max_ttl:g} s, nodes {nodes}"


class Guard:
    """Looks after nodes that may not vote yet.

    Args:
        transport: How to ask the nodes.
        prefix: Of the keys on the nodes.
        timing: The deployment's durations.
        clock: Reads time.
        enabled: ``redlock_restart_guard``. When off, a node votes at once after
            a restart: two may hold a lock, and fences may repeat.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        prefix: str,
        timing: Timing,
        clock: Clock,
        enabled: bool,
    ) -> None:
        self.enabled = enabled
        self.prefix = prefix
        self.fence_key = f"{prefix}:fence"
        self.meta_key = f"{prefix}:meta"
        self.quarantine_key = f"{prefix}:quarantine"
        self.config = config_text(transport.labels, timing.max_ttl) if enabled else ""
        self.quarantine_ms = round(timing.quarantine * _MS)
        self.hint_tolerance_us = round(timing.max_ttl / 4 * 1_000_000)
        self._transport = transport
        self._max_ttl = timing.max_ttl
        self._clock = clock
        self._next_recovery_at = 0.0
        self._short_since: dict[str, float] = {}  # by life
        self._last_ballot: Ballot | None = None

    @property
    def _keys(self) -> list[str]:
        return [self.fence_key, self.meta_key, self.quarantine_key]

    def recover(self, ballot: Ballot) -> bool:
        """Give unsynced nodes of this ballot their fence counters back.

        Returns:
            Whether a node votes now that did not before. At most one try in
            0.2 s; the others of that time return False at once.
        """
        unsynced = ballot.indexes(VoteKind.UNSYNCED)
        if not unsynced:
            return False
        now = self._clock.monotonic()
        if now < self._next_recovery_at:
            return False
        self._next_recovery_at = now + _PAUSE_BETWEEN_RECOVERIES
        counters = self._ask(scripts.COUNTERS, [self.config])
        back = sum(self._recover_node(i, ballot, counters) for i in unsynced)
        return back > 0

    def consider(self, ballot: Ballot) -> None:
        """Look after the unsynced nodes of a ballot that was won without them.

        Also of the one before it: an early verdict does not wait for their
        votes, but by now those have come in.
        """
        before, self._last_ballot = self._last_ballot, ballot
        if not self.recover(ballot) and before is not None:
            self.recover(before)

    def initialize(self) -> Ballot:
        """Let the nodes of a new deployment vote at once."""
        return self._ask(scripts.INITIALIZE, [self.config]).ballot

    def _ask(self, script: scripts.Script, args: list[Any]) -> Question:
        question = Question(
            script,
            self._keys,
            args,
            labels=self._transport.labels,
            settle=by_everyone,
        )
        self._transport.ask(question)
        return question

    def _recover_node(self, index: int, ballot: Ballot, counters: Question) -> bool:
        label = ballot.labels[index]
        vote = ballot.votes[index]
        life = vote.value if vote else ""
        sources = [i for i in counters.ballot.indexes(VoteKind.GRANTED) if i != index]
        enough = len(sources) >= self._needed
        floor = not enough and self._hopeless(life, counters.ballot)
        if not enough and not floor:
            return False
        pairs: list[Any] = []
        for source in sources:
            pairs += counters.replies[source][1:]
        answer = self._ask(scripts.SYNC, [life, int(floor), *greatest(pairs)])
        vote = answer.ballot.votes[index]
        if vote is None or vote.kind is not VoteKind.GRANTED:
            return False
        if floor:
            log.warning(
                "Node %s votes again, but too few others could tell it the fences "
                "that were granted: its own TIME is the floor of its counters now. "
                "The order of fences across this moment rests on clocks.",
                label,
                extra=about("node-floor", node=label),
            )
        else:
            log.info(
                "Node %s votes again; fences recovered from %d nodes.",
                label,
                len(sources),
                extra=about("node-recovered", node=label),
            )
        return True

    @property
    def _needed(self) -> int:
        nodes = len(self._transport.labels)
        return nodes - quorum_of(nodes) + 1

    def _hopeless(self, life: str, ballot: Ballot) -> bool:
        """Tell whether waiting for more nodes to answer this one would not help."""
        known = (VoteKind.UNSYNCED, VoteKind.QUARANTINED)
        lost = sum(vote is not None and vote.kind in known for vote in ballot.votes)
        if len(ballot.labels) - lost < self._needed:
            return True
        now = self._clock.monotonic()
        since = self._short_since.setdefault(life, now)
        return now - since > self._max_ttl


def greatest(pairs: list[Any]) -> list[Any]:
    """Merge field, counter, field, counter, ... keeping the greatest counters."""
    merged: dict[bytes, int] = {}
    for field, counter in zip(pairs[::2], pairs[1::2], strict=True):
        merged[field] = max(merged.get(field, 0), int(counter))
    return [item for pair in merged.items() for item in pair]
