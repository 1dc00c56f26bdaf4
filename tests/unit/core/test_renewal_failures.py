"""A renewal that fails is tried again and told, and ends nothing before its time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.lease import LeaseState
from celery_redlock.testing import FakeNodes
from tests.unit.core.support import (
    TTL,
    VALIDITY,
    Stepped,
    Told,
    asked,
    forget,
    holders,
    put,
)

if TYPE_CHECKING:
    from celery_redlock.core.question import Question
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock


def test_renewal_that_failed_is_tried_again_sooner(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A twelfth of the ttl after each failure; with success all is as before."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    for node in nodes.nodes[:3]:
        node.kill()
    nodes.asked.clear()

    watchdog.run_for(clock, 6.0)  # at 3.33, 4.17, 5.00, 5.83
    assert asked(nodes).count("extend") == 4
    for node in nodes.nodes[:3]:
        node.restart(keep_memory=True)
    watchdog.run_for(clock, 5.0)  # at 6.67, 10.0

    again = TTL / 3 + 4 * TTL / 12
    assert told.instants == pytest.approx([again, again + TTL / 3], abs=0.001)
    assert told.lost == []


def test_renewal_that_failed_is_told_to_operators(
    nodes: FakeNodes,
    redlock: Redlock,
    watchdog: Stepped,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which lock, why, and how much time is left: a guarantee has weakened."""
    watchdog.watch(redlock.acquire("k"))
    for node in nodes.nodes[:3]:
        node.kill()

    with caplog.at_level(logging.WARNING, "celery_redlock.renewal"):
        watchdog.run_for(clock, 3.5)

    (record,) = caplog.records
    assert (
        "The lock 'k' (fence 1800000000000001) could not be renewed" in record.message
    )
    assert "node-1:6379/0 refused the connection" in record.message
    assert record.message.endswith("It is valid for 6.6 s more.")


def test_renewal_that_hangs_is_given_up_for_the_next(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """One node time-out each; thawed in time, the lease goes on."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    nodes.freeze(0, 1, 2)
    clock.at(7.0, nodes.thaw)

    watchdog.run_for(clock, 9.0)

    assert told.lost == []
    assert len(told.renewed) == 1
    assert lease.is_valid()


def test_refused_renewal_is_no_loss_before_its_time(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A majority names another: the lease still ends when its validity does."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost)
    for index in range(5):
        put(nodes, index, "other.1", ttl_ms=100_000)

    watchdog.run_for(clock, VALIDITY - 0.001)
    assert told.lost == []
    watchdog.run_for(clock, 0.002)
    assert [lost for lost, _ in told.lost] == [lease]
    assert holders(nodes) == ["other.1"] * 5


def fail(*_: Any) -> None:
    """Raise, as a user's callback may."""
    raise ValueError("a mistake")


def test_callbacks_that_raise_end_nothing(
    redlock: Redlock,
    watchdog: Stepped,
    told: Told,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The mistake is logged; this lease and all others are kept and announced."""
    first, second = redlock.acquire("a"), redlock.acquire("b")
    third = redlock.acquire("c")
    watchdog.watch(first, on_renewed=fail)
    watchdog.watch(second, on_renewed=told.on_renewed, on_lost=told.on_lost)
    watchdog.watch(third, on_lost=fail, renew=False)

    watchdog.run_for(clock, 25.0)

    assert first.is_valid()
    assert second.is_valid()
    assert len(told.renewed) == 7
    assert third.state is LeaseState.LOST
    assert caplog.text.count("raised an error") == 7 + 1


class Busy(FakeNodes):
    """Nodes on whose line others talk."""

    busy = 0
    deadlines: tuple[float, ...] = ()

    def send(self, *questions: Question, until: float | None = None) -> bool:
        """Refuse as many times as was said, where somebody has a deadline."""
        self.deadlines += () if until is None else (until,)
        if until is not None and self.busy:
            self.busy -= 1
            return False
        return super().send(*questions, until=until)


def test_busy_line_is_a_renewal_that_failed(told: Told, clock: FakeClock) -> None:
    """Where others talk until the deadline, it is tried again; no loss comes late."""
    nodes = Busy(5, clock=clock)
    redlock = nodes.redlock(ttl=TTL)
    watchdog = Stepped(redlock)
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed, on_lost=told.on_lost)
    nodes.busy = 2

    watchdog.run_for(clock, 6.0)
    again = TTL / 3 + 2 * TTL / 12
    assert told.instants == pytest.approx([again], abs=0.001)

    nodes.busy = 1000
    watchdog.run_for(clock, 30.0)
    assert [instant for _, instant in told.lost] == pytest.approx([lease.until])
    assert max(nodes.deadlines) == pytest.approx(lease.until)


def test_restore_waits_for_its_turn_until_the_next_loss(clock: FakeClock) -> None:
    """Not for as long as nodes may take: others talk, and the loss was told late."""
    nodes = Busy(5, clock=clock)
    redlock = nodes.redlock(ttl=TTL, node_timeout=3.0)
    watchdog = Stepped(redlock)
    lease = redlock.acquire("k")
    watchdog.watch(lease)
    ends = lease.until
    forget(nodes, 0, 1, 2)
    nodes.busy = 7  # up to 9.17 s

    watchdog.run_for(clock, 9.5)

    assert asked(nodes)[-1] == "restore"
    assert max(nodes.deadlines) == pytest.approx(ends)
