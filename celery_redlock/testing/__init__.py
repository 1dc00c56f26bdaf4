"""Try your locks without a server: fake nodes, a fake clock, recorded signals.

::

    nodes = FakeNodes(5)
    redlock = nodes.redlock(ttl=10)
    lease = redlock.acquire("report")

    nodes.freeze(0, 1, 2)
    nodes.clock.sleep(10)
    assert not lease.is_valid()

The fake nodes answer as real ones do: the same tests run on both. What is real
and costs little is ``celery_redlock.devnodes``. With pytest there are fixtures for
all of it: see ``celery_redlock.pytest_plugin``.
"""

from __future__ import annotations

from celery_redlock.testing.clock import FakeClock
from celery_redlock.testing.conversation import FakeNode
from celery_redlock.testing.faults import (
    freeze,
    held_elsewhere,
    lose_lock,
    partition,
)
from celery_redlock.testing.network import FakeNodes
from celery_redlock.testing.nodes import MemoryNode
from celery_redlock.testing.recorder import Signalled, SignalRecorder
from celery_redlock.testing.results import assert_skipped

__all__ = [
    "FakeClock",
    "FakeNode",
    "FakeNodes",
    "MemoryNode",
    "SignalRecorder",
    "Signalled",
    "assert_skipped",
    "freeze",
    "held_elsewhere",
    "lose_lock",
    "partition",
]
