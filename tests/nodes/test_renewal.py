"""Renewal by the watchdog: a watched lease is kept, ended, or reported as lost."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from celery_redlock.errors import LockLost
from celery_redlock.locking import lock, watchdog_of
from celery_redlock.locks.lease import Lease, LeaseState
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.watchdog import Watchdog
from tests.nodes.support import (
    StartNodes,
    client,
    delete_lock,
    failing,
    meanwhile,
    proxied,
    until,
    until_all_vote,
    until_nothing_is_left,
)

OFTEN = 0.3  # seconds between renewals: as many as with a short ttl, and none is late


class RecordingWatchdog(Watchdog):
    """A watchdog that records its renewals and losses.

    Attributes:
        renewals: The keys of renewed leases.
        losses: The lost leases, each with the instant of the report.
    """

    def __init__(self, redlock: Redlock) -> None:
        super().__init__(redlock)
        self.redlock = redlock
        self.renewals: list[str] = []
        self.losses: list[tuple[Lease, float]] = []

    def record(
        self, *leases: Lease, renew: bool = True, every: float | None = None
    ) -> None:
        """Watch these leases; renew them every so many seconds."""
        told: dict[str, Any] = {"on_renewed": self._renewed, "on_lost": self._lost}
        for lease in leases:
            self.watch(lease, renew=renew, renew_every=every, **told)

    def _renewed(self, lease: Lease, lateness: float) -> None:
        assert lateness >= 0
        self.renewals.append(lease.key)

    def _lost(self, lease: Lease) -> None:
        self.losses.append((lease, self.redlock.clock.monotonic()))

    def release(self, *leases: Lease) -> None:
        """Release leases that are still watched."""
        for lease in leases:
            assert self.forget(lease)
            self.redlock.release(lease)


class SteppedWatchdog(RecordingWatchdog):
    """A watchdog without a thread: the test calls its steps."""

    def start(self) -> bool:
        """Do not start the thread."""
        return True


@contextlib.contextmanager
def watchdog(
    nodes: DevNodes | Sequence[str], **options: Any
) -> Iterator[tuple[Redlock, RecordingWatchdog]]:
    """Give a service and its watchdog, which is stopped afterwards."""
    with client(nodes, **options) as redlock:
        dog = RecordingWatchdog(redlock)
        try:
            yield redlock, dog
        finally:
            dog.stop()


def stutter(
    nodes: Sequence[DevNode], *, longest: float, seed: int
) -> AbstractContextManager[None]:
    """Stop one of these nodes after the other for a moment, in a thread."""
    chance = random.Random(seed)  # noqa: S311  (no secret)

    def stop_one() -> None:
        with failing([chance.choice(nodes)]):
            time.sleep(chance.uniform(0, longest))  # the length of the fault
        time.sleep(chance.uniform(0, longest))

    return meanwhile(stop_one)


# -- A watched lease is kept -------------------------------------------------------


def test_stuttering_minority_costs_no_lease(five_nodes: DevNodes, key: str) -> None:
    """No lease is lost while one node at a time hangs now and then."""
    with (
        watchdog(five_nodes, ttl=6.0, node_timeout=0.3) as (redlock, dog),
        stutter(five_nodes.nodes, longest=0.4, seed=1),  # longer than node_timeout
    ):
        leases = [redlock.acquire(f"{key}:{number}", wait=5) for number in range(10)]
        dog.record(*leases, every=OFTEN)
        until(lambda: len(dog.renewals) > 120, seconds=60)
        assert dog.losses == []
        dog.release(*leases)
    until_nothing_is_left(five_nodes)


@pytest.mark.every_server
def test_key_that_our_user_may_not_access_costs_no_other_lock(
    start_nodes: StartNodes,
) -> None:
    """A node refuses the whole renewal of leases together for one of their keys."""
    options = ServerOptions(username="locker", password="secret")
    nodes = start_nodes(3, options=options)
    first = nodes.nodes[0]
    allowed = [f"~redlock:{name}" for name in ("lock:a", "meta", "releases")]
    with client(nodes) as redlock:
        dog = SteppedWatchdog(redlock)
        leases = [redlock.acquire(key) for key in ("a", "b")]
        first.command("ACL", "SETUSER", "locker", "resetkeys", *allowed)
        for key in ("a", "b"):
            first.command("PEXPIRE", f"redlock:lock:{key}", 10**9)
        dog.record(*leases, every=0.001)  # they are due together

        def is_renewed_there() -> bool:
            dog.step()
            return bool(first.command("PTTL", "redlock:lock:a") <= 30_000)

        until(is_renewed_there)
        assert first.command("PTTL", "redlock:lock:b") > 30_000
        assert dog.losses == []
        dog.release(*leases)


def test_failed_renewal_is_tried_again(three_nodes: DevNodes, key: str) -> None:
    """A lease whose renewal broke all connections is kept by the next renewal.

    Source: ShedLock KeepAliveLockProvider; Redisson #3194, #3714; aioredlock.
    """
    renewed = threading.Event()
    lost: list[Lease] = []
    with proxied(three_nodes) as (lines, redlock):
        told: Any = {"on_renewed": lambda *_: renewed.set(), "on_lost": lost.append}
        with lock(redlock, key, **told) as lease:
            before = lease.until
            breaks = [line.cut_when(lease.token.encode()) for line in lines]
            watchdog_of(redlock).renew_now(lease)
            until(lambda: all(count() for count in breaks))
            assert not renewed.is_set()
            assert lease.is_valid()

            for line in lines:
                line.cut_when(None)

            assert renewed.wait(20)
            assert lease.until > before
        assert lost == []
        until_nothing_is_left(three_nodes, key)


# -- A released lease stays released -----------------------------------------------


@pytest.mark.every_server
def test_renewal_never_brings_a_released_lock_back(
    three_nodes: DevNodes, key: str
) -> None:
    """300 renewals that race a release over a stuttering node leave no lock."""
    nodes = three_nodes.nodes
    chance = random.Random(2)  # noqa: S311  (no secret)
    with watchdog(three_nodes, ttl=60, node_timeout=0.02) as (redlock, dog):
        redlock.release(redlock.acquire(key, wait=10))
        with stutter(nodes[:1], longest=0.03, seed=3):
            for number in range(300):
                lease = redlock.acquire(f"{key}:{number}", wait=10)
                dog.watch(lease)
                if number % 3 == 0:  # a renewal that has to restore
                    delete_lock(nodes[1:2], lease.key)
                dog.renew_now(lease)
                if number % 2:
                    time.sleep(chance.uniform(0, 0.002))  # anywhere in the renewal
                dog.release(lease)
        until_all_vote(redlock)
        until_nothing_is_left(three_nodes)


@pytest.mark.parametrize("seed", range(3))
def test_forget_and_loss_exclude_each_other(
    three_nodes: DevNodes, key: str, seed: int
) -> None:
    """Of each lease either `forget` returns True or `on_lost` is called, not both."""
    chance = random.Random(seed)  # noqa: S311  (no secret)
    with watchdog(three_nodes, node_timeout=0.1) as (redlock, dog):
        leases = [redlock.acquire(f"{key}:{n}", ttl=0.5, wait=5) for n in range(60)]
        dog.record(*leases, renew=False)
        chance.shuffle(leases)
        forgotten = []
        for lease in leases:
            until(lambda: lease.remaining() <= 0.002)  # noqa: B023  (called at once)
            if dog.forget(lease):
                forgotten.append(lease.key)
        until(lambda: len(forgotten) + len(dog.losses) == len(leases))
        lost = [lease.key for lease, _ in dog.losses]
        assert sorted(forgotten + lost) == sorted(lease.key for lease in leases)
    until_nothing_is_left(three_nodes)


# -- A lost lease is reported ------------------------------------------------------


@pytest.mark.parametrize("way", ["dead", "hung"])
def test_holder_without_a_majority_is_notified(
    five_nodes: DevNodes, key: str, way: str
) -> None:
    """Without a majority a lease is lost at the end of its validity, and no sooner."""
    told: list[float] = []
    with client(five_nodes, ttl=1.5, node_timeout=0.2) as redlock:
        redlock.release(redlock.acquire(key, wait=5))

        def note(_: Lease) -> None:
            told.append(redlock.clock.monotonic())

        with (
            pytest.raises(LockLost),
            lock(redlock, key, wait=5, on_lost=note) as lease,
            failing(five_nodes.nodes[:3], way),
        ):
            until(lambda: told)

        assert lease.state is LeaseState.LOST
        assert told[0] >= lease.until
        assert len(told) == 1
        until_nothing_is_left(five_nodes, key)
