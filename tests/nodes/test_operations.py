"""Acquire, extend, release, inspect, check and ensure, on servers that work."""

from __future__ import annotations

import operator
import os
import socket
from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import (
    LockHeld,
    LockLost,
)
from celery_redlock.locks.lease import Holder, LeaseState, drift_of
from tests.nodes.support import (
    delete_lock,
    held,
    locks,
    until,
    until_all_vote,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.devnodes import DevNodes
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.redlock import Redlock

pytestmark = pytest.mark.every_server

FOREIGN = f"{'f' * 32}.{'0' * 16}\n1"
# The instant, in ms since 1970, at which a key expires on the node.
EXPIRES_AT = """
local now = redis.call('TIME')
return now[1] * 1000 + math.floor(now[2] / 1000) + redis.call('PTTL', KEYS[1])
"""


@pytest.fixture
def lease(shared_nodes: DevNodes, redlock: Redlock, key: str) -> Iterator[Lease]:
    """Give a lock of 20 s that all five nodes have, and release it afterwards."""
    holder = Holder.here(task="send", task_id="id-1", started=12.5)
    lease = held(redlock, shared_nodes, key, ttl=20, holder=holder)
    yield lease
    redlock.release(lease)
    until_nothing_is_left(shared_nodes, key)


def until_held(redlock: Redlock, key: str) -> None:
    """Wait until all five nodes name the same holder."""
    until(lambda: redlock.inspect(key).votes == 5)


def ttls(nodes: DevNodes, key: str) -> list[int]:
    """Return for how many ms each node will keep the lock; -1 means for ever."""
    return [node.command("PTTL", f"redlock:lock:{key}") for node in nodes.nodes]


def expiries(nodes: DevNodes, key: str) -> list[int]:
    """Return when the lock expires on each node, in ms since 1970."""
    name = f"redlock:lock:{key}"
    return [node.command("EVAL", EXPIRES_AT, 1, name) for node in nodes.nodes]


# -- Acquire -----------------------------------------------------------------------


def test_acquire_stores_the_lease_on_the_nodes(
    shared_nodes: DevNodes, lease: Lease, key: str
) -> None:
    """Every node has the token, the fence and the holder, and a ttl."""
    assert all(0 < ms <= 20_000 for ms in ttls(shared_nodes, key))
    for value in values(shared_nodes, key):
        found = Holder.parse(str(value))
        assert (found.token, found.task, found.task_id) == (lease.token, "send", "id-1")
        assert (found.host, found.pid) == (socket.gethostname(), os.getpid())
        assert (found.started, found.fence) == (12.5, lease.fence)


def test_refused_acquire_names_the_holder(rival: Redlock, lease: Lease) -> None:
    """The error names the holder, and when its lock expires."""
    says = r"send\[id-1\] on .* \(pid \d+\), as \d of 5"
    with pytest.raises(LockHeld, match=says) as refused:
        rival.acquire(lease.key)

    assert refused.value.key == lease.key
    assert refused.value.holder
    assert refused.value.holder.token == lease.token
    assert refused.value.retry_after
    assert 0 < refused.value.retry_after <= 20


def test_refused_acquire_changes_nothing_on_the_nodes(
    shared_nodes: DevNodes, rival: Redlock, lease: Lease
) -> None:
    """The holder keeps its lock on all nodes, however often another client tries."""
    before = values(shared_nodes, lease.key)

    for _ in range(20):
        with pytest.raises(LockHeld):
            rival.acquire(lease.key)

    assert values(shared_nodes, lease.key) == before


def test_same_base_does_not_lock_twice(redlock: Redlock, lease: Lease) -> None:
    """A second acquire of the same execution is refused: a base is no permission."""
    base = lease.token.partition(".")[0]

    with pytest.raises(LockHeld) as refused:
        redlock.acquire(lease.key, base=base)

    assert refused.value.holder
    assert refused.value.holder.base == base
    until_held(redlock, lease.key)


def test_validity_counts_from_the_start_and_then_the_lock_expires(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """The next client gets the lock after the ttl, with a greater fence."""
    before = redlock.clock.monotonic()
    lease = redlock.acquire(key, ttl=1)
    latest = redlock.clock.monotonic() + 1 - drift_of(1)
    assert before + 1 - drift_of(1) <= lease.until <= latest
    assert lease.is_valid()

    successor = rival.acquire(key, wait=10)

    assert not lease.is_valid()
    assert successor.started_at > lease.until
    assert successor.fence > lease.fence
    rival.release(successor)


@pytest.mark.parametrize("ttl", [None, 1.5, 0.95])
def test_nodes_keep_the_ttl_that_was_asked_for(
    shared_nodes: DevNodes, redlock: Redlock, key: str, ttl: float | None
) -> None:
    """No ttl means the default, and a fraction of a second is a ttl.

    Source: sherlock 0.4.1, where None deletes the lock and 1.5 keeps it for ever.
    """
    lease = redlock.acquire(key, ttl=ttl)

    whole = round((ttl or 30) * 1000)
    assert all(ms <= whole and ms != -1 for ms in ttls(shared_nodes, key))
    if not ttl:
        with pytest.raises(LockHeld):
            redlock.acquire(key)
        redlock.release(lease)
    until_nothing_is_left(shared_nodes, key)


def test_time_left_is_that_of_the_majority(
    shared_nodes: DevNodes, rival: Redlock, lease: Lease
) -> None:
    """Of three nodes that name the holder, the first that expires ends the lock.

    Source: pottery, AIORedlock.locked().
    """
    delete_lock(shared_nodes.nodes[:2], lease.key)
    shared_nodes.nodes[3].command("PEXPIRE", f"redlock:lock:{lease.key}", 9_000)

    assert until(lambda: rival.inspect(lease.key).ttl_left) <= 9


def test_check_locks_nothing(shared_nodes: DevNodes, redlock: Redlock) -> None:
    """A check of working nodes finds no problem and leaves no lock."""
    until_all_vote(redlock)
    before = set(locks(shared_nodes))

    report = redlock.check()

    assert report.has_quorum
    assert report.retry_after is None
    until(lambda: set(locks(shared_nodes)) <= before, what="no lock of the check")


# -- Keys --------------------------------------------------------------------------


def test_keys_are_independent(redlock: Redlock, key: str) -> None:
    """One execution can hold two keys, and release one of them."""
    one, two = redlock.acquire(f"{key}:1"), redlock.acquire(f"{key}:2")

    assert one.is_valid()
    assert two.is_valid()
    redlock.release(one)
    assert redlock.inspect(two.key).holder
    redlock.release(two)


@pytest.mark.parametrize(
    "text",
    [
        *("with space", "ünïcode ☃", "{hash}tag", "quote'\"\\", "*?[a]", "nul\0tab\t"),
        "x" * 5000,
    ],
    ids=["space", "unicode", "braces", "quotes", "glob", "control", "long"],
)
def test_key_is_taken_literally(redlock: Redlock, text: str, key: str) -> None:
    """A key may be any line of text, and locks nothing else."""
    name = f"{key}{text}"
    lease = redlock.acquire(name)

    with pytest.raises(LockHeld):
        redlock.acquire(name)

    found = redlock.inspect(name)
    assert found.holder
    assert found.holder.token == lease.token
    assert redlock.release(lease) >= 3


# -- Extend ------------------------------------------------------------------------


def test_extend_moves_the_validity_and_keeps_the_fence(
    shared_nodes: DevNodes, redlock: Redlock, lease: Lease, key: str
) -> None:
    """The validity counts from the start of the renewal; the fence stays the same."""
    fence, before, expired_at = lease.fence, lease.until, expiries(shared_nodes, key)
    until(lambda: lease.remaining() < 19.5)

    assert redlock.extend(lease)

    assert before < lease.until <= redlock.clock.monotonic() + 20 - drift_of(20)
    assert lease.fence == fence
    until(lambda: all(map(operator.gt, expiries(shared_nodes, key), expired_at)))


def test_extend_restores_a_minority(
    shared_nodes: DevNodes, redlock: Redlock, lease: Lease, key: str
) -> None:
    """Nodes that lost the lock get it again from the holder, with all its fields."""
    before = values(shared_nodes, key)
    delete_lock(shared_nodes.nodes[:2], key)

    # A majority may answer before these two; then the next extension restores them.
    until(lambda: redlock.extend(lease) and values(shared_nodes, key) == before)


def test_extend_does_not_take_the_lock_of_another(
    shared_nodes: DevNodes, redlock: Redlock, lease: Lease, key: str
) -> None:
    """Where a majority names another token, the renewal fails and changes nothing."""
    until_before = lease.until
    for node in shared_nodes.nodes[:3]:
        node.command("SET", f"redlock:lock:{key}", FOREIGN, "PX", 20_000)

    assert not redlock.extend(lease)

    assert lease.until == until_before
    assert values(shared_nodes, key)[:3] == [FOREIGN] * 3
    redlock.release(lease)
    until(lambda: len(locks(shared_nodes, key)) == 3)
    delete_lock(shared_nodes.nodes[:3], key)


def test_expired_lease_is_never_resurrected(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """The extension of an expired lease fails and creates nothing."""
    lease = redlock.acquire(key, ttl=1)
    until(lambda: not lease.is_valid())
    until_nothing_is_left(shared_nodes, key)

    assert not redlock.extend(lease)

    assert not lease.is_valid()
    assert locks(shared_nodes, key) == []


# -- Release -----------------------------------------------------------------------


def test_released_lock_is_free_on_all_nodes(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """Release returns how many nodes agreed; another client gets the lock at once."""
    lease = redlock.acquire(key)

    assert redlock.release(lease) >= redlock.quorum

    assert lease.state is LeaseState.RELEASED
    assert not lease.is_valid()
    other = rival.acquire(key)
    assert other.fence > lease.fence
    rival.release(other)


# -- Ensure ------------------------------------------------------------------------


def test_ensure_notices_what_an_operator_deleted(
    shared_nodes: DevNodes, lease: Lease
) -> None:
    """Only the check that asks the nodes notices it, and a majority is enough."""
    lease.ensure()
    lease.ensure(network=True)

    delete_lock(shared_nodes.nodes[:2], lease.key)
    lease.ensure(network=True)

    delete_lock(shared_nodes.nodes[2:3], lease.key)
    lease.ensure()
    with pytest.raises(LockLost, match="write nothing more"):
        lease.ensure(network=True)
