"""A time limit leaves no lock behind, wherever it interrupts."""

# ruff: noqa: PT012, SIM117  (the tests are about blocks that raise, in each other)

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from celery_redlock import locking
from celery_redlock.core.lease import new_base
from celery_redlock.locking import held_lease, lock
from tests.interruptions import counts_places, interruptions
from tests.unit.core.support import Stepped, args_of, asked, holders
from tests.unit.locking.support import FREE

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


class TimeLimit(Exception):  # noqa: N818  (as Celery's SoftTimeLimitExceeded)
    """The exception that a time limit throws into the thread."""


def interrupt() -> None:
    """Raise as a time limit does."""
    raise TimeLimit


def test_interrupted_acquire_leaves_no_lock(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """All its attempts are released, wherever it was interrupted."""
    nodes.latency(0.01)
    clock.at(0.005, interrupt)
    base = new_base()

    with pytest.raises(TimeLimit):
        with lock(redlock, "k", watchdog=watchdog, base=base):
            pytest.fail("the body ran")

    nodes.heal()
    assert holders(nodes) == FREE
    assert args_of(nodes, "release")[-1] == [f"{base}.", 0]


def test_interrupted_release_is_finished_first(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A time limit inside a release is raised after the release."""
    with pytest.raises(TimeLimit):
        with lock(redlock, "k", watchdog=watchdog):
            nodes.latency(0.01)
            clock.at(0.005, interrupt)

    assert holders(nodes) == FREE
    assert asked(nodes) == ["acquire", "release", "release"]


def test_interrupted_release_still_calls_on_released(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """A count of held locks must not grow for ever."""
    released: list[Lease] = []

    with pytest.raises(TimeLimit):
        with lock(
            redlock, "k", watchdog=watchdog, on_released=released.append
        ) as lease:
            nodes.latency(0.01)
            clock.at(0.005, interrupt)

    assert released == [lease]


@counts_places
def test_end_that_is_interrupted_anywhere_releases(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped
) -> None:
    """Even between the end of the block and the first request."""
    places = 0
    for interruption in interruptions(locking.__file__):
        places = interruption.at
        released: list[Lease] = []
        with contextlib.ExitStack() as stack:
            with lock(
                redlock, "k", watchdog=watchdog, on_released=released.append
            ) as lease:
                stack.enter_context(interruption)

        assert holders(nodes) == FREE, f"interrupted at place {places}"
        assert not watchdog.forget(lease)
        assert held_lease(redlock, "k") is None

    assert released == [lease]
    assert places > 2


def test_release_that_is_interrupted_three_times_gives_up(
    nodes: FakeNodes, redlock: Redlock, watchdog: Stepped, clock: FakeClock
) -> None:
    """The lock then ends with its ttl."""
    with pytest.raises(TimeLimit):
        with lock(redlock, "k", watchdog=watchdog):
            nodes.latency(0.01)
            for instant in (0.005, 0.010, 0.015, 0.020):
                clock.at(instant, interrupt)

    assert asked(nodes) == ["acquire"] + ["release"] * 3
