"""The jump of one clock, which the specification found, in the lock itself."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from celery_redlock.errors import LockHeld, LockUnavailable
from celery_redlock.testing import FakeClock, partition
from celery_redlock.testing.network import FakeNode, FakeNodes


class Ahead:
    """The clock of a node that may jump forward."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.seconds = 0.0

    def monotonic(self) -> float:
        """Return the seconds by which ttls are counted."""
        return self.clock.monotonic() + self.seconds

    def wall(self) -> float:
        """Return the seconds since 1970."""
        return self.clock.wall() + self.seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass for all."""
        self.clock.sleep(seconds)


class Restarted:
    """A lock of three nodes, one of which restarts, and one has a clock that jumps."""

    def __init__(self, *, keep_memory: bool) -> None:
        self.clock = FakeClock()
        self._jumping = Ahead(self.clock)
        servers = [FakeNode(name, self.clock) for name in ("b", "c")]
        nodes = FakeNodes([FakeNode("a", self._jumping), *servers], clock=self.clock)
        nodes._new[0] = True  # noqa: SLF001  (these nodes are not initialized yet)
        self.rival, self.redlock = nodes.redlock(), nodes.another_client().redlock()
        self.lease = self.redlock.acquire("k", ttl=10.0)
        servers[1].restart(keep_memory=keep_memory)

    def renew(self) -> None:
        """Renew the lease; a first try may only learn of the new member."""
        assert self.redlock.extend(self.lease) or self.redlock.extend(self.lease)

    def renew_until_all_vote(self) -> None:
        """Renew the lease until the node votes; its last renewal comes before that."""
        votes = self.rival.check().ballot
        while votes.granted < len(votes.labels):
            self.renew()
            self.clock.advance(1.0)
            votes = self.rival.check().ballot

    def jump(self) -> None:
        """Let the clock of the first node jump: its lock ends."""
        self._jumping.seconds += 11.0


def test_jump_while_a_node_waits_for_its_vote_ends_no_lock() -> None:
    """The node that does not vote yet is no vote for another client, either."""
    site = Restarted(keep_memory=False)
    site.rival.check()
    site.renew()

    site.jump()

    with pytest.raises(LockUnavailable):
        site.rival.acquire("k", ttl=10.0)
    assert site.redlock.extend(site.lease)


def test_jump_between_the_vote_of_a_restarted_node_and_a_renewal_ends_a_lock() -> None:
    """The node votes, and is without the lock: there is no vote to spare.

    This is all of the time in which a restart takes away the vote to spare.
    """
    site = Restarted(keep_memory=False)
    site.renew_until_all_vote()

    site.jump()
    other = site.rival.acquire("k", ttl=10.0)

    assert site.lease.is_valid()
    assert other.is_valid()
    assert other.fence > site.lease.fence


@pytest.mark.parametrize("keep_memory", [False, True], ids=["empty", "with data"])
def test_jump_after_a_restarted_node_has_the_lock_ends_no_lock(
    *, keep_memory: bool
) -> None:
    """The first renewal since the vote gives the lock to a node that was empty.

    A node with data has renewed the lock all the time, and needs none.
    """
    site = Restarted(keep_memory=keep_memory)
    site.renew_until_all_vote()
    if not keep_memory:
        assert site.redlock.extend(site.lease)

    site.jump()

    with pytest.raises(LockHeld):
        site.rival.acquire("k", ttl=10.0)


@pytest.mark.parametrize("is_bare", [False, True], ids=["all nodes", "bare majority"])
def test_jump_of_one_clock_needs_a_vote_to_spare(*, is_bare: bool) -> None:
    """One clock that jumps ends a lock of a bare majority, and not one of all nodes.

    It is the counterexample of the rule SPARE_VOTE. The fence grows in any case.
    """
    clock = FakeClock()
    jumping = Ahead(clock)
    servers = [FakeNode(name, clock) for name in ("b", "c")]
    nodes = FakeNodes([FakeNode("a", jumping), *servers], clock=clock)
    nodes._new[0] = True  # noqa: SLF001  (these nodes are not initialized yet)
    rival, cut_off = nodes.redlock(), nodes.another_client()
    redlock = cut_off.redlock()

    with partition(cut_off, 2) if is_bare else nullcontext():
        lease = redlock.acquire("k", ttl=10.0)
        jumping.seconds += 11.0
        if not is_bare:
            with pytest.raises(LockHeld):
                rival.acquire("k", ttl=10.0)
            return
        other = rival.acquire("k", ttl=10.0)

    assert lease.is_valid()
    assert other.is_valid()
    assert other.fence > lease.fence
