"""Counters and histograms: receivers of signals count and time.

The reference of metrics is generated from the help texts below. Labels take few values:
names of tasks, nodes and elections, and fixed words. Keys and ids are never labels,
because their number has no limit.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Histogram

from celery_redlock.basics.process import OfOneProcess
from celery_redlock.locks.watchdog import RENEW_AT
from celery_redlock.policies import label_of
from celery_redlock.wire.quorum import VoteKind

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from celery_redlock.election import Term
    from celery_redlock.locks.lease import Lease
    from celery_redlock.policies import Conflict, ConflictDecision, Decision
    from celery_redlock.wire.quorum import Vote

OTHER_VIEW = "other_view"
"""The answer of a node to the first request of a process: no error, it asks again."""

_LATE_AT = 1 / 2  # of the ttl
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BACKLOGS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
_HOLDS = (0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
_LATENESSES = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30)
_LATENCIES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class _Counting(OfOneProcess):
    """The right to count, which one thread has at a time: ``with counting():``.

    A child that is forked while a thread of its parent counts would inherit the locks
    of prometheus_client closed, and hang at its first task. So all counting is done
    under this lock, which no other thread holds during a fork by Python. A C program
    can fork while one does: the child has a lock of its own.

    The block takes and releases the lock itself. A time limit could interrupt methods
    in Python that do so, and no other thread would count or renew a lock any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget_parent()

    def forget_parent(self) -> None:
        """Start with an open lock."""
        self._lock = threading.RLock()

    def __call__(self) -> threading.RLock:
        """Return the lock of this process."""
        self.notice_fork()
        return self._lock


counting = _Counting()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: counting().acquire(),
        after_in_parent=lambda: counting().release(),
    )


class Instruments:
    """The metrics of one registry, and the receivers of signals that update them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"redlock_{name}", text, labels, registry=registry)

        def histogram(
            name: str, text: str, *labels: str, buckets: tuple[float, ...]
        ) -> Histogram:
            name = f"redlock_{name}_seconds"
            return Histogram(name, text, labels, registry=registry, buckets=buckets)

        self._wait = histogram(
            "wait",
            "Seconds from the first attempt to get the lock to the grant, or to the "
            "end of the attempts.",
            *("task", "outcome"),
            buckets=_WAITS,
        )
        self._hold = histogram(
            "hold",
            "Seconds from the grant to the release, or to the loss of the lock.",
            "task",
            buckets=_HOLDS,
        )
        self._backlog = histogram(
            "backlog",
            "Seconds from the first refusal of a call to its grant, of calls that came "
            "back from a backlog.",
            "task",
            buckets=_BACKLOGS,
        )
        self._conflicts = counter(
            "conflicts",
            "Conflicts with another holder of the lock, by policy and decision.",
            *("task", "policy", "decision"),
        )
        self._publish_conflicts = counter(
            "publish_conflicts",
            "Conflicts with an existing job when a call was published, by policy and "
            "decision.",
            *("task", "policy", "decision"),
        )
        self._cancellations = counter(
            "cancellations", "Running calls that a newer call asked to end.", "task"
        )
        self._outages = counter(
            "outages",
            "Attempts that too few nodes answered to tell whether the lock is free.",
            *("task", "decision"),
        )
        self._losses = counter(
            "losses", "Locks that were lost while held.", "task", "decision"
        )
        self._lateness = histogram(
            "renewal_lateness",
            "Seconds by which renewals were later than a third of the ttl.",
            "task",
            buckets=_LATENESSES,
        )
        self._late = counter(
            "late_renewals", "Renewals later than half of the ttl.", "task"
        )
        self._latency = histogram(
            "node_latency",
            "Seconds from a request to a node to its answer. An answer for which "
            "no call waited is left out where it may have come much earlier.",
            "node",
            buckets=_LATENCIES,
        )
        self._answers = counter(
            "node_answers", "Answers of nodes, by kind.", "node", "answer"
        )
        self._elections = counter(
            "elections", "Terms of leaders that began.", "election"
        )
        self._terms_lost = counter(
            "terms_lost", "Terms of leaders that ended by themselves.", "election"
        )

    # -- receivers -----------------------------------------------------------

    def on_acquired(
        self, sender: Any, waited: float, in_backlog: float | None = None, **_: object
    ) -> None:
        """Observe the wait of a call that got its lock, and its time in a backlog."""
        with counting():
            self._wait.labels(sender.name, "granted").observe(waited)
            if in_backlog is not None:
                self._backlog.labels(sender.name).observe(in_backlog)

    def on_released(self, sender: Any, lease: Lease, **_: object) -> None:
        """Observe the time for which a lock was held."""
        with counting():
            self._hold.labels(sender.name).observe(lease.held_for())

    def on_conflict(
        self,
        sender: Any,
        conflict: Conflict,
        decision: ConflictDecision,
        waited: float,
        **_: object,
    ) -> None:
        """Count a conflict, and observe the wait if it is over."""
        policy = label_of(sender.lock_options.on_conflict, "execute")
        with counting():
            self._conflicts.labels(sender.name, policy, decision.name).inc()
            if not decision.keeps_trying(conflict):
                self._wait.labels(sender.name, "refused").observe(waited)

    def on_deduplicated(self, sender: Any, decision: Decision, **_: object) -> None:
        """Count a call that met an existing job when it was published."""
        policy = label_of(sender.lock_options.on_conflict, "publish")
        with counting():
            self._publish_conflicts.labels(sender.name, policy, decision.name).inc()

    def on_cancelled(self, sender: Any, **_: object) -> None:
        """Count a running call that a newer call asked to end."""
        with counting():
            self._cancellations.labels(sender.name).inc()

    def on_outage(
        self, sender: Any, decision: Decision, waited: float, **_: object
    ) -> None:
        """Count an outage, and observe the wait."""
        with counting():
            self._outages.labels(sender.name, decision.name).inc()
            self._wait.labels(sender.name, "unreachable").observe(waited)

    def on_lost(self, sender: Any, decision: Decision | None, **_: object) -> None:
        """Count a lost lock. For ``task.lock()`` there is no decision."""
        name = decision.name if decision else "none"
        with counting():
            self._losses.labels(sender.name, name).inc()

    def on_renewed(
        self, sender: Any, lease: Lease, lateness: float, **_: object
    ) -> None:
        """Observe how late a renewal was, and count it if it was very late."""
        with counting():
            self._lateness.labels(sender.name).observe(lateness)
            # Also 0 is added, so that the series exists before its first late renewal.
            late = lateness > lease.ttl * (_LATE_AT - RENEW_AT)
            self._late.labels(sender.name).inc(late)

    def on_elected(self, term: Term, **_: object) -> None:
        """Count a term that begins."""
        with counting():
            self._elections.labels(term.lease.key).inc()
            self._terms_lost.labels(term.lease.key).inc(0)

    def on_resigned(self, term: Term, *, lost: bool, **_: object) -> None:
        """Count a term that ended by itself."""
        with counting():
            self._terms_lost.labels(term.lease.key).inc(lost)

    def on_answer(
        self, node: str, vote: Vote, latency: float | None, answer: str | None = None
    ) -> None:
        """Count the answer of a node, and observe its latency in seconds, if known.

        ``answer`` is the word for it; by default that of the kind of the vote.
        """
        with counting():
            self._answers.labels(node, answer or vote.kind.name.lower()).inc()
            if vote.kind is not VoteKind.SILENT and latency is not None:
                self._latency.labels(node).observe(latency)


_instruments: weakref.WeakKeyDictionary[CollectorRegistry, Instruments]
_instruments = weakref.WeakKeyDictionary()


def instruments_in(registry: CollectorRegistry) -> Instruments:
    """Return the one instance for this registry, which refuses a name twice."""
    with counting():
        if registry not in _instruments:
            _instruments[registry] = Instruments(registry)
        return _instruments[registry]
