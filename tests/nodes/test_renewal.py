"""The watchdog on real servers: a lease lives on, or its loss is told."""

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

from celery_redlock.core.address import parse_nodes
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.fanout import Fanout
from celery_redlock.core.lease import LeaseState
from celery_redlock.core.node import Node
from celery_redlock.core.renewal import Watchdog
from celery_redlock.core.timing import Timing, drift_of
from celery_redlock.errors import LockLost, LockUnavailable
from celery_redlock.locking import lock
from tests.nodes.support import (
    PATIENT,
    client,
    locks,
    until,
    until_nothing_is_left,
    values,
    wires,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNode, DevNodes

SHORT: dict[str, Any] = {"ttl": 0.9, "node_timeout": 0.1}


@contextlib.contextmanager
def watchdog(redlock: Redlock) -> Iterator[Watchdog]:
    """Give a watchdog that is stopped afterwards."""
    dog = Watchdog(redlock)
    try:
        yield dog
    finally:
        dog.stop()


class Diary:
    """What the watchdog said about leases."""

    def __init__(self, redlock: Redlock) -> None:
        self.renewals: list[str] = []
        self.losses: list[tuple[Lease, float]] = []
        self._clock = redlock.clock

    def note_renewal(self, lease: Lease, lateness: float) -> None:
        """Be called after a renewal."""
        assert lateness >= 0
        self.renewals.append(lease.key)

    def note_loss(self, lease: Lease) -> None:
        """Be called when a lease is lost."""
        self.losses.append((lease, self._clock.monotonic()))

    @property
    def ears(self) -> dict[str, Any]:
        """What to give to `watch`."""
        return {"on_renewed": self.note_renewal, "on_lost": self.note_loss}


@contextlib.contextmanager
def stutter(nodes: list[DevNode], *, longest: float, seed: int) -> Iterator[None]:
    """Stop each of these nodes again and again for a moment, in a thread."""
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


# -- Living on -----------------------------------------------------------------------


@pytest.mark.every_server
def test_lease_lives_on_far_beyond_its_ttl(shared_nodes: DevNodes, key: str) -> None:
    """As long as it is watched, the lock is held, under the same token and fence."""
    with client(shared_nodes, **SHORT) as redlock, watchdog(redlock) as dog:
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


# -- Letting go ------------------------------------------------------------------------


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
    with client(shared_nodes, **SHORT) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        dog.watch(lease, **diary.ears)
        until(lambda: diary.renewals)

        assert dog.forget(lease)
        assert not dog.forget(lease)

        until_nothing_is_left(shared_nodes, key)
        assert not lease.is_valid()
        assert diary.losses == []


def test_unwatched_end_is_announced_without_renewing(
    shared_nodes: DevNodes, key: str
) -> None:
    """With `renew=False` the lease is left alone, and its end is told."""
    with client(shared_nodes, **SHORT) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        end = lease.until
        dog.watch(lease, renew=False, **diary.ears)
        dog.renew_now(lease)

        until(lambda: diary.losses)

        assert diary.losses[0][1] >= end == lease.until
        assert lease.state is LeaseState.LOST
        assert diary.renewals == []


# -- Losing ----------------------------------------------------------------------------


@pytest.mark.every_server
def test_stolen_lock_is_announced_as_lost(shared_nodes: DevNodes, key: str) -> None:
    """A majority that names somebody else ends the lease, and is left to them."""
    with client(shared_nodes, **SHORT) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        thief = f"{'f' * 32}.{'0' * 16}\n1"
        for node in shared_nodes.nodes[:3]:
            node.command("SET", f"redlock:lock:{key}", thief, "PX", 20_000)
        dog.watch(lease, **diary.ears)

        until(lambda: diary.losses)

        assert diary.renewals == []
        assert diary.losses[0][1] >= lease.until
        assert not dog.forget(lease)
        redlock.release(lease)
        until(lambda: values(shared_nodes, key) == [thief] * 3 + [None] * 2)
        for node in shared_nodes.nodes[:3]:
            node.command("DEL", f"redlock:lock:{key}")


def test_confirmation_that_comes_too_late_is_a_loss(
    three_nodes: DevNodes, key: str
) -> None:
    """A renewal that a majority confirms after the end of validity saves nothing."""
    with (
        wires(three_nodes) as lines,
        client([line.url for line in lines], **SHORT) as redlock,
        watchdog(redlock) as dog,
    ):
        redlock.initialize()
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        for line in lines[:2]:
            line.hold_replies()
        dog.watch(lease, **diary.ears)
        until(lambda: diary.losses)

        for line in lines:
            line.resume()  # extended, extended: the nodes did their part in time

        until(lambda: redlock.check().problems == [])
        assert not lease.is_valid()
        assert lease.state is LeaseState.LOST
        assert diary.renewals == []
        assert len(diary.losses) == 1
        with pytest.raises(LockLost):
            lease.ensure()
        assert not redlock.extend(lease)
        redlock.release(lease)
        until_nothing_is_left(three_nodes)


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


def test_loss_is_told_while_other_threads_wait_for_hung_nodes(
    five_nodes: DevNodes, key: str
) -> None:
    """However many threads are asking nodes that hang, no loss is told late."""
    over = threading.Event()
    options = {"ttl": 2.0, "node_timeout": 0.6}
    with client(five_nodes, **options) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        leases = [redlock.acquire(f"{key}:{number}") for number in range(5)]
        for lease in leases:
            dog.watch(lease, **diary.ears)

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
            until(lambda: len(diary.losses) == len(leases))
        finally:
            over.set()
            for node in five_nodes.nodes[:3]:
                node.resume()
            for thread in threads:
                thread.join()
        for lease, told_at in diary.losses:
            assert 0 <= told_at - lease.until < options["node_timeout"]


# -- The thread ------------------------------------------------------------------------


def test_watchdog_stops_and_starts_twice(shared_nodes: DevNodes, key: str) -> None:
    """Stopped it renews nothing; started again it goes on with what it watches."""
    with client(shared_nodes, ttl=60) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        dog.start()
        dog.start()
        dog.watch(lease, **diary.ears)
        dog.stop()
        dog.stop()
        dog.renew_now(lease)
        assert diary.renewals == []

        dog.start()

        until(lambda: diary.renewals)
        assert dog.forget(lease)
        redlock.release(lease)


def test_watchdog_survives_its_callbacks(
    shared_nodes: DevNodes, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that raises is its author's problem: other leases are renewed on."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    caplog.set_level(logging.ERROR)
    with client(shared_nodes, **SHORT) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        bad = redlock.acquire(f"{key}:bad")
        doomed = redlock.acquire(f"{key}:doomed")
        good = redlock.acquire(f"{key}:good")
        dog.watch(good, **diary.ears)
        dog.watch(bad, on_renewed=fail)
        dog.watch(doomed, on_lost=fail, renew=False)

        until(lambda: doomed.state is LeaseState.LOST)
        renewed = len(diary.renewals)
        until(lambda: len(diary.renewals) >= renewed + 3)

        assert good.is_valid()
        assert bad.is_valid()
        assert diary.losses == []
        assert dog.forget(good)
        assert dog.forget(bad)
    assert "ZeroDivisionError" in caplog.text


class FailingSelector(selectors.DefaultSelector):
    """Waits for sockets, except when it is told to fail."""

    failures = 0

    def select(self, timeout: float | None = None) -> Any:
        """Wait, or fail as a system does that has run out of something."""
        if FailingSelector.failures:
            FailingSelector.failures -= 1
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return super().select(timeout)


def test_watchdog_survives_an_error_of_the_system(
    three_nodes: DevNodes, key: str
) -> None:
    """An error that nobody thought of is logged, and renewal goes on."""
    addresses = parse_nodes(three_nodes.urls)
    fanout = Fanout(
        [Node(node, clock=SYSTEM_CLOCK, connect_timeout=1.0) for node in addresses],
        clock=SYSTEM_CLOCK,
        timing=Timing(60.0, 60.0, PATIENT, 1.0),
        new_selector=FailingSelector,
    )
    with (
        client(three_nodes, ttl=3, transport=fanout) as redlock,
        watchdog(redlock) as dog,
    ):
        diary = Diary(redlock)
        leases = [redlock.acquire(f"{key}:{number}") for number in range(5)]
        for lease in leases:
            dog.watch(lease, **diary.ears)
        FailingSelector.failures = 2

        until(lambda: len(set(diary.renewals)) == len(leases) or diary.losses)

        assert FailingSelector.failures == 0
        assert diary.losses == []
        for lease in leases:
            assert dog.forget(lease)
            redlock.release(lease)


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
