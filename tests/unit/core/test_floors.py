"""Where too few others can tell their fences, the clock of the node is the floor."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_redlock.testing import FakeNodes
from tests.unit.core.support import OVER, args_of, asked, counters, restart, voting

if TYPE_CHECKING:
    import pytest

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock


def test_restarted_majority_sets_floors(
    nodes: FakeNodes,
    redlock: Redlock,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When r others cannot be had: TIME is the floor, and the log warns."""
    lease = redlock.acquire("k")
    redlock.release(lease)
    restart(nodes, 0, 1, 2)
    redlock.check()
    clock.advance(OVER)

    with caplog.at_level(logging.WARNING, "celery_redlock.guard"):
        after = redlock.acquire("k")

    assert after.fence > lease.fence
    assert counters(nodes, b"floor")[0] == clock.wall_us()
    assert "The order of fences across this moment rests on clocks" in caplog.text
    assert "Node node-1:6379/0 votes again" in caplog.text


def test_single_node_sets_its_floor(clock: FakeClock) -> None:
    """N = 1: there are no others to ask."""
    nodes = FakeNodes(1, clock=clock)
    redlock = nodes.redlock()
    lease = redlock.acquire("k")
    nodes.nodes[0].restart()
    redlock.check()
    clock.advance(OVER)

    assert redlock.acquire("k").fence > lease.fence


def test_floor_is_set_when_others_were_silent_for_a_max_ttl(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Nodes that are gone for good do not keep the restarted one out for ever."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.nodes[1].kill()
    nodes.nodes[2].kill()

    redlock.check()
    clock.advance(60.0)
    redlock.check()
    assert not voting(redlock)[0]
    clock.advance(0.3)
    redlock.check()

    assert [args[1] for args in args_of(nodes, "sync")] == [1]
    assert voting(redlock) == [True, False, False, True, True]


def test_silence_of_long_ago_does_not_set_a_floor(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Another process recovered the node; years later, silence begins anew."""
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)
    nodes.partition(1, 2)
    redlock.check()  # sees the silence
    nodes.heal()
    rival.check()  # recovers the node
    assert voting(redlock)[0]
    clock.advance(3600.0)
    redlock.acquire("a")
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)

    nodes.partition(1, 2)
    redlock.check()

    assert "sync" not in asked(nodes)
