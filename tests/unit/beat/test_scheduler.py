"""What Celery asks of a scheduler, and what it is told."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import crontab

from celery_redlock.beat import RedlockScheduler
from celery_redlock.testing import FakeClock, FakeNodes, SignalRecorder
from tests.unit.beat.support import (
    MINUTE,
    TTL,
    Beat,
    Broker,
    RecordingScheduler,
    minutely,
    persistent,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.unit.beat.support import StartBeat


def test_banner_touches_nothing(
    nodes: FakeNodes, broker: Broker, tmp_path: Path
) -> None:
    """Beat makes a lazy scheduler to be shown: no node is asked, no file is made."""
    beat = persistent("a", nodes, broker, tmp_path / "schedule")
    lazy = RedlockScheduler(app=beat.app, lazy=True)

    assert "wraps -> tests.unit.beat.support.RecordingPers" in lazy.info
    assert "leader of -> beat:project, on 5 nodes" in lazy.info
    assert list(beat.nodes.asked) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("usual", "found"),
    [
        (RecordingScheduler, RecordingScheduler),
        ("celery.beat:Scheduler", Scheduler),
        ("redlock", PersistentScheduler),
        (None, PersistentScheduler),
    ],
)
def test_scheduler_of_the_project_is_wrapped_without_being_named_again(
    nodes: FakeNodes, broker: Broker, usual: Any, found: type
) -> None:
    """What ``beat_scheduler`` names, as in many Django projects, is kept by ``-S``."""
    conf = {"redlock_beat_scheduler": None}
    conf |= {"beat_scheduler": usual} if usual else {}

    beat = Beat("a", nodes, broker, minutely, conf=conf)

    name = f"{found.__module__}.{found.__qualname__}"
    assert f"wraps -> {name}\n" in beat.scheduler.info


def test_scheduler_of_the_project_that_does_not_exist_is_named(
    nodes: FakeNodes, broker: Broker
) -> None:
    """By the setting that names it."""
    conf = {"redlock_beat_scheduler": None, "beat_scheduler": "no.such:Scheduler"}

    with pytest.raises(SystemExit, match=r": beat_scheduler is 'no\.such"):
        Beat("a", nodes, broker, minutely, conf=conf)


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


@pytest.fixture
def _terminated_as_by_celery() -> Iterator[None]:
    def terminate(*_: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, terminate)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_terminated_as_by_celery")
@pytest.mark.parametrize("times", [1, 2])
def test_slot_that_is_sent_when_sigterm_comes_is_noted(
    start: StartBeat, clock: FakeClock, broker: Broker, times: int
) -> None:
    """So that a clean stop makes no slot come twice; a second signal is obeyed."""
    first, second = start(), start()
    run(clock, [first, second], 45)

    def terminate() -> None:
        for _ in range(times):
            signal.raise_signal(signal.SIGTERM)

    broker.when_sent = terminate
    with pytest.raises(SystemExit):
        run(clock, [first], 10)
    broker.when_sent = lambda: None
    first.stop()
    run(clock, [second], MINUTE)

    assert [sent.by for sent in broker.sent] == ["a", *["b"] * times]
    assert broker.dues("job") == [*["12:01:00"] * times, "12:02:00"]
    handler = signal.getsignal(signal.SIGTERM)
    assert callable(handler)
    assert handler.__name__ == "terminate"


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


def test_project_s_scheduler_does_not_save_what_is_another_leader_s(
    nodes: FakeNodes, clock: FakeClock, broker: Broker
) -> None:
    """Celery saves after sending; where that took too long, others have sent since."""
    saved: list[bool] = []

    class Saving(RecordingScheduler):
        def should_sync(self) -> bool:
            return True

        def sync(self) -> None:
            saved.append(beat.leads)

        def apply_async(self, *args: Any, **kwargs: Any) -> None:
            try:
                super().apply_async(*args, **kwargs)
                clock.advance(TTL + 1)
            finally:
                if self.should_sync():
                    self._do_sync()

    conf = {"redlock_beat_scheduler": Saving}
    beat = Beat("a", nodes, broker, minutely, conf=conf)

    run(clock, [beat], 2 * MINUTE)

    assert len(broker.sent) >= 1
    assert saved
    assert all(saved)


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
