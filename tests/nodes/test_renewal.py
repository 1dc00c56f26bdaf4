"""Renewal by the watchdog: a watched lease is kept, ended, or reported as lost."""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import selectors
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import LeaseState
from celery_redlock.core.renewal.watchdog import Watchdog
from celery_redlock.core.timing import Timing
from celery_redlock.core.transport.broadcast import Broadcast
from celery_redlock.core.transport.node import Node
from celery_redlock.core.transport.url import parse_nodes
from celery_redlock.errors import LockLost, LockUnavailable
from celery_redlock.locking import lock
from tests.harness.tcp import proxies
from tests.nodes.support import PATIENT, client, until, until_nothing_is_left, values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNode, DevNodes

BRIEF: dict[str, Any] = {"ttl": 1.5, "node_timeout": 0.2}  # renewed every 0.5 s


@contextlib.contextmanager
def watchdog(redlock: Redlock) -> Iterator[Watchdog]:
    """Give a watchdog and stop it afterwards."""
    dog = Watchdog(redlock)
    try:
        yield dog
    finally:
        dog.stop()


class Record:
    """The renewals and losses that a watchdog has reported.

    Attributes:
        renewals: The keys of renewed leases.
        losses: The lost leases, each with the instant of the report.
    """

    def __init__(self, redlock: Redlock) -> None:
        self.renewals: list[str] = []
        self.losses: list[tuple[Lease, float]] = []
        self._clock = redlock.clock

    def _renewed(self, lease: Lease, lateness: float) -> None:
        assert lateness >= 0
        self.renewals.append(lease.key)

    def _lost(self, lease: Lease) -> None:
        self.losses.append((lease, self._clock.monotonic()))

    @property
    def callbacks(self) -> dict[str, Any]:
        """The callbacks for `watch`."""
        return {"on_renewed": self._renewed, "on_lost": self._lost}


@contextlib.contextmanager
def stutter(nodes: list[DevNode], *, longest: float, seed: int) -> Iterator[None]:
    """Stop one of these nodes after the other for a moment, in a thread."""
    chance = random.Random(seed)  # noqa: S311  (no secret)
    over = threading.Event()

    def disturb() -> None:
        while not over.is_set():
            node = chance.choice(nodes)
            node.pause()
            over.wait(chance.uniform(0, longest))
            node.resume()
            over.wait(chance.uniform(0, longest))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- A watched lease is kept -------------------------------------------------------


@pytest.mark.every_server
def test_watched_lease_outlives_its_ttl(shared_nodes: DevNodes, key: str) -> None:
    """A watched lock is held under the same token and fence, renewal by renewal."""
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        record = Record(redlock)
        until(lambda: redlock.check().problems == [])  # connected to all of them
        lease = redlock.acquire(key)
        fence, end = lease.fence, lease.until
        until(lambda: None not in values(shared_nodes, key))
        before = values(shared_nodes, key)
        dog.watch(lease, **record.callbacks)

        until(lambda: len(record.renewals) >= 5)
        until(lambda: redlock.clock.monotonic() > end + 1.0)

        assert lease.is_valid()
        assert lease.fence == fence
        assert values(shared_nodes, key) == before
        assert dog.forget(lease)
        assert redlock.release(lease) >= 3
        assert record.losses == []
    until_nothing_is_left(shared_nodes, key)


def test_renewal_claims_nodes_that_lost_it(shared_nodes: DevNodes, key: str) -> None:
    """Nodes without the lock get it with the next renewal."""
    with client(shared_nodes) as redlock, lock(redlock, key, ttl=1):
        until(lambda: None not in values(shared_nodes, key))
        for node in shared_nodes.nodes[:2]:
            node.command("DEL", f"redlock:lock:{key}")

        until(lambda: None not in values(shared_nodes, key))


def test_renewal_on_request_does_not_wait(shared_nodes: DevNodes, key: str) -> None:
    """`renew_now` renews before a third of the ttl has passed, in the background."""
    with client(shared_nodes, ttl=60) as redlock, watchdog(redlock) as dog:
        record = Record(redlock)
        lease = redlock.acquire(key)
        before = lease.until
        dog.watch(lease, **record.callbacks)

        dog.renew_now(lease)

        until(lambda: record.renewals)
        assert lease.until > before
        assert dog.forget(lease)
        redlock.release(lease)


def test_busy_threads_do_not_starve_renewals(three_nodes: DevNodes, key: str) -> None:
    """Leases are renewed while other threads lock and unlock as fast as they can."""
    over = threading.Event()
    with client(three_nodes, ttl=3.0) as redlock, watchdog(redlock) as dog:

        def work(number: int) -> None:
            while not over.is_set():
                redlock.release(redlock.acquire(f"{key}:busy:{number}", wait=5))

        record = Record(redlock)
        leases = [redlock.acquire(f"{key}:{number}") for number in range(20)]
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for lease in leases:
            dog.watch(lease, **record.callbacks)
        for thread in threads:
            thread.start()
        try:
            until(
                lambda: (
                    record.losses
                    or min(record.renewals.count(lease.key) for lease in leases) >= 4
                ),
                seconds=20,
            )
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert record.losses == []
        assert all(lease.is_valid() for lease in leases)
        for lease in leases:
            assert dog.forget(lease)
            redlock.release(lease)
    until_nothing_is_left(three_nodes)


def test_stuttering_minority_costs_no_lease(five_nodes: DevNodes, key: str) -> None:
    """No lease is lost while one node at a time hangs now and then."""
    with (
        client(five_nodes, ttl=2.0, node_timeout=0.3) as redlock,
        watchdog(redlock) as dog,
        stutter(five_nodes.nodes, longest=0.4, seed=1),
    ):
        record = Record(redlock)
        leases = [redlock.acquire(f"{key}:{number}", wait=5) for number in range(10)]
        for lease in leases:
            dog.watch(lease, **record.callbacks)
        until(lambda: len(record.renewals) > 80, seconds=20)
        assert record.losses == []
        for lease in leases:
            assert dog.forget(lease)
            redlock.release(lease)
    until_nothing_is_left(five_nodes)


def test_lease_that_is_watched_late_is_not_overlooked(
    three_nodes: DevNodes, key: str
) -> None:
    """A lease that is already due when it is watched is renewed or lost."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with client(three_nodes, ttl=1.5) as redlock, watchdog(redlock) as dog:
            record = Record(redlock)
            leases = [redlock.acquire(f"{key}:{number}") for number in range(150)]
            end = leases[-1].until
            until(lambda: redlock.clock.monotonic() > end - 0.8)
            dog.start()
            for lease in leases:
                dog.watch(lease, **record.callbacks)
            until(lambda: len(set(record.renewals)) + len(record.losses) >= len(leases))
    finally:
        sys.setswitchinterval(interval)
    for lease in leases:
        dog.forget(lease)
    until_nothing_is_left(three_nodes)


# -- A released lease stays released -----------------------------------------------


@pytest.mark.every_server
def test_renewal_never_brings_a_released_lock_back(
    three_nodes: DevNodes, key: str
) -> None:
    """300 renewals that race a release over a stuttering node leave no lock."""
    nodes = three_nodes.nodes
    chance = random.Random(2)  # noqa: S311  (no secret)
    with (
        client(three_nodes, ttl=60, node_timeout=0.02) as redlock,
        watchdog(redlock) as dog,
    ):
        redlock.release(redlock.acquire(key, wait=10))
        with stutter(nodes[:1], longest=0.03, seed=3):
            for number in range(300):
                lease = redlock.acquire(f"{key}:{number}", wait=10)
                dog.watch(lease)
                if number % 3 == 0:  # a renewal that has to restore
                    nodes[1].command("DEL", f"redlock:lock:{lease.key}")
                dog.renew_now(lease)
                if number % 2:
                    time.sleep(chance.uniform(0, 0.002))  # anywhere in the renewal
                assert dog.forget(lease)
                redlock.release(lease)
        until(lambda: redlock.check().problems == [])
        until_nothing_is_left(three_nodes)


def test_released_block_stays_released(three_nodes: DevNodes, key: str) -> None:
    """A renewal that is under way at the end of a block does not restore the lock."""
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
    """A lease that is forgotten and not released expires, without a report."""
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        record = Record(redlock)
        lease = redlock.acquire(key)
        dog.watch(lease, **record.callbacks)
        until(lambda: record.renewals)

        assert dog.forget(lease)
        assert not dog.forget(lease)

        until_nothing_is_left(shared_nodes, key)
        assert not lease.is_valid()
        assert record.losses == []


@pytest.mark.parametrize("seed", range(3))
def test_forget_and_loss_exclude_each_other(
    three_nodes: DevNodes, key: str, seed: int
) -> None:
    """Of each lease either `forget` returns True or `on_lost` is called, not both."""
    chance = random.Random(seed)  # noqa: S311  (no secret)
    with client(three_nodes, node_timeout=0.1) as redlock, watchdog(redlock) as dog:
        record = Record(redlock)
        leases = [redlock.acquire(f"{key}:{n}", ttl=0.5, wait=5) for n in range(60)]
        for lease in leases:
            dog.watch(lease, renew=False, **record.callbacks)
        chance.shuffle(leases)
        forgotten = []
        for lease in leases:
            until(lambda: lease.remaining() <= 0.002)  # noqa: B023  (called at once)
            if dog.forget(lease):
                forgotten.append(lease.key)
        until(lambda: len(forgotten) + len(record.losses) == len(leases))
        lost = [lease.key for lease, _ in record.losses]
        assert sorted(forgotten + lost) == sorted(lease.key for lease in leases)
    until_nothing_is_left(three_nodes)


# -- A lost lease is reported ------------------------------------------------------


@pytest.mark.every_server
def test_stolen_lock_is_announced_as_lost(shared_nodes: DevNodes, key: str) -> None:
    """A majority that names another holder ends the lease; its lock is left alone."""
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        record = Record(redlock)
        lease = redlock.acquire(key)
        thief = f"{'f' * 32}.{'0' * 16}\n1"
        for node in shared_nodes.nodes[:3]:
            node.command("SET", f"redlock:lock:{key}", thief, "PX", 20_000)
        dog.watch(lease, **record.callbacks)

        until(lambda: record.losses)

        assert record.renewals == []
        assert record.losses[0][1] >= lease.until
        assert not dog.forget(lease)
        redlock.release(lease)
        until(lambda: values(shared_nodes, key) == [thief] * 3 + [None] * 2)
        for node in shared_nodes.nodes[:3]:
            node.command("DEL", f"redlock:lock:{key}")


def test_end_without_renewal_is_announced(shared_nodes: DevNodes, key: str) -> None:
    """With `renew=False` the watchdog renews nothing, and reports the end."""
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        record = Record(redlock)
        lease = redlock.acquire(key)
        end = lease.until
        dog.watch(lease, renew=False, **record.callbacks)
        dog.renew_now(lease)

        until(lambda: record.losses)

        assert record.losses[0][1] >= end == lease.until
        assert lease.state is LeaseState.LOST
        assert record.renewals == []


def test_confirmation_that_comes_too_late_is_a_loss(
    three_nodes: DevNodes, key: str
) -> None:
    """A renewal that a majority confirms after the end of validity keeps no lease."""
    with (
        proxies(three_nodes) as lines,
        client([line.url for line in lines], **BRIEF) as redlock,
        watchdog(redlock) as dog,
    ):
        redlock.initialize()
        record = Record(redlock)
        lease = redlock.acquire(key, wait=5)
        for line in lines[:2]:
            line.hold_replies()
        dog.watch(lease, **record.callbacks)
        until(lambda: record.losses)

        for line in lines:
            line.resume()  # the nodes had extended the lock in time

        until(lambda: redlock.check().problems == [])
        assert not lease.is_valid()
        assert lease.state is LeaseState.LOST
        assert record.renewals == []
        assert len(record.losses) == 1
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

        def run() -> None:
            for node in five_nodes.nodes[:3]:
                node.kill() if way == "dead" else node.pause()
            until(lambda: told)

        def note(_: Lease) -> None:
            told.append(redlock.clock.monotonic())

        with pytest.raises(LockLost), lock(redlock, key, wait=5, on_lost=note) as lease:
            run()

        assert lease.state is LeaseState.LOST
        assert told[0] >= lease.until
        assert len(told) == 1
        for node in five_nodes.nodes[:3]:
            node.restart() if way == "dead" else node.resume()
        until_nothing_is_left(five_nodes, key)


def test_loss_is_reported_while_other_threads_wait_for_hung_nodes(
    five_nodes: DevNodes, key: str
) -> None:
    """The report of a loss does not wait for threads that ask hung nodes."""
    over = threading.Event()
    options = {"ttl": 5.0, "node_timeout": 1.5}
    with client(five_nodes, **options) as redlock, watchdog(redlock) as dog:
        record = Record(redlock)
        leases = [redlock.acquire(f"{key}:{number}") for number in range(5)]
        for lease in leases:
            dog.watch(lease, **record.callbacks)

        def ask() -> None:
            while not over.is_set():
                with contextlib.suppress(LockUnavailable):
                    redlock.acquire(f"{key}:other")

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for node in five_nodes.nodes[:3]:
            node.pause()
        for thread in threads:
            thread.start()
        try:
            until(lambda: len(record.losses) == len(leases), seconds=20)
        finally:
            over.set()
            for node in five_nodes.nodes[:3]:
                node.resume()
            for thread in threads:
                thread.join()
        for lease, told_at in record.losses:
            assert 0 <= told_at - lease.until < options["node_timeout"]


# -- The thread of the watchdog ----------------------------------------------------


def test_watchdog_stops_and_starts_twice(shared_nodes: DevNodes, key: str) -> None:
    """A stopped watchdog renews nothing; after another start it goes on."""
    with client(shared_nodes, ttl=60) as redlock, watchdog(redlock) as dog:
        record = Record(redlock)
        lease = redlock.acquire(key)
        dog.start()
        dog.start()
        dog.watch(lease, **record.callbacks)
        dog.stop()
        dog.stop()
        dog.renew_now(lease)
        assert record.renewals == []

        dog.start()

        until(lambda: record.renewals)
        assert dog.forget(lease)
        redlock.release(lease)


def test_watchdog_survives_its_callbacks(
    shared_nodes: DevNodes, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that raises is logged, and other leases are still renewed."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    caplog.set_level(logging.ERROR)
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        record = Record(redlock)
        bad = redlock.acquire(f"{key}:bad")
        doomed = redlock.acquire(f"{key}:doomed")
        good = redlock.acquire(f"{key}:good")
        dog.watch(good, **record.callbacks)
        dog.watch(bad, on_renewed=fail)
        dog.watch(doomed, on_lost=fail, renew=False)

        until(lambda: doomed.state is LeaseState.LOST)
        renewed = len(record.renewals)
        until(lambda: len(record.renewals) >= renewed + 3)

        assert good.is_valid()
        assert bad.is_valid()
        assert record.losses == []
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
        client(three_nodes, ttl=3, transport=broadcast) as redlock,
        watchdog(redlock) as dog,
    ):
        record = Record(redlock)
        leases = [redlock.acquire(f"{key}:{number}") for number in range(5)]
        for lease in leases:
            dog.watch(lease, **record.callbacks)
        FailingSelector.failures = 2

        until(lambda: len(set(record.renewals)) == len(leases) or record.losses)

        assert FailingSelector.failures == 0
        assert record.losses == []
        for lease in leases:
            assert dog.forget(lease)
            redlock.release(lease)
