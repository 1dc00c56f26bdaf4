"""The watchdog, step by step: renewals, failures, losses, and the end of a watch."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.errors import LockCancelled
from celery_redlock.line.cancel_requests import ask_to_end
from celery_redlock.locks.lease import LeaseState
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.lock.support import (
    TTL,
    VALIDITY,
    Stepped,
    Told,
    asked,
    forget,
    holders,
    put,
    ttls,
)

if TYPE_CHECKING:
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.wire.requests import ScriptRequest


# -- renewals --------------------------------------------------------------------------


def test_renewal_comes_at_a_third_of_the_ttl(
    redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Each comes a third of the ttl after the one before; the lease stays valid."""
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
    """A slow acquire, or a slow renewal, does not delay the next one."""
    nodes.latency(0.04)
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed)

    watchdog.run_for(clock, 6.9)

    assert told.instants == pytest.approx([10 / 3 + 0.04, 20 / 3 + 0.04], abs=0.001)


def test_renewal_reports_how_late_it_was(
    redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """After a pause of 2 s the renewal is 2 s late, and the callback gets that."""
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
    """Lateness counts from a third of the ttl, and not from the last try."""
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
    """A hundred leases take the time of one."""
    leases = [redlock.acquire(f"k{number}") for number in range(100)]
    for lease in leases:
        watchdog.watch(lease, on_renewed=told.on_renewed)
    nodes.latency(0.04)

    watchdog.run_for(clock, TTL / 3 + 0.05)

    assert [lease for lease, _, _ in told.renewed] == leases
    assert set(told.instants) == {told.instants[0]}


def test_renewal_of_many_leases_lets_other_requests_in_between(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """At most 256 are sent at once; all leases are renewed."""
    leases = [redlock.acquire(f"k{number}") for number in range(600)]
    for lease in leases:
        watchdog.watch(lease, on_renewed=told.on_renewed)
    clock.advance(TTL / 3 + 0.001)
    nodes.asked.clear()

    watchdog.step()

    assert asked(nodes).count("extend") == 256
    watchdog.run_for(clock, 1.0)
    assert {lease for lease, _, _ in told.renewed} == set(leases)


def test_leases_of_all_ttls_are_renewed_in_their_own_time(
    redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """A short lease does not wait for a long one that came first."""
    long, short = redlock.acquire("long", 60.0), redlock.acquire("short", 1.5)
    watchdog.watch(long, on_renewed=told.on_renewed)
    watchdog.watch(short, on_renewed=told.on_renewed)

    watchdog.run_for(clock, 20.1)

    renewed = [lease for lease, _, _ in told.renewed]
    assert (renewed.count(long), renewed.count(short)) == (1, 40)


def test_renewal_restores_a_lock_that_a_majority_forgot(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """The restore is part of the same renewal."""
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
    """Nothing is sent, not even by ``renew_now``."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, renew=False)
    watchdog.renew_now(lease)

    watchdog.run_for(clock, 20.0)

    assert asked(nodes) == ["acquire"]
    assert [instant for _, instant in told.lost] == pytest.approx([lease.until])


def test_renew_now_does_not_wait_for_its_time(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """It renews with the next step, and the following renewal counts from there."""
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
    """A call during a renewal sends no second one."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed)
    watchdog.step()
    nodes.latency(0.02)
    clock.at(TTL / 3 + 0.01, lambda: watchdog.renew_now(lease))

    watchdog.run_for(clock, 4.0)

    assert asked(nodes) == ["acquire", "extend"]
    assert len(told.renewed) == 1


def test_renew_now_of_an_unwatched_lease_does_nothing(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A late call is harmless."""
    lease = redlock.acquire("k")
    watchdog.renew_now(lease)

    watchdog.run_for(clock, 1.0)

    assert asked(nodes) == ["acquire"]


# -- pending releases --------------------------------------------------------------


def test_step_resends_pending_releases(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A node that was away at release gets it without another request."""
    lease = redlock.acquire("k")
    nodes.nodes[0].kill()
    redlock.release(lease)
    nodes.nodes[0].restart(keep_memory=True)
    assert holders(nodes)[0] == lease.token

    watchdog.run_for(clock, 0.3)

    assert holders(nodes) == [""] * 5


def test_step_looks_soon_for_a_late_reply(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Until it is there, a release that was refused looks like one that was done."""
    lease = redlock.acquire("k")
    nodes.mute()
    redlock.release(lease)

    assert watchdog.step() == clock.monotonic() + 0.25
    nodes.heal()
    watchdog.step()
    assert watchdog.step() is None


def test_step_with_nothing_to_do_is_not_needed_again(watchdog: Stepped) -> None:
    """Without a lease and a pending release, the thread sleeps."""
    assert watchdog.step() is None


# -- renewals that fail ----------------------------------------------------------------


def test_renewal_that_failed_is_tried_again_sooner(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """It is tried a twelfth of the ttl after each failure, until it succeeds."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    for node in nodes.nodes[:3]:
        node.kill()
    nodes.asked.clear()

    watchdog.run_for(clock, 6.0)  # at 3.33, 4.17, 5.00, 5.83
    assert asked(nodes).count("extend") == 4
    for node in nodes.nodes[:3]:
        node.is_running = True  # the same process can be reached again
    watchdog.run_for(clock, 5.0)  # at 6.67, 10.0

    again = TTL / 3 + 4 * TTL / 12
    assert told.instants == pytest.approx([again, again + TTL / 3], abs=0.001)
    assert told.lost == []


def test_renewal_that_failed_is_logged(
    nodes: FakeNodes,
    redlock: Redlock,
    watchdog: Stepped,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning names the lock, the reasons, and the time that is left."""
    watchdog.watch(redlock.acquire("k"))
    for node in nodes.nodes[:3]:
        node.kill()

    with caplog.at_level(logging.WARNING, "celery_redlock.locks.watchdog"):
        watchdog.run_for(clock, 3.5)

    (record,) = caplog.records
    assert (
        "The lock 'k' (fence 1800000030000001) could not be renewed" in record.message
    )
    assert "node-1:6379/0 refused the connection" in record.message
    assert record.message.endswith("It is valid for 6.6 s more.")


def test_failed_renewals_are_one_line_a_minute(
    nodes: FakeNodes,
    redlock: Redlock,
    watchdog: Stepped,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The line names one lock and counts the others; each is a line at DEBUG."""
    for number in range(3):
        watchdog.watch(redlock.acquire(f"k{number}"))
    nodes.partition(0, 1, 2)

    with caplog.at_level(logging.DEBUG, "celery_redlock.locks.watchdog"):
        watchdog.run_for(clock, 9.0)

    failed = [r for r in caplog.records if "could not be renewed" in r.message]
    levels = [record.levelname for record in failed]
    assert len(failed) > 6
    assert levels == ["WARNING"] + ["DEBUG"] * (len(failed) - 1)

    clock.advance(60.0)
    nodes.heal()
    watchdog.watch(redlock.acquire("later"))
    nodes.partition(0, 1, 2)
    with caplog.at_level(logging.WARNING, "celery_redlock.locks.watchdog"):
        watchdog.run_for(clock, 4.0)

    others = f"{len(failed) - 1} other renewals failed since the last report."
    assert caplog.messages[-1].endswith(others)


def test_renewal_that_hangs_is_followed_by_the_next(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Each waits one node time-out; if nodes answer in time, the lease goes on."""
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
    """If a majority names another holder, the lease still ends with its validity."""
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
    """The error is logged; this lease and all others are kept and announced."""
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
    """Nodes whose transport other threads use until an instant.

    Attributes:
        send_at: When requests with a deadline can be sent.
        read_at: When replies can be read.
    """

    send_at = read_at = 0.0

    def send(self, *requests: ScriptRequest, until: float | None = None) -> bool:
        """Wait for the other threads, and give up at the deadline."""
        if until is not None and not self._has_turn(self.send_at, until):
            return False
        return super().send(*requests, until=until)

    def wait(
        self, *requests: ScriptRequest, until: float, give_up_at: float = math.inf
    ) -> bool:
        """Wait for the other threads, and give up reading nothing."""
        return self._has_turn(self.read_at, give_up_at) and super().wait(
            *requests, until=until
        )

    def _has_turn(self, at: float, give_up_at: float) -> bool:
        clock = self.clock
        assert isinstance(clock, FakeClock)
        now = clock.monotonic()
        clock.advance(max(0.0, min(at, give_up_at) - now))
        return clock.monotonic() >= at


@pytest.fixture
def busy(clock: FakeClock) -> Busy:
    """Give five nodes whose replies take 10 ms."""
    busy = Busy(5, clock=clock)
    busy.latency(0.01)
    return busy


def test_nodes_have_their_time_from_when_a_renewal_is_sent(
    busy: Busy, told: Told, clock: FakeClock
) -> None:
    """The time for which other threads use the transport is no silence of the nodes."""
    redlock = busy.redlock(ttl=TTL)
    watchdog = Stepped(redlock)
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed, on_lost=told.on_lost)
    busy.send_at = 1005.0

    watchdog.run_for(clock, 6.0)

    assert told.instants == pytest.approx([5.01], abs=0.001)
    assert asked(busy).count("extend") == 1


def test_replies_are_read_before_a_renewal_is_judged(
    busy: Busy, told: Told, clock: FakeClock
) -> None:
    """Also if other threads use the transport beyond the deadline of the nodes."""
    redlock = busy.redlock(ttl=TTL)
    watchdog = Stepped(redlock)
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed, on_lost=told.on_lost)
    other = redlock.acquire("other", 6.0)  # to be looked at while the other one waits
    watchdog.watch(other, on_lost=told.on_lost, renew=False)
    busy.read_at = 1006.5

    watchdog.run_for(clock, 6.6)

    assert told.instants == pytest.approx([6.5], abs=0.001)
    assert [lost for lost, _ in told.lost] == [other]
    assert told.lost[0][1] == pytest.approx(other.until)
    assert asked(busy).count("extend") == 1


def test_direct_renewal_reads_replies_before_it_is_judged(
    busy: Busy, clock: FakeClock
) -> None:
    """``extend`` has no deadline of its own, so it waits for other threads."""
    redlock = busy.redlock(ttl=TTL)
    lease = redlock.acquire("k")
    busy.read_at = clock.monotonic() + 1.0

    assert redlock.extend(lease)


def test_loss_is_announced_in_time_while_the_transport_is_busy(
    busy: Busy, told: Told, clock: FakeClock
) -> None:
    """Whether the renewal waits to be sent or to be read."""
    redlock = busy.redlock(ttl=TTL)
    watchdog = Stepped(redlock)
    unsent, unread = redlock.acquire("unsent"), redlock.acquire("unread", 9.0)
    for lease in (unsent, unread):
        watchdog.watch(lease, on_renewed=told.on_renewed, on_lost=told.on_lost)
    busy.read_at = 1030.0
    clock.at(3.1, lambda: setattr(busy, "send_at", 1030.0))

    watchdog.run_for(clock, 25.0)

    assert [lease for lease, _ in told.lost] == [unread, unsent]
    instants = [instant for _, instant in told.lost]
    assert instants == pytest.approx([unread.until, unsent.until])
    assert told.renewed == []


def test_losses_are_announced_in_time_behind_many_renewals(
    busy: Busy, told: Told, clock: FakeClock
) -> None:
    """More leases are due than are renewed at once, and the transport is busy."""
    redlock = busy.redlock(ttl=TTL)
    watchdog = Stepped(redlock)
    leases = [redlock.acquire(f"k{number}") for number in range(300)]
    for lease in leases:
        watchdog.watch(lease, on_lost=told.on_lost)
    busy.read_at = 1060.0

    watchdog.run_for(clock, 20.0)

    late = [instant - lease.until for lease, instant in told.lost]
    assert len(late) == 300
    assert max(late) < 0.001


def test_restore_waits_for_a_busy_transport_until_the_next_loss(
    busy: Busy, told: Told, clock: FakeClock
) -> None:
    """It waits no longer, or the loss would be announced late."""
    redlock = busy.redlock(ttl=TTL)
    watchdog = Stepped(redlock)
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    forget(busy, 0, 1, 2)
    clock.at(TTL / 3 - 0.005, lambda: setattr(busy, "send_at", 1030.0))

    watchdog.run_for(clock, 12.0)

    assert asked(busy)[-1] == "extend"
    assert [instant for _, instant in told.lost] == pytest.approx([lease.until])


# -- losses ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["freeze", "partition", "mute", "kill"])
def test_loss_is_announced_at_the_end_of_validity(
    nodes: FakeNodes, watchdog: Stepped, told: Told, clock: FakeClock, how: str
) -> None:
    """Exactly then and exactly once, for every kind of failure."""
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
    """The end of validity is a local deadline: no node can delay it."""
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
    """A lease that ended is never resurrected; its loss was announced."""
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
    """A process that was paused beyond the end does not try to renew first."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost)
    watchdog.step()
    clock.advance(60.0)
    nodes.asked.clear()

    watchdog.step()

    assert [lost for lost, _ in told.lost] == [lease]
    assert asked(nodes) == []


def test_loss_is_logged(
    redlock: Redlock,
    watchdog: Stepped,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has a warning, even without a callback. The holder raises the error."""
    watchdog.watch(redlock.acquire("k"), renew=False)

    with caplog.at_level(logging.WARNING, "celery_redlock.locks.watchdog"):
        watchdog.run_for(clock, TTL)

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("The lock 'k' (ttl 10 s) was lost")


def test_losses_are_announced_in_their_order(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Each loss is announced at its own end."""
    leases = [redlock.acquire(f"k{ttl}", ttl) for ttl in (5.0, 1.0, 3.0)]
    for lease in leases:
        watchdog.watch(lease, on_lost=told.on_lost)
    nodes.partition()

    watchdog.run_for(clock, 10.0)

    in_order = sorted(leases, key=lambda lease: lease.until)
    assert [lost for lost, _ in told.lost] == in_order
    for lost, instant in told.lost:
        assert lost.until <= instant <= lost.until + 0.001


# -- forget ----------------------------------------------------------------------------


def test_forgotten_lease_is_renewed_no_more(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Forget returns True once; after it, nothing is sent or announced."""
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
    """Forget returns False."""
    assert not watchdog.forget(redlock.acquire("k"))


def test_forget_after_the_loss_returns_false(
    redlock: Redlock, watchdog: Stepped, told: Told, clock: FakeClock
) -> None:
    """Either ``forget`` returns True, or ``on_lost`` is called."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=told.on_lost, renew=False)
    watchdog.run_for(clock, TTL)

    assert not watchdog.forget(lease)
    assert len(told.lost) == 1


def test_forget_while_the_loss_is_announced_loses(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A call of ``forget`` inside ``on_lost`` comes too late."""
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
    """After a ``forget`` no loss is announced, even if the validity has ended."""
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
    """A lock that is released during its renewal is not restored."""
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_renewed=told.on_renewed)
    watchdog.step()
    forget(nodes, 0, 1, 2)
    nodes.latency(0.02)

    def end() -> None:
        watchdog.forget(lease)
        redlock.release(lease)

    clock.at(TTL / 3 + 0.01, end)
    watchdog.run_for(clock, 5.0)

    assert asked(nodes) == ["acquire", "extend", "release"]
    assert holders(nodes) == [""] * 5
    assert told.renewed == []


# -- requests to end -------------------------------------------------------------------


WHO = "job[newcomer]"


def cancel(redlock: Redlock, who: str = WHO) -> int:
    """Ask the holder to end."""
    holder = redlock.inspect("k").holder
    assert holder is not None
    return ask_to_end(redlock, "k", holder, who)


def test_request_to_end_arrives_with_the_next_renewal_and_once(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A second request changes nothing: the holder knows already."""
    told: list[str] = []
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_cancelled=lambda lease: told.append(lease.cancelled_by))
    watchdog.run_for(clock, 1.0)

    assert cancel(redlock) >= redlock.quorum
    assert told == []
    watchdog.run_for(clock, TTL / 3)
    cancel(redlock, "job[another]")
    watchdog.run_for(clock, TTL)

    assert told == [WHO]


def test_request_to_end_leaves_the_lease_valid_and_renewed(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """No other client takes the lock: its holder ends and releases it."""
    lost: list[Lease] = []
    lease = redlock.acquire("k")
    watchdog.watch(lease, on_lost=lost.append)
    cancel(redlock)

    watchdog.run_for(clock, 5 * TTL)

    assert lease.is_valid()
    assert lost == []
    with pytest.raises(LockCancelled, match="newcomer") as caught:
        lease.ensure()
    assert (caught.value.by, caught.value.key) == (WHO, "k")
    assert redlock.release(lease) >= redlock.quorum


def test_renew_every_renews_more_often(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """``renew_every`` limits the delay of a request to end."""
    instants: list[float] = []
    lease = redlock.acquire("k")
    watchdog.watch(
        lease,
        renew_every=1.0,
        on_renewed=lambda _, __: instants.append(clock.monotonic() - 1000.0),
    )

    watchdog.run_for(clock, 4.5)

    assert instants == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.01)


def test_renew_every_does_not_make_a_renewal_late(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A renewal is late only after a third of the ttl."""
    latenesses: list[float] = []
    lease = redlock.acquire("k")
    watchdog.watch(
        lease, renew_every=1.0, on_renewed=lambda _, late: latenesses.append(late)
    )
    watchdog.run_for(clock, 0.9)
    clock.advance(2.0)

    watchdog.run_for(clock, 2.0)

    assert latenesses[0] == 0.0


def test_request_to_end_arrives_though_most_nodes_forgot(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """They are restored; the node that remembers names the newcomer."""
    lease = redlock.acquire("k")
    watchdog.watch(lease)
    cancel(redlock)
    forget(nodes, 1, 2)

    watchdog.run_for(clock, TTL / 2)

    assert lease.cancelled_by == WHO
    assert lease.is_valid()
