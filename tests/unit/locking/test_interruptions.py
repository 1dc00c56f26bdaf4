"""A time limit leaves no lock behind, wherever it interrupts."""

# ruff: noqa: PT012, SIM117  (the tests are about blocks that raise, in each other)

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from celery_redlock import locking
from celery_redlock.core.lease import new_base
from celery_redlock.locking import held_lease
from tests.interruptions import counts_places, interruptions
from tests.unit.core.support import args_of, asked, holders

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from tests.unit.support import Site


class TimeLimit(Exception):  # noqa: N818  (as Celery's SoftTimeLimitExceeded)
    """The exception that a time limit throws into the thread."""


def interrupt() -> None:
    """Raise as a time limit does."""
    raise TimeLimit


def test_interrupted_acquire_leaves_no_lock(site: Site) -> None:
    """All its attempts are released, wherever it was interrupted."""
    site.nodes.latency(0.01)
    site.clock.at(0.005, interrupt)
    base = new_base()

    with pytest.raises(TimeLimit):
        with site.lock(base=base):
            pytest.fail("the body ran")

    site.nodes.heal()
    assert not any(holders(site.nodes))
    assert args_of(site.nodes, "release")[-1] == [f"{base}.", 0]


def test_interrupted_release_is_finished_first(site: Site) -> None:
    """A time limit inside a release is raised after it, and after ``on_released``."""
    released: list[Lease] = []

    with pytest.raises(TimeLimit):
        with site.lock(on_released=released.append) as lease:
            site.nodes.latency(0.01)
            site.clock.at(0.005, interrupt)

    assert not any(holders(site.nodes))
    assert asked(site.nodes) == ["acquire", "release", "release"]
    assert released == [lease]


@counts_places
def test_end_that_is_interrupted_anywhere_releases(site: Site) -> None:
    """Even between the end of the block and the first request."""
    places = 0
    for interruption in interruptions(locking.__file__):
        places = interruption.at
        released: list[Lease] = []
        with contextlib.ExitStack() as stack:
            with site.lock(on_released=released.append) as lease:
                stack.enter_context(interruption)

        assert not any(holders(site.nodes)), f"interrupted at place {places}"
        assert not site.watchdog.forget(lease)
        assert held_lease(site.redlock, "k") is None

    assert released == [lease]
    assert places > 2


def test_release_that_is_interrupted_three_times_gives_up(site: Site) -> None:
    """The lock then ends with its ttl."""
    with pytest.raises(TimeLimit):
        with site.lock():
            site.nodes.latency(0.01)
            for instant in (0.005, 0.010, 0.015, 0.020):
                site.clock.at(instant, interrupt)

    assert asked(site.nodes) == ["acquire"] + ["release"] * 3
