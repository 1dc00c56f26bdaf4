"""What a time limit leaves behind, wherever it strikes: no lock, and the truth."""

# ruff: noqa: PT012, SIM117  (what is tested are blocks that raise, one in another)

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from celery_redlock import locking
from celery_redlock.core.lease import new_base
from celery_redlock.locking import held_lease, lock
from tests.strikes import Strike, Struck
from tests.unit.core.support import Stepped, args_of, asked, holders
from tests.unit.locking.support import NOBODY

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


class TimeLimit(Exception):  # noqa: N818  (as Celery's SoftTimeLimitExceeded)
    """What a time limit throws into the thread, anywhere."""


def strike() -> None:
    """Raise as a time limit does."""
    raise TimeLimit


def test_interrupted_acquire_leaves_no_lock(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Wherever it was between asking and knowing: all its attempts are released."""
    nodes.latency(0.01)
    clock.at(0.005, strike)
    base = new_base()

    with pytest.raises(TimeLimit):
        with lock(redlock, "k", watchdog=watchdog, base=base):
            pytest.fail("the body ran")

    nodes.heal()
    assert holders(nodes) == NOBODY
    assert args_of(nodes, "release")[-1] == [f"{base}.", 0]


def test_interrupted_release_is_finished_first(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A time limit that lands in it is raised once the nodes have been told."""
    with pytest.raises(TimeLimit):
        with lock(redlock, "k", watchdog=watchdog):
            nodes.latency(0.01)
            clock.at(0.005, strike)

    assert holders(nodes) == NOBODY
    assert asked(nodes) == ["acquire", "release", "release"]


def test_interrupted_release_is_announced_all_the_same(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Who counts locks must not count this one for ever."""
    released: list[Lease] = []

    with pytest.raises(TimeLimit):
        with lock(
            redlock, "k", watchdog=watchdog, on_released=released.append
        ) as lease:
            nodes.latency(0.01)
            clock.at(0.005, strike)

    assert released == [lease]


def test_end_that_is_struck_anywhere_releases(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """Also between the end of the block and the first word to the nodes."""
    places, was_struck = 0, True
    while was_struck:
        places += 1
        released: list[Lease] = []
        strike = Strike(places, locking.__file__)
        with contextlib.suppress(Struck), contextlib.ExitStack() as stack:
            with lock(
                redlock, "k", watchdog=watchdog, on_released=released.append
            ) as lease:
                stack.enter_context(strike)
        was_struck = strike.has_struck

        assert holders(nodes) == NOBODY, f"struck at place {places}"
        assert not watchdog.forget(lease)
        assert held_lease(redlock, "k") is None

    assert released == [lease]
    assert places > 2


def test_release_that_is_struck_again_and_again_gives_up(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """Three times; the lock ends with its ttl at the latest."""
    with pytest.raises(TimeLimit):
        with lock(redlock, "k", watchdog=watchdog):
            nodes.latency(0.01)
            for strike_at in (0.005, 0.010, 0.015, 0.020):
                clock.at(strike_at, strike)

    assert asked(nodes) == ["acquire"] + ["release"] * 3
