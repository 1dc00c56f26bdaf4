"""Of any number of beats one sends, each slot once, whatever happens to it."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import pytest
from celery.schedules import crontab

from tests.unit.beat.support import (
    DAY,
    MINUTE,
    TTL,
    Beat,
    Broker,
    RecordingScheduler,
    every,
    minutely,
    run,
    us,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery.beat import ScheduleEntry

    from celery_redlock.testing import FakeClock, FakeNodes
    from tests.unit.beat.support import StartBeat


def test_one_of_three_beats_sends(
    start: StartBeat, clock: FakeClock, broker: Broker
) -> None:
    """Each slot is sent once, by the same beat, at its time."""
    beats = [start() for _ in range(3)]

    run(clock, beats, 5 * MINUTE)

    assert broker.dues("job") == [f"12:0{n}:00" for n in range(1, 6)]
    assert len({sent.by for sent in broker.sent}) == 1
    assert all(0 <= sent.at - sent.due.timestamp() < 0.1 for sent in broker.sent)


def test_ticks_are_never_further_apart_than_a_third_of_the_ttl(
    start: StartBeat, clock: FakeClock
) -> None:
    """The term is renewed by ticks and by nothing else."""
    beat = start(lambda: {"yearly": {"task": "t", "schedule": 365 * DAY}})

    for _ in range(20):
        assert beat.tick() <= TTL / 3
        clock.advance(beat.due_at - clock.monotonic())

    assert beat.leads
    assert beat.scheduler.max_interval == TTL / 3


def test_schedule_is_seen_where_it_is_led(start: StartBeat) -> None:
    """A beat that stands by has none: it has not even opened it."""
    leader, standby = start(), start()
    leader.tick()
    standby.tick()

    assert list(leader.scheduler.schedule) == ["job"]
    assert standby.scheduler.schedule == {}
    assert not standby.scheduler.should_sync()


def test_message_carries_its_slot_beside_what_the_user_put_there(
    nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """Headers and options stay, on the message and in the schedule."""
    options = {"queue": "slow", "headers": {"mine": 1}}
    seen: list[ScheduleEntry] = []

    class Looking(RecordingScheduler):
        def apply_async(self, entry: ScheduleEntry, *_: Any, **__: Any) -> None:
            seen.append(entry)

    def schedule() -> Mapping[str, Any]:
        return {"job": {"task": "t", "schedule": crontab(), "options": options}}

    conf = {"redlock_beat_scheduler": Looking}
    beat = Beat("a", nodes, broker, schedule, conf=conf)

    run(clock, [beat], MINUTE)

    (entry,) = seen
    slot = "job@2026-11-21T12:01:00+00:00"
    headers = {"mine": 1, "redlock": {"slot": slot}}
    assert entry.options == {"queue": "slow", "headers": headers}
    assert beat.scheduler.schedule["job"].options == options


# -- a leader that goes --------------------------------------------------------------


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_standby_takes_over_and_no_slot_is_lost_or_sent_twice(
    start: StartBeat, clock: FakeClock, broker: Broker, way: str
) -> None:
    """However the leader ends, and also when it ends just before a slot is due."""
    beats = [start() for _ in range(6)]
    for _ in range(5):
        run(clock, beats, 107)
        leader = next(beat for beat in beats if beat.leads)
        getattr(leader, way)()
    run(clock, beats, 30)

    expected = [f"12:{n:02}:00" for n in range(1, 10)]
    assert broker.dues("job") == expected
    assert len({sent.by for sent in broker.sent}) >= 4


def test_stopping_lets_another_beat_lead_within_half_a_second(
    start: StartBeat, clock: FakeClock
) -> None:
    """It resigns when it is closed."""
    first, second = start(), start()
    run(clock, [first, second], 1)
    assert first.leads

    first.stop()
    run(clock, [first, second], 0.5)

    assert second.leads


def test_frozen_leader_sends_nothing_when_it_comes_back(
    start: StartBeat, clock: FakeClock, broker: Broker
) -> None:
    """Its term has ended, by its own clock, and another one has sent what was due."""
    first, second = start(), start()
    run(clock, [first, second], 1)

    first.freeze(5 * MINUTE)
    run(clock, [first, second], 6 * MINUTE)

    assert broker.dues("job") == [f"12:0{n}:00" for n in range(1, 7)]
    assert {sent.by for sent in broker.sent} == {"b"}
    assert not first.leads


@pytest.mark.parametrize(
    "method", ["is_due", "reserve", "apply_entry", "populate_heap"]
)
def test_leader_that_is_frozen_within_a_tick_sends_nothing(
    nodes: FakeNodes, clock: FakeClock, broker: Broker, method: str
) -> None:
    """Wherever in the project's scheduler it hangs: the deadline is looked at last."""
    seconds = 0.0

    class Hanging(RecordingScheduler):
        def hang(self, *args: Any, **kwargs: Any) -> Any:
            clock.advance(seconds)
            return getattr(RecordingScheduler, method)(self, *args, **kwargs)

    setattr(Hanging, method, Hanging.hang)
    conf = {"redlock_beat_scheduler": Hanging}
    first = Beat("a", nodes.another_client(), broker, minutely, conf=conf)
    second = Beat("b", nodes.another_client(), broker, minutely)
    run(clock, [first], 45)
    first.scheduler._leading._heap = None  # type: ignore[union-attr]  # noqa: SLF001
    clock.advance(5.5)
    seconds = TTL + 1
    assert first.leads

    first.tick()
    seconds = 0.0
    run(clock, [first, second], 3 * MINUTE)

    dues = broker.dues("job")
    assert dues == [f"12:0{n}:00" for n in range(1, 5)]
    assert dues == sorted(set(dues))


def test_leader_that_hangs_while_it_sends_is_held_back(
    nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """Celery may wait, as for a result backend; meanwhile another beat has sent it."""

    class Hanging(RecordingScheduler):
        def apply_async(self, *args: Any, **kwargs: Any) -> None:
            if self.app.host == "a":
                run(clock, [second], TTL + 5)
            super().apply_async(*args, **kwargs)

    conf = {"redlock_beat_scheduler": Hanging}
    first = Beat("a", nodes.another_client(), broker, minutely, conf=conf)
    second = Beat("b", nodes.another_client(), broker, minutely, conf=conf)
    run(clock, [first], 45)
    assert first.leads

    first.due_at = clock.monotonic() + 5.1
    run(clock, [first], 6)
    run(clock, [first, second], MINUTE)

    assert [sent.by for sent in broker.sent] == ["b", "b"]
    assert broker.dues("job") == ["12:01:00", "12:02:00"]


def test_slot_that_was_sent_and_not_noted_is_sent_again_under_its_name(
    start: StartBeat, clock: FakeClock, broker: Broker
) -> None:
    """The one case in which two messages are sent: a leader dies in between."""
    first, second = start(every(30.0)), start(every(30.0))
    run(clock, [first, second], 45)

    def die() -> None:
        first.nodes.partition()
        first.kill()

    broker.when_sent = die
    run(clock, [first, second], 20)
    broker.when_sent = lambda: None
    run(clock, [first, second], 60)

    slots = [sent.slot for sent in broker.sent]
    assert [sent.by for sent in broker.sent] == ["a", "a", "b", "b"]
    assert slots[1] == slots[2]
    assert len(set(slots)) == 3


@pytest.mark.parametrize("seed", range(4))
def test_each_slot_is_sent_once_whatever_happens_to_beats(
    start: StartBeat, clock: FakeClock, broker: Broker, seed: int
) -> None:
    """A quarter of an hour of kills, stops and freezes, each followed by a new beat."""
    chance = random.Random(seed)  # noqa: S311  (to be repeatable is the point)
    beats = [start(), start()]
    while clock.wall_us() < us("12:15:30"):
        run(clock, beats, chance.uniform(5, 40))
        victim, fate = chance.choice(beats), chance.choice(["kill", "stop", "freeze"])
        if fate == "freeze":
            victim.freeze(30)
        else:
            getattr(victim, fate)()
        alive = [beat for beat in beats if beat.due_at < clock.monotonic() + 50]
        beats = [*alive[-3:], start()]

    assert broker.dues("job")[:15] == [f"12:{n:02}:00" for n in range(1, 16)]


@pytest.mark.parametrize("seed", range(4))
def test_slot_is_sent_twice_only_after_its_sender_was_cut_off(
    start: StartBeat, clock: FakeClock, broker: Broker, seed: int
) -> None:
    """From so many nodes that it could not note what it had sent."""
    chance = random.Random(seed)  # noqa: S311
    beats = [start(), start(), start()]
    cut: set[str] = set()
    for _ in range(20):
        run(clock, beats, chance.uniform(5, 40))
        victim = chance.choice(beats)
        victim.nodes.heal()
        if chance.random() < 0.6:
            victim.nodes.partition(*chance.sample(range(5), chance.randint(2, 5)))
            cut.add(victim.app.host)
        else:
            victim.freeze(chance.uniform(1, 30))

    assert len(broker.sent) > 5
    first: dict[str, str] = {}
    for sent in broker.sent:
        assert first.setdefault(sent.slot, sent.by) in {sent.by, *cut}
    assert len(first) >= len(broker.sent) - 3


def test_leader_that_is_cut_off_leaves_one_slot_that_is_sent_twice(
    start: StartBeat,
    clock: FakeClock,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of all that are due: it sends no other one before it has noted the last."""

    def schedule() -> Mapping[str, Any]:
        return {f"job-{n}": {"task": "t", "schedule": crontab()} for n in range(9)}

    first, second = start(schedule), start(schedule)
    run(clock, [first, second], 45)
    first.nodes.partition()
    run(clock, [first, second], 30)

    by = [sent.by for sent in broker.sent]
    assert (by.count("a"), by.count("b")) == (1, 9)
    assert len({sent.slot for sent in broker.sent}) == 9
    said = [line for line in caplog.messages if "Nothing is sent" in line]
    assert said == [
        "Nothing is sent: what was sent last is not noted on a majority of the nodes"
    ]


def test_leader_that_was_cut_off_for_a_moment_goes_on(
    start: StartBeat,
    clock: FakeClock,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it has held back is sent, by the same leader, and nothing twice."""

    def schedule() -> Mapping[str, Any]:
        return {f"job-{n}": {"task": "t", "schedule": crontab()} for n in range(9)}

    caplog.set_level(logging.INFO, "celery_redlock.beat")
    first, second = start(schedule), start(schedule)
    run(clock, [first, second], 45)
    first.nodes.partition()
    run(clock, [first, second], 6)
    first.nodes.heal()
    run(clock, [first, second], 30)

    assert [sent.by for sent in broker.sent] == ["a"] * 9
    assert len({sent.slot for sent in broker.sent}) == 9
    assert caplog.messages.count("Slots are sent again.") == 1
