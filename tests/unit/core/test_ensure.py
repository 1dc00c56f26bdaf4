"""``ensure(network=True)``: whether a majority still names us."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import LockLost, QuorumUnreachable
from tests.unit.core.support import forget, hold

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes


def test_confirm_believes_a_majority(nodes: FakeNodes, redlock: Redlock) -> None:
    """Three of five name us: it is ours."""
    lease = redlock.acquire("k")
    forget(nodes, 0)
    nodes.nodes[1].kill()

    lease.ensure(network=True)


@pytest.mark.parametrize("successor", ["", "other.1"])
def test_confirm_notices_that_the_lock_was_taken_away(
    nodes: FakeNodes, redlock: Redlock, successor: str
) -> None:
    """An operator, or a wipe: the clock says valid and the nodes say no."""
    lease = redlock.acquire("k")
    forget(nodes, 0, 1, 2)
    if successor:
        hold(nodes, 0, 1, 2, by=successor)

    lease.ensure()
    with pytest.raises(LockLost) as caught:
        lease.ensure(network=True)

    assert (caught.value.key, caught.value.fence) == ("k", lease.fence)


def test_confirm_without_enough_answers_cannot_tell(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Silence is neither yes nor no."""
    lease = redlock.acquire("k")
    nodes.freeze(0, 1, 2)

    with pytest.raises(QuorumUnreachable):
        lease.ensure(network=True)


def test_confirm_counts_whether_silence_could_make_a_majority(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Two say yes, two no, one nothing: perhaps. One yes, three no: lost."""
    lease = redlock.acquire("k")
    nodes.freeze(0)
    forget(nodes, 3, 4)

    with pytest.raises(QuorumUnreachable):
        lease.ensure(network=True)

    forget(nodes, 2)
    with pytest.raises(LockLost):
        lease.ensure(network=True)
