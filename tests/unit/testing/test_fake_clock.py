"""``FakeClock`` moves only when a test moves it."""

from __future__ import annotations

from celery_redlock.testing import FakeClock


def test_clock_moves_with_a_sleep() -> None:
    """A sleep returns at once, and moves both readings."""
    clock = FakeClock(wall=1000.0)
    before = clock.monotonic()

    clock.sleep(2.5)

    assert clock.monotonic() == before + 2.5
    assert clock.wall() == 1_002.5
    assert clock.slept == [2.5]


def test_clock_counts_without_rounding_errors() -> None:
    """Ten times a tenth of a second is a second."""
    clock = FakeClock()
    before = clock.monotonic()
    for _ in range(10):
        clock.advance(0.1)

    assert clock.monotonic() == before + 1.0


def test_clock_reaches_any_instant() -> None:
    """After a sleep until an instant it is there, however near the instant was."""
    clock = FakeClock()
    instant = clock.monotonic() + 1e-9

    clock.sleep(instant - clock.monotonic())

    assert clock.monotonic() >= instant


def test_clock_runs_planned_events_in_order() -> None:
    """Each at its instant, also in the middle of a sleep."""
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


def test_clock_can_be_moved_by_an_event() -> None:
    """A sleep within a sleep: time does not go back afterwards."""
    clock = FakeClock()
    start = clock.monotonic()
    clock.at(1.0, lambda: clock.advance(60.0))

    clock.sleep(2.0)

    assert clock.monotonic() == start + 61.0


def test_wall_clock_can_be_stepped() -> None:
    """The monotonic reading, and so every lease, stays the same."""
    clock = FakeClock()
    monotonic, wall = clock.monotonic(), clock.wall()

    clock.step_wall(-3600.0)

    assert clock.monotonic() == monotonic
    assert clock.wall() == wall - 3600
