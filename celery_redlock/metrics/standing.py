"""How nodes and leadership stand, asked for whenever somebody scrapes.

===============================  ========  =======================================
metric                           labels    what it is
===============================  ========  =======================================
``redlock_nodes``                          how many nodes there are
``redlock_quorum``                         how many of them are a majority
``redlock_node_up``              node      1 if it answers
``redlock_node_votes``           node      1 if its vote counts
``redlock_node_quarantine_       node      seconds until it may vote again, after
seconds``                                  a restart; else 0
``redlock_leaders``              election  1 if a majority names a leader of beat
``redlock_standbys``             election  how many stand by to become it
===============================  ========  =======================================

The nodes are asked and not this process's memory: also one that is idle tells the
truth. The last two are there once any beat was seen to campaign.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client.core import GaugeMetricFamily

from celery_redlock.beat import election_key
from celery_redlock.core.examination import Standing, glance
from celery_redlock.core.redlock import Redlock
from celery_redlock.errors import ConfigurationError
from celery_redlock.leadership import leadership_of
from celery_redlock.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.examination import Glance

__all__ = ["StandingCollector"]

log = logging.getLogger("celery_redlock.metrics")

_GAUGES = {  # name: (what it is, its labels)
    "nodes": ("How many nodes there are.",),
    "quorum": ("How many nodes are a majority.",),
    "node_up": ("Whether the node answers.", "node"),
    "node_votes": ("Whether the node's vote counts.", "node"),
    "node_quarantine_seconds": ("Seconds until the node may vote again.", "node"),
    "leaders": ("Whether a majority names a leader.", "election"),
    "standbys": ("How many stand by.", "election"),
}


class StandingCollector:
    """Looks at the nodes of an app when it is asked for metrics.

    Costs a connection to each node per scrape. A node that hangs delays it by two
    ``redlock_connect_timeout`` at most; the locks of this process never wait.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._redlock: Redlock | None = None
        self._is_led = False

    def describe(self) -> list[GaugeMetricFamily]:
        """Return what there may be, so that registering asks no nodes."""
        return [_gauge(name) for name in _GAUGES]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Ask the nodes how they stand, and who leads."""
        try:
            redlock = self._redlock = self._redlock or self._own_redlock()
        except ConfigurationError as error:
            log.error("The nodes cannot be looked at: %s", error)  # noqa: TRY400  (it says all)
            return
        yield from _nodes(redlock)
        yield from self._leadership(redlock)

    def close(self) -> None:
        """Close the connections. The next scrape opens them again."""
        if self._redlock is not None:
            self._redlock.close()

    def _own_redlock(self) -> Redlock:
        """Return a service of our own: who scrapes must not make tasks wait."""
        redlock = runtime_of(self._app).redlock
        timing, guard = redlock.timing, redlock.guard
        return Redlock(
            redlock.addresses,
            ttl=timing.ttl,
            max_ttl=timing.max_ttl,
            node_timeout=timing.node_timeout,
            connect_timeout=timing.connect_timeout,
            prefix=guard.prefix,
            restart_guard=guard.enabled,
        )

    def _leadership(self, redlock: Redlock) -> Iterator[GaugeMetricFamily]:
        found = leadership_of(redlock, election_key(self._app))
        if found.ballot.answered < found.ballot.quorum:
            return  # whether somebody leads is not known
        self._is_led = self._is_led or bool(found.leader or found.standbys)
        if self._is_led:
            yield _gauge("leaders", {found.key: found.leader is not None})
            yield _gauge("standbys", {found.key: len(found.standbys)})


def _nodes(redlock: Redlock) -> Iterator[GaugeMetricFamily]:
    up, votes, waits = {}, {}, {}
    servers: set[str] = set()
    for seen in glance(redlock):
        up[seen.label] = seen.standing is not Standing.SILENT
        votes[seen.label] = _votes(seen, servers)
        waits[seen.label] = _wait(seen, redlock.timing.quarantine)
    yield _gauge("nodes", len(redlock.labels))
    yield _gauge("quorum", redlock.quorum)
    yield _gauge("node_up", up)
    yield _gauge("node_votes", votes)
    yield _gauge("node_quarantine_seconds", waits)


def _votes(seen: Glance, servers: set[str]) -> bool:
    """Tell whether the vote counts; one server under two names has one."""
    if seen.standing is not Standing.VOTES or seen.run_id in servers:
        return False
    servers.add(seen.run_id)
    return True


def _wait(seen: Glance, whole: float) -> float:
    if seen.standing is Standing.NEW:
        return whole  # it begins when the node is first asked for a vote
    return seen.wait if seen.standing is Standing.QUARANTINED else 0.0


def _gauge(
    name: str, value: float | Mapping[str, float] | None = None
) -> GaugeMetricFamily:
    """Return a family with one value, or with one for each value of its label."""
    about, *labels = _GAUGES[name]
    family = GaugeMetricFamily(f"redlock_{name}", about, labels=labels)
    if isinstance(value, Mapping):
        for label, one in value.items():
            family.add_metric([label], float(one))
    elif value is not None:
        family.add_metric([], float(value))
    return family
