"""Test locks without a server: fake nodes, a fake clock, recorded signals.

::

    nodes = FakeNodes(5)
    redlock = nodes.redlock(ttl=10)
    lease = redlock.acquire("report")

    nodes.freeze(0, 1, 2)
    nodes.clock.sleep(10)
    assert not lease.is_valid()

The fake nodes reply as real ones do: one contract suite runs on both.
``celery_redlock.devnodes`` starts real servers. ``celery_redlock.pytest_plugin`` has
fixtures for all of it.

Read ``clock`` and ``network`` (fake nodes, and how they fail) first, below them
``memory_node`` (one node in memory). Tests of tasks use ``faults`` (freeze, partition,
lose a lock) and ``recorder`` (signals and results).
"""

from __future__ import annotations

from celery_redlock.testing.clock import FakeClock
from celery_redlock.testing.faults import (
    force_release,
    freeze,
    held_elsewhere,
    lose_lock,
    partition,
)
from celery_redlock.testing.memory_node import MemoryNode
from celery_redlock.testing.network import FakeNode, FakeNodes
from celery_redlock.testing.recorder import (
    Signalled,
    SignalRecorder,
    assert_skipped,
)

__all__ = [
    "FakeClock",
    "FakeNode",
    "FakeNodes",
    "MemoryNode",
    "SignalRecorder",
    "Signalled",
    "assert_skipped",
    "force_release",
    "freeze",
    "held_elsewhere",
    "lose_lock",
    "partition",
]
