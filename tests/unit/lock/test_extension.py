"""One renewal of one lease: a majority must say yes before the validity ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.locks.forced_release import ForcedRelease
from celery_redlock.locks.lease import LeaseState
from celery_redlock.records.forced_releases import forced_releases
from celery_redlock.scripts import FORCE_RELEASE
from tests.unit.lock.support import (
    STRIPE_OF_K,
    VALIDITY,
    asked,
    counters,
    forget,
    holders,
    put,
    ttls,
)

if TYPE_CHECKING:
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


# -- extend ----------------------------------------------------------------------------


def test_extension_moves_the_validity(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """One round trip; all nodes keep the lock for a whole ttl from now."""
    lease = redlock.acquire("k")
    clock.advance(4.0)
    nodes.asked.clear()

    assert redlock.extend(lease)

    assert lease.remaining() == pytest.approx(VALIDITY)
    assert ttls(nodes) == [10_000] * 5
    assert asked(nodes) == ["extend"]


def test_extension_keeps_fence_and_token(nodes: FakeNodes, redlock: Redlock) -> None:
    """A renewal changes nothing that storage has seen."""
    lease = redlock.acquire("k")
    before = (lease.fence, lease.token, counters(nodes))

    redlock.extend(lease)

    assert (lease.fence, lease.token, counters(nodes)) == before


def test_extension_counts_from_before_its_first_send(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The time of the round trip is not added to the validity."""
    lease = redlock.acquire("k")
    clock.advance(4.0)
    nodes.latency(0.03)
    before = clock.monotonic()

    redlock.extend(lease)

    assert lease.until == pytest.approx(before + VALIDITY)
    assert clock.monotonic() == pytest.approx(before + 0.03)


def test_extension_needs_a_majority(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Two of five leave the validity as it was, and the renewal can be tried again."""
    lease = redlock.acquire("k")
    clock.advance(4.0)
    until = lease.until
    nodes.freeze(0, 1, 2)

    assert not redlock.extend(lease)

    assert lease.until == until
    assert lease.state is LeaseState.HELD
    nodes.thaw()
    assert redlock.extend(lease)


def test_extension_waits_one_node_timeout_for_silent_nodes(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A try fails soon, so that there is time for the next one."""
    lease = redlock.acquire("k")
    nodes.freeze(0, 1, 2)
    before = clock.monotonic()

    redlock.extend(lease)

    assert clock.monotonic() == pytest.approx(before + 0.05)


def test_extension_does_not_wait_for_slow_nodes(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A majority that says yes is enough."""
    lease = redlock.acquire("k")
    nodes.freeze(3, 4)
    before = clock.monotonic()

    assert redlock.extend(lease)

    assert clock.monotonic() == before
    assert lease.votes == 3


def test_extension_of_an_ended_lease_never_resurrects(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Nothing is sent, though the nodes still hold the lock for a moment."""
    lease = redlock.acquire("k")
    clock.advance(VALIDITY)
    before = ttls(nodes)
    nodes.asked.clear()

    assert not redlock.extend(lease)

    assert asked(nodes) == []
    assert ttls(nodes) == before
    assert not lease.is_valid()


@pytest.mark.parametrize("state", [LeaseState.RELEASED, LeaseState.LOST])
def test_extension_of_a_lease_that_is_not_held_sends_nothing(
    nodes: FakeNodes, redlock: Redlock, state: LeaseState
) -> None:
    """A lock that was released, or announced as lost, is not renewed."""
    lease = redlock.acquire("k")
    lease.state = state
    nodes.asked.clear()

    assert not redlock.extend(lease)

    assert asked(nodes) == []


def test_extension_confirmed_too_late_does_not_count(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A majority must say yes BEFORE the validity ends."""
    lease = redlock.acquire("k")
    clock.advance(VALIDITY - 0.01)
    until = lease.until
    nodes.latency(0.02)

    assert not redlock.extend(lease)

    assert lease.until == until
    assert not lease.is_valid()


def test_extension_never_shortens(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Of two renewals under way, the one that began later decides."""
    lease = redlock.acquire("k")
    early = redlock.extension(lease)
    nodes.send(early.request)
    clock.advance(1.0)
    redlock.extend(lease)
    until = lease.until

    assert early.advance(out_of_time=False) is None

    assert early.result is True
    assert lease.until == until


def test_extension_leaves_a_successor_alone(nodes: FakeNodes, redlock: Redlock) -> None:
    """Nodes on which another client holds the key are not restored."""
    lease = redlock.acquire("k")
    for index in range(3):
        put(nodes, index, "other.1", ttl_ms=2000)

    assert not redlock.extend(lease)

    assert holders(nodes)[:3] == ["other.1"] * 3
    assert ttls(nodes)[:3] == [2000] * 3


def test_renewal_is_not_sent_once_release_began(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The transport asks at the moment of sending: no release can come between."""
    lease = redlock.acquire("k")
    extension = redlock.extension(lease)
    redlock.release(lease)

    nodes.send(extension.request)

    assert asked(nodes) == ["acquire", "release"]
    assert extension.request.is_done()
    assert extension.request.ballot.reasons().count("was not asked any more") == 5


def test_extension_is_open_until_done_or_out_of_time(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A caller with many renewals under way judges each again and again."""
    lease = redlock.acquire("k")
    nodes.freeze()
    extension = redlock.extension(lease)
    nodes.send(extension.request)
    assert extension.cancelled_by == ""

    results = []
    for out_of_time in (False, True):
        assert extension.advance(out_of_time=out_of_time) is None
        results.append(extension.result)
    nodes.thaw()
    nodes.drain(0.0)
    assert extension.advance(out_of_time=True) is None

    assert [*results, extension.result] == [None, False, False]


def test_extension_with_another_configuration_is_refused(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A deployment that is being moved renews no lock of the old one."""
    lease = redlock.acquire("k")
    for node in nodes.nodes:
        node.memory.redis.hset(b"redlock:meta", {b"config": b"another"})

    assert not redlock.extend(lease)


def test_extension_that_cannot_be_won_any_more_is_not_waited_for(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A renewal does not ask who has the lock instead, so nodes may hang."""
    lease = redlock.acquire("k")
    for index in range(3):
        put(nodes, index, f"other.{index}")
    nodes.freeze(3, 4)
    before = clock.monotonic()

    assert not redlock.extend(lease)

    assert clock.monotonic() == before


def ask_to_end(nodes: FakeNodes, index: int, who: bytes) -> None:
    """Let one node remember that a newcomer asked the holder of ``k`` to end."""
    redis = nodes.nodes[index].memory.redis
    value = redis.get(b"redlock:lock:k")
    redis.set(b"redlock:lock:k", (value or b"") + b"\ncancelled " + who, px=10_000)


@pytest.mark.parametrize(
    ("stored", "told"), [(b"job-7", "job-7"), (b"job-\xff", "job-\ufffd")]
)
def test_extension_tells_which_newcomer_asked_the_holder_to_end(
    nodes: FakeNodes, redlock: Redlock, stored: bytes, told: str
) -> None:
    """One node that knows of it is enough, and unreadable names end no renewal."""
    lease = redlock.acquire("k")
    before = redlock.extension(lease)
    before.carry_through(0.05)
    ask_to_end(nodes, 1, stored)

    after = redlock.extension(lease)

    assert after.carry_through(0.05)
    assert (before.cancelled_by, after.cancelled_by) == ("", told)


# -- restore ---------------------------------------------------------------------------


def test_extension_restores_where_the_lock_is_missing(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A minority without the key is restored, and the renewal does not wait for it."""
    lease = redlock.acquire("k")
    forget(nodes, 0, 1)
    nodes.asked.clear()

    assert redlock.extend(lease)

    assert asked(nodes) == ["extend", "restore"]
    assert lease.votes == 3
    assert holders(nodes) == [lease.token] * 5


def test_restore_raises_the_fence_counter(nodes: FakeNodes, redlock: Redlock) -> None:
    """A restored node counts as one that granted: its later grants are greater."""
    lease = redlock.acquire("k")
    nodes.nodes[0].memory.redis.hdel(b"redlock:meta", STRIPE_OF_K)
    forget(nodes, 0)

    redlock.extend(lease)

    assert counters(nodes)[0] == lease.fence


def test_first_renewal_claims_nodes_that_were_away_at_acquire(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A lock on a bare majority becomes a lock on all nodes."""
    nodes.nodes[0].kill()
    lease = redlock.acquire("k")
    nodes.nodes[0].is_running = True  # the same process can be reached again

    redlock.extend(lease)

    assert holders(nodes) == [lease.token] * 5


def test_restore_makes_a_majority(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """If a majority forgot the lock, a renewal saves the lease while it is valid."""
    lease = redlock.acquire("k")
    clock.advance(4.0)
    before = clock.monotonic()
    forget(nodes, 0, 1, 2, 3)
    nodes.latency(0.02)
    nodes.asked.clear()

    assert redlock.extend(lease)

    assert asked(nodes) == ["extend", "restore"]
    assert lease.until == pytest.approx(before + VALIDITY)
    assert clock.monotonic() == pytest.approx(before + 0.04)


def test_restore_counts_each_node_once(nodes: FakeNodes, redlock: Redlock) -> None:
    """Nodes that extended also get the restore: their two votes count once."""
    lease = redlock.acquire("k")
    forget(nodes, 0)
    for index in (1, 2, 3):
        put(nodes, index, "other.1")

    assert not redlock.extend(lease)

    assert holders(nodes) == [lease.token, *["other.1"] * 3, lease.token]


def test_restore_counts_only_while_the_lease_is_valid(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A restore that comes a moment too late does not save the lease."""
    lease = redlock.acquire("k")
    clock.advance(VALIDITY - 0.03)
    forget(nodes, 0, 1, 2)
    nodes.latency(0.02)
    until = lease.until

    assert not redlock.extend(lease)

    assert lease.until == until


def test_restore_is_not_sent_after_the_validity_ended(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """It would revive a lock that its holder no longer trusts."""
    lease = redlock.acquire("k")
    clock.advance(VALIDITY - 0.01)
    forget(nodes, 0, 1, 2)
    nodes.latency(0.02)

    redlock.extend(lease)

    assert asked(nodes) == ["acquire", "extend"]
    assert holders(nodes)[:3] == [""] * 3


def test_restore_is_not_sent_once_release_began(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """It would revive a released lock, and no client would release it again."""
    lease = redlock.acquire("k")
    forget(nodes, 0, 1, 2)
    extension = redlock.extension(lease)
    nodes.send(extension.request)
    nodes.wait(extension.request, until=nodes.clock.monotonic())
    restore = extension.advance(out_of_time=False)
    assert restore is not None

    redlock.release(lease)
    nodes.send(restore)

    assert asked(nodes) == ["acquire", "extend", "release"]
    assert holders(nodes) == [""] * 5
    assert extension.advance(out_of_time=False) is None
    assert extension.result is False


def test_restore_and_extension_make_a_majority_together(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A node that extended need not confirm the restore, and is not waited for."""
    nodes.freeze(3, 4)
    lease = redlock.acquire("k")
    forget(nodes, 2)
    extension = redlock.extension(lease)
    nodes.send(extension.request)
    nodes.wait(extension.request, until=nodes.clock.monotonic())
    restore = extension.advance(out_of_time=True)
    assert restore is not None
    nodes.freeze(0, 1)
    before = clock.monotonic()

    nodes.send(restore)
    nodes.wait(restore, until=before + 0.05)

    assert clock.monotonic() == before
    assert extension.advance(out_of_time=False) is None
    assert extension.result is True
    assert lease.votes == 3


def test_restore_fails_if_both_together_are_no_majority(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """It is tried once: the next renewal begins with the question where the lock is."""
    nodes.freeze(3, 4)
    lease = redlock.acquire("k")
    forget(nodes, 1, 2)
    extension = redlock.extension(lease)
    nodes.send(extension.request)
    nodes.wait(extension.request, until=nodes.clock.monotonic())
    restore = extension.advance(out_of_time=True)
    assert restore is not None
    nodes.freeze(2)

    nodes.send(restore)
    nodes.wait(restore, until=nodes.clock.monotonic())

    assert not restore.is_done()
    assert extension.advance(out_of_time=True) is None
    assert extension.result is False


def test_restore_is_tried_once_in_a_renewal(nodes: FakeNodes, redlock: Redlock) -> None:
    """Also if the renewal before has met a node without the key."""
    lease = redlock.acquire("k")
    forget(nodes, 0)
    assert redlock.extend(lease)
    for index in (1, 2, 3):
        put(nodes, index, "other.1")
    extension = redlock.extension(lease)
    nodes.send(extension.request)
    nodes.wait(extension.request, until=nodes.clock.monotonic())
    restore = extension.advance(out_of_time=True)
    assert restore is not None

    nodes.send(restore)
    nodes.wait(restore, until=nodes.clock.monotonic())

    assert extension.advance(out_of_time=True) is None
    assert extension.result is False


def test_node_that_answers_too_late_is_restored_by_the_next_renewal(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A renewal does not wait for all nodes. The next one has its late answer."""
    lease = redlock.acquire("k")
    forget(nodes, 0)
    nodes.latency(0.02, 0)
    nodes.asked.clear()
    assert redlock.extend(lease)
    clock.advance(0.03)
    nodes.drain(clock.monotonic())
    assert asked(nodes) == ["extend"]

    assert redlock.extend(lease)

    assert asked(nodes) == ["extend", "extend", "restore"]


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
    nodes: FakeNodes, redlock: Redlock, *, taken: bool
) -> None:
    """The holder never takes it again; its error names the operator and the reason."""
    lease = redlock.acquire("k")
    force_release(redlock, nodes, lease, 0, 1, 2, 3, 4)
    other = redlock.acquire("k") if taken else None

    assert not redlock.extend(lease)

    assert not lease.is_valid()
    error = str(lease.lost_error())
    assert "was released by an operator, alice on web-1" in error
    assert "stuck since noon" in error
    assert holders(nodes) == [other.token if other else ""] * 5
    assert not redlock.extend(lease)


def test_one_node_with_the_record_tells_the_holder(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Nodes that lack the record do not matter, if a majority is without the lock."""
    lease = redlock.acquire("k")
    force_release(redlock, nodes, lease, 4)
    forget(nodes, 0, 1, 2)

    assert not redlock.extend(lease)
    assert lease.released_by


def test_release_on_a_minority_is_undone_by_a_live_holder(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The lock was not taken away: the renewal brings it back to these nodes."""
    lease = redlock.acquire("k")
    force_release(redlock, nodes, lease, 0, 1)

    assert redlock.extend(lease)
    assert lease.released_by == ""
    redlock.extend(lease)
    assert holders(nodes) == [lease.token] * 5


def test_release_on_a_minority_is_no_loss_though_no_majority_answers(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A majority may still have the lock, so the lease goes on to its own end."""
    lease = redlock.acquire("k")
    force_release(redlock, nodes, lease, 0, 1)
    nodes.freeze(2, 3, 4)

    redlock.extend(lease)

    assert lease.released_by == ""
    assert lease.is_valid()


def test_releases_are_listed_once_with_their_nodes(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The list says on how many nodes the lock was; without any there is no release."""
    lease = redlock.acquire("k")
    forget(nodes, 4)
    force_release(redlock, nodes, lease, 0, 1, 2, 4)
    never = redlock.acquire("k")
    redlock.release(never)
    force_release(redlock, nodes, never, 0, 1)

    (found,) = forced_releases(redlock)

    assert (found.who, found.reason, found.nodes) == ("alice", "stuck since noon", 3)
    assert forced_releases(redlock, "k") == [found]
    assert forced_releases(redlock, "another") == []
