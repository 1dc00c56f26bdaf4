"""Acquire: its lease, its validity, its waits, and what a failed try leaves behind."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.lease import Holder, LeaseState, drift_of, new_base
from celery_redlock.core.redlock import Redlock
from celery_redlock.errors import (
    ConfigurationError,
    LockContended,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.testing import FakeNodes
from tests.unit.core.support import FREE, TTL, asked, forget, hold, holders, ttls

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


def test_building_a_service_sends_nothing() -> None:
    """The first use sends the first request."""
    nodes = FakeNodes(3)

    Redlock(nodes.urls, transport=nodes, clock=nodes.clock)

    assert asked(nodes) == []


def test_repr_names_nodes_and_no_password() -> None:
    """The repr may end up in logs."""
    redlock = Redlock(["redis://user:secret@a:1/2", "unix:///s.sock"])

    assert repr(redlock) == "<Redlock a:1/2, /s.sock/0>"


def test_close_fails_open_requests_and_the_next_use_reconnects(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A request without a reply has failed; a closed service opens when it is used."""
    nodes.freeze(4)
    ballot = redlock.inspect("a").ballot
    assert "was closed" not in ballot.reasons()

    redlock.close()

    assert "node-5:6379/0 was closed" in ballot.reasons()
    nodes.thaw()
    assert redlock.acquire("b").votes == 5


# -- acquire ---------------------------------------------------------------------------


def test_acquire_returns_a_lease_that_all_nodes_granted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """One round trip; every node stores the token for the ttl."""
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
    """The default is the service's ttl; seconds or a timedelta replace it."""
    lease = redlock.acquire("k", ttl)

    assert lease.ttl == seconds
    assert ttls(nodes) == [seconds * 1000] * 5


def test_acquire_stores_its_holder(nodes: FakeNodes, redlock: Redlock) -> None:
    """The token begins with the given base, and other clients see the holder."""
    base = new_base()
    given = Holder("", task="t", task_id="id", host="h", pid=3, started=4.5)

    lease = redlock.acquire("k", base=base, holder=given)

    assert lease.token.startswith(f"{base}.")
    holder = redlock.inspect("k").holder
    assert holder == Holder(lease.token, lease.fence, "t", "id", "h", 3, 4.5)


def test_acquire_stores_this_process_by_default(
    redlock: Redlock, clock: FakeClock
) -> None:
    """Without a holder: this host and process, and the wall clock."""
    redlock.acquire("k")

    holder = redlock.inspect("k").holder
    here = Holder.here(started=clock.wall())
    assert holder is not None
    assert (holder.host, holder.pid, holder.started) == (
        here.host,
        here.pid,
        here.started,
    )


@pytest.mark.parametrize("count", range(1, 8))
def test_minority_may_be_down(count: int) -> None:
    """With N nodes, N − (N // 2 + 1) may be down, and not one more."""
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


def test_interrupted_acquire_releases(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A time limit, or Ctrl-C, between request and reply leaves no lock."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    nodes.latency(0.01)
    clock.at(0.005, interrupt)

    with pytest.raises(KeyboardInterrupt):
        redlock.acquire("k")

    assert asked(nodes) == ["acquire", "release"]
    assert holders(nodes) == FREE


def test_errors_of_acquire_have_one_ancestor(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock
) -> None:
    """One ``except`` catches every reason for "not now"."""
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
    """A waiting acquire gets the lock soon after its release."""
    lease = rival.acquire("k")
    clock.at(3.0, lambda: rival.release(lease))

    mine = redlock.acquire("k", wait=5.0)

    assert 3.0 <= clock.monotonic() - 1000.0 <= 3.0 + 0.25
    assert mine.token != lease.token


def test_acquire_gives_up_when_its_wait_is_over(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Acquire gives up at the end of its wait, and not much sooner."""
    rival.acquire("k")

    with pytest.raises(LockHeld):
        redlock.acquire("k", wait=2.0)

    assert 2.0 - 0.25 <= clock.monotonic() - 1000.0 <= 2.0
    assert all(0 < pause <= 0.25 for pause in clock.slept)
    assert asked(nodes).count("acquire") == len(clock.slept) + 1


def test_acquire_polls_short_locks_more_often(
    redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """While the lock is held, the longest pause is a tenth of the ttl."""
    rival.acquire("k")

    with pytest.raises(LockHeld):
        redlock.acquire("k", ttl=1.0, wait=3.0)

    assert 0.05 < max(clock.slept) <= 0.1


def test_acquire_waits_for_nodes_to_come_back(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """``wait`` also waits for nodes that do not answer."""
    nodes.freeze(0, 1, 2)
    clock.at(3.0, nodes.thaw)

    lease = redlock.acquire("k", wait=5.0)

    assert 3.0 <= clock.monotonic() - 1000.0 < 4.0
    assert lease.is_valid()


# -- validity --------------------------------------------------------------------------


def test_validity_is_the_ttl_less_the_drift(redlock: Redlock, clock: FakeClock) -> None:
    """1 % of the ttl and 2 ms are subtracted for clocks of different rates."""
    lease = redlock.acquire("k")

    assert lease.remaining() == pytest.approx(TTL - 0.1 - 0.002)
    clock.advance(TTL - 0.1 - 0.002)
    assert not lease.is_valid()


def test_validity_counts_from_before_the_first_send(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The time of the round trip is not added."""
    nodes.latency(0.03)
    before = clock.monotonic()

    lease = redlock.acquire("k")

    assert clock.monotonic() == pytest.approx(before + 0.03)
    assert lease.started_at == before
    assert lease.until == pytest.approx(before + TTL - drift_of(TTL))


def test_validity_of_a_later_try_counts_from_that_try(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Waiting for a lock costs none of its validity."""
    hold(nodes, 0, 1, 2)
    clock.at(3.0, lambda: forget(nodes, 0, 1, 2))

    lease = redlock.acquire("k", wait=5.0)

    assert clock.monotonic() - lease.started_at == 0
    assert lease.remaining() == pytest.approx(TTL - drift_of(TTL))


def test_acquire_after_a_long_pause_tries_again(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A process that was stopped between request and reply has won nothing."""
    nodes.latency(0.01)
    clock.at(0.005, lambda: clock.advance(TTL))

    lease = redlock.acquire("k")

    assert lease.is_valid()
    assert lease.started_at > 1000.0 + TTL
    assert asked(nodes) == ["acquire", "release", "acquire"]


def test_acquire_never_returns_a_lease_that_has_ended(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """After every try has ended too late: an error, and nothing is held."""
    nodes.latency(0.01)

    def stall() -> None:
        clock.advance(TTL)
        clock.at(0.002, stall)

    clock.at(0.002, stall)

    with pytest.raises(LockContended) as caught:
        redlock.acquire("k")

    assert "granted by 5 of 5 nodes, but its fence or its validity" in str(caught.value)
    assert holders(nodes) == FREE


@pytest.mark.parametrize("early", [0.0, 0.001])
def test_validity_is_checked_after_the_last_round_trip(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock, early: float
) -> None:
    """A lease is granted up to a millisecond before its end, and not at its end."""
    validity = TTL - drift_of(TTL)
    nodes.latency(0.01)
    clock.at(0.005, lambda: clock.advance(validity - 0.005 - early))

    lease = redlock.acquire("k")

    again = ["release", "acquire"] if early == 0.0 else []
    assert asked(nodes) == ["acquire", *again]
    assert lease.is_valid()
