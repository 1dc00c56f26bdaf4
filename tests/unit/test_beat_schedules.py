"""What is sent when, by beats that come and go."""

from __future__ import annotations

import logging
import random
import shelve
from datetime import datetime, timedelta, timezone
from itertools import count, pairwise
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from celery import current_app, schedules
from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import crontab

from celery_redlock.beat import RedlockScheduler
from celery_redlock.beat.due import as_us, next_due, slots_due, window_from
from celery_redlock.testing import FakeClock, FakeNodes, SignalRecorder
from tests.unit.beats import TTL, Beat, Broker, Project, RecordingScheduler, at, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from celery.beat import ScheduleEntry

    StartBeat = Callable[..., Beat]

NOON = "2026-11-21T12:00:00+00:00"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(autouse=True)
def _no_app_stays_the_current_one() -> Iterator[None]:
    before = current_app._get_current_object()  # noqa: SLF001
    yield
    before.set_current()


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still, ten seconds after noon."""
    return FakeClock(wall=at(NOON) + 10)


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give five nodes."""
    nodes = FakeNodes(5, clock=clock)
    nodes.redlock()  # they vote
    return nodes


@pytest.fixture
def broker() -> Broker:
    """Give a broker that writes down what it gets."""
    return Broker()


def minutely() -> Mapping[str, Any]:
    """Return a schedule with one entry, due at each full minute."""
    return {"job": {"task": "proj.job", "schedule": crontab()}}


def every(seconds: float) -> Callable[[], Mapping[str, Any]]:
    """Return a schedule with one entry, due so long after its last run."""
    return lambda: {"job": {"task": "proj.job", "schedule": seconds}}


@pytest.fixture
def start(nodes: FakeNodes, broker: Broker) -> StartBeat:
    """Give a function that starts a beat with a schedule and settings."""
    letters = iter(ascii_lowercase)
    names = (next(letters, f"beat-{number}") for number in count())

    def start(
        schedule: Callable[[], Mapping[str, Any]] = minutely, **settings: Any
    ) -> Beat:
        conf = {f"redlock_{name}": value for name, value in settings.items()}
        return Beat(next(names), nodes.another_client(), broker, schedule, conf=conf)

    return start


# -- one sends -----------------------------------------------------------------------


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


# -- catching up ---------------------------------------------------------------------


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


# -- what local storage says ---------------------------------------------------------


class RecordingPersistentScheduler(RecordingScheduler, PersistentScheduler):
    """Celery's default scheduler, sending to the broker of the test."""


def persistent(
    host: str, nodes: FakeNodes, broker: Broker, file: Path, **settings: Any
) -> Beat:
    """Return a beat with a schedule file."""
    conf = {
        "redlock_beat_scheduler": RecordingPersistentScheduler,
        **{f"redlock_{name}": value for name, value in settings.items()},
    }
    return Beat(
        host,
        nodes.another_client(),
        broker,
        lambda: {
            "minutely": {"task": "t", "schedule": crontab()},
            "daily": {"task": "t", "schedule": crontab(hour=12, minute=1)},
            "hourly": {"task": "t", "schedule": HOUR},
        },
        conf=conf,
        schedule_filename=str(file),
    )


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
    """After the catch-up window; without one Celery's own error is all there is."""
    beats = [start(lambda: {"job": {"task": "t", "schedule": crontab(minute=1)}})]
    run(clock, beats, 30)
    broker.is_down = True
    run(clock, beats, 3 * MINUTE)
    broker.is_down = False
    run(clock, beats, MINUTE)

    assert broker.sent == []
    assert sum("is lost" in line for line in caplog.messages) == 1


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


# -- days and nights -----------------------------------------------------------------


def plain_celery(
    clock: FakeClock,
    schedule: Callable[[], Mapping[str, Any]],
    zone: str,
    seconds: float,
) -> list[datetime]:
    """Return the minutes at which Celery's own scheduler sends, undisturbed."""
    broker = Broker()
    app = Project("project", broker="memory://", set_as_current=False)
    app.clock_of_test, app.broker_of_test, app.host = clock, broker, "plain"
    app.conf.update(beat_schedule=schedule(), timezone=zone)
    scheduler = RecordingScheduler(app=app, max_interval=60)
    end = clock.monotonic() + seconds
    while (left := end - clock.monotonic()) > 0:
        clock.advance(min(left, max(0.001, scheduler.tick())))
    return [
        datetime.fromtimestamp(sent.at, timezone.utc).replace(second=0, microsecond=0)
        for sent in broker.sent
    ]


@pytest.mark.parametrize("night", ["2026-03-28T22:00:00", "2026-10-24T22:00:00"])
@pytest.mark.parametrize(
    "fields",
    [
        {"hour": 2, "minute": 30},
        {"hour": 3, "minute": 0},
        {"minute": 0},
        {"minute": "*/15"},
        {"hour": 2, "minute": 30, "day_of_week": "sun"},
        {"hour": 2, "minute": 30, "day_of_month": "25,29"},
    ],
    ids=lambda fields: "-".join(f"{name}={value}" for name, value in fields.items()),
)
def test_clocks_that_are_changed_at_night_change_nothing(
    night: str, fields: dict[str, Any]
) -> None:
    """The slots are those that plain Celery sends, with beats killed all the time."""

    def schedule() -> Mapping[str, Any]:
        return {"job": {"task": "t", "schedule": crontab(**fields)}}

    wall = datetime.fromisoformat(night).replace(tzinfo=BERLIN).timestamp()
    zone, broker = "Europe/Berlin", Broker()
    expected = plain_celery(FakeClock(wall=wall), schedule, zone, DAY / 2)
    clock = FakeClock(wall=wall)
    nodes = FakeNodes(3, clock=clock)
    nodes.redlock()
    conf = {"timezone": zone, "redlock_beat_ttl": 60, "redlock_beat_catchup": 120}
    for number in range(48):
        beat = Beat(f"{number}", nodes.another_client(), broker, schedule, conf=conf)
        run(clock, [beat], 15 * MINUTE)
        beat.kill() if number % 2 else beat.stop()

    end = datetime.fromtimestamp(wall + DAY / 2, timezone.utc)
    assert [sent.due for sent in broker.sent if sent.due < end] == expected
    assert expected


def test_crontab_of_the_apps_own_zone(
    nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """Noon in Tokyo is at three in UTC."""
    conf = {"timezone": "Asia/Tokyo"}

    def schedule() -> Mapping[str, Any]:
        return {"job": {"task": "t", "schedule": crontab(hour=12, minute=0)}}

    run(clock, [Beat("a", nodes, broker, schedule, conf=conf)], DAY)

    assert broker.dues("job") == ["03:00:00"]


# -- which slots are due -------------------------------------------------------------


def us(text: str) -> int:
    """Return an instant of that day in microseconds."""
    return round(at(f"2026-11-21T{text}+00:00") * 1_000_000)


def times(instants: list[int]) -> list[str]:
    """Return instants as times of day in UTC."""
    return [
        datetime.fromtimestamp(instant / 1e6, timezone.utc).strftime("%H:%M:%S")
        for instant in instants
    ]


@pytest.fixture
def app() -> Project:
    """Give an app in UTC."""
    return Project("project", set_as_current=False)


def test_due_time_does_not_depend_on_when_one_asks(app: Project) -> None:
    """Two beats come to the same microsecond, an hour apart."""
    interval = schedules.schedule(0.1, app=app)

    assert next_due(interval, us("12:00:00") + 7) == us("12:00:00") + 100_007
    assert slots_due(interval, us("12:00:00") + 7, us("13:00:00")) == [
        us("12:00:00") + 100_007
    ]


def test_each_instant_of_a_crontab_is_a_slot(app: Project) -> None:
    """Those after the last run, up to now, both ends as one expects."""
    five = crontab(minute="*/5", app=app)

    assert times(slots_due(five, us("12:00:00"), us("12:15:00"))) == [
        "12:05:00",
        "12:10:00",
        "12:15:00",
    ]
    assert slots_due(five, us("12:00:00"), us("12:04:59")) == []


@pytest.mark.parametrize(
    ("since", "earliest", "expected"),
    [
        ("12:00:00", "11:59:00", "12:00:00"),
        ("12:00:00", "12:00:30", "12:00:00"),
        ("12:00:00", "12:01:00", "12:00:00"),
        ("12:00:00", "12:01:01", "12:01:00"),
        ("12:00:00", "12:59:59", "12:59:00"),
        ("12:00:00", "13:00:00", "12:59:00"),
    ],
)
def test_window_moves_an_interval_in_whole_steps(
    app: Project, since: str, earliest: str, expected: str
) -> None:
    """The first slot that is sent is the first at or after the window's beginning."""
    minute = schedules.schedule(60, app=app)

    assert window_from(minute, us(since), us(earliest)) == us(expected)


def test_window_cuts_a_crontab(app: Project) -> None:
    """A slot at its very beginning is still sent."""
    since = window_from(crontab(app=app), us("08:00:00"), us("12:00:00"))

    assert times(slots_due(crontab(app=app), since, us("12:01:00"))) == [
        "12:00:00",
        "12:01:00",
    ]


def test_schedule_that_names_one_instant_for_ever_is_due_once() -> None:
    """As a clocked task of django-celery-beat does."""

    class Clocked(schedules.BaseSchedule):
        def remaining_estimate(self, _: datetime) -> Any:
            return datetime.fromisoformat(NOON) - self.now()

    assert slots_due(Clocked(), us("11:00:00"), us("12:00:01")) == [us("12:00:00")]
    assert slots_due(Clocked(), us("11:00:00"), us("11:59:59")) == []


def test_schedule_that_is_over_is_not_due() -> None:
    """As a rule with an end, of RedBeat, says by None."""

    class Over(schedules.BaseSchedule):
        def remaining_estimate(self, _: datetime) -> None:
            return None

    assert slots_due(Over(), us("11:00:00"), us("12:00:00")) == []
    assert window_from(Over(), us("11:00:00"), us("12:00:00")) == us("11:00:00")


def test_naive_instants_are_utc() -> None:
    """As Celery takes them."""
    assert as_us(datetime.fromisoformat(NOON).replace(tzinfo=None)) == us("12:00:00")
    assert as_us(None) == 0


# -- being a scheduler of Celery -----------------------------------------------------


def test_banner_touches_nothing(
    nodes: FakeNodes, broker: Broker, tmp_path: Path
) -> None:
    """Beat makes a lazy scheduler to be shown: no node is asked, no file is made."""
    beat = persistent("a", nodes, broker, tmp_path / "schedule")
    lazy = RedlockScheduler(app=beat.app, lazy=True)

    assert "wraps -> tests.unit.test_beat_schedules.RecordingPers" in lazy.info
    assert "leader of -> beat:project, on 5 nodes" in lazy.info
    assert list(beat.nodes.asked) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("no.such:Scheduler", "cannot be imported"),
        ("celery.beat:NoSuch", "cannot be imported"),
        ("nonsense", 'Write "module:Class", or one of the names'),
        ("celery.beat:ScheduleEntry", "is no beat scheduler"),
        ("redlock", "is what wraps others"),
        (RedlockScheduler, "is what wraps others"),
    ],
)
def test_scheduler_that_cannot_be_wrapped_ends_beat_with_the_remedy(
    start: StartBeat, value: Any, fault: str
) -> None:
    """Before it starts, and in one line."""
    with pytest.raises(SystemExit, match=fault) as ended:
        start(beat_scheduler=value)

    assert str(ended.value).startswith("celery-redlock: redlock_beat_scheduler is ")


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("beat_ttl", 0, "redlock_beat_ttl is 0; it must be a number of seconds"),
        ("beat_ttl", 61, "redlock_beat_ttl: The ttl of 61 s is above max_ttl"),
        ("beat_catchup", -1, "redlock_beat_catchup is -1; it must be a number"),
        ("beat_cachup", 1, "Did you mean 'redlock_beat_catchup'"),
    ],
)
def test_setting_that_is_wrong_ends_beat_with_the_remedy(
    start: StartBeat, name: str, value: Any, fault: str
) -> None:
    """By the name that the user wrote."""
    with pytest.raises(Exception, match=fault):
        start(**{name: value})


def test_close_within_a_tick_waits_until_the_tick_is_unwound(
    nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """SIGTERM strikes anywhere; the nodes are told when nothing else talks to them."""
    beat = Beat("a", nodes, broker, minutely)
    other = Beat("b", nodes.another_client(), broker, minutely)
    run(clock, [beat], 45)

    def terminate() -> None:
        beat.scheduler.close()
        assert beat.leads
        raise SystemExit

    broker.when_sent = terminate
    with pytest.raises(SystemExit):
        run(clock, [beat], 10)
    broker.when_sent = lambda: None
    beat.stop()

    assert not beat.leads
    run(clock, [other], 1)
    assert other.leads


def test_scheduler_that_fails_ends_beat_and_another_one_leads(
    nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """An error of the project's scheduler ends beat as it does without us."""

    class Failing(RecordingScheduler):
        def setup_schedule(self) -> None:
            raise RuntimeError("no database")

    conf = {"redlock_beat_scheduler": Failing}
    first = Beat("a", nodes.another_client(), broker, minutely, conf=conf)
    second = Beat("b", nodes.another_client(), broker, minutely)
    with pytest.raises(RuntimeError, match="no database"):
        first.tick()
    first.stop()

    run(clock, [second], 0.5)

    assert second.leads


def test_entry_whose_next_run_cannot_be_told_stops_no_other(
    start: StartBeat,
    clock: FakeClock,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with Celery: it is logged and tried again later."""

    class Broken(crontab):
        def remaining_estimate(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no such day")

    def schedule() -> Mapping[str, Any]:
        return {"broken": {"task": "t", "schedule": Broken()}, **minutely()}

    run(clock, [start(schedule)], 2 * MINUTE)

    assert broker.dues("job") == ["12:01:00", "12:02:00"]
    assert "The next run of 'broken' cannot be told" in caplog.text


def test_losing_a_term_with_a_scheduler_that_cannot_be_closed_is_standby(
    nodes: FakeNodes, clock: FakeClock, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Never a crash: its error is logged."""

    class Clinging(RecordingScheduler):
        def close(self) -> None:
            raise RuntimeError("no database")

    conf = {"redlock_beat_scheduler": Clinging}
    first = Beat("a", nodes.another_client(), broker, minutely, conf=conf)
    second = Beat("b", nodes.another_client(), broker, minutely)
    run(clock, [first, second], 1)
    first.freeze(20)

    run(clock, [first, second], 30)

    assert second.leads
    assert "RuntimeError: no database" in caplog.text


def test_project_s_scheduler_is_asked_to_save_while_it_leads(
    nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """Every three minutes, as by Celery."""
    saved: list[float] = []

    class Saving(RecordingScheduler):
        def sync(self) -> None:
            saved.append(clock.monotonic())

    conf = {"redlock_beat_scheduler": Saving}
    beat = Beat("a", nodes, broker, minutely, conf=conf)

    run(clock, [beat], 30)
    first = len(saved)
    run(clock, [beat], 30)

    assert first >= 1
    assert len(saved) == first  # by the machine's clock no three minutes have passed
    beat.stop()
    assert len(saved) == first + 1


def test_signals_tell_of_terms(start: StartBeat, clock: FakeClock) -> None:
    """Who leads, with which number, and how it ended."""
    with SignalRecorder("leader_elected", "leader_resigned") as events:
        first, second = start(), start()
        run(clock, [first, second], 1)
        first.freeze(20)
        run(clock, [first, second], 25)
        second.stop()

    elected, taken_over = events.of("leader_elected")
    lost, resigned = events.of("leader_resigned")
    assert (elected.sender, taken_over.sender) == (first.scheduler, second.scheduler)
    assert elected.term.number < taken_over.term.number
    assert (lost.term, lost.lost) == (elected.term, True)
    assert (resigned.term, resigned.lost) == (taken_over.term, False)


def test_redbeat_finds_no_lock_of_its_own_to_wait_for(start: StartBeat) -> None:
    """Its receiver of ``beat_init`` looks for one on whatever scheduler runs."""
    assert start().scheduler.lock_key is None
    assert isinstance(start().scheduler, Scheduler)
