"""Try your locks without a server: fake nodes, a fake clock, recorded signals.

::

    nodes = FakeNodes(5)
    redlock = nodes.redlock(ttl=10)
    lease = redlock.acquire("report")

    nodes.freeze(0, 1, 2)
    nodes.clock.sleep(10)
    assert not lease.is_valid()

The fake nodes answer as real ones do: the same tests run on both. What is real
and costs little is ``celery_redlock.devnodes``.
"""

from __future__ import annotations

from celery_redlock.testing.clock import FakeClock
from celery_redlock.testing.conversation import FakeNode
from celery_redlock.testing.network import FakeNodes
from celery_redlock.testing.nodes import MemoryNode
from celery_redlock.testing.recorder import Signalled, SignalRecorder

__all__ = [
    "FakeClock",
    "FakeNode",
    "FakeNodes",
    "MemoryNode",
    "SignalRecorder",
    "Signalled",
]
