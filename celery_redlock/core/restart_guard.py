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

The marker and the quarantine are keys of ours on the node. The wait is the ttl of the
quarantine, which begins after the loss was noticed. So no clock that lies about the
past can shorten it.

Fence counters are recovered at the END of the quarantine: an attempt that was under way
when the node restarted may still be granted with its vote, and only after a max_ttl is
that certainly over. The counters are merged from r = N − q + 1 other nodes that vote
themselves: any quorum of the past, without this node, shares one with these. The node
sets a *floor* under all of its counters, its own TIME in µs, when the nodes say that r
cannot be had (a majority restarted, N = 1), or when the others were silent for a
max_ttl. The log then warns that the order of fences rests on clocks.

The configuration (protocol, max_ttl, node names) is stored on each node, since clients
that disagree about it do not exclude each other. A node refuses a client with another
configuration and names the difference.

Source: the recovery is that of crash-consistent quorums, Michael et al.,
"Recovering shared objects without stable storage", DISC 2017.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts
from celery_redlock.core.log_fields import log_fields
from celery_redlock.core.quorum import Ballot, VoteKind
from celery_redlock.core.transport.requests import all_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.keys import Keys
    from celery_redlock.core.timing import Timing
    from celery_redlock.core.transport.requests import Nodes, ScriptRequest

__all__ = ["PROTOCOL", "RestartGuard", "config_text", "greatest"]

log = logging.getLogger(__name__)

PROTOCOL = 1
_MS = 1000
_PAUSE_BETWEEN_RECOVERIES = 0.2  # seconds


def config_text(labels: tuple[str, ...], max_ttl: float) -> str:
    """Return in words the settings on which all clients of a deployment must agree."""
    nodes = ", ".join(sorted(labels))
    return f"protocol {PROTOCOL}, max_ttl {max_ttl:g} s, nodes {nodes}"


class RestartGuard:
    """Brings nodes that may not vote yet back to the vote.

    Args:
        nodes: The nodes of the deployment.
        keys: The names of the keys on the nodes.
        timing: The deployment's durations.
        enabled: ``redlock_restart_guard``. When off, a node votes at once after
            a restart: two clients may hold a lock, and fences may repeat.
    """

    def __init__(
        self, nodes: Nodes, *, keys: Keys, timing: Timing, enabled: bool
    ) -> None:
        self.enabled = enabled
        self.keys = keys
        self.config = config_text(nodes.labels, timing.max_ttl) if enabled else ""
        self.quarantine_ms = round(timing.quarantine * _MS)
        self.hint_tolerance_us = round(timing.max_ttl / 4 * 1_000_000)
        self._nodes = nodes
        self._max_ttl = timing.max_ttl
        self._next_recovery_at = 0.0
        self._short_since: dict[str, float] = {}  # by incarnation

    def ask(self, script: scripts.Script, args: Sequence[Any]) -> ScriptRequest:
        """Ask all nodes by a script about the admission of nodes to the vote."""
        keys = self.keys.admission
        return self._nodes.ask(script, keys, args, done_when=all_answered)

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
        return self.ask(scripts.INITIALIZE, [self.config]).ballot

    def _recover_node(
        self, index: int, ballot: Ballot, counters: ScriptRequest
    ) -> bool:
        label = ballot.labels[index]
        vote = ballot.votes[index]
        incarnation = vote.value if vote else ""
        sources = [i for i in counters.ballot.indexes(VoteKind.GRANTED) if i != index]
        enough = len(sources) >= self._needed
        floor = not enough and self._is_hopeless(incarnation, counters.ballot)
        if not enough and not floor:
            return False
        pairs: list[Any] = []
        for source in sources:
            pairs += counters.replies[source][1:]
        sync = self.ask(scripts.SYNC, [incarnation, int(floor), *greatest(pairs)])
        vote = sync.ballot.votes[index]
        if vote is None or vote.kind is not VoteKind.GRANTED:
            return False
        if floor:
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

    def _is_hopeless(self, incarnation: str, counters: Ballot) -> bool:
        """Tell whether waiting for more nodes to tell their counters does not help."""
        known = (VoteKind.UNSYNCED, VoteKind.QUARANTINED)
        lost = sum(vote is not None and vote.kind in known for vote in counters.votes)
        if len(counters.labels) - lost < self._needed:
            return True
        now = self._nodes.clock.monotonic()
        since = self._short_since.setdefault(incarnation, now)
        return now - since > self._max_ttl


def greatest(pairs: list[Any]) -> list[Any]:
    """Merge field, counter, field, counter, ... keeping the greatest counters."""
    merged: dict[bytes, int] = {}
    for field, counter in zip(pairs[::2], pairs[1::2], strict=True):
        merged[field] = max(merged.get(field, 0), int(counter))
    return [item for pair in merged.items() for item in pair]
