"""The wait queue: when a waiter looks, and when it tries without a look."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from celery_redlock.locks.limits import Limit
from celery_redlock.locks.permits import Choice, RecentPermits
from celery_redlock.locks.redlock import run
from celery_redlock.locks.wait_queue import WaitQueue
from celery_redlock.scripts import JOIN_WAIT_QUEUE
from celery_redlock.scripts.keys import key_of
from celery_redlock.testing import FakeClock, FakeNodes
from celery_redlock.wire.pubsub import Waiter
from tests.unit.lock.support import args_of, asked, forget, put

LINE = b"redlock:line:k"


class SteppedWaiter(Waiter):
    """A waiter that moves the clock instead of waiting."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__("channel/1")
        self.clock = clock

    def listen(self, seconds: float) -> None:
        """Let so much time pass, or as much as there is to the next event."""
        next_event = self.clock.next_event() - self.clock.monotonic()
        self.clock.advance(min(seconds, next_event))


class Wait:
    """A wait for a lock that another client holds on three nodes.

    It is the listener, too, which a node or the test wakes.

    Attributes:
        listening: How many nodes it listens to.
        removed: The waiters that it was told to forget.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.nodes = FakeNodes(3, clock=clock)
        self.listening = 3
        self.waiter = SteppedWaiter(clock)
        self.removed: list[Waiter] = []
        self.hold_for(50_000)
        self.redlock = self.nodes.redlock()
        self.redlock.listener = cast("Any", self)
        for index, node in enumerate(self.nodes.nodes):
            node.memory.redis._publish = partial(self._publish, index)  # noqa: SLF001
        self.queue = self._queue()

    def wait_for_permits(self, *limits: Limit) -> None:
        """Wait for one of two permits instead, or for one of each limit."""
        self.queue = self._queue(Choice(limits or (Limit("k", 2),), RecentPermits()))

    def _queue(self, choice: Choice | None = None) -> WaitQueue:
        nodes, listener = self.redlock.nodes, cast("Any", self)
        return WaitQueue("k", nodes, self.redlock.keys, listener, choice)

    def add_waiter(self) -> Waiter:
        """Return the one waiter."""
        return self.waiter

    def remove_waiter(self, waiter: Waiter) -> None:
        """Record it."""
        self.removed.append(waiter)

    def hold_for(self, ttl_ms: int, key: str = "k") -> None:
        """Let the other client hold the lock for this long."""
        for index in range(3):
            put(self.nodes, index, "theirs.1", ttl_ms=ttl_ms, key=key)

    def wake_at(self, seconds: float, node: int, *, free_in: float = 0.0) -> None:
        """Let a node wake the waiter after so many seconds, for a later instant."""
        free_at = self.clock.monotonic() + seconds + free_in
        self.clock.at(seconds, partial(self.waiter.wake, node, free_at))

    def _publish(self, node: int, channel: bytes, message: bytes) -> int:
        """Bring a wake-up of a node to the waiter. Return how many heard it."""
        name, free_in_ms = message.split()
        assert channel + b"/" + name == self.waiter.name.encode()
        free_in = int(free_in_ms) / 1000
        self.waiter.wake(node, self.clock.monotonic() + free_in)
        return 1

    def pause(self, seconds: float) -> float:
        """Pause for at most so many seconds. Return for how many it was."""
        began = self.clock.monotonic()
        run(self.queue.pause(began + seconds), self.nodes, self.clock)
        return self.clock.monotonic() - began

    @property
    def looks(self) -> int:
        """The number of times that the queue was joined."""
        return asked(self.nodes).count("join_wait_queue")


@pytest.fixture
def wait(clock: FakeClock) -> Wait:
    """Give a wait that has not paused yet."""
    return Wait(clock)


def test_pause_ends_at_once_when_the_lock_is_free(wait: Wait) -> None:
    """The lock was released between the try and the look."""
    forget(wait.nodes, 0, 1)

    assert wait.pause(60) < 0.01
    assert wait.looks == 1


def test_pause_ends_with_its_time(wait: Wait) -> None:
    """Even if nothing has changed."""
    assert wait.pause(10) == pytest.approx(10, abs=0.01)
    assert 5 <= wait.looks <= 10


def test_looks_are_frequent_while_too_few_nodes_can_be_listened_to(wait: Wait) -> None:
    """A minority is not enough."""
    wait.listening = 1

    wait.pause(10)

    assert 25 <= wait.looks <= 45


def test_wakeup_by_a_majority_needs_no_look(wait: Wait) -> None:
    """The waiter tries at once."""
    wait.wake_at(0.5, 0)
    wait.wake_at(0.501, 2)

    assert wait.pause(60) == pytest.approx(0.501, abs=0.002)
    assert wait.looks == 1


def test_wakeup_by_a_minority_leads_to_a_look(wait: Wait) -> None:
    """After a moment of grace for the other nodes, the waiter looks."""
    wait.wake_at(0.5, 0)

    wait.pause(0.6)

    assert wait.looks == 2  # the lock is held: it waits on


def test_requested_look_is_made(wait: Wait) -> None:
    """A node that is subscribed to only now may have woken the waiter before."""
    wait.clock.at(0.4, lambda: forget(wait.nodes, 0, 1, 2))
    wait.clock.at(0.5, wait.waiter.request_look)

    assert wait.pause(60) == pytest.approx(0.515, abs=0.01)


def test_wakeup_for_a_later_instant_is_waited_for(wait: Wait) -> None:
    """``hold_at_least`` keeps a lock after its release."""
    for index in range(3):
        wait.wake_at(0.2, index, free_in=0.3)

    assert wait.pause(60) == pytest.approx(0.5, abs=0.002)
    assert wait.looks == 1


def test_lock_that_expires_in_this_millisecond_is_looked_at_soon(wait: Wait) -> None:
    """A remaining ttl of 0 ms is not "for ever"."""
    wait.hold_for(1)
    wait.clock.advance(0.001)

    assert wait.pause(60) < 0.1


def test_end_of_the_holders_ttl_leads_to_a_look(wait: Wait) -> None:
    """A holder that died sends no wake-up."""
    wait.hold_for(300)

    assert 0.3 <= wait.pause(60) <= 0.4
    assert wait.looks <= 3


def test_end_of_a_permit_leads_to_a_look(wait: Wait) -> None:
    """The first one that ends, though another one is held for long."""
    wait.wait_for_permits()
    wait.hold_for(20_000)
    wait.hold_for(300, "k##2")

    assert 0.3 <= wait.pause(60) <= 0.4


def test_end_of_the_last_key_with_a_permit_leads_to_a_look(wait: Wait) -> None:
    """A waiter for a permit of each of two keys waits for both, not for the first."""
    wait.wait_for_permits(Limit("k", 1), Limit("other", 1))
    wait.hold_for(200)
    wait.hold_for(300, "other")

    assert 0.3 <= wait.pause(60) <= 0.4


def test_place_in_the_queue_is_kept_over_all_looks(wait: Wait) -> None:
    """The rank is the instant at which the wait began."""
    began = round(wait.clock.wall() * 1e6)
    wait.clock.advance(5)

    wait.pause(5)

    joined = {tuple(args[:2]) for args in args_of(wait.nodes, "join_wait_queue")}
    assert joined == {("channel/1", began)}


@pytest.mark.parametrize(("acquired", "after"), [(True, ""), (False, 0)])
def test_end_leaves_the_queue(wait: Wait, acquired: bool, after: str | int) -> None:
    """Only a waiter without the lock passes its wake-up on."""
    wait.pause(1)
    assert all(node.memory.redis.zset(LINE) for node in wait.nodes.nodes)

    wait.queue.end(acquired=acquired)

    assert wait.removed == [wait.waiter]
    assert args_of(wait.nodes, "leave_wait_queue") == [["channel/1", after, 0]]
    assert not any(node.memory.redis.zset(LINE) for node in wait.nodes.nodes)


def test_client_that_got_the_lock_passes_no_wakeup_on(wait: Wait) -> None:
    """The next waiter is woken by its release, and not before."""
    wait.clock.at(0.5, lambda: forget(wait.nodes, 0, 1, 2))
    wait.wake_at(0.5, 0)
    wait.wake_at(0.5, 1)

    lease = wait.redlock.acquire("k", wait=60)

    assert lease.started_at == pytest.approx(1000.5, abs=0.01)
    assert args_of(wait.nodes, "leave_wait_queue") == [["channel/1", "", 0]]


def test_waiter_that_was_overtaken_waits_on(wait: Wait) -> None:
    """A client that does not wait may take the lock first, also time after time."""
    for seconds in range(1, 8):
        wait.wake_at(seconds, 0)
        wait.wake_at(seconds, 1)
    wait.clock.at(7, lambda: forget(wait.nodes, 0, 1, 2))

    lease = wait.redlock.acquire("k", wait=60)

    assert lease.started_at == pytest.approx(1007, abs=0.01)


@pytest.mark.parametrize("released", [0, 1])
def test_release_of_any_permit_wakes_the_waiter(wait: Wait, released: int) -> None:
    """It stands in one queue for all permits of its key."""
    two = (Limit("imports", 2),)
    leases = [wait.redlock.acquire("imports", limits=two) for _ in range(2)]
    wait.clock.at(0.5, lambda: wait.redlock.release(leases[released]))

    lease = wait.redlock.acquire("imports", wait=60, limits=two)

    assert lease.key == leases[released].key
    assert asked(wait.nodes).count("join_permit_queue") == 1


def test_nodes_that_refuse_the_queue_get_fewer_and_fewer_tries(wait: Wait) -> None:
    """If looks fail, the pauses between tries get longer and longer."""
    for node in wait.nodes.nodes:
        node.memory.redis.set(LINE, b"theirs")
    end = wait.clock.monotonic() + 10

    tries = 0
    while (left := end - wait.clock.monotonic()) > 0:
        wait.pause(left)
        tries += 1

    assert 8 <= tries <= 40


def test_permit_that_came_free_is_left_to_the_waiter_that_is_woken(wait: Wait) -> None:
    """The others wait for a moment, and then try: the woken one may be gone."""
    wait.wait_for_permits()  # k##2 is free

    assert 0.02 <= wait.pause(60) <= 0.04
    wait.wake_at(0.005, 0)
    wait.wake_at(0.006, 1)
    assert wait.pause(60) == pytest.approx(0.006)


def test_waiter_that_was_woken_tries_soon_again(wait: Wait) -> None:
    """It pauses for longer after each try for a free permit, until it is woken."""
    wait.wait_for_permits()  # k##2 is free
    for _ in range(6):  # other clients are quicker
        wait.pause(60)
    wait.wake_at(0.005, 0)
    wait.wake_at(0.006, 1)
    assert wait.pause(60) == pytest.approx(0.006)

    assert 0.02 <= wait.pause(60) <= 0.04


def test_waiter_that_was_woken_passes_its_wakeup_on_no_more(wait: Wait) -> None:
    """It got the permit that it was woken for, also where looks found one free."""
    wait.wait_for_permits()  # k##2 is free
    wait.wake_at(0.005, 0)
    wait.wake_at(0.006, 1)
    wait.pause(60)

    wait.queue.end(acquired=True)

    assert {args[1] for args in args_of(wait.nodes, "leave_wait_queue")} == {""}


@pytest.mark.parametrize("limits", [(), (Limit("a", 1), Limit("b", 1))])
def test_wakeup_that_cannot_be_used_is_passed_on_after_a_look_that_saw_all_free(
    wait: Wait, limits: tuple[Limit, ...]
) -> None:
    """Between that look and the try, another client took one of the keys."""
    nodes, keys, listener = wait.redlock.nodes, wait.redlock.keys, cast("Any", wait)
    choice = Choice(limits, RecentPermits()) if limits else None
    wait.queue = WaitQueue(key_of(["a", "b"]), nodes, keys, listener, choice)
    woken: list[bytes] = []

    def publish(channel: bytes, _: bytes) -> int:
        woken.append(channel)
        return 1

    for node in wait.nodes.nodes:
        node.memory.redis._publish = publish  # noqa: SLF001
    behind = (*keys.locks("a"), *keys.wait_queues("a"))
    later = round(wait.clock.wall() * 1e6) + 60_000_000
    nodes.ask(JOIN_WAIT_QUEUE, behind, ["behind/1", later, 60_000])

    wait.pause(1)
    wait.hold_for(50_000, "b")
    wait.pause(1)

    assert woken == [b"behind"] * 3


def test_wakeups_for_one_permit_bring_few_tries_while_the_start_is_missing(
    wait: Wait,
) -> None:
    """Others that wait pass theirs on, each by a try, for as long as it is missing."""
    clock = wait.clock
    wait.wait_for_permits(Limit("k", 2), Limit("k", 1, 40.0))
    wait.hold_for(40_000, key="k@@1")
    until, tries = clock.monotonic() + 20.0, 0

    while clock.monotonic() < until:
        for node in range(3):
            wait.wake_at(0.01, node)
        wait.pause(until - clock.monotonic())
        tries += 1

    assert tries < 40


def test_waiter_that_was_woken_often_rests_no_longer_than_a_start_is_missing(
    wait: Wait,
) -> None:
    """It would let the start go unused, as nothing wakes it for that."""
    wait.wait_for_permits(Limit("k", 2), Limit("k", 1, 40.0))
    wait.hold_for(40_000, key="k@@1")
    for _ in range(10):
        for node in range(3):
            wait.wake_at(1.3, node)
        wait.pause(60)
    wait.hold_for(100, key="k@@1")

    assert wait.pause(60) < 0.3
