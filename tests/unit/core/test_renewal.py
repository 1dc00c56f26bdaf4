"""The watchdog, step by step: what it renews, when, and what it says."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import LeaseState
from celery_redlock.core.renewal import Watchdog
from celery_redlock.core.timing import drift_of
from celery_redlock.testing import FakeNodes
from tests.unit.core.support import Stepped, asked, forget, holders, put, ttls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.question import Question
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock

TTL = 10.0
VALIDITY = TTL - drift_of(TTL)
SOON = 5.0  # seconds within which a thread must have done its work


class Told:
    """What a holder is told, and when."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.lost: list[tuple[Lease, float]] = []
        self.renewed: list[tuple[Lease, float, float]] = []

    def on_lost(self, lease: Lease) -> None:
        """Note a loss with its instant."""
        self.lost.append((lease, self._clock.monotonic()))

    def on_renewed(self, lease: Lease, lateness: float) -> None:
        """Note a renewal with its lateness and its instant."""
        self.renewed.append((lease, lateness, self._clock.monotonic()))

    @property
    def instants(self) -> list[float]:
        """When renewals were told, counted from the start of the test."""
        return [instant - 1000.0 for _, _, instant in self.renewed]


@pytest.fixture
def watchdog(redlock: Redlock) -> Stepped:
    """Give a watchdog without a thread."""
    return Stepped(redlock)


@pytest.fixture
def told(clock: FakeClock) -> Told:
    """Give a holder's ears."""
    return Told(clock)


# -- renewal ---------------------------------------------------------------------


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


# -- failure ---------------------------------------------------------------------


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


# -- loss ------------------------------------------------------------------------


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


# -- forget ----------------------------------------------------------------------


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


# -- what must not end it --------------------------------------------------------


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


def test_busy_line_is_a_renewal_that_failed(
    redlock: Redlock, told: Told, clock: FakeClock
) -> None:
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


# -- the thread, and forks -------------------------------------------------------


class Live:
    """A service in real time, its watchdog, and the threads of that."""

    def __init__(self) -> None:
        self._others = set(threading.enumerate())
        self.redlock = FakeNodes(3, clock=SYSTEM_CLOCK).redlock(ttl=0.3)
        self.watchdog = Watchdog(self.redlock)

    @property
    def threads(self) -> list[str]:
        """The names of threads that were started since."""
        return [t.name for t in threading.enumerate() if t not in self._others]

    def wait_for_its_end(self) -> None:
        """Wait until no thread is left."""
        for thread in set(threading.enumerate()) - self._others:
            thread.join(SOON)


@pytest.fixture
def live() -> Iterator[Live]:
    """Give a service in real time; its watchdog is stopped afterwards."""
    live = Live()
    yield live
    live.watchdog.stop()


def wait(event: threading.Event) -> None:
    """Wait for what a thread is to do."""
    assert event.wait(SOON)


def test_thread_renews_by_itself(live: Live) -> None:
    """Started with the first lease, ended by ``stop``; each of them twice."""
    assert live.threads == []
    event = threading.Event()

    lease = live.redlock.acquire("k")
    live.watchdog.watch(lease, on_renewed=lambda *_: event.set())
    live.watchdog.start()
    wait(event)

    assert live.threads == ["redlock-watchdog"]
    live.watchdog.stop()
    live.watchdog.stop()
    assert live.threads == []


def test_thread_announces_a_loss(live: Live) -> None:
    """In its own thread, not in that of the holder."""
    event, names = threading.Event(), []

    def on_lost(_: Lease) -> None:
        names.append(threading.current_thread().name)
        event.set()

    lease = live.redlock.acquire("k")
    live.watchdog.watch(lease, on_lost=on_lost, renew=False)
    wait(event)

    assert names == ["redlock-watchdog"]


def test_thread_that_was_stopped_can_be_started_again(live: Live) -> None:
    """What it watched is watched on."""
    event = threading.Event()
    lease = live.redlock.acquire("k")
    live.watchdog.watch(lease, on_lost=lambda _: event.set(), renew=False)
    live.watchdog.stop()

    live.watchdog.start()

    wait(event)


def test_thread_can_be_stopped_from_a_callback(live: Live) -> None:
    """It does not wait for itself."""
    event = threading.Event()

    def on_renewed(*_: Any) -> None:
        live.watchdog.stop()
        event.set()

    live.watchdog.watch(live.redlock.acquire("k"), on_renewed=on_renewed)
    wait(event)

    live.wait_for_its_end()
    assert live.threads == []


def test_thread_survives_what_it_did_not_expect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Others count on it: an error in one step is logged, and it renews after it."""
    nodes = Broken(3, clock=SYSTEM_CLOCK)
    redlock = nodes.redlock(ttl=1.0)
    watchdog = Watchdog(redlock)
    renewed = threading.Event()
    lease = redlock.acquire("k")
    nodes.broken = 1
    watchdog.watch(lease, on_renewed=lambda *_: renewed.set())

    wait(renewed)
    watchdog.stop()

    assert "The watchdog met an error and goes on." in caplog.text


class Broken(FakeNodes):
    """Nodes whose line fails in a way that nobody foresaw."""

    broken = 0

    def send(self, *questions: Question, until: float | None = None) -> bool:
        """Raise as many times as was said."""
        if self.broken:
            self.broken -= 1
            raise OSError("Bad file descriptor")
        return super().send(*questions, until=until)


@pytest.fixture
def forked(
    nodes: FakeNodes,
    watchdog: Stepped,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> Lease:
    """Give a lease of the parent, and let this be the child from then on."""
    lease = watchdog.redlock.acquire("parent")
    watchdog.watch(lease, on_lost=told.on_lost, on_renewed=told.on_renewed)
    watchdog.step()
    nodes.asked.clear()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    return lease


@pytest.mark.parametrize("call", ["forget", "renew_now", "start"])
def test_forked_child_has_none_of_its_parents_leases(
    nodes: FakeNodes, watchdog: Stepped, forked: Lease, clock: FakeClock, call: str
) -> None:
    """The parent renews them, and nobody does when it is gone."""
    if call == "start":
        Watchdog.start(watchdog)
        watchdog.stop()
    else:
        assert not getattr(watchdog, call)(forked)

    watchdog.run_for(clock, 20.0)

    assert asked(nodes) == []
    assert forked.state is LeaseState.HELD


def test_forked_child_renews_what_it_takes_itself(
    watchdog: Stepped, forked: Lease, told: Told, clock: FakeClock
) -> None:
    """Its watchdog begins empty, and works."""
    lease = watchdog.redlock.acquire("child")
    watchdog.watch(lease, on_renewed=told.on_renewed)

    watchdog.run_for(clock, 4.0)

    assert [renewed for renewed, _, _ in told.renewed] == [lease]


def test_forked_child_that_stops_ends_nothing_of_its_parent(
    watchdog: Stepped, forked: Lease
) -> None:
    """It has no thread to wait for: threads are not forked."""
    watchdog.stop()
