"""What is counted and timed, and under which names.

==================================  =========  ====================================
metric                              labels     what it is
==================================  =========  ====================================
``redlock_wait_seconds``            task,      histogram: from wanting the lock to
                                    outcome    having it, or to giving up
``redlock_hold_seconds``            task       histogram: from taking the lock to
                                               giving it back
``redlock_conflicts_total``         task,      how often a policy was asked what to
                                    policy,    do about another holder, and what it
                                    decision   decided
``redlock_publish_conflicts_total`` the same   the same when a call was published
``redlock_cancellations_total``     task       runs that a newcomer had told to end
``redlock_outages_total``           task,      the same where too few nodes answered
                                    decision
``redlock_losses_total``            task,      locks that could not be proven any
                                    decision   more while the body ran
``redlock_renewal_lateness_         task       histogram: seconds by which renewals
seconds``                                      were later than a third of the ttl
``redlock_late_renewals_total``     task       of these, those later than half of it
``redlock_node_latency_seconds``    node       histogram: from asking a node to its
                                               answer
``redlock_node_answers_total``      node,      what nodes answered; ``silent`` and
                                    answer     ``refused`` are errors
``redlock_elections_total``         election   terms that began
``redlock_terms_lost_total``        election   terms that ended by themselves
==================================  =========  ====================================

Each label takes few values: the names of tasks, nodes and elections, and words of
ours. Keys are none: there is no end of them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Histogram

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.renewal import RENEW_AT
from celery_redlock.observing import goes_on_waiting, word_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from celery_redlock.core.ballot import Vote
    from celery_redlock.core.lease import Lease
    from celery_redlock.election import Term

__all__ = ["Instruments", "instruments_in"]

_LATE_AT = 1 / 2  # of the ttl
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_HOLDS = (0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
_LATENESSES = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30)
_LATENCIES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)

# A child that is forked while a thread of its parent counts would inherit the locks
# of prometheus_client closed, and hang at its first task.
_turn = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_turn.acquire,
        after_in_parent=_turn.release,
        after_in_child=_turn.release,
    )


class Instruments:
    """The metrics of a registry, and receivers of signals that keep them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"redlock_{name}", about, labels, registry=registry)

        def histogram(
            name: str, about: str, *labels: str, buckets: tuple[float, ...]
        ) -> Histogram:
            name = f"redlock_{name}_seconds"
            return Histogram(name, about, labels, registry=registry, buckets=buckets)

        self._wait = histogram(
            "wait",
            "From wanting the lock to having it, or to giving up.",
            *("task", "outcome"),
            buckets=_WAITS,
        )
        self._hold = histogram(
            "hold", "From taking the lock to giving it back.", "task", buckets=_HOLDS
        )
        self._conflicts = counter(
            "conflicts",
            "How often a policy was asked about another holder of the lock.",
            *("task", "policy", "decision"),
        )
        self._publish_conflicts = counter(
            "publish_conflicts",
            "How often a policy was asked about another job when a call was published.",
            *("task", "policy", "decision"),
        )
        self._cancellations = counter(
            "cancellations", "Runs that were told to end for a newcomer.", "task"
        )
        self._outages = counter(
            "outages",
            "How often too few nodes answered to tell whether the lock is free.",
            *("task", "decision"),
        )
        self._losses = counter(
            "losses", "Locks that were lost while held.", "task", "decision"
        )
        self._lateness = histogram(
            "renewal_lateness",
            "By how much renewals were later than a third of the ttl.",
            "task",
            buckets=_LATENESSES,
        )
        self._late = counter(
            "late_renewals", "Renewals later than half of the ttl.", "task"
        )
        self._latency = histogram(
            "node_latency",
            "From asking a node to its answer.",
            "node",
            buckets=_LATENCIES,
        )
        self._answers = counter(
            "node_answers", "What nodes answered.", "node", "answer"
        )
        self._elections = counter("elections", "Terms that began.", "election")
        self._terms_lost = counter(
            "terms_lost", "Terms of a leader that ended by themselves.", "election"
        )

    # -- receivers -----------------------------------------------------------

    def on_acquired(self, sender: Any, waited: float, **_: Any) -> None:
        """Time the wait of a call that has its lock."""
        with _turn:
            self._wait.labels(sender.name, "granted").observe(waited)

    def on_released(self, sender: Any, lease: Lease, **_: Any) -> None:
        """Time how long the lock was held."""
        with _turn:
            self._hold.labels(sender.name).observe(lease.age())

    def on_conflict(
        self, sender: Any, decision: object, waited: float, **_: Any
    ) -> None:
        """Count a conflict, and time a wait that was in vain."""
        words = policy_of(sender, "execute"), word_of(decision)
        with _turn:
            self._conflicts.labels(sender.name, *words).inc()
            if not goes_on_waiting(decision):
                self._wait.labels(sender.name, "refused").observe(waited)

    def on_deduplicated(self, sender: Any, decision: object, **_: Any) -> None:
        """Count a call that met another job when it was published."""
        words = policy_of(sender, "publish"), word_of(decision)
        with _turn:
            self._publish_conflicts.labels(sender.name, *words).inc()

    def on_cancelled(self, sender: Any, **_: Any) -> None:
        """Count a run that is told to end for a newcomer."""
        with _turn:
            self._cancellations.labels(sender.name).inc()

    def on_outage(self, sender: Any, decision: object, waited: float, **_: Any) -> None:
        """Count that too few nodes answered."""
        with _turn:
            self._outages.labels(sender.name, word_of(decision)).inc()
            self._wait.labels(sender.name, "unreachable").observe(waited)

    def on_lost(self, sender: Any, decision: object, **_: Any) -> None:
        """Count a loss."""
        with _turn:
            self._losses.labels(sender.name, word_of(decision)).inc()

    def on_renewed(self, sender: Any, lease: Lease, lateness: float, **_: Any) -> None:
        """Time how late a renewal was."""
        with _turn:
            self._lateness.labels(sender.name).observe(lateness)
            # At once, so that the series is there before it first counts.
            late = lateness > lease.ttl * (_LATE_AT - RENEW_AT)
            self._late.labels(sender.name).inc(late)

    def on_elected(self, term: Term, **_: Any) -> None:
        """Count a term that begins."""
        with _turn:
            self._elections.labels(term.lease.key).inc()
            self._terms_lost.labels(term.lease.key).inc(0)

    def on_resigned(self, term: Term, *, lost: bool, **_: Any) -> None:
        """Count a term that ended by itself."""
        with _turn:
            self._terms_lost.labels(term.lease.key).inc(lost)

    def on_answer(self, node: str, vote: Vote, seconds: float) -> None:
        """Count what a node answered, and time it unless it was silent."""
        with _turn:
            self._answers.labels(node, vote.kind.name.lower()).inc()
            if vote.kind is not VoteKind.SILENT:
                self._latency.labels(node).observe(seconds)


_made: weakref.WeakKeyDictionary[CollectorRegistry, Instruments]
_made = weakref.WeakKeyDictionary()


def instruments_in(registry: CollectorRegistry) -> Instruments:
    """Return the instruments of this registry: a name can be there only once."""
    with _turn:
        return _made.get(registry) or _made.setdefault(registry, Instruments(registry))


def policy_of(task: Any, stage: str) -> str:
    """Return the task's policy at a stage in a word; functions are all called alike."""
    policy = task.lock_options.on_conflict
    if isinstance(policy, Mapping):
        policy = policy.get(stage, "skip")
    if isinstance(policy, str):
        return policy
    return "callable" if callable(policy) else word_of(policy)
