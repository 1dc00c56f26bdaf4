"""The wait queue: when a waiter looks, and when it tries without a look."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.redlock import Redlock
from celery_redlock.core.transport.pubsub import Waiter
from celery_redlock.core.wait_queue import WaitQueue
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.core.support import args_of, asked, forget, put

if TYPE_CHECKING:
    from collections.abc import Callable

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


class SteppedListener:
    """A listener whose wake-ups the test makes."""

    def __init__(self, clock: FakeClock, listening: int) -> None:
        self.listening = listening
        self.waiter = SteppedWaiter(clock)
        self.removed: list[Waiter] = []

    def add_waiter(self) -> Waiter:
        """Return the one waiter."""
        return self.waiter

    def remove_waiter(self, waiter: Waiter) -> None:
        """Record it."""
        self.removed.append(waiter)


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that the test moves."""
    return FakeClock()


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give three nodes on which another client holds the lock."""
    nodes = FakeNodes(3, clock=clock)
    for index in range(3):
        put(nodes, index, "theirs.1", ttl_ms=50_000)
    return nodes


@pytest.fixture
def wait_for(clock: FakeClock, nodes: FakeNodes) -> Callable[..., WaitQueue]:
    """Give a function that begins to wait, and listens to this many nodes."""

    def begin(listening: int = 3) -> WaitQueue:
        redlock = Redlock(nodes.urls, transport=nodes, clock=clock)
        listener: Any = SteppedListener(clock, listening)
        waiting = WaitQueue("k", redlock.nodes, redlock.keys, listener)
        vars(waiting)["listener"] = listener
        return waiting

    return begin


def listener_of(waiting: WaitQueue) -> SteppedListener:
    """Return the listener of a wait."""
    listener: SteppedListener = vars(waiting)["listener"]
    return listener


def looks(nodes: FakeNodes) -> int:
    """Return how often the queue was joined."""
    return asked(nodes).count("join_wait_queue")


def test_pause_ends_at_once_when_the_lock_is_free(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """The lock was released between the try and the look."""
    forget(nodes, 0, 1)
    waiting = wait_for()
    began = clock.monotonic()

    waiting.pause(began + 60)

    assert clock.monotonic() - began < 0.01
    assert looks(nodes) == 1


def test_pause_ends_with_its_time(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """Even if nothing has changed."""
    waiting = wait_for()
    began = clock.monotonic()

    waiting.pause(began + 10)

    assert clock.monotonic() - began == pytest.approx(10, abs=0.01)
    assert 5 <= looks(nodes) <= 10


def test_looks_are_frequent_while_too_few_nodes_can_be_listened_to(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """A minority is not enough."""
    waiting = wait_for(listening=1)

    waiting.pause(clock.monotonic() + 10)

    assert 25 <= looks(nodes) <= 45


def test_wakeup_by_a_majority_needs_no_look(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """The waiter tries at once."""
    waiting = wait_for()
    waiter, began = listener_of(waiting).waiter, clock.monotonic()
    clock.at(0.5, lambda: waiter.wake(0, clock.monotonic()))
    clock.at(0.501, lambda: waiter.wake(2, clock.monotonic()))

    waiting.pause(began + 60)

    assert clock.monotonic() - began == pytest.approx(0.501, abs=0.002)
    assert looks(nodes) == 1


def test_wakeup_by_a_minority_leads_to_a_look(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """After a moment of grace for the other nodes, the waiter looks."""
    waiting = wait_for()
    waiter, began = listener_of(waiting).waiter, clock.monotonic()
    clock.at(0.5, lambda: waiter.wake(0, clock.monotonic()))

    waiting.pause(began + 0.6)

    assert looks(nodes) == 2  # the lock is held: it waits on


def test_requested_look_is_made(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """A node that is subscribed to only now may have woken the waiter before."""
    waiting = wait_for()
    began = clock.monotonic()
    clock.at(0.4, lambda: forget(nodes, 0, 1, 2))
    clock.at(0.5, listener_of(waiting).waiter.request_look)

    waiting.pause(began + 60)

    assert clock.monotonic() - began == pytest.approx(0.515, abs=0.01)


def test_wakeup_for_a_later_instant_is_waited_for(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """``hold_at_least`` keeps a lock after its release."""
    waiting = wait_for()
    waiter, began = listener_of(waiting).waiter, clock.monotonic()
    for index in range(3):
        clock.at(0.2, functools.partial(waiter.wake, index, began + 0.5))

    waiting.pause(began + 60)

    assert clock.monotonic() - began == pytest.approx(0.5, abs=0.002)
    assert looks(nodes) == 1


def test_lock_that_expires_in_this_millisecond_is_looked_at_soon(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """A remaining ttl of 0 ms is not "for ever"."""
    for index in range(3):
        put(nodes, index, "theirs.1", ttl_ms=1)
    clock.advance(0.001)
    waiting = wait_for()
    began = clock.monotonic()

    waiting.pause(began + 60)

    assert clock.monotonic() - began < 0.1


def test_end_of_the_holders_ttl_leads_to_a_look(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """A holder that died sends no wake-up."""
    for index in range(3):
        put(nodes, index, "theirs.1", ttl_ms=300)
    waiting = wait_for()
    began = clock.monotonic()

    waiting.pause(began + 60)

    assert 0.3 <= clock.monotonic() - began <= 0.4
    assert looks(nodes) <= 3


def test_place_in_the_queue_is_kept_over_all_looks(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """The rank is the instant at which the wait began."""
    began = round(clock.wall() * 1e6)
    waiting = wait_for()
    clock.advance(5)

    waiting.pause(clock.monotonic() + 5)

    assert {tuple(args[:2]) for args in args_of(nodes, "join_wait_queue")} == {
        ("channel/1", began)
    }


@pytest.mark.parametrize(("acquired", "after"), [(True, ""), (False, 0)])
def test_end_leaves_the_queue(
    clock: FakeClock,
    nodes: FakeNodes,
    wait_for: Callable[..., WaitQueue],
    acquired: bool,
    after: str | int,
) -> None:
    """Only a waiter without the lock passes its wake-up on."""
    waiting = wait_for()
    waiting.pause(clock.monotonic() + 1)
    assert all(node.memory.redis.zset(LINE) for node in nodes.nodes)

    waiting.end(acquired=acquired)

    assert listener_of(waiting).removed == [listener_of(waiting).waiter]
    assert args_of(nodes, "leave_wait_queue") == [["channel/1", after]]
    assert not any(node.memory.redis.zset(LINE) for node in nodes.nodes)


def test_nodes_that_refuse_the_queue_get_fewer_and_fewer_tries(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., WaitQueue]
) -> None:
    """If looks fail, the pauses between tries get longer and longer."""
    for node in nodes.nodes:
        node.memory.redis.set(LINE, b"theirs")
    waiting = wait_for()
    end = clock.monotonic() + 10

    tries = 0
    while clock.monotonic() < end:
        waiting.pause(end)
        tries += 1

    assert 8 <= tries <= 40
