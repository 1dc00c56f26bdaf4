"""One renewal of one lease: a majority must say yes before the validity ends."""

from __future__ import annotations

import pytest

from celery_redlock.locks.extension import Extension
from celery_redlock.locks.forced_release import ForcedRelease, records_in
from celery_redlock.locks.lease import Lease, LeaseState
from celery_redlock.locks.redlock import Redlock
from celery_redlock.records.forced_releases import forced_releases
from celery_redlock.scripts import FORCE_RELEASE, FREE, TAKEN
from celery_redlock.testing import FakeNodes
from celery_redlock.wire.requests import ScriptRequest
from tests.unit.lock.support import (
    STRIPE_OF_K,
    VALIDITY,
    Site,
    asked,
    configure,
    counters,
    forget,
    holders,
    new_client,
    put,
    ttls,
    view_of,
)

# -- extend ----------------------------------------------------------------------------


def test_extension_moves_the_validity(site: Site, lease: Lease) -> None:
    """One round trip; all nodes keep the lock for a whole ttl from now."""
    site.clock.advance(4.0)
    site.nodes.asked.clear()

    assert site.redlock.extend(lease)

    assert lease.remaining() == pytest.approx(VALIDITY)
    assert ttls(site.nodes) == [10_000] * 5
    assert asked(site.nodes) == ["extend"]


def test_extension_keeps_fence_and_token(site: Site, lease: Lease) -> None:
    """A renewal changes nothing that storage has seen."""
    before = (lease.fence, lease.token, counters(site.nodes))

    site.redlock.extend(lease)

    assert (lease.fence, lease.token, counters(site.nodes)) == before


def test_extension_counts_from_before_its_first_send(site: Site, lease: Lease) -> None:
    """The time of the round trip is not added to the validity."""
    site.clock.advance(4.0)
    site.nodes.latency(0.03)
    before = site.clock.monotonic()

    site.redlock.extend(lease)

    assert lease.until == pytest.approx(before + VALIDITY)
    assert site.clock.monotonic() == pytest.approx(before + 0.03)


def test_extension_needs_a_majority(site: Site, lease: Lease) -> None:
    """Two of five leave the validity as it was.

    The others are waited for one node time-out: so there is time for the next try.
    """
    site.clock.advance(4.0)
    until, before = lease.until, site.clock.monotonic()
    site.nodes.freeze(0, 1, 2)

    assert not site.redlock.extend(lease)

    assert site.clock.monotonic() == pytest.approx(before + 0.05)
    assert lease.until == until
    assert lease.state is LeaseState.HELD
    site.nodes.thaw()
    assert site.redlock.extend(lease)


def test_extension_does_not_wait_for_slow_nodes(site: Site, lease: Lease) -> None:
    """A majority that says yes is enough."""
    site.nodes.freeze(3, 4)
    before = site.clock.monotonic()

    assert site.redlock.extend(lease)

    assert site.clock.monotonic() == before
    assert lease.votes == 3


def test_extension_of_an_ended_lease_never_resurrects(site: Site, lease: Lease) -> None:
    """Nothing is sent, though the nodes still hold the lock for a moment."""
    site.clock.advance(VALIDITY)
    before = ttls(site.nodes)
    site.nodes.asked.clear()

    assert not site.redlock.extend(lease)

    assert asked(site.nodes) == []
    assert ttls(site.nodes) == before
    assert not lease.is_valid()


@pytest.mark.parametrize("state", [LeaseState.RELEASED, LeaseState.LOST])
def test_extension_of_a_lease_that_is_not_held_sends_nothing(
    site: Site, state: LeaseState
) -> None:
    """A lock that was released, or announced as lost, is not renewed."""
    lease = site.redlock.acquire("k")
    lease.state = state
    site.nodes.asked.clear()

    assert not site.redlock.extend(lease)

    assert asked(site.nodes) == []


def test_extension_confirmed_too_late_does_not_count(site: Site, lease: Lease) -> None:
    """A majority must say yes BEFORE the validity ends."""
    site.clock.advance(VALIDITY - 0.01)
    until = lease.until
    site.nodes.latency(0.02)

    assert not site.redlock.extend(lease)

    assert lease.until == until
    assert not lease.is_valid()


def test_extension_of_several_confirmed_too_late_does_not_count(site: Site) -> None:
    """It has failed. So it is not under way any more."""
    leases = [site.redlock.acquire(key) for key in ("a", "b")]
    extension = site.redlock.extension(leases)
    site.nodes.send(extension.request)
    site.nodes.drain()
    site.clock.advance(VALIDITY)

    assert extension.advance(out_of_time=False) is None

    assert extension.result is False


def test_extension_never_shortens(site: Site, lease: Lease) -> None:
    """Of two renewals under way, the one that began later decides."""
    early = site.redlock.extension([lease])
    site.nodes.send(early.request)
    site.clock.advance(1.0)
    site.redlock.extend(lease)
    until = lease.until

    assert early.advance(out_of_time=False) is None

    assert early.result is True
    assert lease.until == until


def test_extension_leaves_a_successor_alone(site: Site, lease: Lease) -> None:
    """Nodes on which another client holds the key are not restored."""
    for index in range(3):
        put(site.nodes, index, "other.1", ttl_ms=2000)

    assert not site.redlock.extend(lease)

    assert holders(site.nodes)[:3] == ["other.1"] * 3
    assert ttls(site.nodes)[:3] == [2000] * 3


def test_renewal_is_not_sent_once_release_began(site: Site, lease: Lease) -> None:
    """The transport asks at the moment of sending: no release can come between."""
    extension = site.redlock.extension([lease])
    site.redlock.release(lease)

    site.nodes.send(extension.request)

    assert asked(site.nodes) == ["acquire", "release"]
    assert extension.request.is_done()
    assert extension.request.ballot.reasons().count("was not asked any more") == 5


@pytest.mark.parametrize("number", [0, 1])
def test_renewal_of_several_is_not_sent_once_one_release_began(
    site: Site, number: int
) -> None:
    """It would follow the release on each connection, whichever of them it is."""
    leases = [site.redlock.acquire(key) for key in ("a", "b")]
    extension = site.redlock.extension(leases)
    site.redlock.release(leases[number])

    site.nodes.send(extension.request)

    assert "extend" not in asked(site.nodes)
    assert extension.request.is_done()


def test_extension_is_open_until_done_or_out_of_time(site: Site, lease: Lease) -> None:
    """A caller with many renewals under way judges each again and again."""
    site.nodes.freeze()
    extension = site.redlock.extension([lease])
    site.nodes.send(extension.request)
    assert extension.cancelled_by == ""

    results = []
    for out_of_time in (False, True):
        assert extension.advance(out_of_time=out_of_time) is None
        results.append(extension.result)
    site.nodes.thaw()
    site.nodes.drain()
    assert extension.advance(out_of_time=True) is None

    assert [*results, extension.result] == [None, False, False]


def test_extension_that_cannot_be_won_any_more_is_not_waited_for(site: Site) -> None:
    """A renewal does not ask who has the lock instead, so nodes may hang."""
    lease = site.redlock.acquire("k")
    for index in range(3):
        put(site.nodes, index, f"other.{index}")
    site.nodes.freeze(3, 4)
    before = site.clock.monotonic()

    assert not site.redlock.extend(lease)

    assert site.clock.monotonic() == before


def ask_to_end(nodes: FakeNodes, index: int, who: bytes) -> None:
    """Let one node remember that a newcomer asked the holder of ``k`` to end."""
    redis = nodes.nodes[index].memory.redis
    value = redis.get(b"redlock:lock:k")
    redis.set(b"redlock:lock:k", (value or b"") + b"\ncancelled " + who, px=10_000)


@pytest.mark.parametrize(
    ("stored", "named"), [(b"job-7", "job-7"), (b"job-\xff", "job-\ufffd")]
)
def test_extension_tells_which_newcomer_asked_the_holder_to_end(
    site: Site, lease: Lease, stored: bytes, named: str
) -> None:
    """One node that knows of it is enough, and unreadable names end no renewal."""
    before = site.redlock.extension([lease])
    before.carry_through()
    ask_to_end(site.nodes, 1, stored)

    after = site.redlock.extension([lease])

    assert after.carry_through()
    assert (before.cancelled_by, after.cancelled_by) == ("", named)


def restore_of(site: Site, extension: Extension) -> ScriptRequest:
    """Send a renewal, read the replies that are there, and return its restore."""
    site.nodes.send(extension.request)
    site.nodes.wait(extension.request, until=site.clock.monotonic())
    restore = extension.advance(out_of_time=True)
    assert restore is not None
    return restore


# -- restore ---------------------------------------------------------------------------


def test_extension_restores_where_the_lock_is_missing(site: Site, lease: Lease) -> None:
    """A minority without the key is restored, and the renewal does not wait for it."""
    forget(site.nodes, 0, 1)
    site.nodes.asked.clear()

    assert site.redlock.extend(lease)

    assert asked(site.nodes) == ["extend", "restore"]
    assert lease.votes == 3
    assert holders(site.nodes) == [lease.token] * 5


def test_restore_raises_the_fence_counter(site: Site, lease: Lease) -> None:
    """A restored node counts as one that granted: its later grants are greater."""
    site.nodes.nodes[0].memory.redis.hdel(b"redlock:meta", STRIPE_OF_K)
    forget(site.nodes, 0)

    site.redlock.extend(lease)

    assert counters(site.nodes)[0] == lease.fence


def test_restore_makes_a_majority(site: Site, lease: Lease) -> None:
    """If a majority forgot the lock, a renewal saves the lease while it is valid."""
    site.clock.advance(4.0)
    before = site.clock.monotonic()
    forget(site.nodes, 0, 1, 2, 3)
    site.nodes.latency(0.02)
    site.nodes.asked.clear()

    assert site.redlock.extend(lease)

    assert asked(site.nodes) == ["extend", "restore"]
    assert lease.until == pytest.approx(before + VALIDITY)
    assert site.clock.monotonic() == pytest.approx(before + 0.04)


def test_restore_counts_each_node_once(site: Site, lease: Lease) -> None:
    """Nodes that extended also get the restore: their two votes count once."""
    forget(site.nodes, 0)
    for index in (1, 2, 3):
        put(site.nodes, index, "other.1")

    assert not site.redlock.extend(lease)

    assert holders(site.nodes) == [lease.token, *["other.1"] * 3, lease.token]


def test_restore_counts_only_while_the_lease_is_valid(site: Site, lease: Lease) -> None:
    """A restore that comes a moment too late does not save the lease."""
    site.clock.advance(VALIDITY - 0.03)
    forget(site.nodes, 0, 1, 2)
    site.nodes.latency(0.02)
    until = lease.until

    assert not site.redlock.extend(lease)

    assert lease.until == until


def test_restore_is_not_sent_after_the_validity_ended(site: Site, lease: Lease) -> None:
    """It would revive a lock that its holder no longer trusts."""
    site.clock.advance(VALIDITY - 0.01)
    forget(site.nodes, 0, 1, 2)
    site.nodes.latency(0.02)

    site.redlock.extend(lease)

    assert asked(site.nodes) == ["acquire", "extend"]
    assert holders(site.nodes)[:3] == [""] * 3


def test_restore_is_not_sent_once_release_began(site: Site, lease: Lease) -> None:
    """It would revive a released lock, and no client would release it again."""
    forget(site.nodes, 0, 1, 2)
    extension = site.redlock.extension([lease])
    restore = restore_of(site, extension)

    site.redlock.release(lease)
    site.nodes.send(restore)

    assert asked(site.nodes) == ["acquire", "extend", "release"]
    assert holders(site.nodes) == [""] * 5
    assert extension.advance(out_of_time=False) is None
    assert extension.result is False


def test_restore_and_extension_make_a_majority_together(site: Site) -> None:
    """A node that extended need not confirm the restore, and is not waited for."""
    site.nodes.freeze(3, 4)
    lease = site.redlock.acquire("k")
    forget(site.nodes, 2)
    extension = site.redlock.extension([lease])
    restore = restore_of(site, extension)
    site.nodes.freeze(0, 1)
    before = site.clock.monotonic()

    site.nodes.send(restore)
    site.nodes.wait(restore, until=before + 0.05)

    assert site.clock.monotonic() == before
    assert extension.advance(out_of_time=False) is None
    assert extension.result is True
    assert lease.votes == 3


def test_lock_is_restored_though_other_nodes_hang(site: Site, lease: Lease) -> None:
    """After one node time-out the votes so far are judged, and not those of all."""
    forget(site.nodes, 1, 2)
    site.nodes.freeze(3, 4)

    assert site.redlock.extend(lease)

    assert lease.votes == 3


def test_restore_fails_if_both_together_are_no_majority(site: Site) -> None:
    """It is tried once: the next renewal begins with the question where the lock is."""
    site.nodes.freeze(3, 4)
    lease = site.redlock.acquire("k")
    forget(site.nodes, 1, 2)
    extension = site.redlock.extension([lease])
    restore = restore_of(site, extension)
    site.nodes.freeze(2)

    site.nodes.send(restore)
    site.nodes.wait(restore, until=site.nodes.clock.monotonic())

    assert not restore.is_done()
    assert extension.advance(out_of_time=True) is None
    assert extension.result is False


def test_restore_is_tried_once_in_a_renewal(site: Site, lease: Lease) -> None:
    """Also if the renewal before has met a node without the key."""
    forget(site.nodes, 0)
    assert site.redlock.extend(lease)
    for index in (1, 2, 3):
        put(site.nodes, index, "other.1")
    extension = site.redlock.extension([lease])
    restore = restore_of(site, extension)

    site.nodes.send(restore)
    site.nodes.wait(restore, until=site.nodes.clock.monotonic())

    assert extension.advance(out_of_time=True) is None
    assert extension.result is False


def test_node_that_answers_too_late_is_restored_by_the_next_renewal(site: Site) -> None:
    """A renewal does not wait for all nodes. The next one has its late answer."""
    lease = site.redlock.acquire("k")
    forget(site.nodes, 0)
    site.nodes.latency(0.02, 0)
    site.nodes.asked.clear()
    assert site.redlock.extend(lease)
    site.clock.advance(0.03)
    site.nodes.drain()
    assert asked(site.nodes) == ["extend"]

    assert site.redlock.extend(lease)

    assert asked(site.nodes) == ["extend", "extend", "restore"]


# -- the view of the client lags -------------------------------------------------------


def test_extension_is_repeated_with_the_view_that_nodes_told(
    site: Site, lease: Lease
) -> None:
    """A node was promoted, and another client has told the others."""
    site.nodes.nodes[0].memory.promote()
    other = new_client(site.nodes)
    other.release(other.acquire("other"))
    site.clock.advance(4.0)
    site.nodes.asked.clear()

    assert site.redlock.extend(lease)

    assert lease.remaining() == pytest.approx(VALIDITY)
    assert asked(site.nodes).count("extend") == 2
    assert view_of(site.redlock) == view_of(other)


def test_extension_is_repeated_once(site: Site, lease: Lease) -> None:
    """A view that the nodes refuse again is left to the next renewal."""
    extension, label = site.redlock.extension([lease]), site.nodes.labels[0]
    for number in (1, 2):
        newer = view_of(site.redlock).with_newcomer(label, f"{number}f")
        configure(site.nodes, newer, *range(5))
        site.nodes.send(extension.request)
        site.nodes.drain()
        request = extension.advance(out_of_time=True)
        assert (request is None) is (number == 2)

    assert extension.result is False


# -- released by an operator -----------------------------------------------------------

ALICE = ForcedRelease(
    "k", "job on w1", "alice", "web-1", "celery redlock release", "stuck\nsince noon"
)


def force_release(redlock: Redlock, nodes: FakeNodes, lease: Lease, *at: int) -> None:
    """Release the lock on these nodes, as an operator's command does."""
    keys = [redlock.keys.lock("k"), redlock.keys.wait_queue("k"), redlock.keys.releases]
    args = [lease.token, lease.token, ALICE.text(), 60_000, 100]
    for index in at:
        nodes.nodes[index].memory.execute(FORCE_RELEASE, keys, args)


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
def test_lock_that_an_operator_released_is_lost_at_the_next_renewal(
    site: Site, *, taken: bool
) -> None:
    """The holder never takes it again; its error names the operator and the reason."""
    lease = site.redlock.acquire("k")
    force_release(site.redlock, site.nodes, lease, 0, 1, 2, 3, 4)
    other = site.redlock.acquire("k") if taken else None

    assert not site.redlock.extend(lease)

    assert not lease.is_valid()
    error = str(lease.lost_error())
    assert "was released by an operator, alice on web-1" in error
    assert "stuck since noon" in error
    assert holders(site.nodes) == [other.token if other else ""] * 5
    assert not site.redlock.extend(lease)


def test_one_node_with_the_record_tells_the_holder(site: Site, lease: Lease) -> None:
    """Nodes that lack the record do not matter, if a majority is without the lock."""
    force_release(site.redlock, site.nodes, lease, 4)
    forget(site.nodes, 0, 1, 2)

    assert not site.redlock.extend(lease)
    assert lease.released_by


def test_record_that_is_none_is_no_release() -> None:
    """A wrong server replies so. The renewals of other leases must go on."""
    assert records_in([[FREE, 7], [TAKEN, b"theirs", 1000, []]]) == []


def test_release_on_a_minority_is_undone_by_a_live_holder(site: Site) -> None:
    """The lock was not taken away: the renewal brings it back to these nodes."""
    lease = site.redlock.acquire("k")
    force_release(site.redlock, site.nodes, lease, 0, 1)

    assert site.redlock.extend(lease)
    assert lease.released_by == ""
    site.redlock.extend(lease)
    assert holders(site.nodes) == [lease.token] * 5


def test_release_on_a_minority_is_no_loss_though_no_majority_answers(
    site: Site,
) -> None:
    """A majority may still have the lock, so the lease goes on to its own end."""
    lease = site.redlock.acquire("k")
    force_release(site.redlock, site.nodes, lease, 0, 1)
    site.nodes.freeze(2, 3, 4)

    site.redlock.extend(lease)

    assert lease.released_by == ""
    assert lease.is_valid()


def test_releases_are_listed_once_with_their_nodes(site: Site, lease: Lease) -> None:
    """The list says on how many nodes the lock was; without any there is no release."""
    forget(site.nodes, 4)
    force_release(site.redlock, site.nodes, lease, 0, 1, 2, 4)
    never = site.redlock.acquire("k")
    site.redlock.release(never)
    force_release(site.redlock, site.nodes, never, 0, 1)

    (found,) = forced_releases(site.redlock).found

    assert (found.who, found.reason, found.nodes) == ("alice", "stuck since noon", 3)
    assert forced_releases(site.redlock, "k").found == [found]
    assert forced_releases(site.redlock, "another").found == []
