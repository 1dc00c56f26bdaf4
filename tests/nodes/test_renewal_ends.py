"""Renewal and release: a lease that was let go is never brought back."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from celery_redlock.locking import lock
from tests.nodes.support import client, until, until_nothing_is_left
from tests.nodes.watching import BRIEF, Diary, stutter, watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


@pytest.mark.every_server
def test_renewal_never_brings_a_released_lock_back(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """300 renewals that race a release over a stuttering node leave no lock."""
    nodes = start_nodes(3)
    chance = random.Random(2)  # noqa: S311  (no secret)
    with client(nodes, ttl=60, node_timeout=0.02) as redlock, watchdog(redlock) as dog:
        redlock.release(redlock.acquire(key))
        with stutter(nodes.nodes[:1], longest=0.03, seed=3):
            for number in range(300):
                lease = redlock.acquire(f"{key}:{number}", wait=10)
                dog.watch(lease)
                if number % 3 == 0:  # and one that has to restore
                    nodes.nodes[1].command("DEL", f"redlock:lock:{lease.key}")
                dog.renew_now(lease)
                if number % 2:
                    time.sleep(chance.uniform(0, 0.002))  # anywhere in the renewal
                assert dog.forget(lease)
                redlock.release(lease)
        until(lambda: redlock.check().problems == [])
        until_nothing_is_left(nodes)


def test_released_block_stays_released(three_nodes: DevNodes, key: str) -> None:
    """With `lock`, too, a renewal under way at the end does not bring it back."""
    with (
        client(three_nodes, ttl=60, node_timeout=0.02) as redlock,
        watchdog(redlock) as dog,
        stutter(three_nodes.nodes[:1], longest=0.03, seed=4),
    ):
        for number in range(100):
            name = f"{key}:{number}"
            with lock(redlock, name, watchdog=dog, wait=10) as lease:
                dog.renew_now(lease)
    until_nothing_is_left(three_nodes)


def test_forgotten_lease_is_not_renewed(shared_nodes: DevNodes, key: str) -> None:
    """A lease that was forgotten and not released ends with its ttl, silently."""
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        dog.watch(lease, **diary.ears)
        until(lambda: diary.renewals)

        assert dog.forget(lease)
        assert not dog.forget(lease)

        until_nothing_is_left(shared_nodes, key)
        assert not lease.is_valid()
        assert diary.losses == []


@pytest.mark.parametrize("seed", range(3))
def test_forget_and_loss_exclude_each_other(
    three_nodes: DevNodes, key: str, seed: int
) -> None:
    """For each lease either `forget` says yes or `on_lost` is called, never both."""
    chance = random.Random(seed)  # noqa: S311  (no secret)
    with client(three_nodes, node_timeout=0.1) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        leases = [redlock.acquire(f"{key}:{n}", ttl=0.5) for n in range(60)]
        for lease in leases:
            dog.watch(lease, renew=False, **diary.ears)
        chance.shuffle(leases)
        forgotten = []
        for lease in leases:
            until(lambda: lease.remaining() <= 0.002)  # noqa: B023  (called at once)
            if dog.forget(lease):
                forgotten.append(lease.key)
        until(lambda: len(forgotten) + len(diary.losses) == len(leases))
        lost = [lease.key for lease, _ in diary.losses]
        assert sorted(forgotten + lost) == sorted(lease.key for lease in leases)
    until_nothing_is_left(three_nodes)
