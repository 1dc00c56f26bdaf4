"""The watchdog, step by step: renewals, failures, losses, and the end of a watch."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import pytest

from celery_redlock.errors import LockCancelled
from celery_redlock.line.cancel_requests import ask_to_end
from celery_redlock.locks.lease import Lease, LeaseState, drift_of
from celery_redlock.locks.limits import Limit, with_copies
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts.keys import MOST_BYTES
from celery_redlock.testing import FakeClock, FakeNodes
from celery_redlock.wire.requests import ScriptRequest
from tests.unit.lock.support import (
    TTL,
    VALIDITY,
    Site,
    asked,
    close,
    forget,
    holders,
    new_client,
    put,
    ttls,
)

# -- renewals --------------------------------------------------------------------------


def test_renewal_comes_at_a_third_of_the_ttl(site: Site) -> None:
    """Each comes a third of the ttl after the one before; the lease stays valid."""
    lease = site.watched()

    site.renew_for(34.0)

    thirds = [TTL / 3 * number for number in range(1, 11)]
    assert site.told.instants == pytest.approx(thirds, abs=0.001)
    assert lease.remaining() > VALIDITY - TTL / 3
    assert site.told.lost == []


def test_renewal_counts_from_the_start_of_the_attempt(site: Site) -> None:
    """A slow acquire, or a slow renewal, does not delay the next one."""
    site.nodes.latency(0.04)
    site.watched()

    site.renew_for(6.9)

    assert site.told.instants == pytest.approx(
        [10 / 3 + 0.04, 20 / 3 + 0.04], abs=0.001
    )


def test_renewal_reports_how_late_it_was(site: Site) -> None:
    """After a pause of 2 s the renewal is 2 s late, and the callback gets that."""
    site.watched()
    site.renew_for(TTL / 3 - 0.1)
    site.clock.advance(2.1)
    site.renew_for(4.0)

    latenesses = [lateness for _, lateness, _ in site.told.renewed]
    assert latenesses == pytest.approx([2.0, 0.0], abs=0.001)


def test_renewal_that_failed_before_is_late(site: Site) -> None:
    """Lateness counts from a third of the ttl, and not from the last try."""
    site.watched()
    site.nodes.partition(0, 1, 2)
    site.renew_for(6.0)
    site.nodes.heal()
    site.renew_for(2.0)

    ((_, lateness, instant), *_) = site.told.renewed
    assert lateness == pytest.approx(instant - 1000.0 - TTL / 3, abs=0.01)
    assert lateness > 2.0


def test_renewal_is_one_exchange_for_all_leases(site: Site) -> None:
    """A hundred leases take the time of one."""
    leases = [site.watched(f"k{number}") for number in range(100)]
    site.nodes.latency(0.04)

    site.renew_for(TTL / 3 + 0.05)

    assert [lease for lease, _, _ in site.told.renewed] == leases
    assert set(site.told.instants) == {site.told.instants[0]}


def test_usual_leases_are_renewed_by_one_request(site: Site) -> None:
    """A lease of several locks, which it has all or none of, has one of its own."""
    leases = [site.watched(key) for key in ("a", "b")]
    permit = site.redlock.acquire("c", limits=(Limit("c", 2),))
    several = site.redlock.acquire(["d", "e"])
    copies = with_copies((Limit("f", 2),), "id-1")
    of_a_call = site.redlock.acquire("f", limits=copies)
    for lease in (permit, several, of_a_call):
        site.watchdog.watch(lease, on_renewed=site.told.on_renewed)
    site.nodes.asked.clear()

    site.renew_for(TTL / 3 + 0.05)

    renewed = {lease for lease, _, _ in site.told.renewed}
    assert renewed == {*leases, permit, several, of_a_call}
    assert asked(site.nodes) == ["extend"] * 3
    assert [lease.remaining() for lease in (*leases, permit)] == pytest.approx(
        [VALIDITY - 0.05] * 3
    )


def test_leases_that_are_renewed_together_keep_their_ttls(site: Site) -> None:
    """On the nodes, and here."""
    long = site.watched("long", 60.0, renew_every=2.0)
    short = site.watched("short", 6.0)
    site.nodes.asked.clear()

    site.renew_for(2.0)

    assert asked(site.nodes) == ["extend"]
    for lease, ttl in ((long, 60), (short, 6)):
        assert ttls(site.nodes, lease.key) == [ttl * 1000] * 5
        assert lease.remaining() == pytest.approx(ttl - drift_of(ttl))


def test_leases_are_renewed_together_by_a_bare_majority(site: Site) -> None:
    """Nodes that are away tell of no lock, so leases need no requests of their own."""
    leases = [site.watched(key) for key in ("a", "b")]
    site.nodes.nodes[3].kill()
    site.nodes.partition(4)
    site.nodes.asked.clear()

    site.renew_for(TTL)

    assert len(site.told.renewed) == 2 * len(leases)
    assert [lease.votes for lease in leases] == [3, 3]
    assert asked(site.nodes) == ["extend", "extend"]


def test_leases_with_long_keys_are_renewed_by_several_requests(site: Site) -> None:
    """No request has longer keys than one lease may have: a store has its limits."""
    leases = [site.watched(f"{n}" * MOST_BYTES) for n in range(2)]
    leases += [site.watched(f"{n}" * (MOST_BYTES // 2)) for n in range(4)]
    site.nodes.asked.clear()

    site.renew_for(TTL / 3 + 0.05)

    assert [lease for lease, _, _ in site.told.renewed] == leases
    assert asked(site.nodes) == ["extend"] * 4


@pytest.mark.parametrize("late", [False, True])
def test_lock_that_a_node_lacks_is_restored_beside_others(
    site: Site, *, late: bool
) -> None:
    """At once, or with the next renewal, if the node says so too late each time."""
    leases = [site.watched(key) for key in ("a", "k")]
    forget(site.nodes, 4)
    if late:
        site.nodes.latency(0.04, 4)

    site.renew_for(TTL / 3 + 0.05)
    assert {lease for lease, _, _ in site.told.renewed} == {*leases}
    site.renew_for(TTL / 3 if late else 0.0)
    assert holders(site.nodes) == [leases[1].token] * 5

    site.renew_for(2 * TTL / 3)
    site.nodes.asked.clear()
    site.renew_for(TTL / 3)
    assert asked(site.nodes) == ["extend"]


def test_lease_whose_lock_has_another_type_is_renewed_alone(site: Site) -> None:
    """Another program has written it on one node. The others go on together."""
    leases = [site.watched(key) for key in ("a", "k", "c")]
    forget(site.nodes, 4)
    site.nodes.nodes[4].memory.redis.hset(b"redlock:lock:k", {b"of": b"others"})

    site.renew_for(TTL / 3 + 0.05)
    site.nodes.asked.clear()
    site.renew_for(TTL / 3)

    assert asked(site.nodes) == ["extend", "extend"]
    assert {lease for lease, _, _ in site.told.renewed[3:]} == {*leases}


def test_lease_with_little_time_is_renewed_alone(clock: FakeClock) -> None:
    """It ends before a renewal together, one alone and a restore may be done."""
    nodes = FakeNodes(5, clock=clock)
    redlock = nodes.redlock(ttl=TTL, node_timeout=2.4)
    site = Site(nodes, clock, redlock, redlock)
    for key in ("a", "k", "c"):
        site.watched(key)
    forget(nodes, 0, 1, 2)
    nodes.latency(2.3)

    site.renew_for(2 * TTL)

    assert site.told.lost == []


def test_lease_that_is_lost_ends_alone(site: Site) -> None:
    """The others that were to be renewed with it are renewed at the same instant."""
    first, lost, last = [site.watched(key) for key in ("a", "k", "c")]
    for index in range(3):
        put(site.nodes, index, "other.1", ttl_ms=100_000)

    site.renew_for(TTL - 0.01)

    assert [lease for lease, _ in site.told.lost] == [lost]
    renewed = [(lease, instant) for lease, _, instant in site.told.renewed]
    thirds = [1000.0 + TTL / 3, 1000.0 + 2 * TTL / 3]
    for lease in (first, last):
        assert [at for one, at in renewed if one is lease] == pytest.approx(
            thirds, abs=0.001
        )
    assert len(renewed) == 4


def test_cancel_request_is_told_to_its_lease_alone(site: Site) -> None:
    """Also where it is renewed together with others."""
    told: list[Lease] = []
    leases = [site.watched(key, on_cancelled=told.append) for key in ("a", "b", "c")]
    for node in site.nodes.nodes:
        redis = node.memory.redis
        value = redis.get(b"redlock:lock:b") or b""
        redis.set(b"redlock:lock:b", value + b"\ncancelled task[id]", px=10_000)

    site.renew_for(TTL)

    assert told == [leases[1]]
    assert [lease.cancelled_by for lease in leases] == ["", "task[id]", ""]
    assert len(site.told.renewed) == 6
    site.nodes.asked.clear()
    site.renew_for(TTL / 3)
    assert asked(site.nodes) == ["extend", "extend"]


def test_renewal_of_many_leases_lets_other_requests_in_between(site: Site) -> None:
    """At most 1,000 are renewed at once, 100 by one request; all leases are renewed."""
    leases = [site.watched(f"k{number}") for number in range(2400)]
    site.clock.advance(TTL / 3 + 0.001)
    site.nodes.asked.clear()

    site.watchdog.step()

    sent = [request.call for request in site.nodes.asked]
    locks = [len(names) - 2 for script, names, _ in sent if script.name == "extend"]
    assert locks == [100] * 10
    site.renew_for(1.0)
    assert {lease for lease, _, _ in site.told.renewed} == set(leases)


def test_leases_that_are_being_renewed_count_as_many(site: Site) -> None:
    """Others that are due meanwhile wait for them, and not only for their requests."""
    for number in range(1000):
        site.watched(f"k{number}")
    site.clock.advance(0.02)
    for number in range(1000, 2000):
        site.watched(f"k{number}")
    site.nodes.latency(0.04)

    site.renew_for(TTL / 3 + 0.1)

    replies = [TTL / 3 + 0.04] * 1000 + [TTL / 3 + 0.08] * 1000
    assert site.told.instants == pytest.approx(replies, abs=0.001)


def test_leases_of_all_ttls_are_renewed_in_their_own_time(site: Site) -> None:
    """A short lease does not wait for a long one that came first."""
    long, short = site.watched("long", 60.0), site.watched("short", 1.5)

    site.renew_for(20.1)

    renewed = [lease for lease, _, _ in site.told.renewed]
    assert (renewed.count(long), renewed.count(short)) == (1, 40)


def test_renewal_restores_a_lock_that_a_majority_forgot(site: Site) -> None:
    """The restore is part of the same renewal."""
    lease = site.watched()
    forget(site.nodes, 0, 1, 2, 3)
    site.nodes.latency(0.02)

    site.renew_for(4.0)

    assert site.told.instants == pytest.approx([TTL / 3 + 0.04], abs=0.001)
    assert holders(site.nodes) == [lease.token] * 5


# -- renew=False, renew_now ------------------------------------------------------


def test_watch_without_renewal_only_announces_the_end(site: Site) -> None:
    """Nothing is sent, not even by ``renew_now``."""
    lease = site.watched(renew=False)
    site.watchdog.renew_now(lease)

    site.renew_for(20.0)

    assert asked(site.nodes) == ["acquire"]
    assert [instant for _, instant in site.told.lost] == pytest.approx([lease.until])


def test_renew_now_does_not_wait_for_its_time(site: Site) -> None:
    """It renews with the next step, and the following renewal counts from there."""
    lease = site.watched()
    site.renew_for(1.0)
    assert asked(site.nodes) == ["acquire"]

    site.watchdog.renew_now(lease)
    site.renew_for(0.5)
    assert ttls(site.nodes) == [9500] * 5
    site.renew_for(4.0)

    assert site.told.instants == pytest.approx([1.0, 1.0 + TTL / 3], abs=0.001)
    assert [lateness for _, lateness, _ in site.told.renewed] == pytest.approx(
        [0.0, 0.0], abs=0.001
    )


def test_renew_now_of_a_renewal_under_way_changes_nothing(site: Site) -> None:
    """A call during a renewal sends no second one."""
    lease = site.watched()
    site.watchdog.step()
    site.nodes.latency(0.02)
    site.clock.at(TTL / 3 + 0.01, lambda: site.watchdog.renew_now(lease))

    site.renew_for(4.0)

    assert asked(site.nodes) == ["acquire", "extend"]
    assert len(site.told.renewed) == 1


def test_renew_now_of_an_unwatched_lease_does_nothing(site: Site) -> None:
    """A late call is harmless."""
    lease = site.redlock.acquire("k")
    site.watchdog.renew_now(lease)

    site.renew_for(1.0)

    assert asked(site.nodes) == ["acquire"]


# -- pending releases --------------------------------------------------------------


def test_thread_that_is_about_to_resend_is_not_woken(site: Site) -> None:
    """While a node is away, a caller pays for no change of threads each time."""
    lease = site.redlock.acquire("k")
    site.nodes.nodes[0].kill()
    site.redlock.release(lease)
    woken = []
    for _ in range(2):
        site.watchdog.resend_releases()
        woken.append(site.watchdog._wakeups.was_woken)  # noqa: SLF001
        site.watchdog.step()

    assert woken == [True, False]


def test_step_resends_pending_releases(site: Site) -> None:
    """A node that was away at release gets it without another request."""
    lease = site.redlock.acquire("k")
    site.nodes.nodes[0].kill()
    site.redlock.release(lease)
    site.nodes.nodes[0].restart(keep_memory=True)
    assert holders(site.nodes)[0] == lease.token

    site.renew_for(0.3)

    assert holders(site.nodes) == [""] * 5


def test_step_looks_soon_for_a_late_reply(site: Site) -> None:
    """Until it is there, a release that was refused looks like one that was done."""
    lease = site.redlock.acquire("k")
    site.nodes.mute()
    site.redlock.release(lease)

    assert site.watchdog.step() == site.clock.monotonic() + 0.25
    site.nodes.heal()
    site.watchdog.step()
    assert site.watchdog.step() is None


def test_step_with_nothing_to_do_is_not_needed_again(site: Site) -> None:
    """Without a lease and a pending release, the thread sleeps."""
    assert site.watchdog.step() is None


# -- renewals that fail ----------------------------------------------------------------


def test_renewal_that_failed_is_tried_again_sooner(site: Site) -> None:
    """It is tried a twelfth of the ttl after each failure, until it succeeds."""
    site.watched()
    for node in site.nodes.nodes[:3]:
        node.kill()
    site.nodes.asked.clear()

    site.renew_for(6.0)  # at 3.33, 4.17, 5.00, 5.83
    assert asked(site.nodes).count("extend") == 4
    for node in site.nodes.nodes[:3]:
        node.is_running = True  # the same process can be reached again
    site.renew_for(5.0)  # at 6.67, 10.0

    again = TTL / 3 + 4 * TTL / 12
    assert site.told.instants == pytest.approx([again, again + TTL / 3], abs=0.001)
    assert site.told.lost == []


def test_renewal_that_a_reconfiguration_ends_is_logged_with_the_remedy(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The nodes differ from this client: no wait of its own would help."""
    site.watched()
    close(site.nodes, site.redlock, 0, 1, 2)

    with caplog.at_level(logging.WARNING, "celery_redlock.locks.watchdog"):
        site.renew_for(3.5)

    (record,) = caplog.records
    assert " more. The nodes are closed: moving to format " in record.message
    assert "Wait until `celery -A proj redlock reconfigure` is done" in record.message


def test_renewal_that_failed_is_logged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the lock, the reasons, and the time that is left."""
    site.watched()
    for node in site.nodes.nodes[:3]:
        node.kill()

    with caplog.at_level(logging.WARNING, "celery_redlock.locks.watchdog"):
        site.renew_for(3.5)

    (record,) = caplog.records
    assert (
        "The lock 'k' (fence 1800000030000001) could not be renewed" in record.message
    )
    assert "node-1:6379/0 refused the connection" in record.message
    assert record.message.endswith("It is valid for 6.6 s more.")


def test_renewal_that_meets_a_newer_view_blames_no_healthy_node(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One node was promoted, and another client has told the others its identity."""
    site.watched()
    site.nodes.nodes[0].memory.promote()
    other = new_client(site.nodes)
    other.release(other.acquire("other"))

    with caplog.at_level(logging.DEBUG, "celery_redlock.locks.watchdog"):
        site.renew_for(3.5)

    assert len(site.told.renewed) == 1
    assert caplog.messages == []


def test_failed_renewals_are_one_line_a_minute(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names one lock and counts the others; each is a line at DEBUG."""
    for number in range(3):
        site.watched(f"k{number}")
    site.nodes.partition(0, 1, 2)

    with caplog.at_level(logging.DEBUG, "celery_redlock.locks.watchdog"):
        site.renew_for(9.0)

    failed = [r for r in caplog.records if "could not be renewed" in r.message]
    levels = [record.levelname for record in failed]
    assert len(failed) > 6
    assert levels == ["WARNING"] + ["DEBUG"] * (len(failed) - 1)

    site.clock.advance(60.0)
    site.nodes.heal()
    site.watched("later")
    site.nodes.partition(0, 1, 2)
    with caplog.at_level(logging.WARNING, "celery_redlock.locks.watchdog"):
        site.renew_for(4.0)

    others = f"{len(failed) - 1} other renewals failed since the last report."
    assert caplog.messages[-1].endswith(others)


def test_refused_renewal_is_no_loss_before_its_time(site: Site) -> None:
    """If a majority names another holder, the lease still ends with its validity."""
    lease = site.watched()
    for index in range(5):
        put(site.nodes, index, "other.1", ttl_ms=100_000)

    site.renew_for(VALIDITY - 0.001)
    assert site.told.lost == []
    site.renew_for(0.002)
    assert [lost for lost, _ in site.told.lost] == [lease]
    assert holders(site.nodes) == ["other.1"] * 5


def fail(*_: Any) -> None:
    """Raise, as a user's callback may."""
    raise ValueError("a mistake")


def test_callbacks_that_raise_end_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged; this lease and all others are kept and announced."""
    first, second = site.redlock.acquire("a"), site.redlock.acquire("b")
    third = site.redlock.acquire("c")
    site.watchdog.watch(first, on_renewed=fail)
    site.watchdog.watch(
        second, on_renewed=site.told.on_renewed, on_lost=site.told.on_lost
    )
    site.watchdog.watch(third, on_lost=fail, renew=False)

    site.renew_for(25.0)

    assert first.is_valid()
    assert second.is_valid()
    assert len(site.told.renewed) == 7
    assert third.state is LeaseState.LOST
    assert caplog.text.count("raised an error") == 7 + 1


def test_callback_can_end_other_leases(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing more is told of them, though they were renewed by the same request."""
    renewed: list[Lease] = []

    def on_renewed(lease: Lease, _: float) -> None:
        renewed.append(lease)
        for other in leases[1:]:
            assert site.watchdog.forget(other)
        site.redlock.release(leases[2])

    leases = [site.watched(key, on_renewed=on_renewed) for key in ("a", "b", "c")]

    with caplog.at_level(logging.DEBUG, "celery_redlock.locks.watchdog"):
        site.renew_for(TTL / 2)

    assert renewed == leases[:1]
    assert caplog.messages == []


class Busy(FakeNodes):
    """Nodes whose transport other threads use until an instant."""

    send_at = read_at = 0.0
    queue: tuple[ScriptRequest, ...] = ()

    def send(self, *requests: ScriptRequest) -> None:
        """Queue them behind the requests of the other threads."""
        self.queue += requests
        self._flush(until=0.0)

    def wait(self, *requests: ScriptRequest, until: float = math.inf) -> bool:
        """Wait for the other threads, and give up reading nothing."""
        self._flush(until)
        self._pass(min(self.read_at, until))
        is_read = self.clock.monotonic() >= max(self.send_at, self.read_at)
        return is_read and super().wait(*requests, until=until)

    def _flush(self, until: float) -> None:
        self._pass(min(self.send_at, until))
        if self.clock.monotonic() >= self.send_at:
            queue, self.queue = self.queue, ()
            super().send(*queue)

    def _pass(self, until: float) -> None:
        assert isinstance(self.clock, FakeClock)
        self.clock.advance(max(0.0, until - self.clock.monotonic()))


@dataclass
class BusySite(Site):
    """A site whose nodes are busy."""

    nodes: Busy


@pytest.fixture
def busy(clock: FakeClock) -> BusySite:
    """Give a site with five nodes whose replies take 10 ms."""
    nodes = Busy(5, clock=clock)
    nodes.latency(0.01)
    return BusySite(nodes, clock, nodes.redlock(ttl=TTL), nodes.redlock(ttl=TTL))


def test_nodes_have_their_time_from_when_a_renewal_is_sent(busy: BusySite) -> None:
    """The time for which a renewal waits to be sent is no silence of the nodes."""
    busy.watched()
    busy.nodes.send_at = 1005.0

    busy.renew_for(6.0)

    assert busy.told.instants == pytest.approx([5.01], abs=0.001)
    assert asked(busy.nodes).count("extend") == 1


def test_replies_are_read_before_a_renewal_is_judged(busy: BusySite) -> None:
    """Also if other threads use the transport beyond the deadline of the nodes."""
    busy.watched()
    other = busy.watched("other", 6.0, renew=False)  # looked at while the first waits
    busy.nodes.read_at = 1006.5

    busy.renew_for(6.6)

    assert busy.told.instants == pytest.approx([6.5], abs=0.001)
    assert [lost for lost, _ in busy.told.lost] == [other]
    assert busy.told.lost[0][1] == pytest.approx(other.until)
    assert asked(busy.nodes).count("extend") == 1


def test_direct_renewal_reads_replies_before_it_is_judged(busy: BusySite) -> None:
    """``extend`` has no deadline of its own, so it waits for other threads."""
    lease = busy.redlock.acquire("k")
    busy.nodes.read_at = busy.clock.monotonic() + 1.0

    assert busy.redlock.extend(lease)


def test_loss_is_announced_in_time_while_the_transport_is_busy(busy: BusySite) -> None:
    """No reply can be read, and the renewal is not waited for any longer."""
    lease = busy.watched()
    busy.nodes.read_at = 1030.0

    busy.renew_for(25.0)

    ((lost, instant),) = busy.told.lost
    assert lost is lease
    assert instant == pytest.approx(lease.until)
    assert busy.told.renewed == []


def test_loss_is_announced_in_time_while_its_renewal_waits(busy: BusySite) -> None:
    """It is not sent any more when the lease is over."""
    lease = busy.watched()
    busy.nodes.send_at = 1030.0

    busy.renew_for(25.0)

    assert [lost for lost, _ in busy.told.lost] == [lease]
    assert busy.told.lost[0][1] == pytest.approx(lease.until)
    busy.nodes.drain()
    assert asked(busy.nodes).count("extend") == 0


def test_lease_that_ends_while_renewals_wait_hinders_no_other(
    busy: BusySite,
) -> None:
    """They were to be renewed together. The one that is over is not renewed."""
    short, long = busy.watched("short", 6.0), busy.watched("long", renew_every=2.0)
    busy.nodes.send_at = 1008.0

    busy.renew_for(9.0)

    assert [lost for lost, _ in busy.told.lost] == [short]
    assert {lease for lease, _, _ in busy.told.renewed} == {long}
    assert long.is_valid()


def test_losses_are_announced_in_time_behind_many_renewals(busy: BusySite) -> None:
    """More leases are due than are renewed at once, and the transport is busy."""
    for number in range(300):
        busy.watched(f"k{number}")
    busy.nodes.read_at = 1060.0

    busy.renew_for(20.0)

    late = [instant - lease.until for lease, instant in busy.told.lost]
    assert len(late) == 300
    assert max(late) < 0.001


# -- losses ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["freeze", "partition", "mute", "kill"])
def test_loss_is_announced_at_the_end_of_validity(site: Site, how: str) -> None:
    """Exactly then and exactly once, for every kind of failure."""
    lease = site.watched()
    for index in range(3):
        if how == "kill":
            site.nodes.nodes[index].kill()
        else:
            getattr(site.nodes, how)(index)

    site.renew_for(30.0)

    ((lost, instant),) = site.told.lost
    assert lost is lease
    assert lease.until <= instant <= lease.until + 0.001
    assert lease.until == pytest.approx(1000.0 + VALIDITY)
    assert lease.state is LeaseState.LOST
    assert site.told.renewed == []


def test_loss_is_announced_while_a_renewal_is_waited_for(site: Site) -> None:
    """The end of validity is a local deadline: no node can delay it."""
    site.redlock = site.nodes.redlock(ttl=10.0, node_timeout=3.0)
    lease = site.watched()
    site.nodes.latency(2.9)
    site.clock.at(6.5, site.nodes.freeze)

    site.renew_for(20.0)

    # Asked at 6.7 s for 3 s and at 10.5 s for 3 s: it ends at 13.2 s.
    assert len(site.told.renewed) == 1
    assert [instant for _, instant in site.told.lost] == pytest.approx([lease.until])
    assert lease.until == pytest.approx(1000.0 + TTL / 3 + VALIDITY, abs=0.001)


def test_loss_after_a_long_pause_is_announced_at_once(site: Site) -> None:
    """A process that was paused beyond the end does not try to renew first."""
    lease = site.watched()
    site.watchdog.step()
    site.clock.advance(60.0)
    site.nodes.asked.clear()

    site.watchdog.step()

    assert [lost for lost, _ in site.told.lost] == [lease]
    assert asked(site.nodes) == []


def test_loss_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The log has a warning, even without a callback. The holder raises the error."""
    site.watchdog.watch(site.redlock.acquire("k"), renew=False)

    with caplog.at_level(logging.WARNING, "celery_redlock.locks.watchdog"):
        site.renew_for(TTL)

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("The lock 'k' (ttl 10 s) was lost")


def test_losses_are_announced_in_their_order(site: Site) -> None:
    """Each loss is announced at its own end."""
    leases = [site.watched(f"k{ttl}", ttl) for ttl in (5.0, 1.0, 3.0)]
    site.nodes.partition()

    site.renew_for(10.0)

    in_order = sorted(leases, key=lambda lease: lease.until)
    assert [lost for lost, _ in site.told.lost] == in_order
    for lost, instant in site.told.lost:
        assert lost.until <= instant <= lost.until + 0.001


# -- forget ----------------------------------------------------------------------------


def test_forgotten_lease_is_renewed_no_more(site: Site) -> None:
    """Forget returns True once for a lease that is watched; nothing follows it."""
    lease = site.watched()
    assert not site.watchdog.forget(site.redlock.acquire("never watched"))
    site.renew_for(1.0)
    site.nodes.asked.clear()

    assert site.watchdog.forget(lease)
    assert not site.watchdog.forget(lease)
    site.renew_for(30.0)

    assert asked(site.nodes) == []
    assert (site.told.lost, site.told.renewed) == ([], [])
    assert lease.state is LeaseState.HELD


def test_forget_while_the_loss_is_announced_loses(site: Site) -> None:
    """A call of ``forget`` inside ``on_lost`` comes too late."""
    answers: list[bool] = []

    def on_lost(lost: Lease) -> None:
        answers.append(site.watchdog.forget(lost))

    site.watched(on_lost=on_lost, renew=False)
    site.renew_for(TTL)

    assert answers == [False]


def test_forget_at_the_end_of_validity_wins(site: Site) -> None:
    """After a ``forget`` no loss is announced, even if the validity has ended."""
    lease = site.watched()
    site.watchdog.step()
    site.clock.advance(TTL)

    assert site.watchdog.forget(lease)
    site.watchdog.step()

    assert site.told.lost == []
    assert lease.state is LeaseState.HELD


def test_forget_during_a_renewal_sends_no_restore(site: Site) -> None:
    """A lock that is released during its renewal is not restored."""
    lease = site.watched()
    site.watchdog.step()
    forget(site.nodes, 0, 1, 2)
    site.nodes.latency(0.02)

    def end() -> None:
        site.watchdog.forget(lease)
        site.redlock.release(lease)

    site.clock.at(TTL / 3 + 0.01, end)
    site.renew_for(5.0)

    assert asked(site.nodes) == ["acquire", "extend", "release"]
    assert holders(site.nodes) == [""] * 5
    assert site.told.renewed == []


def test_lease_that_is_forgotten_is_not_renewed_alone(site: Site) -> None:
    """It was being renewed together with others, one of which a node lacks."""
    leases = [site.watched(key) for key in ("a", "k", "c")]
    forget(site.nodes, 4)
    site.nodes.latency(0.02)
    site.clock.at(TTL / 3 + 0.01, lambda: site.watchdog.forget(leases[0]))
    site.nodes.asked.clear()

    site.renew_for(TTL / 3 + 0.1)

    assert asked(site.nodes) == ["extend", "extend", "extend", "restore"]
    assert {lease for lease, _, _ in site.told.renewed} == {*leases[1:]}


# -- requests to end -------------------------------------------------------------------


WHO = "job[newcomer]"


def cancel(redlock: Redlock, who: str = WHO) -> int:
    """Ask the holder to end."""
    holder = redlock.inspect("k").holder
    assert holder is not None
    return ask_to_end(redlock, "k", holder, who)


def test_request_to_end_arrives_with_the_next_renewal_and_once(site: Site) -> None:
    """A second request changes nothing: the holder knows already."""
    told: list[str] = []
    site.watched(on_cancelled=lambda lease: told.append(lease.cancelled_by))
    site.renew_for(1.0)

    assert cancel(site.redlock) >= site.redlock.quorum
    assert told == []
    site.renew_for(TTL / 3)
    cancel(site.redlock, "job[another]")
    site.renew_for(TTL)

    assert told == [WHO]


def test_request_to_end_leaves_the_lease_valid_and_renewed(site: Site) -> None:
    """No other client takes the lock: its holder ends and releases it."""
    lease = site.watched()
    cancel(site.redlock)

    site.renew_for(5 * TTL)

    assert lease.is_valid()
    assert site.told.lost == []
    with pytest.raises(LockCancelled, match="newcomer") as caught:
        lease.ensure()
    assert (caught.value.by, caught.value.key) == (WHO, "k")
    assert site.redlock.release(lease) >= site.redlock.quorum


def test_renew_every_renews_more_often(site: Site) -> None:
    """``renew_every`` limits the delay of a request to end."""
    site.watched(renew_every=1.0)

    site.renew_for(4.5)

    assert site.told.instants == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.01)


def test_renew_every_does_not_make_a_renewal_late(site: Site) -> None:
    """A renewal is late only after a third of the ttl."""
    site.watched(renew_every=1.0)
    site.renew_for(0.9)
    site.clock.advance(2.0)

    site.renew_for(2.0)

    _, lateness, _ = site.told.renewed[0]
    assert lateness == 0.0


def test_request_to_end_arrives_though_most_nodes_forgot(site: Site) -> None:
    """They are restored; the node that remembers names the newcomer."""
    lease = site.watched()
    cancel(site.redlock)
    forget(site.nodes, 1, 2)

    site.renew_for(TTL / 2)

    assert lease.cancelled_by == WHO
    assert lease.is_valid()
