"""The holder of a lock learns from its renewals that somebody wants it to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.cancelling import ask_to_end
from celery_redlock.core.lease import Holder
from celery_redlock.errors import LockCancelled
from tests.unit.core.support import TTL, Stepped, forget

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes

WHO = "job[newcomer]"


def cancel(redlock: Redlock, who: str = WHO) -> int:
    """Ask the holder to end."""
    holder = redlock.inspect("k").holder
    assert holder is not None
    return ask_to_end(redlock, "k", holder, who)


def test_holder_is_told_with_the_next_renewal_and_once(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Whoever else asks after that: it knows already."""
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


def test_lease_stays_valid_and_is_renewed_all_the_same(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Nobody takes the lock away: it is for the holder to end, and to let go."""
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


def test_holder_is_told_sooner_where_it_asks_more_often(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """``renew_every`` says how soon; a third of the ttl is the longest."""
    instants: list[float] = []
    lease = redlock.acquire("k")
    watchdog.watch(
        lease,
        renew_every=1.0,
        on_renewed=lambda _, __: instants.append(clock.monotonic() - 1000.0),
    )

    watchdog.run_for(clock, 4.5)

    assert instants == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.01)


def test_one_that_is_told_often_is_never_late(
    redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Late is what comes after a third of the ttl, whatever was planned."""
    latenesses: list[float] = []
    lease = redlock.acquire("k")
    watchdog.watch(
        lease, renew_every=1.0, on_renewed=lambda _, late: latenesses.append(late)
    )
    watchdog.run_for(clock, 0.9)
    clock.advance(2.0)

    watchdog.run_for(clock, 2.0)

    assert latenesses[0] == 0.0


def test_holder_is_told_though_most_nodes_have_forgotten(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """They get the lock back; the one that remembers has told who wants it."""
    lease = redlock.acquire("k")
    watchdog.watch(lease)
    cancel(redlock)
    forget(nodes, 1, 2)

    watchdog.run_for(clock, TTL / 2)

    assert lease.cancelled_by == WHO
    assert lease.is_valid()


def test_facts_of_a_holder_say_when_it_was_published_and_who_wants_it_to_end() -> None:
    """In one read, for whoever looks."""
    facts = Holder("t", 1, "job", "id", "host", 7, 2.5, published=42).facts()

    holder = Holder.parse(f"t\n1\n{facts}\ncancelled {WHO}")

    assert (holder.published, holder.cancelled_by) == (42, WHO)
    assert Holder.parse(f"t\n1\n{facts}").cancelled_by == ""
    assert (holder.task, holder.task_id, holder.started) == ("job", "id", 2.5)


def test_facts_without_a_publication_are_as_ever() -> None:
    """A lock that was taken outside of a task has five of them."""
    assert Holder("t", 1, "job", "id", "host", 7, 2.5).facts().count("\n") == 4
    assert Holder.parse("t\n1\njob\nid\nhost\n7\n2.500").published == 0
