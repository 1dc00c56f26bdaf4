"""The wall clock of the leader's machine is set while it leads."""

from __future__ import annotations

import pytest

from tests.unit.beat.support import DAY, HOUR, MINUTE, Schedule, Site, crontabs, every
from tests.unit.election.support import run

MINUTES = pytest.mark.parametrize(
    "schedule", [crontabs(), every(MINUTE)], ids=["crontab", "interval"]
)


@MINUTES
@pytest.mark.parametrize("step", [HOUR, 400 * DAY])
def test_clock_that_is_set_forward_sends_the_window_only(
    site: Site, schedule: Schedule, step: float
) -> None:
    """The slots between the two times are missed, and one line tells so."""
    beat = site.start(schedule)
    run(2.5 * MINUTE, beat)
    before = len(site.sent)

    site.clock.step_wall(step)
    run(5.5 * MINUTE, beat)

    sent = site.sent[before:]
    assert 5 <= len(sent) <= 7
    assert all(one.at - one.due.timestamp() <= MINUTE for one in sent)
    assert f"was set forward by {step:.0f} s" in site.log.text
    assert "no beat has sent" in site.log.text


@MINUTES
@pytest.mark.parametrize("step", [HOUR, 400 * DAY])
def test_clock_that_is_set_back_silences_no_entry(
    site: Site, schedule: Schedule, step: float
) -> None:
    """The leader goes on from the time that the clock shows now, and says so."""
    beat = site.start(schedule)
    run(2.5 * MINUTE, beat)
    before = len(site.sent)

    site.clock.step_wall(-step)
    run(5.5 * MINUTE, beat)

    assert 4 <= len(site.sent[before:]) <= 6
    assert f"was set back by {step:.0f} s" in site.log.text


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_beat_whose_clock_was_set_hands_over(site: Site, step: float) -> None:
    """The other beat leads within half a second, and the first one stands by."""
    first, second = site.start(), site.start()
    run(2.5 * MINUTE, first, second)
    before = len(site.sent)

    site.clock.step_wall(step)
    run(3 * MINUTE, first, second)

    assert second.leads
    assert set(site.senders()[:before]) == {"a"}
    assert set(site.senders()[before:]) == {"b"}


def test_slots_that_come_again_after_the_clock_was_set_back_have_no_names(
    site: Site,
) -> None:
    """A task would drop them as second messages of slots that it has run.

    The slots after those have names again.
    """
    first = site.start()
    run(2.5 * MINUTE, first)
    site.clock.step_wall(-5 * MINUTE)
    run(2 * MINUTE, first)
    first.stop()
    run(5 * MINUTE, site.start())

    minutes = [(one.by, one.slot[-14:-6]) for one in site.sent]
    assert minutes == [
        ("a", "12:01:00"),
        ("a", "12:02:00"),
        ("a", ""),
        ("a", ""),
        *[("b", "")] * 3,
        ("b", "12:03:00"),
        ("b", "12:04:00"),
    ]


@pytest.mark.parametrize("step", [-20.0, 20.0])
def test_clock_that_is_set_a_little_changes_no_slot(site: Site, step: float) -> None:
    """Each slot is sent once, and nothing is logged."""
    beat = site.start()
    run(2.5 * MINUTE, beat)

    site.clock.step_wall(step)
    run(2.75 * MINUTE, beat)

    assert site.dues() == [f"12:0{n}:00" for n in range(1, 6)]
    assert not site.log.messages


def test_clock_that_is_set_between_the_check_and_the_message_sends_nothing_old(
    site: Site,
) -> None:
    """The clock is looked at before each message, and not only once in a tick."""
    beat = site.start(crontabs("one", "two"))
    run(2.5 * MINUTE, beat)
    before = len(site.sent)

    def set_clock() -> None:
        site.broker.when_sent = lambda: None
        site.clock.step_wall(HOUR)

    site.broker.when_sent = set_clock
    run(3 * MINUTE, beat)

    late = [one for one in site.sent[before:] if one.at - one.due.timestamp() > MINUTE]
    assert not late
