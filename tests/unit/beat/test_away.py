"""The broker is away, or nodes are."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from celery.schedules import crontab

from tests.unit.beat.support import (
    HOUR,
    MINUTE,
    TTL,
    Broker,
    every,
    run,
)

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock, FakeNodes
    from tests.unit.beat.support import StartBeat


# -- a broker that is away -----------------------------------------------------------


def test_slot_that_the_broker_did_not_take_is_sent_when_it_is_back(
    start: StartBeat, clock: FakeClock, broker: Broker
) -> None:
    """Celery alone logs an error and forgets the slot."""
    beats = [start(lambda: {"job": {"task": "t", "schedule": crontab(minute=1)}})]
    run(clock, beats, 30)
    broker.is_down = True
    run(clock, beats, 40)
    assert broker.sent == []
    broker.is_down = False

    run(clock, beats, HOUR - 80)

    assert broker.dues("job") == ["12:01:00"]


def test_slot_that_the_broker_takes_too_late_is_lost_and_said_so(
    start: StartBeat,
    clock: FakeClock,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After the catch-up window; it does not come with the next one either."""
    beats = [start(lambda: {"job": {"task": "t", "schedule": crontab(minute=1)}})]
    run(clock, beats, 30)
    broker.is_down = True
    run(clock, beats, 3 * MINUTE)
    broker.is_down = False
    run(clock, beats, MINUTE)

    assert broker.sent == []
    (line,) = (line for line in caplog.messages if "is lost" in line)
    assert "job@2026-11-21T12:01:00+00:00 could not be sent in time" in line
    run(clock, beats, HOUR)
    assert broker.dues("job") == ["13:01:00"]


def test_broker_that_was_away_for_long_gets_what_is_in_the_window(
    start: StartBeat,
    clock: FakeClock,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And no flood of all that was due meanwhile; each slot that is lost is named."""
    beats = [start(beat_catchup=150)]
    run(clock, beats, 30)
    broker.is_down = True
    run(clock, beats, 10 * MINUTE)
    broker.is_down = False
    run(clock, beats, MINUTE)

    assert broker.dues("job") == ["12:09:00", "12:10:00", "12:11:00"]
    lost = [line for line in caplog.messages if "is lost" in line]
    assert len(lost) == 8
    assert len(set(lost)) == 8


@pytest.mark.parametrize("step", [7.0, 240.0])
def test_interval_is_late_and_not_lost_while_it_fits_in_the_window(
    start: StartBeat,
    clock: FakeClock,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
    step: float,
) -> None:
    """It counts from its last run; the broker was away from 12:04:09 to 12:06:30."""
    beats, lost = [start(every(step))], step > MINUTE
    run(clock, beats, 239)
    before = len(broker.sent)
    broker.is_down = True
    run(clock, beats, 141)
    assert len(broker.sent) == before
    broker.is_down = False
    run(clock, beats, TTL / 3)

    assert len(broker.sent) == before + (not lost)
    assert sum("is lost" in line for line in caplog.messages) == lost
    run(clock, beats, 240)
    at = [sent.at for sent in broker.sent[before:]]
    assert all(b - a == pytest.approx(step, abs=0.1) for a, b in pairwise(at))


def test_new_leader_sends_what_the_broker_did_not_take_from_the_old_one(
    start: StartBeat, clock: FakeClock, broker: Broker
) -> None:
    """The slot is not noted, so that it is nobody's past."""
    first, second = start(), start()
    run(clock, [first, second], 45)
    broker.is_down = True
    run(clock, [first, second], 10)
    first.kill()
    broker.is_down = False

    run(clock, [first, second], 30)

    assert [(sent.by, str(sent.due.time())) for sent in broker.sent] == [
        ("b", "12:01:00")
    ]


# -- nodes that are away -------------------------------------------------------------


def test_majority_of_nodes_away_stops_all_sending(
    start: StartBeat,
    nodes: FakeNodes,
    clock: FakeClock,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Everybody says so once; when they are back, the window says what is sent."""
    caplog.set_level(logging.INFO)
    beats = [start(), start(), start()]
    run(clock, beats, 20)
    nodes.freeze(0, 1, 2)
    run(clock, beats, 5 * MINUTE)
    assert broker.sent == []
    said = [line for line in caplog.messages if "Nobody can be elected" in line]
    assert len(said) == 3

    nodes.thaw()
    run(clock, beats, 15)

    assert broker.dues("job") == ["12:05:00"]


def test_minority_of_nodes_away_changes_nothing(
    start: StartBeat, nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """As with everything else that is decided by a majority."""
    beats = [start(), start()]
    nodes.freeze(0)
    nodes.nodes[1].kill()

    run(clock, beats, 3 * MINUTE)

    assert broker.dues("job") == ["12:01:00", "12:02:00", "12:03:00"]
