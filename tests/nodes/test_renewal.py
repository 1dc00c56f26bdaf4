"""Renewal: a lease that is watched lives on, under load and with nodes that hang."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.timing import drift_of
from celery_redlock.locking import lock
from tests.nodes.support import client, locks, until, until_nothing_is_left, values
from tests.nodes.watching import BRIEF, Diary, stutter, watchdog

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes


@pytest.mark.every_server
def test_lease_lives_on_far_beyond_its_ttl(shared_nodes: DevNodes, key: str) -> None:
    """As long as it is watched, the lock is held, under the same token and fence."""
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        until(lambda: redlock.check().problems == [])  # connected to all of them
        lease = redlock.acquire(key)
        fence, end = lease.fence, lease.until
        until(lambda: None not in values(shared_nodes, key))
        before = values(shared_nodes, key)
        dog.watch(lease, **diary.ears)

        until(lambda: redlock.clock.monotonic() > end + 1.0)

        assert lease.is_valid()
        assert len(diary.renewals) >= 5
        assert lease.fence == fence
        assert values(shared_nodes, key) == before
        assert dog.forget(lease)
        assert redlock.release(lease) >= 3
        assert diary.losses == []
    until_nothing_is_left(shared_nodes, key)


def test_renewal_claims_nodes_that_lost_it(shared_nodes: DevNodes, key: str) -> None:
    """Nodes without the lock get it with the next renewal, unasked."""
    with client(shared_nodes) as redlock, lock(redlock, key, ttl=1):
        until(lambda: None not in values(shared_nodes, key))
        for node in shared_nodes.nodes[:2]:
            node.command("DEL", f"redlock:lock:{key}")

        until(lambda: None not in values(shared_nodes, key))


def test_renewal_can_be_asked_for(shared_nodes: DevNodes, key: str) -> None:
    """`renew_now` does not wait for a third of the ttl, and does not block."""
    with client(shared_nodes, ttl=60) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        before = lease.until
        dog.watch(lease, **diary.ears)

        dog.renew_now(lease)

        until(lambda: diary.renewals)
        assert lease.until > before
        assert dog.forget(lease)
        redlock.release(lease)


def test_renewals_go_on_under_load(three_nodes: DevNodes, key: str) -> None:
    """Threads that lock and unlock as fast as they can do not starve the renewals."""
    over = threading.Event()
    with client(three_nodes, ttl=1.5) as redlock, watchdog(redlock) as dog:

        def work(number: int) -> None:
            while not over.is_set():
                redlock.release(redlock.acquire(f"{key}:busy:{number}"))

        diary = Diary(redlock)
        leases = [redlock.acquire(f"{key}:{number}") for number in range(20)]
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for lease in leases:
            dog.watch(lease, **diary.ears)
        for thread in threads:
            thread.start()
        try:
            until(
                lambda: (
                    diary.losses
                    or min(diary.renewals.count(lease.key) for lease in leases) >= 4
                )
            )
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert diary.losses == []
        assert all(lease.is_valid() for lease in leases)
        for lease in leases:
            assert dog.forget(lease)
            redlock.release(lease)
    until_nothing_is_left(three_nodes)


def test_renewal_outlives_a_stuttering_minority(five_nodes: DevNodes, key: str) -> None:
    """Nodes that hang now and then, one at a time, cost no lease."""
    with (
        client(five_nodes, ttl=1.0, node_timeout=0.2) as redlock,
        watchdog(redlock) as dog,
        stutter(five_nodes.nodes, longest=0.3, seed=1),
    ):
        diary = Diary(redlock)
        leases = [redlock.acquire(f"{key}:{number}", wait=5) for number in range(10)]
        for lease in leases:
            dog.watch(lease, **diary.ears)
        until(lambda: len(diary.renewals) > 80)
        assert diary.losses == []
        for lease in leases:
            assert dog.forget(lease)
            redlock.release(lease)
    until_nothing_is_left(five_nodes)


def test_lease_that_is_watched_late_is_not_overlooked(
    three_nodes: DevNodes, key: str
) -> None:
    """A lease that is already due when it comes under watch is renewed or lost."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with client(three_nodes, ttl=1.5) as redlock, watchdog(redlock) as dog:
            diary = Diary(redlock)
            leases = [redlock.acquire(f"{key}:{number}") for number in range(150)]
            end = leases[-1].until
            until(lambda: redlock.clock.monotonic() > end - 0.8)
            dog.start()
            for lease in leases:
                dog.watch(lease, **diary.ears)
            until(
                lambda: len(set(diary.renewals)) + len(diary.losses) >= len(leases),
                seconds=1.5 + drift_of(1.5),
            )
    finally:
        sys.setswitchinterval(interval)
    for lease in leases:
        dog.forget(lease)
    until_nothing_is_left(three_nodes)
    assert locks(three_nodes) == []
