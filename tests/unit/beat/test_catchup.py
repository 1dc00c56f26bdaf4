"""What was missed is sent within a window, and only there."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.beat.support import (
    HOUR,
    MINUTE,
    NOON,
    Beat,
    Broker,
    RecordingScheduler,
    at,
    every,
    minutely,
    run,
)

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock, FakeNodes
    from tests.unit.beat.support import StartBeat


@pytest.mark.parametrize(
    ("catchup", "expected"),
    [
        (0, []),
        (60, ["12:10:00"]),
        (200, ["12:07:00", "12:08:00", "12:09:00", "12:10:00"]),
        (timedelta(hours=1), [f"12:{n:02}:00" for n in range(2, 11)]),
    ],
)
def test_slots_that_were_missed_are_sent_within_the_window(
    start: StartBeat,
    clock: FakeClock,
    broker: Broker,
    catchup: Any,
    expected: list[str],
) -> None:
    """Each of them, oldest first; what is older is not sent at all."""
    first = start(beat_catchup=catchup)
    run(clock, [first], MINUTE)
    first.stop()
    clock.advance(9 * MINUTE)

    second = start(beat_catchup=catchup)
    run(clock, [second], 10)
    assert broker.dues("job")[1:] == expected

    second.stop()
    run(clock, [start(beat_catchup=catchup)], 10)
    assert broker.dues("job")[1:] == expected


def test_missed_slot_that_is_too_old_is_mentioned(
    start: StartBeat, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits for it in vain finds out why."""
    first = start()
    run(clock, [first], MINUTE)
    first.stop()
    clock.advance(9 * MINUTE)

    run(clock, [start()], 1)

    (line,) = (line for line in caplog.messages if "not sent any more" in line)
    assert "job@2026-11-21T12:02:00+00:00" in line
    assert "redlock_beat_catchup is 60 s" in line


def test_interval_is_sent_once_after_a_gap_however_many_times_it_fits(
    start: StartBeat, clock: FakeClock, broker: Broker
) -> None:
    """It counts from the last run: there is nothing in between to catch up with."""
    first = start(every(10.0))
    run(clock, [first], 12)
    first.kill()

    run(clock, [start(every(10.0))], 35)

    first_sent, overdue, following, *_ = broker.sent
    assert broker.dues("job")[:2] == ["12:00:20", "12:00:30"]
    assert overdue.at - first_sent.at > 12
    assert following.at - overdue.at == pytest.approx(10, abs=0.1)


def test_interval_goes_on_where_the_last_leader_left_it(
    start: StartBeat, clock: FakeClock, broker: Broker
) -> None:
    """Once an hour stays once an hour, though no leader lives for so long."""
    sent_at = []
    for _ in range(30):
        beat = start(every(HOUR))
        run(clock, [beat], 10 * MINUTE)
        beat.stop()
    sent_at = [sent.at - at(NOON) for sent in broker.sent]

    assert [round(gap) for gap in sent_at[:1]] == [HOUR + 10]
    gaps = [b - a for a, b in pairwise(sent_at)]
    assert len(sent_at) == 5
    assert all(HOUR <= gap < HOUR + 1 for gap in gaps)


def test_interval_that_was_missed_too_long_ago_keeps_its_step(
    start: StartBeat, clock: FakeClock, broker: Broker
) -> None:
    """Ten seconds past the hour stays ten seconds past the hour."""
    first = start(every(HOUR))
    run(clock, [first], HOUR + 1)
    first.stop()
    clock.advance(2.5 * HOUR)

    run(clock, [start(every(HOUR))], HOUR)

    assert broker.dues("job") == ["13:00:10", "16:00:10"]


def test_entry_that_never_ran_is_sent_at_once_where_its_scheduler_says_so(
    nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """Schedulers say it by a last run that is decades ago, or by none."""

    class Never(RecordingScheduler):
        def setup_schedule(self) -> None:
            super().setup_schedule()
            self.schedule["job"].last_run_at = datetime(1996, 1, 1, tzinfo=timezone.utc)

    for catchup, host in ((0, "a"), (60, "b")):
        settings = {"redlock_beat_scheduler": Never, "redlock_beat_catchup": catchup}
        beat = Beat(host, nodes.another_client(), broker, minutely, conf=settings)
        run(clock, [beat], 5)
        beat.stop()

    assert [(sent.by, sent.due.year) for sent in broker.sent] == [("a", 1996)]
