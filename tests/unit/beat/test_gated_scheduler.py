"""Of any number of beats one sends, and each slot once."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from celery.beat import ScheduleEntry
from celery.schedules import crontab

from celery_redlock.records.beat_slots import mark_slot
from tests.conftest import with_long
from tests.unit.beat.support import (
    DAY,
    HOUR,
    MINUTE,
    TTL,
    RecordingScheduler,
    Site,
    crontabs,
    every,
    us,
)
from tests.unit.election.support import run

SEEDS = with_long(range(4), "1", "2", "3")
NINE_JOBS = crontabs(*(f"job-{n}" for n in range(9)))


def test_one_of_three_beats_sends(site: Site) -> None:
    """The same beat sends each slot, once and at its time."""
    beats = [site.start() for _ in range(3)]

    run(5 * MINUTE, *beats)

    assert site.dues() == [f"12:0{n}:00" for n in range(1, 6)]
    assert len(set(site.senders())) == 1
    assert all(0 <= sent.at - sent.due.timestamp() < 0.1 for sent in site.sent)


def test_ticks_are_never_further_apart_than_a_third_of_the_ttl(site: Site) -> None:
    """Only ticks renew the term."""
    beat = site.start(every(365 * DAY))

    for _ in range(20):
        assert beat.tick() <= TTL / 3
        site.clock.advance(beat.due_at - site.clock.monotonic())

    assert beat.leads
    assert beat.scheduler.max_interval == TTL / 3


def test_schedule_is_visible_on_the_leader_only(site: Site) -> None:
    """A standby has not opened its schedule."""
    leader, standby = site.start(), site.start()
    leader.tick()
    standby.tick()

    assert list(leader.scheduler.schedule) == ["job"]
    assert standby.scheduler.schedule == {}
    assert not standby.scheduler.should_sync()


def test_message_carries_its_slot_beside_the_headers_of_the_user(site: Site) -> None:
    """The user's headers and options stay, on the message and in the schedule."""
    options = {"queue": "slow", "headers": {"mine": 1}}
    seen: list[ScheduleEntry] = []

    class Looking(RecordingScheduler):
        def apply_async(self, entry: ScheduleEntry, *_: Any, **__: Any) -> None:
            seen.append(entry)

    def schedule() -> Mapping[str, Any]:
        return {"job": {"task": "t", "schedule": crontab(), "options": options}}

    beat = site.start(schedule, beat_scheduler=Looking)

    run(MINUTE, beat)

    (entry,) = seen
    slot = "beat:project/job@2026-11-21T12:01:00+00:00"
    headers = {"mine": 1, "redlock": {"slot": slot}}
    assert entry.options == {"queue": "slow", "headers": headers}
    assert beat.scheduler.schedule["job"].options == options


def test_entries_of_two_apps_may_have_one_name(site: Site) -> None:
    """A task of the one app is no second message for the entry of the other app."""
    beats = [site.start(options={"name": name}) for name in ("shop", "billing")]

    for _ in range(13):
        for beat in beats:
            beat.tick()
        site.clock.advance(TTL / 3)

    redlock = site.nodes.another_client().redlock()
    first, second = site.sent
    assert (first.due, first.entry) == (second.due, second.entry)
    assert mark_slot(redlock, first.slot, "task-1") is None
    assert mark_slot(redlock, second.slot, "task-2") is None


# -- the leader ends or hangs --------------------------------------------------------


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_standby_takes_over_and_no_slot_is_lost_or_sent_twice(
    site: Site, way: str
) -> None:
    """This holds also for a leader that ends just before a slot is due."""
    beats = [site.start() for _ in range(4)]
    for _ in range(3):
        run(107, *beats)
        leader = next(beat for beat in beats if beat.leads)
        getattr(leader, way)()
    run(20, *beats)

    assert site.dues() == [f"12:{n:02}:00" for n in range(1, 6)]
    assert len(set(site.senders())) >= 3


@pytest.mark.parametrize(
    "method", ["is_due", "reserve", "apply_entry", "populate_heap"]
)
def test_leader_that_hangs_within_a_tick_sends_nothing(site: Site, method: str) -> None:
    """The deadline is checked after each method of the project's scheduler."""
    seconds = 0.0

    class Hanging(RecordingScheduler):
        def hang(self, *args: Any, **kwargs: Any) -> Any:
            site.clock.advance(seconds)
            return getattr(RecordingScheduler, method)(self, *args, **kwargs)

    setattr(Hanging, method, Hanging.hang)
    first, second = site.start(beat_scheduler=Hanging), site.start()
    run(45, first)
    gated = first.scheduler._gated  # noqa: SLF001
    assert gated is not None
    gated._heap = None  # noqa: SLF001
    site.clock.advance(5.5)
    seconds = TTL + 1
    assert first.leads

    first.tick()
    seconds = 0.0
    run(3 * MINUTE, first, second)

    assert site.dues() == [f"12:0{n}:00" for n in range(1, 5)]


def test_leader_that_hangs_while_it_sends_is_held_back(site: Site) -> None:
    """Celery may wait for a result backend while another beat sends the slot."""

    class Hanging(RecordingScheduler):
        def apply_async(self, *args: Any, **kwargs: Any) -> None:
            if self.app.host == "a":
                run(TTL + 5, second)
            super().apply_async(*args, **kwargs)

    first, second = (
        site.start(beat_scheduler=Hanging),
        site.start(beat_scheduler=Hanging),
    )
    run(45, first)
    assert first.leads

    first.due_at = site.clock.monotonic() + 5.1
    run(6, first)
    run(MINUTE, first, second)

    assert site.senders() == ["b", "b"]
    assert site.dues() == ["12:01:00", "12:02:00"]


def test_slot_that_was_sent_and_not_recorded_is_sent_again(site: Site) -> None:
    """A slot is sent twice in this case only: the leader dies between the two steps."""
    first, second = site.start(every(30.0)), site.start(every(30.0))
    run(45, first, second)

    def die() -> None:
        first.nodes.partition()
        first.kill()

    site.broker.when_sent = die
    run(20, first, second)
    site.broker.when_sent = lambda: None
    run(60, first, second)

    slots = [sent.slot for sent in site.sent]
    assert site.senders() == ["a", "a", "b", "b"]
    assert slots[1] == slots[2]
    assert len(set(slots)) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_each_slot_is_sent_once_however_beats_end(site: Site, seed: int) -> None:
    """Beats are killed, stopped and frozen for 8 minutes, and each is replaced."""
    chance = random.Random(seed)  # noqa: S311  (to be repeatable is the point)
    beats = [site.start(), site.start()]
    while round(site.clock.wall() * 1e6) < us("12:08:30"):
        run(chance.uniform(5, 40), *beats)
        victim, fate = chance.choice(beats), chance.choice(["kill", "stop", "freeze"])
        if fate == "freeze":
            victim.freeze(30)
        else:
            getattr(victim, fate)()
        alive = [beat for beat in beats if beat.due_at < site.clock.monotonic() + 50]
        beats = [*alive[-3:], site.start()]

    assert site.dues()[:8] == [f"12:{n:02}:00" for n in range(1, 9)]


# -- nodes are away ------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.long
def test_slot_is_sent_twice_only_after_its_sender_was_cut_off(
    site: Site, seed: int
) -> None:
    """The first sender reached too few nodes to record the slot."""
    chance = random.Random(seed)  # noqa: S311
    beats = [site.start(), site.start(), site.start()]
    cut: set[str] = set()
    for _ in range(20):
        run(chance.uniform(5, 40), *beats)
        victim = chance.choice(beats)
        victim.nodes.heal()
        if chance.random() < 0.6:
            victim.nodes.partition(*chance.sample(range(5), chance.randint(2, 5)))
            cut.add(victim.app.host)
        else:
            victim.freeze(chance.uniform(1, 30))

    assert len(site.sent) > 5
    first: dict[str, str] = {}
    for sent in site.sent:
        assert first.setdefault(sent.slot, sent.by) in {sent.by, *cut}
    assert len(first) >= len(site.sent) - 3


def test_leader_that_is_cut_off_leaves_one_slot_that_is_sent_twice(site: Site) -> None:
    """It sends no other due slot before it has recorded the last one."""
    first, second = site.start(NINE_JOBS), site.start(NINE_JOBS)
    run(45, first, second)
    first.nodes.partition()
    run(30, first, second)

    by = site.senders()
    assert (by.count("a"), by.count("b")) == (1, 9)
    assert len({sent.slot for sent in site.sent}) == 9
    assert [line for line in site.log.messages if "Nothing is sent" in line] == [
        "Nothing is sent: too few votes for the record of the last slots."
    ]


def test_leader_that_was_cut_off_for_a_moment_continues(site: Site) -> None:
    """The same leader sends the slots that it held back, and none twice."""
    site.log.set_level(logging.INFO, "celery_redlock.beat")
    first, second = site.start(NINE_JOBS), site.start(NINE_JOBS)
    run(45, first, second)
    first.nodes.partition()
    run(6, first, second)
    first.nodes.heal()
    run(30, first, second)

    assert site.senders() == ["a"] * 9
    assert len({sent.slot for sent in site.sent}) == 9
    assert site.log.messages.count("Slots are sent again.") == 1


@pytest.mark.parametrize("catchup", [0, 60])
def test_slots_that_are_late_because_many_are_due_at_once_are_sent(
    site: Site, catchup: float
) -> None:
    """A leader that needs 200 s to send the slots of one minute sends all of them."""
    names = [f"entry-{number}" for number in range(100)]
    beat = site.start(crontabs(*names, minute=5), beat_catchup=catchup)
    site.broker.when_sent = lambda: site.clock.advance(2)

    run(10 * MINUTE, beat)

    assert sorted(sent.entry for sent in site.sent) == sorted(names)
    assert site.dues() == ["12:05:00"] * 100


def test_slot_that_the_deadline_of_celery_excludes_is_not_sent_with_the_next_one(
    site: Site,
) -> None:
    """``beat_cron_starting_deadline`` says how late a crontab may be sent."""
    conf, schedule = {"beat_cron_starting_deadline": 10}, crontabs(minute="*/10")
    first = site.start(schedule, conf=conf)
    run(20 * MINUTE - 20, first)
    first.kill()
    site.clock.advance(40)

    run(10 * MINUTE, site.start(schedule, conf=conf))

    assert site.dues() == ["12:10:00", "12:30:00"]


# -- the broker is away --------------------------------------------------------------


def test_slot_that_the_broker_did_not_accept_is_sent_when_it_is_back(
    site: Site,
) -> None:
    """Celery alone would log an error and forget the slot."""
    beat = site.start(crontabs(minute=1))
    run(30, beat)
    site.run_without_broker(40, beat)
    assert site.sent == []

    run(HOUR - 80, beat)

    assert site.dues() == ["12:01:00"]


def test_slot_that_the_broker_did_not_accept_in_time_is_lost_and_logged(
    site: Site,
) -> None:
    """After the catch-up window the slot is not sent, not even with the next one."""
    beat = site.start(crontabs(minute=1))
    run(30, beat)
    site.run_without_broker(3 * MINUTE, beat)
    run(MINUTE, beat)

    assert site.sent == []
    (line,) = (line for line in site.log.messages if "is lost" in line)
    assert "job@2026-11-21T12:01:00+00:00 could not be sent within" in line
    run(HOUR, beat)
    assert site.dues() == ["13:01:00"]


def test_broker_that_was_away_for_long_gets_the_slots_in_the_window(site: Site) -> None:
    """It does not get older slots. The log names each of these."""
    beat = site.start(beat_catchup=150)
    run(30, beat)
    site.run_without_broker(10 * MINUTE, beat)
    run(MINUTE, beat)

    assert site.dues() == ["12:09:00", "12:10:00", "12:11:00"]
    lost = [line for line in site.log.messages if "is lost" in line]
    assert len(lost) == len(set(lost)) == 8


@pytest.mark.parametrize("step", [7.0, 240.0])
def test_interval_is_late_and_not_lost_while_it_fits_in_the_window(
    site: Site, step: float
) -> None:
    """It counts from its last run; the broker was away from 12:04:09 to 12:06:30."""
    beat, lost = site.start(every(step)), step > MINUTE
    run(239, beat)
    before = len(site.sent)
    site.run_without_broker(141, beat)
    assert len(site.sent) == before
    run(TTL / 3, beat)

    assert len(site.sent) == before + (not lost)
    assert sum("is lost" in line for line in site.log.messages) == lost
    run(240, beat)
    at = [sent.at for sent in site.sent[before:]]
    assert all(b - a == pytest.approx(step, abs=0.1) for a, b in pairwise(at))


def test_new_leader_sends_what_the_broker_refused_before(site: Site) -> None:
    """No leader has recorded the slot as sent."""
    first, second = site.start(), site.start()
    run(45, first, second)
    site.run_without_broker(10, first, second)
    first.kill()

    run(30, first, second)

    assert site.senders() == ["b"]
    assert site.dues() == ["12:01:00"]
