"""How the cost grows with locks and workers, from figures that were measured.

::

    renewals per second       locks / (ttl / 3)
    grants per second         locks / seconds that a job runs
    a node's core             renewals × cost of one command + grants × cost of two
    a node's memory           locks × bytes per lock
    connections to a node     workers × processes
    broker                    duplicates under `retry` / (ttl / 2), one message each

Every node sees every lock, so more nodes in a set carry no more locks: they carry
more failures. More locks want more sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Figures", "Load", "load_of"]

TTL = 30.0  # seconds, the default
JOB = 60.0  # seconds that a job runs
PROCESSES = 8  # of a worker, each with connections of its own
DUPLICATES = 0.1  # for each running job, one in ten waits under `retry`
BUSIEST = 0.5  # of a node's core: beyond this, its answers begin to queue
_US = 1e-6


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured.

    Attributes:
        cycle_us: CPU time of one node for one acquire and its release.
        cycle_bytes, cycle_packets: What they send, both ways, to and from one node.
        lock_bytes: Memory of one lock on a node, its key included.
        renewal_us: CPU time of the holder's process for one renewal on all nodes.
        lease_bytes: Memory of one lease in the holder's process.
        message_us: CPU time of the broker for one message there and back.
    """

    cycle_us: float
    cycle_bytes: float
    cycle_packets: float
    lock_bytes: float
    renewal_us: float
    lease_bytes: float
    message_us: float


@dataclass(frozen=True, slots=True)
class Load:
    """What follows for so many locks and workers.

    Attributes:
        renewals, grants: Per second.
        node_core: Share of one core of each node.
        node_bits: Bits per second on each node's link.
        node_packets: Packets per second there.
        node_bytes: Memory on each node.
        connections: To each node.
        process_core: Share of one core that renewal takes in each process.
        broker_core: Share of the broker's core for retries.
        sets: Independent sets of nodes that keep each node below `BUSIEST`.
    """

    renewals: float
    grants: float
    node_core: float
    node_bits: float
    node_packets: float
    node_bytes: float
    connections: int
    process_core: float
    broker_core: float
    sets: int


def load_of(locks: int, workers: int, figures: Figures) -> Load:
    """Return what this many concurrent locks in this many workers cost."""
    renewals, grants = locks / (TTL / 3), locks / JOB
    # A renewal that travels alone costs what each half of a cycle does.
    cycles = renewals / 2 + grants
    node_core = cycles * figures.cycle_us * _US
    processes = workers * PROCESSES
    return Load(
        renewals=renewals,
        grants=grants,
        node_core=node_core,
        node_bits=cycles * figures.cycle_bytes * 8,
        node_packets=cycles * figures.cycle_packets,
        node_bytes=locks * figures.lock_bytes,
        connections=processes,
        process_core=renewals / processes * figures.renewal_us * _US,
        broker_core=locks * DUPLICATES / (TTL / 2) * figures.message_us * _US,
        sets=max(1, math.ceil(node_core / BUSIEST)),
    )
