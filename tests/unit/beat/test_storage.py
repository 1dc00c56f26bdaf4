"""What a scheduler keeps on its own machine may be old."""

from __future__ import annotations

import shelve
from typing import TYPE_CHECKING

from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.beat.support import (
    DAY,
    HOUR,
    MINUTE,
    Broker,
    persistent,
    run,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_stale_schedule_file_does_not_fire_everything_again(
    nodes: FakeNodes, clock: FakeClock, broker: Broker, tmp_path: Path
) -> None:
    """A beat that led three days ago takes over, and goes on from today."""
    old = persistent("old", nodes, broker, tmp_path / "old")
    run(clock, [old], MINUTE)
    old.stop()
    clock.advance(3 * DAY)
    new = persistent("new", nodes, broker, tmp_path / "new")
    run(clock, [new], 10 * MINUTE)
    new.stop()
    before = len(broker.sent)

    again = persistent("old", nodes, broker, tmp_path / "old")
    run(clock, [again], 5)
    assert len(broker.sent) == before

    run(clock, [again], 2 * MINUTE)
    assert [sent.entry for sent in broker.sent[before:]] == ["minutely"] * 2


def test_stale_schedule_file_without_any_record_is_old(
    nodes: FakeNodes, clock: FakeClock, broker: Broker, tmp_path: Path
) -> None:
    """The first start with election, over a file of last week, is no flood either."""
    file = tmp_path / "schedule"
    plain = persistent("plain", nodes, broker, file)
    run(clock, [plain], 1)
    plain.stop()
    nodes_of_today = FakeNodes(5, clock=clock)
    nodes_of_today.redlock()
    clock.advance(7 * DAY + HOUR / 2)

    run(clock, [persistent("a", nodes_of_today, broker, file)], 5)

    assert [sent.entry for sent in broker.sent] == ["minutely"]  # 12:30, in the window


def test_schedule_file_is_opened_by_the_leader_only(
    nodes: FakeNodes, clock: FakeClock, broker: Broker, tmp_path: Path
) -> None:
    """Two beats in one folder use one file in turn, and neither spoils it."""
    file = tmp_path / "schedule"
    first = persistent("a", nodes, broker, file)
    second = persistent("b", nodes, broker, file)
    run(clock, [first, second], MINUTE)
    first.stop()
    run(clock, [first, second], MINUTE)
    second.stop()

    with shelve.open(str(file)) as stored:  # noqa: S301  (our own)
        assert set(stored["entries"]) > {"minutely", "daily", "hourly"}
    assert [sent.by for sent in broker.sent if sent.entry == "minutely"] == ["a", "b"]
