"""Taking a lock, on servers that are well: what is stored, and what a loser learns."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import Holder, new_base
from celery_redlock.core.timing import drift_of
from celery_redlock.errors import LockHeld
from tests.nodes.support import kinds, until, until_nothing_is_left, values

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

pytestmark = pytest.mark.every_server


def test_lease_is_stored_on_the_nodes(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """The token, the fence and the facts are on every node, and end with the ttl."""
    facts = Holder.here(task="send", task_id="id-1", started=12.5)
    before = redlock.clock.monotonic()

    lease = redlock.acquire(key, ttl=20, facts=facts)

    latest = redlock.clock.monotonic() + 20 - drift_of(20)
    assert before + 20 - drift_of(20) <= lease.until <= latest
    assert lease.is_valid()
    until(lambda: None not in values(shared_nodes, key))
    for node in shared_nodes.nodes:
        assert 0 < node.command("PTTL", f"redlock:lock:{key}") <= 20_000
    for value in values(shared_nodes, key):
        holder = Holder.parse(str(value))
        assert (holder.token, holder.task, holder.task_id) == (
            lease.token,
            "send",
            "id-1",
        )
        assert (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
        assert (holder.started, holder.fence) == (12.5, lease.fence)
    redlock.release(lease)


def test_loser_learns_who_holds_it(redlock: Redlock, rival: Redlock, key: str) -> None:
    """A second acquire names the holder, and when the lock ends by itself."""
    lease = redlock.acquire(key, ttl=20, facts=Holder.here(task="send", task_id="1"))

    with pytest.raises(LockHeld, match=r"send\[1\] on .* \(pid \d+\), as \d of 5") as e:
        rival.acquire(key)

    assert e.value.key == key
    assert e.value.holder
    assert e.value.holder.token == lease.token
    assert e.value.retry_after
    assert 0 < e.value.retry_after <= 20
    redlock.release(lease)


def test_loser_leaves_nothing_and_disturbs_nothing(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """The holder keeps what it has on all nodes, whoever else asked."""
    lease = redlock.acquire(key)
    until(lambda: None not in values(shared_nodes, key))
    before = values(shared_nodes, key)

    for _ in range(20):
        with pytest.raises(LockHeld):
            rival.acquire(key)

    assert values(shared_nodes, key) == before
    redlock.release(lease)
    until_nothing_is_left(shared_nodes, key)


def test_same_base_does_not_lock_twice(redlock: Redlock, key: str) -> None:
    """A base names an execution, and is no permission to take its lock again."""
    base = new_base()
    lease = redlock.acquire(key, base=base)

    with pytest.raises(LockHeld) as held:
        redlock.acquire(key, base=base)

    assert held.value.holder
    assert held.value.holder.base == base
    assert redlock.inspect(key).votes == 5
    redlock.release(lease)


def test_unrenewed_lock_ends_with_its_ttl(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A holder that does nothing is followed by the next one; the fence grows."""
    lease = redlock.acquire(key, ttl=1)

    successor = rival.acquire(key, wait=10)

    assert not lease.is_valid()
    assert successor.started_at > lease.until
    assert successor.fence > lease.fence
    rival.release(successor)


def test_inspect_of_a_free_key(redlock: Redlock, key: str) -> None:
    """Nobody holds it: no holder, no votes, no time left."""
    found = redlock.inspect(key)

    assert (found.holder, found.votes, found.ttl_left) == (None, 0, 0.0)
    assert kinds(found.ballot) == [VoteKind.FREE] * 5


def test_check_locks_nothing(shared_nodes: DevNodes, redlock: Redlock) -> None:
    """Looking at nodes that are well finds no problem and leaves no lock."""
    report = redlock.check()

    assert report.problems == []
    assert report.has_quorum
    assert report.waits is None
    until_nothing_is_left(shared_nodes, "check")
