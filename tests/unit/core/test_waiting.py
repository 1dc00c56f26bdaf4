"""Waiting in line on fake nodes: when one looks, and when one tries without a look."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.redlock import Redlock
from celery_redlock.core.waiting import Waiting
from celery_redlock.core.wakeup import Waiter
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.core.support import args_of, asked, forget, put

if TYPE_CHECKING:
    from collections.abc import Callable

LINE = b"redlock:line:k"


class SteppedWaiter(Waiter):
    """A waiter whose listening moves the clock."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__("channel/1")
        self.clock = clock

    def listen(self, seconds: float) -> None:
        """Let so much time pass, or as much as there is to the next event."""
        next_event = self.clock.next_event() - self.clock.monotonic()
        self.clock.advance(min(seconds, next_event))


class SteppedEars:
    """Ears that hear what the test says."""

    def __init__(self, clock: FakeClock, listening: int) -> None:
        self.listening = listening
        self.waiter = SteppedWaiter(clock)
        self.dismissed: list[Waiter] = []

    def enlist(self) -> Waiter:
        """Give the one waiter."""
        return self.waiter

    def dismiss(self, waiter: Waiter) -> None:
        """Note it."""
        self.dismissed.append(waiter)


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that is moved."""
    return FakeClock()


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give three nodes on which somebody has the lock."""
    nodes = FakeNodes(3, clock=clock)
    for index in range(3):
        put(nodes, index, "theirs.1", ttl_ms=50_000)
    return nodes


@pytest.fixture
def wait_for(clock: FakeClock, nodes: FakeNodes) -> Callable[..., Waiting]:
    """Give a function that begins to wait, and to listen to so many nodes."""

    def begin(listening: int = 3) -> Waiting:
        redlock = Redlock(nodes.urls, transport=nodes, clock=clock)
        ears: Any = SteppedEars(clock, listening)
        waiting = Waiting("k", ears, redlock)
        vars(waiting)["ears"] = ears
        return waiting

    return begin


def ears_of(waiting: Waiting) -> SteppedEars:
    """Return what the test speaks to."""
    ears: SteppedEars = vars(waiting)["ears"]
    return ears


def looks(nodes: FakeNodes) -> int:
    """Return how often the line was asked."""
    return asked(nodes).count("line_up")


def test_pause_ends_at_once_when_the_lock_is_free(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """It was released between the try and the look."""
    forget(nodes, 0, 1)
    waiting = wait_for()
    began = clock.monotonic()

    waiting.pause(began + 60)

    assert clock.monotonic() - began < 0.01
    assert looks(nodes) == 1


def test_pause_ends_with_its_time(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """Also when nothing has changed."""
    waiting = wait_for()
    began = clock.monotonic()

    waiting.pause(began + 10)

    assert clock.monotonic() - began == pytest.approx(10, abs=0.01)
    assert 5 <= looks(nodes) <= 10


def test_looks_are_frequent_where_nothing_can_be_heard(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """A minority of nodes that can be listened to does not make up for it."""
    waiting = wait_for(listening=1)

    waiting.pause(clock.monotonic() + 10)

    assert 25 <= looks(nodes) <= 45


def test_turn_on_a_majority_needs_no_look(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """It is tried for at once."""
    waiting = wait_for()
    waiter, began = ears_of(waiting).waiter, clock.monotonic()
    clock.at(0.5, lambda: waiter.call(0, clock.monotonic()))
    clock.at(0.501, lambda: waiter.call(2, clock.monotonic()))

    waiting.pause(began + 60)

    assert clock.monotonic() - began == pytest.approx(0.501, abs=0.002)
    assert looks(nodes) == 1


def test_turn_on_a_minority_is_looked_into(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """The others may say the same in a moment; then it is seen who has the lock."""
    waiting = wait_for()
    waiter, began = ears_of(waiting).waiter, clock.monotonic()
    clock.at(0.5, lambda: waiter.call(0, clock.monotonic()))

    waiting.pause(began + 0.6)

    assert looks(nodes) == 2  # and it is held: on with waiting


def test_nudge_is_looked_into(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """A node that can be listened to only now may have had something to say before."""
    waiting = wait_for()
    began = clock.monotonic()
    clock.at(0.4, lambda: forget(nodes, 0, 1, 2))
    clock.at(0.5, ears_of(waiting).waiter.nudge)

    waiting.pause(began + 60)

    assert clock.monotonic() - began == pytest.approx(0.515, abs=0.01)


def test_turn_that_comes_later_is_waited_for(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """``hold_at_least``: the lock is kept for so long after its release."""
    waiting = wait_for()
    waiter, began = ears_of(waiting).waiter, clock.monotonic()
    for index in range(3):
        clock.at(0.2, functools.partial(waiter.call, index, began + 0.5))

    waiting.pause(began + 60)

    assert clock.monotonic() - began == pytest.approx(0.5, abs=0.002)
    assert looks(nodes) == 1


def test_lock_that_ends_in_this_millisecond_is_looked_at_again_soon(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """What is left of it is 0 ms then, which is not the same as for ever."""
    for index in range(3):
        put(nodes, index, "theirs.1", ttl_ms=1)
    clock.advance(0.001)
    waiting = wait_for()
    began = clock.monotonic()

    waiting.pause(began + 60)

    assert clock.monotonic() - began < 0.1


def test_end_of_the_holders_ttl_is_looked_into(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """A holder that died says nothing."""
    for index in range(3):
        put(nodes, index, "theirs.1", ttl_ms=300)
    waiting = wait_for()
    began = clock.monotonic()

    waiting.pause(began + 60)

    assert 0.3 <= clock.monotonic() - began <= 0.4
    assert looks(nodes) <= 3


def test_place_in_line_is_kept_over_all_looks(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """The rank is the instant at which the wait began."""
    began = clock.wall_us()
    waiting = wait_for()
    clock.advance(5)

    waiting.pause(clock.monotonic() + 5)

    assert {tuple(args[:2]) for args in args_of(nodes, "line_up")} == {
        ("channel/1", began)
    }


@pytest.mark.parametrize(("acquired", "after"), [(True, ""), (False, 0)])
def test_end_leaves_the_line(
    clock: FakeClock,
    nodes: FakeNodes,
    wait_for: Callable[..., Waiting],
    acquired: bool,
    after: str | int,
) -> None:
    """Only one that goes without the lock passes on that it may be free."""
    waiting = wait_for()
    waiting.pause(clock.monotonic() + 1)
    assert all(node.memory.redis.zset(LINE) for node in nodes.nodes)

    waiting.end(acquired=acquired)

    assert ears_of(waiting).dismissed == [ears_of(waiting).waiter]
    assert args_of(nodes, "step_out") == [["channel/1", after]]
    assert not any(node.memory.redis.zset(LINE) for node in nodes.nodes)


def test_nodes_that_refuse_a_line_are_not_stormed(
    clock: FakeClock, nodes: FakeNodes, wait_for: Callable[..., Waiting]
) -> None:
    """What cannot be looked at is tried for, with longer and longer pauses."""
    for node in nodes.nodes:
        node.memory.redis.set(LINE, b"theirs")
    waiting = wait_for()
    end = clock.monotonic() + 10

    tries = 0
    while clock.monotonic() < end:
        waiting.pause(end)
        tries += 1

    assert 8 <= tries <= 40
