"""One renewal of one lease: a majority must say yes before the validity ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import LeaseState
from tests.unit.core.support import VALIDITY, asked, counters, holders, put, ttls

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


def test_extension_moves_the_validity(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """One round trip; all nodes keep it for a whole ttl from now."""
    lease = redlock.acquire("k")
    clock.advance(4.0)
    nodes.asked.clear()

    assert redlock.extend(lease)

    assert lease.remaining() == pytest.approx(VALIDITY)
    assert ttls(nodes) == [10_000] * 5
    assert asked(nodes) == ["extend"]


def test_extension_keeps_fence_and_token(nodes: FakeNodes, redlock: Redlock) -> None:
    """What storage has seen stays true."""
    lease = redlock.acquire("k")
    before = (lease.fence, lease.token, counters(nodes))

    redlock.extend(lease)

    assert (lease.fence, lease.token, counters(nodes)) == before


def test_extension_counts_from_before_its_first_send(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """What the round trip took is not added to the validity."""
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
    """Two of five leave the lease as valid as it was, and it can be tried again."""
    lease = redlock.acquire("k")
    clock.advance(4.0)
    until = lease.until
    nodes.freeze(0, 1, 2)

    assert not redlock.extend(lease)

    assert lease.until == until
    assert lease.state is LeaseState.HELD
    nodes.thaw()
    assert redlock.extend(lease)


def test_extension_waits_one_node_timeout_for_the_silent(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A try that may fail fails soon, so that there is time for the next."""
    lease = redlock.acquire("k")
    nodes.freeze(0, 1, 2)
    before = clock.monotonic()

    redlock.extend(lease)

    assert clock.monotonic() == pytest.approx(before + 0.05)


def test_extension_does_not_wait_for_the_slow(
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
    """Nothing is even sent, though the nodes still have it for a moment."""
    lease = redlock.acquire("k")
    clock.advance(VALIDITY)
    before = ttls(nodes)
    nodes.asked.clear()

    assert not redlock.extend(lease)

    assert asked(nodes) == []
    assert ttls(nodes) == before
    assert not lease.is_valid()


@pytest.mark.parametrize("state", [LeaseState.RELEASED, LeaseState.LOST])
def test_extension_of_what_is_not_held_sends_nothing(
    nodes: FakeNodes, redlock: Redlock, state: LeaseState
) -> None:
    """A released lock is not renewed, nor one whose loss was announced."""
    lease = redlock.acquire("k")
    lease.state = state
    nodes.asked.clear()

    assert not redlock.extend(lease)

    assert asked(nodes) == []


def test_extension_confirmed_too_late_counts_for_nothing(
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
    """Of two renewals under way, the one that was begun later decides."""
    lease = redlock.acquire("k")
    early = redlock.commands.extension(lease)
    nodes.send(early.question)
    clock.advance(1.0)
    redlock.extend(lease)
    until = lease.until

    assert early.advance(out_of_time=False) is None

    assert early.result is True
    assert lease.until == until


def test_extension_leaves_a_successor_alone(nodes: FakeNodes, redlock: Redlock) -> None:
    """Where somebody else has the key, it stays theirs, and nothing is restored."""
    lease = redlock.acquire("k")
    for index in range(3):
        put(nodes, index, "other.1", ttl_ms=2000)

    assert not redlock.extend(lease)

    assert holders(nodes)[:3] == ["other.1"] * 3
    assert ttls(nodes)[:3] == [2000] * 3


def test_renewal_is_not_sent_once_release_began(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Asked in the transport's turn: nothing can come between."""
    lease = redlock.acquire("k")
    extension = redlock.commands.extension(lease)
    redlock.release(lease)

    nodes.send(extension.question)

    assert asked(nodes) == ["acquire", "release"]
    assert extension.question.is_settled()
    assert extension.question.ballot.reasons().count("was not asked any more") == 5


def test_extension_is_open_until_settled_or_out_of_time(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Who sends many at once looks at each again and again."""
    lease = redlock.acquire("k")
    nodes.freeze()
    extension = redlock.commands.extension(lease)
    nodes.send(extension.question)

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
