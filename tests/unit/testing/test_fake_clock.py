"""``FakeClock``: time that passes when a test says so."""

from __future__ import annotations

from celery_redlock.testing import FakeClock


def test_clock_stands_still_until_somebody_sleeps() -> None:
    """Sleeping takes no time, and moves both of its hands."""
    clock = FakeClock(wall=1000.0)
    before = clock.monotonic()

    clock.sleep(2.5)

    assert clock.monotonic() == before + 2.5
    assert clock.wall_us() == 1_002_500_000
    assert clock.slept == [2.5]


def test_clock_counts_without_rounding_errors() -> None:
    """Ten times a tenth of a second is a second."""
    clock = FakeClock()
    before = clock.monotonic()
    for _ in range(10):
        clock.advance(0.1)

    assert clock.monotonic() == before + 1.0


def test_clock_gets_to_any_instant() -> None:
    """Who sleeps until then is there, however near it was."""
    clock = FakeClock()
    instant = clock.monotonic() + 1e-9

    clock.sleep(instant - clock.monotonic())

    assert clock.monotonic() >= instant


def test_clock_does_what_was_planned_in_its_order() -> None:
    """At its instant, and while it is slept through."""
    clock = FakeClock()
    start = clock.monotonic()
    done: list[tuple[str, float]] = []

    def note(name: str) -> None:
        done.append((name, clock.monotonic() - start))

    clock.at(3.0, lambda: note("late"))
    clock.at(1.0, lambda: note("early"))
    clock.at(1.0, lambda: note("early too"))
    assert clock.next_event() == start + 1.0

    clock.advance(2.0)
    assert done == [("early", 1.0), ("early too", 1.0)]
    clock.advance(2.0)

    assert done[2:] == [("late", 3.0)]
    assert clock.monotonic() == start + 4.0
    assert clock.next_event() == float("inf")


def test_clock_can_be_moved_by_what_was_planned() -> None:
    """A pause within a pause: time does not go back afterwards."""
    clock = FakeClock()
    start = clock.monotonic()
    clock.at(1.0, lambda: clock.advance(60.0))

    clock.sleep(2.0)

    assert clock.monotonic() == start + 61.0


def test_clock_on_the_wall_can_be_set() -> None:
    """Forward and back, and nobody's lease is the shorter."""
    clock = FakeClock()
    monotonic, wall = clock.monotonic(), clock.wall_us()

    clock.step_wall(-3600.0)

    assert clock.monotonic() == monotonic
    assert clock.wall_us() == wall - 3_600_000_000
