"""A lease that is forgotten is renewed no more, or was lost before: one of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.lease import LeaseState
from tests.unit.core.support import TTL, Stepped, Told, asked, forget, holders

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_forgotten_lease_is_renewed_no_more(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """True the first time; then nothing is sent and nothing announced."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    watchdog.run_for(clock, 1.0)
    nodes.asked.clear()

    assert watchdog.forget(lease)
    assert not watchdog.forget(lease)
    watchdog.run_for(clock, 30.0)

    assert asked(nodes) == []
    assert (told.lost, told.renewed) == ([], [])
    assert lease.state is LeaseState.HELD


def test_forget_of_a_lease_that_was_never_watched(
    redlock: Redlock, watchdog: Stepped
) -> None:
    """There is nothing to take out."""
    assert not watchdog.forget(redlock.acquire("k"))


def test_forget_after_the_loss_says_so(
    redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Exactly one of both: ``forget`` returns True, or ``on_lost`` is called."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, renew=False)
    watchdog.run_for(clock, TTL)

    assert not watchdog.forget(lease)
    assert len(told.lost) == 1


def test_forget_while_the_loss_is_announced_loses(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Who asks in the moment of the announcement comes too late."""
    lease = redlock.acquire("k")
    answers = []
    watchdog.watch(
        lease, on_lost=lambda lost: answers.append(watchdog.forget(lost)), renew=False
    )

    watchdog.run_for(clock, TTL)

    assert answers == [False]


def test_forget_at_the_end_of_validity_wins(
    redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Who asks before the announcement is not told of a loss afterwards."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost)
    watchdog.step()
    clock.advance(TTL)

    assert watchdog.forget(lease)
    watchdog.step()

    assert told.lost == []
    assert lease.state is LeaseState.HELD


def test_forget_during_a_renewal_sends_no_restore(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Released while the renewal was on its way: nothing brings the lock back."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed)
    watchdog.step()
    forget(nodes, 0, 1, 2)
    nodes.latency(0.02)

    def let_go() -> None:
        watchdog.forget(lease)
        redlock.release(lease)

    clock.at(TTL / 3 + 0.01, let_go)
    watchdog.run_for(clock, 5.0)

    assert asked(nodes) == ["acquire", "extend", "release"]
    assert holders(nodes) == [""] * 5
    assert told.renewed == []
