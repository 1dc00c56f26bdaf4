"""Acquire: what it asks for, what it returns, and what it leaves when it does not."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.lease import Holder, LeaseState, new_base
from celery_redlock.errors import (
    ConfigurationError,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.testing import FakeNodes
from tests.unit.core.support import NOBODY, TTL, asked, holders, ttls

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock


def test_acquire_returns_a_lease_that_all_nodes_granted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """One round trip; every node names its token for the ttl."""
    lease = redlock.acquire("k")

    assert lease.is_valid()
    assert (lease.key, lease.ttl, lease.votes) == ("k", TTL, 5)
    assert lease.state is LeaseState.HELD
    assert holders(nodes) == [lease.token] * 5
    assert ttls(nodes) == [10_000] * 5
    assert asked(nodes) == ["acquire"]


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(None, 10.0), (2.5, 2.5), (timedelta(seconds=40), 40.0)]
)
def test_acquire_asks_for_the_ttl(
    nodes: FakeNodes, redlock: Redlock, ttl: Any, seconds: float
) -> None:
    """The service's by default; seconds or a timedelta."""
    lease = redlock.acquire("k", ttl)

    assert lease.ttl == seconds
    assert ttls(nodes) == [seconds * 1000] * 5


def test_acquire_stores_who_holds_it(nodes: FakeNodes, redlock: Redlock) -> None:
    """The token begins with the given base and the facts are told to others."""
    base = new_base()
    facts = Holder("", task="t", task_id="id", host="h", pid=3, started=4.5)

    lease = redlock.acquire("k", base=base, facts=facts)

    assert lease.token.startswith(f"{base}.")
    holder = redlock.inspect("k").holder
    assert holder == Holder(lease.token, lease.fence, "t", "id", "h", 3, 4.5)


def test_acquire_tells_of_this_process_by_default(
    redlock: Redlock, clock: FakeClock
) -> None:
    """Without facts: this host and process, and the wall clock."""
    redlock.acquire("k")

    holder = redlock.inspect("k").holder
    here = Holder.here(started=clock.wall_us() / 1e6)
    assert holder is not None
    assert (holder.host, holder.pid, holder.started) == (
        here.host,
        here.pid,
        here.started,
    )


@pytest.mark.parametrize("count", range(1, 8))
def test_minority_may_be_down(count: int) -> None:
    """With N nodes, N − (N // 2 + 1) may be gone and one more may not."""
    nodes = FakeNodes(count)
    redlock = nodes.redlock()
    spare = count - redlock.quorum
    for node in nodes.nodes[:spare]:
        node.kill()

    lease = redlock.acquire("a")

    assert lease.votes == redlock.quorum == count // 2 + 1
    nodes.nodes[spare].kill()
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("b")


def test_interrupted_acquire_lets_go(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A time limit, or Ctrl-C, between question and answer leaves no lock."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    nodes.latency(0.01)
    clock.at(0.005, interrupt)

    with pytest.raises(KeyboardInterrupt):
        redlock.acquire("k")

    assert asked(nodes) == ["acquire", "release"]
    assert holders(nodes) == NOBODY


def test_errors_of_acquire_have_one_ancestor(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock
) -> None:
    """Whatever the reason, "not now" is one ``except``."""
    rival.acquire("held")
    with pytest.raises(LockUnavailable):
        redlock.acquire("held")
    nodes.partition()
    with pytest.raises(LockUnavailable):
        redlock.acquire("k")


# -- bad input -------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "two\nlines"])
def test_key_must_be_one_line(nodes: FakeNodes, redlock: Redlock, key: str) -> None:
    """Nothing is sent for a key that would break the value or the names of keys."""
    with pytest.raises(ConfigurationError, match="must be one line of text"):
        redlock.acquire(key)

    assert asked(nodes) == []


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, 60.1, 0.15, True, "10"])
def test_ttl_must_fit(nodes: FakeNodes, redlock: Redlock, ttl: Any) -> None:
    """Above three node time-outs and not above max_ttl; nothing is sent otherwise."""
    with pytest.raises(ConfigurationError, match="ttl"):
        redlock.acquire("k", ttl)

    assert asked(nodes) == []


# -- waiting ---------------------------------------------------------------------


def test_acquire_waits_for_the_holder(
    redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """It is had soon after it was released."""
    lease = rival.acquire("k")
    clock.at(3.0, lambda: rival.release(lease))

    mine = redlock.acquire("k", wait=5.0)

    assert 3.0 <= clock.monotonic() - 1000.0 <= 3.0 + 0.25
    assert mine.token != lease.token


def test_acquire_gives_up_when_its_wait_is_over(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Not later than it was told, and not much sooner."""
    rival.acquire("k")

    with pytest.raises(LockHeld):
        redlock.acquire("k", wait=2.0)

    assert 2.0 - 0.25 <= clock.monotonic() - 1000.0 <= 2.0
    assert all(0 < pause <= 0.25 for pause in clock.slept)
    assert asked(nodes).count("acquire") == len(clock.slept) + 1


def test_acquire_polls_short_locks_more_often(
    redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """The longest pause is a tenth of the ttl where somebody has the lock."""
    rival.acquire("k")

    with pytest.raises(LockHeld):
        redlock.acquire("k", ttl=1.0, wait=3.0)

    assert 0.05 < max(clock.slept) <= 0.1


def test_acquire_waits_for_nodes_to_come_back(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """``wait`` is for whatever keeps it from being granted."""
    nodes.freeze(0, 1, 2)
    clock.at(3.0, nodes.thaw)

    lease = redlock.acquire("k", wait=5.0)

    assert 3.0 <= clock.monotonic() - 1000.0 < 4.0
    assert lease.is_valid()
