"""Release: our lock goes from all nodes, and another client's stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import LeaseState, new_base
from celery_redlock.errors import LockHeld
from tests.unit.core.support import FREE, TTL, asked, holders, ttls

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from tests.unit.support import Site


def test_release_deletes_the_lock_everywhere(site: Site) -> None:
    """One round trip; the lease is released; the key can be taken again."""
    lease = site.redlock.acquire("k")
    site.nodes.asked.clear()

    assert site.redlock.release(lease) == 5

    assert asked(site.nodes) == ["release"]
    assert lease.state is LeaseState.RELEASED
    assert not lease.is_valid()
    assert holders(site.nodes) == FREE
    assert site.redlock.acquire("k").is_valid()


def test_release_twice_is_harmless(site: Site) -> None:
    """The second release finds nothing, and a successor's lock stays."""
    lease = site.redlock.acquire("k")
    site.redlock.release(lease)
    successor = site.rival.acquire("k")

    assert site.redlock.release(lease) == 0
    assert site.rival.inspect("k").votes == 5
    assert successor.is_valid()


def test_release_after_the_end_never_touches_a_successor(site: Site) -> None:
    """Nodes compare the token before they delete: the lock is another client's."""
    lease = site.redlock.acquire("k")
    site.clock.advance(TTL + 0.01)
    successor = site.rival.acquire("k")

    assert site.redlock.release(lease) == 0
    assert holders(site.nodes) == [successor.token] * 5


def test_release_of_a_lost_lease_keeps_it_lost(redlock: Redlock) -> None:
    """A release does not hide that the lease was lost."""
    lease = redlock.acquire("k")
    lease.state = LeaseState.LOST

    redlock.release(lease)

    assert lease.state is LeaseState.LOST


def test_release_does_not_wait_for_slow_nodes(site: Site) -> None:
    """A majority is enough to go on; the other nodes get the release all the same."""
    lease = site.redlock.acquire("k")
    site.nodes.freeze(0, 1)
    before = site.clock.monotonic()

    assert site.redlock.release(lease) == 3

    assert site.clock.monotonic() == before
    site.nodes.thaw()
    assert holders(site.nodes) == FREE


def test_release_reaches_nodes_that_granted_too_late(site: Site) -> None:
    """Grants that acquire did not wait for are released, too."""
    site.nodes.freeze(0, 1)
    lease = site.redlock.acquire("k")
    assert lease.votes == 3
    site.redlock.release(lease)

    site.nodes.thaw()

    assert holders(site.nodes) == FREE


def test_release_is_resent_to_a_node_that_was_down(site: Site) -> None:
    """A node that returns with its memory gets the release of its earlier grant."""
    lease = site.redlock.acquire("k")
    site.nodes.nodes[0].kill()
    assert site.redlock.release(lease) == 4
    assert site.nodes.has_pending

    site.nodes.nodes[0].restart(keep_memory=True)
    assert holders(site.nodes)[0] == lease.token
    site.nodes.drain(site.clock.monotonic())

    assert holders(site.nodes) == FREE


def test_release_with_keep_lets_the_lock_expire(site: Site) -> None:
    """``hold_at_least``: the lock is taken until then, and the lease is not valid."""
    lease = site.redlock.acquire("k")

    assert site.redlock.release(lease, keep=2.5) == 5

    assert ttls(site.nodes) == [2500] * 5
    assert not lease.is_valid()
    with pytest.raises(LockHeld):
        site.rival.acquire("k")
    site.clock.advance(2.501)
    assert site.rival.acquire("k").is_valid()


@pytest.mark.parametrize("keep", [0.0, -1.0, 0.0001])
def test_release_with_nothing_to_keep_deletes(site: Site, keep: float) -> None:
    """A keep of less than a millisecond deletes at once."""
    lease = site.redlock.acquire("k")

    site.redlock.release(lease, keep=keep)

    assert holders(site.nodes) == FREE


def test_release_base_releases_any_attempt_of_an_execution(site: Site) -> None:
    """A process that outlives the holder knows the base and not the attempt."""
    base, another = new_base(), new_base()
    site.rival.acquire("k", base=base)

    assert site.redlock.release_base("k", another) == 0
    assert site.redlock.release_base("k", base[:-1]) == 0
    assert site.redlock.release_base("k", base) == 5
    assert holders(site.nodes) == FREE
