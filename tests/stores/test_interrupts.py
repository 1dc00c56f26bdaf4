"""Interrupts at random, in a process whose locks are in a store."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import with_long
from tests.nodes.test_interrupts import MODES, storm

# A listener of a store has a thread, and two pairs of sockets for it.
FILES_AND_THREADS = {
    "postgresql": (20, 6),
    "etcd": (40, 12),
    "zookeeper": (40, 24),  # kazoo has three threads for each connection
}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it counts the files in /proc")
@pytest.mark.parametrize("mode", with_long(MODES, *MODES[1:]))
def test_interrupts_leave_nothing_behind_in_a_store(
    store_url: str, key: str, mode: str
) -> None:
    """No lock, waiter, thread or descriptor; others of the process lose no lease."""
    storm([store_url], key, mode, 200, FILES_AND_THREADS[store_url.partition(":")[0]])
