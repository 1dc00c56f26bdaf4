"""The watchdog, step by step: what it renews, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.core.support import (
    TTL,
    VALIDITY,
    Stepped,
    Told,
    asked,
    forget,
    holders,
    ttls,
)

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_renewal_comes_at_a_third_of_the_ttl(
    redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """And again a third after each; the lease stays valid all the time."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)

    watchdog.run_for(clock, 34.0)

    thirds = [TTL / 3 * number for number in range(1, 11)]
    assert told.instants == pytest.approx(thirds, abs=0.001)
    assert lease.remaining() > VALIDITY - TTL / 3
    assert told.lost == []


def test_renewal_counts_from_the_start_of_the_attempt(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A slow acquire, and a slow renewal, do not put off the next one."""
    nodes.latency(0.04)
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed)

    watchdog.run_for(clock, 6.9)

    assert told.instants == pytest.approx([10 / 3 + 0.04, 20 / 3 + 0.04], abs=0.001)


def test_renewal_tells_how_late_it_was(
    redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A process that was paused for 2 s renews 2 s late and says so."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed)
    watchdog.run_for(clock, TTL / 3 - 0.1)
    clock.advance(2.1)
    watchdog.run_for(clock, 4.0)

    latenesses = [lateness for _, lateness, _ in told.renewed]
    assert latenesses == pytest.approx([2.0, 0.0], abs=0.001)


def test_renewal_that_failed_before_is_late(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """It counts from when it should have been renewed, and not from the last try."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed)
    nodes.partition(0, 1, 2)
    watchdog.run_for(clock, 6.0)
    nodes.heal()
    watchdog.run_for(clock, 2.0)

    ((_, lateness, instant), *_) = told.renewed
    assert lateness == pytest.approx(instant - 1000.0 - TTL / 3, abs=0.01)
    assert lateness > 2.0


def test_renewal_is_one_exchange_for_all_leases(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A hundred leases cost the time of one."""
    leases = [redlock.acquire(f"k{number}") for number in range(100)]
    for lease in leases:
        watchdog.watch(lease, on_renewed=told.on_renewed)
    nodes.latency(0.04)

    watchdog.run_for(clock, TTL / 3 + 0.05)

    assert [lease for lease, _, _ in told.renewed] == leases
    assert set(told.instants) == {told.instants[0]}


def test_renewal_of_very_many_lets_others_get_in_between(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """At most 256 at once; all of them get their turn."""
    leases = [redlock.acquire(f"k{number}") for number in range(600)]
    for lease in leases:
        watchdog.watch(lease, on_renewed=told.on_renewed)
    clock.advance(TTL / 3 + 0.001)
    nodes.asked.clear()

    watchdog.step()

    assert asked(nodes).count("extend") == 256
    watchdog.run_for(clock, 1.0)
    assert {lease for lease, _, _ in told.renewed} == set(leases)


def test_leases_of_all_lengths_are_renewed_in_their_own_time(
    redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A short one does not wait for a long one that came first."""
    long, short = redlock.acquire("long", 60.0), redlock.acquire("short", 1.5)
    watchdog.watch(long, on_renewed=told.on_renewed)
    watchdog.watch(short, on_renewed=told.on_renewed)

    watchdog.run_for(clock, 20.1)

    renewed = [lease for lease, _, _ in told.renewed]
    assert (renewed.count(long), renewed.count(short)) == (1, 40)


def test_renewal_restores_what_a_majority_forgot(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """In the background, within the same renewal."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    forget(nodes, 0, 1, 2, 3)
    nodes.latency(0.02)

    watchdog.run_for(clock, 4.0)

    assert told.instants == pytest.approx([TTL / 3 + 0.04], abs=0.001)
    assert holders(nodes) == [lease.token] * 5


# -- renew=False, renew_now ------------------------------------------------------


def test_watch_without_renewal_only_announces_the_end(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Nothing is sent, also when asked to hurry."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, renew=False)
    watchdog.renew_now(lease)

    watchdog.run_for(clock, 20.0)

    assert asked(nodes) == ["acquire"]
    assert [instant for _, instant in told.lost] == pytest.approx([lease.until])


def test_renew_now_does_not_wait_for_its_time(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """At the next step; and the time of the one after counts from there."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed)
    watchdog.run_for(clock, 1.0)
    assert asked(nodes) == ["acquire"]

    watchdog.renew_now(lease)
    watchdog.run_for(clock, 0.5)
    assert ttls(nodes) == [9500] * 5
    watchdog.run_for(clock, 4.0)

    assert told.instants == pytest.approx([1.0, 1.0 + TTL / 3], abs=0.001)
    assert [lateness for _, lateness, _ in told.renewed] == pytest.approx(
        [0.0, 0.0], abs=0.001
    )


def test_renew_now_of_a_renewal_under_way_changes_nothing(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A heartbeat that comes in that moment is answered by it."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed)
    watchdog.step()
    nodes.latency(0.02)
    clock.at(TTL / 3 + 0.01, lambda: watchdog.renew_now(lease))

    watchdog.run_for(clock, 4.0)

    assert asked(nodes) == ["acquire", "extend"]
    assert len(told.renewed) == 1


def test_renew_now_of_what_is_not_watched_does_nothing(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A heartbeat after the end is harmless."""
    lease = redlock.acquire("k")
    watchdog.renew_now(lease)

    watchdog.run_for(clock, 1.0)

    assert asked(nodes) == ["acquire"]


# -- debts -----------------------------------------------------------------------


def test_step_looks_after_debts(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A node that was away at release is told, though nobody asks for anything."""
    lease = redlock.acquire("k")
    nodes.nodes[0].kill()
    redlock.release(lease)
    nodes.nodes[0].restart(keep_memory=True)
    assert holders(nodes)[0] == lease.token

    watchdog.run_for(clock, 0.3)

    assert holders(nodes) == [""] * 5


def test_step_with_nothing_to_do_is_not_needed_again(watchdog: Stepped) -> None:
    """No lease and no debt: the thread sleeps until there is one."""
    assert watchdog.step() is None
