"""Gauges of the nodes, of permits and of beat's leadership, read at each scrape.

A scrape asks the nodes and not the memory of this process, so the gauges are right also
in an idle process. The gauges of the leadership exist once a candidate was seen, and
those of permits if tasks of the app have limits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

from celery_redlock.app.runtime import redlock_from, runtime_of
from celery_redlock.beat import election_key
from celery_redlock.errors import ConfigurationError
from celery_redlock.operations.inspect import (
    LockStatus,
    NodeState,
    node_status,
)
from celery_redlock.operations.scan import inspect_limits, scan
from celery_redlock.options.lock_options import lock_tasks
from celery_redlock.records.standbys import leadership_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.operations.inspect import Nodes, NodeStatus
    from celery_redlock.operations.scan import Scan
    from celery_redlock.options.call_key import LimitedKey

log = logging.getLogger(__name__)

_OWN = "own"
_GAUGES = {  # name: (help text, labels)
    "build_info": (
        "1 for each process that is scraped; its labels have the versions.",
        "version",
        "celery",
        "python",
    ),
    "locks_held": (
        "Number of locks that a majority of the nodes has. Only on the page of locks.",
    ),
    "nodes": ("Number of nodes.",),
    "quorum": ("Number of nodes that are a majority.",),
    "node_up": ("1 if the node answers.", "node"),
    "node_votes": ("1 if the vote of the node counts.", "node"),
    "node_quarantine_seconds": (
        "Seconds until the node may vote again after a restart.",
        "node",
    ),
    "permits_in_use": (
        "Permits of keys of this template that calls hold at once.",
        "key",
    ),
    "permits_free": (
        "Free permits of the keys of this template that have a holder.",
        "key",
    ),
    "starts_taken": (
        "Starts of keys of this template that count in their period now.",
        "key",
    ),
    "starts_free": (
        "Starts that are possible now, of the keys of this template that had one.",
        "key",
    ),
    "leaders": ("1 if a majority of the nodes names a leader of beat.", "election"),
    "standbys": ("Number of beats that stand by.", "election"),
}


class StateCollector:
    """A collector that asks the nodes of an app at each scrape.

    A scrape makes a connection to each node. A node that hangs delays the scrape by
    two ``redlock_connect_timeout`` at most. The locks of this process never wait.

    Args:
        app: The Celery app; None if there is only a lock service. Then there are
            gauges of the nodes only.
        service: The lock service; None for that of the app.
        counts_locks: Whether each scrape reads all locks.
    """

    def __init__(
        self,
        app: Celery | None,
        service: Redlock | None = None,
        *,
        counts_locks: bool = False,
    ) -> None:
        self._app = app
        self._service = service
        self._counts_locks = counts_locks
        self._made: dict[str, Redlock] = {}
        self._has_candidates = False

    def describe(self) -> list[GaugeMetricFamily]:
        """Return all gauges without values, so that registering asks no node."""
        return [_gauge(name) for name in _GAUGES]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Ask the nodes, and yield the gauges."""
        yield _build_info()
        try:
            redlock = self._service or self._own_redlock()
        except ConfigurationError as error:
            log.error("The nodes cannot be asked: %s", error)  # noqa: TRY400  (it says all)
            return
        keys = [] if self._app is None else _limited_keys(self._app)
        # A node that hangs delays each look. So there is one for all gauges.
        is_scanned = self._counts_locks or not all(one.limits for one in keys)
        seen = scan(redlock) if is_scanned else None
        nodes = seen.nodes if seen else node_status(redlock)
        yield from _nodes(redlock, nodes)
        if self._counts_locks and seen and nodes.most_can_tell:
            yield _gauge("locks_held", len(seen.held))
        if nodes.most_can_tell:
            yield from _permits(redlock, keys, nodes, seen)
        if self._app is not None:
            yield from self._leadership(redlock, nodes)

    def close(self) -> None:
        """Close its own connections. The next scrape opens them again."""
        for own in self._made.values():
            own.close()

    def _own_redlock(self) -> Redlock:
        """Return a lock service of its own: a scrape never makes a task wait."""
        if own := self._made.get(_OWN):
            return own
        runtime = runtime_of(self._app)
        own = redlock_from(runtime.settings)
        own.asks_for_votes = runtime.redlock.asks_for_votes
        # If two scrapes come here at once, both get the same service.
        return self._made.setdefault(_OWN, own)

    def _leadership(
        self, redlock: Redlock, nodes: Nodes
    ) -> Iterator[GaugeMetricFamily]:
        found = leadership_of(redlock, election_key(self._app))
        key, status = found.lock.key, LockStatus(found.lock, nodes)
        self._has_candidates |= bool(found.leader or found.standbys)
        if self._has_candidates:
            if status.is_held is not None:
                yield _gauge("leaders", {key: status.is_held})
            if found.is_whole and nodes.most_can_tell:
                yield _gauge("standbys", {key: len(found.standbys)})


def _limited_keys(app: Celery) -> list[LimitedKey]:
    """Return the templates of the tasks of this app that have limits."""
    rules = (task.key_rule for task in lock_tasks(app))
    found = {key.label: key for rule in rules for key in rule.limited_keys()}
    return list(found.values())


def _permits(
    redlock: Redlock,
    keys: list[LimitedKey],
    nodes: Nodes,
    seen: Scan | None,
) -> Iterator[GaugeMetricFamily]:
    """Yield the gauges of limits. If a template has arguments, ``seen`` is needed."""
    labels = {limit.key: one.label for one in keys for limit in one.limits}
    fixed = tuple(limit for one in keys for limit in one.limits)
    in_use = inspect_limits(redlock, fixed, nodes) if fixed else []
    if in_use is None:
        return  # it is not known which permits have a holder
    found = [(labels[one.limit.key], one) for one in in_use]
    others = [one for one in keys if not one.limits]
    if others and seen:
        others.sort(key=lambda one: one.literals, reverse=True)
        for one in seen.limits:
            of = [o.label for o in others if o.pattern.fullmatch(one.limit.key)]
            if of and one.limit.key not in labels:
                found.append((of[0], one))
    counts: dict[str, Counter[str]] = {}
    for label, one in found:
        starts = bool(one.limit.period)
        taken = "starts_taken" if starts else "permits_in_use"
        free = "starts_free" if starts else "permits_free"
        for name, number in ((taken, one.in_use), (free, one.free)):
            counts.setdefault(name, Counter())[label] += number
    for name, values in counts.items():
        yield _gauge(name, values)


def _nodes(redlock: Redlock, nodes: Nodes) -> Iterator[GaugeMetricFamily]:
    counted = nodes.voting
    up = {seen.label: seen.state is not NodeState.SILENT for seen in nodes}
    votes = {seen.label: seen in counted for seen in nodes}
    waits = {seen.label: _wait(seen, redlock.timing.quarantine) for seen in nodes}
    yield _gauge("nodes", len(nodes))
    yield _gauge("quorum", nodes.quorum)
    yield _gauge("node_up", up)
    yield _gauge("node_votes", votes)
    yield _gauge("node_quarantine_seconds", waits)


def _wait(seen: NodeStatus, whole: float) -> float:
    if seen.state is NodeState.NEW:
        return whole  # the quarantine begins with the first request for a vote
    return seen.wait if seen.state is NodeState.QUARANTINED else 0.0


def _build_info() -> GaugeMetricFamily:
    family = _gauge("build_info")
    versions = (version("celery-redlock"), version("celery"), python_version())
    family.add_metric(versions, 1.0)
    return family


def _gauge(
    name: str, value: float | Mapping[str, float] | None = None
) -> GaugeMetricFamily:
    """Return a gauge with one value, or with one for each value of its label."""
    text, *labels = _GAUGES[name]
    family = GaugeMetricFamily(f"redlock_{name}", text, labels=labels)
    if isinstance(value, Mapping):
        for label, one in value.items():
            family.add_metric([label], float(one))
    elif value is not None:
        family.add_metric([], float(value))
    return family
