"""Inspect, and ``ensure(network=True)``: what the nodes say about a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import LockLost, QuorumUnreachable
from tests.unit.core.support import forget, hold, ttls

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from tests.unit.support import Site


def test_inspect_of_a_free_key(redlock: Redlock) -> None:
    """No holder, no votes, no time."""
    inspection = redlock.inspect("k")

    assert (inspection.key, inspection.holder) == ("k", None)
    assert (inspection.votes, inspection.ttl_left) == (0, 0.0)
    assert inspection.ballot.answered == 5


def test_inspect_names_the_holder(site: Site) -> None:
    """Holder, votes and time, without changing anything."""
    lease = site.rival.acquire("k")
    site.clock.advance(4.0)

    inspection = site.redlock.inspect("k")

    assert inspection.holder is not None
    assert inspection.holder.token == lease.token
    assert (inspection.votes, inspection.ttl_left) == (5, 6.0)
    assert ttls(site.nodes) == [6000] * 5


def test_inspect_takes_a_minority_for_no_holder(site: Site) -> None:
    """Two of five nodes are no holder; their votes are counted."""
    hold(site.nodes, 0, 1)

    inspection = site.redlock.inspect("k")

    assert (inspection.holder, inspection.votes) == (None, 2)
    assert inspection.ttl_left == 0.0


def test_inspect_waits_for_all_nodes(site: Site) -> None:
    """Inspect does not stop at a majority."""
    site.redlock.acquire("k")
    site.nodes.latency(0.04, 4)

    assert site.redlock.inspect("k").votes == 5


# -- ensure(network=True) --------------------------------------------------------------


def test_confirm_trusts_a_majority(site: Site) -> None:
    """Three of five nodes name the lease: it is valid."""
    lease = site.redlock.acquire("k")
    forget(site.nodes, 0)
    site.nodes.nodes[1].kill()

    lease.ensure(network=True)


@pytest.mark.parametrize("successor", ["", "other.1"])
def test_confirm_notices_that_nodes_lost_the_lock(site: Site, successor: str) -> None:
    """After a forced release, or a wipe, the clock says valid and the nodes say no."""
    lease = site.redlock.acquire("k")
    forget(site.nodes, 0, 1, 2)
    if successor:
        hold(site.nodes, 0, 1, 2, by=successor)

    lease.ensure()
    with pytest.raises(LockLost) as caught:
        lease.ensure(network=True)

    assert (caught.value.key, caught.value.fence) == ("k", lease.fence)


def test_confirm_without_enough_answers_cannot_tell(site: Site) -> None:
    """Silence is neither yes nor no: the error says how long the lease is valid."""
    lease = site.redlock.acquire("k")
    site.nodes.freeze(0, 1, 2)

    with pytest.raises(QuorumUnreachable, match=r"lease is valid for \d+\.\d s more\."):
        lease.ensure(network=True)


def test_confirm_counts_whether_silence_could_make_a_majority(site: Site) -> None:
    """Two yes, two no, one silent: unknown. One yes, three no: lost."""
    lease = site.redlock.acquire("k")
    site.nodes.freeze(0)
    forget(site.nodes, 3, 4)

    with pytest.raises(QuorumUnreachable):
        lease.ensure(network=True)

    forget(site.nodes, 2)
    with pytest.raises(LockLost):
        lease.ensure(network=True)
