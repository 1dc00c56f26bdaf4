"""The same histories on fake nodes and on real servers, with the same outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import Holder
from celery_redlock.errors import LockHeld, LockLost, QuorumUnreachable
from tests.contract.deployments import Deployment, Fakes, Servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.redlock import Redlock


SHORT = 1.2  # seconds, for what is to end
NOBODY = ["", "", ""]


@pytest.fixture(params=["fakes", "servers"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Give three nodes that vote, fake or real."""
    if request.param == "fakes":
        yield Fakes()
    else:
        servers = Servers(request.getfixturevalue("three_nodes"))
        yield servers
        servers.close()


@pytest.fixture
def redlock(nodes: Deployment) -> Redlock:
    """Give a service that has been used before."""
    redlock = nodes.redlock()
    assert redlock.check().problems == []
    return redlock


def kinds(redlock: Redlock, key: str) -> list[str]:
    """Return what each node says of this key."""
    votes = redlock.inspect(key).ballot.votes
    return [vote.kind.value if vote else "?" for vote in votes]


def test_life_of_a_lock(nodes: Deployment, redlock: Redlock) -> None:
    """Taken, seen by others, renewed, released, taken by another."""
    rival = nodes.redlock()
    lease = redlock.acquire("k", facts=Holder("", task="t", task_id="id", pid=5))
    nodes.wait_until(lambda: nodes.holders("k") == [lease.token] * 3)

    with pytest.raises(LockHeld) as caught:
        rival.acquire("k")
    assert caught.value.holder is not None
    assert caught.value.holder.token == lease.token
    assert (caught.value.holder.task_id, caught.value.holder.pid) == ("id", 5)
    assert 29.0 < (caught.value.retry_after or 0.0) <= 30.0
    assert rival.inspect("k").votes == 3
    assert redlock.extend(lease)
    lease.ensure(network=True)

    assert redlock.release(lease) >= 2
    nodes.wait_until(lambda: nodes.holders("k") == NOBODY)
    assert redlock.release(lease) == 0
    assert rival.acquire("k").fence > lease.fence


def test_lock_ends_with_its_ttl(nodes: Deployment, redlock: Redlock) -> None:
    """By itself, everywhere; its holder has known sooner."""
    lease = redlock.acquire("k", ttl=SHORT)

    nodes.wait_until(lambda: nodes.holders("k") == NOBODY)

    assert not lease.is_valid()
    with pytest.raises(LockLost):
        lease.ensure()
    assert not redlock.extend(lease)
    assert nodes.holders("k") == NOBODY


def test_minority_that_hangs_stops_nobody(nodes: Deployment, redlock: Redlock) -> None:
    """It grants late, and lets go late, in that order."""
    nodes.freeze(0)

    lease = redlock.acquire("k")
    assert lease.votes == 2
    assert redlock.extend(lease)
    assert redlock.release(lease) == 2

    nodes.thaw(0)
    nodes.wait_until(lambda: kinds(redlock, "k") == ["free"] * 3)


def test_majority_that_hangs_grants_nothing(
    nodes: Deployment, redlock: Redlock
) -> None:
    """An error with the names; and what was granted too late is let go."""
    nodes.freeze(0, 1)

    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")
    assert f"{redlock.labels[0]} had not answered" in str(caught.value)

    nodes.thaw(0, 1)
    nodes.wait_until(lambda: kinds(redlock, "k") == ["free"] * 3)
    nodes.wait_until(lambda: nodes.holders("k") == NOBODY)


def test_majority_that_is_gone_is_told_at_once(
    nodes: Deployment, redlock: Redlock
) -> None:
    """Refused connections are no silence."""
    nodes.kill(0)
    nodes.kill(1)

    def refused() -> bool:
        with pytest.raises(QuorumUnreachable) as caught:
            redlock.acquire("k")
        assert caught.value.ballot is not None
        assert caught.value.ballot.answered <= 1
        return str(caught.value).count("refused the connection") == 2

    nodes.wait_until(refused)


def test_node_that_comes_back_empty_is_quarantined(
    nodes: Deployment, redlock: Redlock
) -> None:
    """It votes on nothing new, and keeps what is renewed."""
    lease = redlock.acquire("k")
    nodes.restart(0)
    quarantined = f"{redlock.labels[0]} is in quarantine for 6"
    nodes.wait_until(lambda: redlock.check().problems[0].startswith(quarantined))

    assert kinds(redlock, "k") == ["free", "taken", "taken"]

    def restored() -> bool:  # by the first renewal that hears of it in time
        assert redlock.extend(lease)
        return nodes.holders("k") == [lease.token] * 3

    nodes.wait_until(restored)
    assert redlock.release(lease) >= 2


def test_majority_that_comes_back_empty_lets_no_second_holder_in(
    nodes: Deployment, redlock: Redlock
) -> None:
    """Refused for a max_ttl, and the wait is told."""
    lease = redlock.acquire("k")
    nodes.restart(0)
    nodes.restart(1)
    rival = nodes.redlock()
    nodes.wait_until(lambda: len(rival.check().problems) == 2)

    with pytest.raises(QuorumUnreachable) as caught:
        rival.acquire("k")

    assert 50.0 < (caught.value.retry_after or 0.0) <= 62.2
    assert lease.is_valid()


def test_release_reaches_a_node_that_was_away(
    nodes: Deployment, redlock: Redlock
) -> None:
    """It comes back with its memory, and is told."""
    lease = redlock.acquire("k")
    nodes.wait_until(lambda: nodes.holders("k") == [lease.token] * 3)
    nodes.restart(0, keep_memory=True)
    nodes.kill(0)
    assert redlock.release(lease) == 2
    nodes.restart(0, keep_memory=True)
    nodes.wait_until(lambda: nodes.holders("k") == NOBODY)


def test_majority_that_forgot_is_given_the_lock_again(
    nodes: Deployment, redlock: Redlock
) -> None:
    """While the lease is valid; a raise of the fence goes with it."""
    lease = redlock.acquire("k")
    nodes.forget(0, "k")
    nodes.forget(1, "k")
    with pytest.raises(LockLost):
        lease.ensure(network=True)

    assert redlock.extend(lease)

    nodes.wait_until(lambda: nodes.holders("k") == [lease.token] * 3)
    lease.ensure(network=True)


def test_client_with_other_settings_is_refused(
    nodes: Deployment, redlock: Redlock
) -> None:
    """All nodes tell what they are set up for."""
    other = nodes.redlock(max_ttl=90.0)

    with pytest.raises(QuorumUnreachable) as caught:
        other.acquire("k")

    assert redlock.guard.config in str(caught.value)
    assert redlock.acquire("k").is_valid()


def test_fences_grow_over_clients_and_keys(nodes: Deployment, redlock: Redlock) -> None:
    """One after the other, whoever takes which."""
    clients = [redlock, nodes.redlock(), nodes.redlock(prefix="redlock")]
    fences = []
    for turn in range(9):
        lease = clients[turn % 3].acquire("k")
        fences.append(lease.fence)
        clients[turn % 3].release(lease)

    assert fences == sorted(set(fences))
