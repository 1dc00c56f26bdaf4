"""The jump of one clock, which the specification found, in the lock itself."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from celery_redlock.errors import LockHeld
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
