"""Renewal by the watchdog: a watched lease is kept, ended, or reported as lost."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import random
import selectors
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.timing import Timing
from celery_redlock.errors import LockLost, LockUnavailable
from celery_redlock.locking import lock, watchdog_of
from celery_redlock.locks.lease import LeaseState
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.wire.broadcast import Broadcast
from celery_redlock.wire.node import Node
from celery_redlock.wire.url import parse_nodes
from tests.harness.tcp import proxies
from tests.nodes.support import (
    PATIENT,
    client,
    delete_lock,
    failing,
    held,
    initialize_anew,
    meanwhile,
    proxied,
    until,
    until_all_vote,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from celery_redlock.devnodes import DevNode, DevNodes
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.redlock import Redlock

BRIEF: dict[str, Any] = {"ttl": 3.0, "node_timeout": 0.6}
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


@pytest.mark.every_server
def test_watched_lease_outlives_its_ttl(shared_nodes: DevNodes, key: str) -> None:
    """A watched lock is held under the same token and fence, renewal by renewal."""
    with watchdog(shared_nodes, **BRIEF) as (redlock, dog):
        until_all_vote(redlock)
        lease = held(redlock, shared_nodes, key)
        fence, end = lease.fence, lease.until
        before = values(shared_nodes, key)
        dog.record(lease, every=OFTEN)

        until(lambda: len(dog.renewals) >= 5)
        until(lambda: redlock.clock.monotonic() > end + 1.0)

        assert lease.is_valid()
        assert lease.fence == fence
        assert values(shared_nodes, key) == before
        assert dog.forget(lease)
        assert redlock.release(lease) >= 3
        assert dog.losses == []
    until_nothing_is_left(shared_nodes, key)


def test_renewal_claims_nodes_that_lost_it(shared_nodes: DevNodes, key: str) -> None:
    """Nodes without the lock get it with the next renewal."""
    with client(shared_nodes) as redlock, lock(redlock, key, ttl=6):
        until(lambda: None not in values(shared_nodes, key))
        delete_lock(shared_nodes.nodes[:2], key)

        until(lambda: None not in values(shared_nodes, key))


def test_renewal_on_request_does_not_wait(shared_nodes: DevNodes, key: str) -> None:
    """`renew_now` renews before a third of the ttl has passed, in the background."""
    with watchdog(shared_nodes, ttl=60) as (redlock, dog):
        lease = redlock.acquire(key)
        before = lease.until
        dog.record(lease)

        dog.renew_now(lease)

        until(lambda: dog.renewals)
        assert lease.until > before
        dog.release(lease)


@pytest.mark.long
def test_busy_threads_do_not_starve_renewals(three_nodes: DevNodes, key: str) -> None:
    """Leases are renewed while other threads lock and unlock as fast as they can."""
    with watchdog(three_nodes, ttl=6.0) as (redlock, dog):

        def use(number: int) -> None:
            redlock.release(redlock.acquire(f"{key}:busy:{number}", wait=5))

        def renewals() -> int:
            return min(dog.renewals.count(lease.key) for lease in leases)

        leases = [redlock.acquire(f"{key}:{number}") for number in range(20)]
        dog.record(*leases)
        with meanwhile(*[functools.partial(use, number) for number in range(8)]):
            until(lambda: dog.losses or renewals() >= 4, seconds=60)
        assert dog.losses == []
        assert all(lease.is_valid() for lease in leases)
        dog.release(*leases)
    until_nothing_is_left(three_nodes)


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


def test_lease_that_is_watched_late_is_not_overlooked(
    three_nodes: DevNodes, key: str
) -> None:
    """A lease that is already due when it is watched is renewed or lost."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with watchdog(three_nodes, ttl=1.5) as (redlock, dog):
            leases = [redlock.acquire(f"{key}:{number}") for number in range(150)]
            end = leases[-1].until
            until(lambda: redlock.clock.monotonic() > end - 0.8)
            dog.start()
            dog.record(*leases)
            until(lambda: len(set(dog.renewals)) + len(dog.losses) >= len(leases))
    finally:
        sys.setswitchinterval(interval)
    for lease in leases:
        dog.forget(lease)
    until_nothing_is_left(three_nodes)


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


def test_released_block_stays_released(three_nodes: DevNodes, key: str) -> None:
    """A renewal that is under way at the end of a block does not restore the lock."""
    with (
        watchdog(three_nodes, ttl=60, node_timeout=0.02) as (redlock, dog),
        stutter(three_nodes.nodes[:1], longest=0.03, seed=4),
    ):
        for number in range(100):
            name = f"{key}:{number}"
            with lock(redlock, name, watchdog=dog, wait=10) as lease:
                dog.renew_now(lease)
    until_nothing_is_left(three_nodes)


def test_forgotten_lease_is_not_renewed(shared_nodes: DevNodes, key: str) -> None:
    """A lease that is forgotten and not released expires, without a report."""
    with watchdog(shared_nodes, **BRIEF) as (redlock, dog):
        lease = redlock.acquire(key)
        dog.record(lease, every=OFTEN)
        until(lambda: dog.renewals)

        assert dog.forget(lease)
        assert not dog.forget(lease)

        until_nothing_is_left(shared_nodes, key)
        assert not lease.is_valid()
        assert dog.losses == []


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


@pytest.mark.every_server
def test_stolen_lock_is_announced_as_lost(shared_nodes: DevNodes, key: str) -> None:
    """A majority that names another holder ends the lease; its lock is left alone."""
    with watchdog(shared_nodes, **BRIEF) as (redlock, dog):
        lease = redlock.acquire(key)
        thief = f"{'f' * 32}.{'0' * 16}\n1"
        for node in shared_nodes.nodes[:3]:
            node.command("SET", f"redlock:lock:{key}", thief, "PX", 20_000)
        dog.record(lease)

        until(lambda: dog.losses)

        assert dog.renewals == []
        assert dog.losses[0][1] >= lease.until
        assert not dog.forget(lease)
        redlock.release(lease)
        until(lambda: values(shared_nodes, key) == [thief] * 3 + [None] * 2)
        delete_lock(shared_nodes.nodes[:3], key)


def test_end_without_renewal_is_announced(shared_nodes: DevNodes, key: str) -> None:
    """With `renew=False` the watchdog renews nothing, and reports the end."""
    with watchdog(shared_nodes, **BRIEF) as (redlock, dog):
        lease = redlock.acquire(key)
        end = lease.until
        dog.record(lease, renew=False)
        dog.renew_now(lease)

        until(lambda: dog.losses)

        assert dog.losses[0][1] >= end == lease.until
        assert lease.state is LeaseState.LOST
        assert dog.renewals == []


def test_confirmation_that_comes_too_late_is_a_loss(
    three_nodes: DevNodes, key: str
) -> None:
    """A renewal that a majority confirms after the end of validity keeps no lease."""
    with (
        proxies(three_nodes) as lines,
        watchdog([line.url for line in lines], **BRIEF) as (redlock, dog),
    ):
        initialize_anew(redlock, three_nodes)
        lease = redlock.acquire(key, wait=5)
        for line in lines[:2]:
            line.hold_replies()
        dog.record(lease)
        until(lambda: dog.losses)

        for line in lines:
            line.resume()  # the nodes had extended the lock in time

        until_all_vote(redlock)
        assert not lease.is_valid()
        assert lease.state is LeaseState.LOST
        assert dog.renewals == []
        assert len(dog.losses) == 1
        with pytest.raises(LockLost):
            lease.ensure()
        assert not redlock.extend(lease)
        redlock.release(lease)
        until_nothing_is_left(three_nodes)


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


@pytest.mark.long
def test_loss_is_reported_while_other_threads_wait_for_hung_nodes(
    five_nodes: DevNodes, key: str
) -> None:
    """The report of a loss does not wait for threads that ask hung nodes."""
    node_timeout = 5.0
    with watchdog(five_nodes, ttl=16.0, node_timeout=node_timeout) as (redlock, dog):
        leases = [redlock.acquire(f"{key}:{number}") for number in range(5)]
        dog.record(*leases)

        def ask() -> None:
            with contextlib.suppress(LockUnavailable):
                redlock.acquire(f"{key}:other")

        with failing(five_nodes.nodes[:3]), meanwhile(*[ask] * 6):
            until(lambda: len(dog.losses) == len(leases), seconds=60)
        for lease, told_at in dog.losses:
            assert 0 <= told_at - lease.until < node_timeout


# -- The thread of the watchdog ----------------------------------------------------


def test_watchdog_stops_and_starts_twice(shared_nodes: DevNodes, key: str) -> None:
    """A stopped watchdog renews nothing; after another start it goes on."""
    with watchdog(shared_nodes, ttl=60) as (redlock, dog):
        lease = redlock.acquire(key)
        dog.start()
        dog.start()
        dog.record(lease)
        dog.stop()
        dog.stop()
        dog.renew_now(lease)
        assert dog.renewals == []

        dog.start()

        until(lambda: dog.renewals)
        dog.release(lease)


def test_watchdog_survives_its_callbacks(
    shared_nodes: DevNodes, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that raises is logged, and other leases are still renewed."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    caplog.set_level(logging.ERROR)
    with watchdog(shared_nodes, **BRIEF) as (redlock, dog):
        bad = redlock.acquire(f"{key}:bad")
        doomed = redlock.acquire(f"{key}:doomed")
        good = redlock.acquire(f"{key}:good")
        dog.record(good, every=OFTEN)
        dog.watch(bad, on_renewed=fail, renew_every=OFTEN)
        dog.watch(doomed, on_lost=fail, renew=False)

        until(lambda: doomed.state is LeaseState.LOST)
        renewed = len(dog.renewals)
        until(lambda: len(dog.renewals) >= renewed + 3)

        assert good.is_valid()
        assert bad.is_valid()
        assert dog.losses == []
        assert dog.forget(good)
        assert dog.forget(bad)
    assert "ZeroDivisionError" in caplog.text


class FailingSelector(selectors.DefaultSelector):
    """A selector that fails as often as ``failures`` says."""

    failures = 0

    def select(self, timeout: float | None = None) -> Any:
        """Wait, or raise the error of a system without memory."""
        if FailingSelector.failures:
            FailingSelector.failures -= 1
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return super().select(timeout)


def test_watchdog_survives_an_error_of_the_system(
    three_nodes: DevNodes, key: str
) -> None:
    """Leases are renewed after an unexpected error in the watchdog's thread."""
    addresses = parse_nodes(three_nodes.urls)
    broadcast = Broadcast(
        [Node(node, clock=SYSTEM_CLOCK, connect_timeout=1.0) for node in addresses],
        clock=SYSTEM_CLOCK,
        timing=Timing(60.0, 60.0, PATIENT, 1.0),
        new_selector=FailingSelector,
    )
    with (
        watchdog(three_nodes, ttl=3, transport=broadcast) as (redlock, dog),
    ):
        leases = [redlock.acquire(f"{key}:{number}") for number in range(5)]
        dog.record(*leases)
        FailingSelector.failures = 2

        until(lambda: len(set(dog.renewals)) == len(leases) or dog.losses)

        assert FailingSelector.failures == 0
        assert dog.losses == []
        dog.release(*leases)
