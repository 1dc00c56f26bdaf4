"""A loss is announced once, at the end of validity, whatever keeps nodes silent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import LeaseState
from tests.unit.core.support import TTL, VALIDITY, Stepped, Told, asked

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


@pytest.mark.parametrize("how", ["freeze", "partition", "mute", "kill"])
def test_loss_is_announced_at_the_end_of_validity(
    nodes: FakeNodes, watchdog: Stepped, told: Told, clock: FakeClock, how: str
) -> None:
    """Exactly then, exactly once, whatever keeps it from being renewed."""
    lease = watchdog.redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    for index in range(3):
        if how == "kill":
            nodes.nodes[index].kill()
        else:
            getattr(nodes, how)(index)

    watchdog.run_for(clock, 30.0)

    ((lost, instant),) = told.lost
    assert lost is lease
    assert lease.until <= instant <= lease.until + 0.001
    assert lease.until == pytest.approx(1000.0 + VALIDITY)
    assert lease.state is LeaseState.LOST
    assert told.renewed == []


def test_loss_is_announced_while_a_renewal_is_waited_for(
    nodes: FakeNodes, told: Told, clock: FakeClock
) -> None:
    """The end of validity is a local deadline: no node can put it off."""
    redlock = nodes.redlock(ttl=10.0, node_timeout=3.0)
    watchdog = Stepped(redlock)
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    nodes.latency(2.9)
    clock.at(6.5, nodes.freeze)

    watchdog.run_for(clock, 20.0)

    # Asked at 6.7 s for 3 s and at 10.5 s for 3 s: it ends at 13.2 s.
    assert len(told.renewed) == 1
    assert [instant for _, instant in told.lost] == pytest.approx([lease.until])
    assert lease.until == pytest.approx(1000.0 + TTL / 3 + VALIDITY, abs=0.001)


def test_renewal_confirmed_after_the_end_is_a_loss_all_the_same(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A lease that ended is never resurrected; its holder was told."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    nodes.mute()
    watchdog.run_for(clock, VALIDITY + 0.01)
    nodes.heal()

    watchdog.run_for(clock, 10.0)

    assert (len(told.lost), told.renewed) == (1, [])
    assert not lease.is_valid()


def test_loss_after_a_long_pause_is_announced_at_once(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A process that slept through the end does not try to renew first."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost)
    watchdog.step()
    clock.advance(60.0)
    nodes.asked.clear()

    watchdog.step()

    assert [lost for lost, _ in told.lost] == [lease]
    assert asked(nodes) == []


def test_loss_is_told_to_operators(
    redlock: Redlock,
    watchdog: Stepped,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error in the log, also where nobody asked to be called."""
    watchdog.watch(redlock.acquire("k"), renew=False)

    with caplog.at_level(logging.ERROR, "celery_redlock.renewal"):
        watchdog.run_for(clock, TTL)

    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.message.startswith("The lock 'k' (ttl 10 s) was lost")


def test_losses_are_announced_in_their_order(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Each at its own end, however many there are."""
    leases = [redlock.acquire(f"k{ttl}", ttl) for ttl in (5.0, 1.0, 3.0)]
    for lease in leases:
        watchdog.watch(lease, on_lost=told.on_lost)
    nodes.partition()

    watchdog.run_for(clock, 10.0)

    in_order = sorted(leases, key=lambda lease: lease.until)
    assert [lost for lost, _ in told.lost] == in_order
    for lost, instant in told.lost:
        assert lost.until <= instant <= lost.until + 0.001
