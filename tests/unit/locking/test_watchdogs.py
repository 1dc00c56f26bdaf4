"""Each service has one watchdog, and a block that has ended leaves it nothing."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from celery_redlock.locking import lock, watchdog_of
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.core.support import Stepped, asked, forget, holders
from tests.unit.locking.support import NOBODY, TTL

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock


def test_watchdog_is_one_for_each_service(redlock: Redlock, rival: Redlock) -> None:
    """Made on first use, and found again."""
    assert watchdog_of(redlock) is watchdog_of(redlock)
    assert watchdog_of(redlock) is not watchdog_of(rival)


def test_watchdog_is_the_services_own_by_default(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Nobody has to bring one."""
    with lock(redlock, "k") as lease:
        forgotten = watchdog_of(redlock).forget(lease)
    watchdog_of(redlock).stop()

    assert forgotten


def test_service_that_nobody_uses_is_collected() -> None:
    """What remembers watchdogs does not keep services alive."""
    redlock = FakeNodes(1).redlock()
    watchdog_of(redlock)
    remembered = weakref.ref(redlock)

    del redlock
    gc.collect()

    assert remembered() is None


def test_forgotten_lock_is_restored_nowhere(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """After the block no renewal brings it back, whatever was on its way."""
    with lock(redlock, "k", watchdog=watchdog):
        watchdog.step()
        forget(nodes, 0, 1)
        nodes.latency(0.02)
        clock.advance(TTL / 3)

    watchdog.run_for(clock, 60.0)

    assert holders(nodes) == NOBODY
    assert "restore" not in asked(nodes)
