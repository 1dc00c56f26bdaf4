"""The scheduler between beat and the project's own scheduler."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from celery.beat import PersistentScheduler, ScheduleEntry, Scheduler
from celery.schedules import crontab, schedstate

from celery_redlock.beat import RedlockScheduler
from celery_redlock.testing import SignalRecorder
from tests.unit.beat.support import (
    HOUR,
    MINUTE,
    TTL,
    RecordingPersistentScheduler,
    RecordingScheduler,
    Site,
    crontabs,
)
from tests.unit.election.support import run


def test_banner_asks_no_node_and_makes_no_file(site: Site, tmp_path: Path) -> None:
    """Beat makes a lazy scheduler only to show it."""
    beat = site.start(
        beat_scheduler=RecordingPersistentScheduler,
        options={"schedule_filename": str(tmp_path / "schedule")},
    )
    lazy = RedlockScheduler(app=beat.app, lazy=True)

    assert "wraps -> tests.unit.beat.support.RecordingPers" in lazy.info
    assert "leader of -> beat:project, on 5 nodes" in lazy.info
    assert list(beat.nodes.asked) == []
    assert list(tmp_path.iterdir()) == []


# -- settings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usual", "found"),
    [
        (RecordingScheduler, RecordingScheduler),
        ("celery.beat:Scheduler", Scheduler),
        ("redlock", PersistentScheduler),
        (None, PersistentScheduler),
    ],
)
def test_scheduler_of_the_project_is_wrapped_without_a_setting(
    site: Site, usual: Any, found: type
) -> None:
    """``-S redlock`` wraps the scheduler that ``beat_scheduler`` names."""
    conf = {"beat_scheduler": usual} if usual else {}

    beat = site.start(conf=conf, beat_scheduler=None)

    name = f"{found.__module__}.{found.__qualname__}"
    assert f"wraps -> {name}\n" in beat.scheduler.info


def test_scheduler_of_the_project_that_does_not_exist_ends_beat(site: Site) -> None:
    """The error names Celery's setting, because that one is wrong."""
    conf = {"beat_scheduler": "no.such:Scheduler"}

    with pytest.raises(SystemExit, match=r": beat_scheduler is 'no\.such"):
        site.start(conf=conf, beat_scheduler=None)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("no.such:Scheduler", "cannot be imported"),
        ("celery.beat:NoSuch", "cannot be imported"),
        ("nonsense", 'Write "module:Class", or one of the names'),
        ("celery.beat:ScheduleEntry", "is not a beat scheduler. Name a subclass"),
        ("redlock", "which wraps other schedulers"),
        (RedlockScheduler, "which wraps other schedulers"),
    ],
)
def test_scheduler_that_cannot_be_wrapped_ends_beat_with_the_remedy(
    site: Site, value: Any, fault: str
) -> None:
    """Beat ends before it starts, with one line."""
    with pytest.raises(SystemExit, match=fault) as ended:
        site.start(beat_scheduler=value)

    assert str(ended.value).startswith("celery-redlock: redlock_beat_scheduler is ")


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("beat_ttl", 0, "redlock_beat_ttl is 0; it must be a number of seconds"),
        ("beat_ttl", 61, "redlock_beat_ttl: The ttl of 61 s is above max_ttl"),
        ("beat_catchup", -1, "redlock_beat_catchup is -1; it must be 0 or a number"),
        ("beat_cachup", 1, "Did you mean 'redlock_beat_catchup'"),
    ],
)
def test_setting_that_is_wrong_ends_beat_with_the_remedy(
    site: Site, name: str, value: Any, fault: str
) -> None:
    """The error names the setting as the user wrote it."""
    with pytest.raises(Exception, match=fault):
        site.start(**{name: value})


# -- the end of a beat ---------------------------------------------------------------


def test_close_within_a_tick_takes_effect_after_the_tick(site: Site) -> None:
    """SIGTERM may come anywhere; the beat resigns when no other request is open."""
    beat, other = site.start(), site.start()
    run(45, beat)

    def terminate() -> None:
        beat.scheduler.close()
        assert beat.leads
        raise SystemExit

    site.broker.when_sent = terminate
    with pytest.raises(SystemExit):
        run(10, beat)
    site.broker.when_sent = lambda: None
    beat.stop()

    assert not beat.leads
    run(1, other)
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
def test_slot_that_is_sent_when_sigterm_comes_is_recorded(
    site: Site, times: int
) -> None:
    """A clean stop sends no slot twice. A second signal ends the beat at once."""
    first, second = site.start(), site.start()
    run(45, first, second)

    def terminate() -> None:
        for _ in range(times):
            signal.raise_signal(signal.SIGTERM)

    site.broker.when_sent = terminate
    with pytest.raises(SystemExit):
        run(10, first)
    site.broker.when_sent = lambda: None
    first.stop()
    run(MINUTE, second)

    assert site.senders() == ["a", *["b"] * times]
    assert site.dues() == [*["12:01:00"] * times, "12:02:00"]
    handler = signal.getsignal(signal.SIGTERM)
    assert callable(handler)
    assert handler.__name__ == "terminate"


# -- a scheduler of the project that fails -------------------------------------------


def test_scheduler_that_fails_ends_beat_and_another_one_leads(site: Site) -> None:
    """An error of the project's scheduler ends beat, as without election."""

    class Failing(RecordingScheduler):
        def setup_schedule(self) -> None:
            raise RuntimeError("no database")

    first, second = site.start(beat_scheduler=Failing), site.start()
    with pytest.raises(RuntimeError, match="no database"):
        first.tick()
    first.stop()

    run(0.5, second)

    assert second.leads


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="there it ends Celery's beat")
def test_entry_whose_next_run_cannot_be_computed_stops_no_other(site: Site) -> None:
    """The error is logged, as by Celery."""

    class Broken(crontab):
        def remaining_estimate(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no such day")

    def schedule() -> Mapping[str, Any]:
        return {"broken": {"task": "t", "schedule": Broken()}, **crontabs()()}

    run(2 * MINUTE, site.start(schedule))

    assert site.dues() == ["12:01:00", "12:02:00"]
    assert "The next run of 'broken' cannot be computed" in site.log.text


def test_losing_a_term_with_a_scheduler_that_cannot_be_closed_is_standby(
    site: Site,
) -> None:
    """The error of the scheduler is logged, and beat goes on."""

    class Unclosable(RecordingScheduler):
        def close(self) -> None:
            raise RuntimeError("no database")

    first, second = site.start(beat_scheduler=Unclosable), site.start()
    run(1, first, second)
    first.freeze(20)

    run(30, first, second)

    assert second.leads
    assert "RuntimeError: no database" in site.log.text


# -- saving, signals -----------------------------------------------------------------


def test_scheduler_of_the_project_saves_while_it_leads(site: Site) -> None:
    """It saves every three minutes, as with Celery alone, and at its end."""
    saved: list[float] = []

    class Saving(RecordingScheduler):
        def sync(self) -> None:
            saved.append(site.clock.monotonic())

    beat = site.start(beat_scheduler=Saving)

    run(30, beat)
    first = len(saved)
    run(30, beat)

    assert first >= 1
    assert len(saved) == first  # on the real clock, no three minutes have passed
    beat.stop()
    assert len(saved) == first + 1


def test_entry_that_runs_once_is_not_sent_again_by_the_next_leader(
    site: Site,
) -> None:
    """Django's scheduler writes its rows every three minutes; a killed leader none."""
    ran: dict[str, int] = {}

    class Row(SimpleNamespace):
        one_off = True

    class OneOff(ScheduleEntry):
        @property
        def model(self) -> Row:
            return Row(total_run_count=self.total_run_count)

        def is_due(self) -> schedstate:
            if max(ran.get(self.name, 0), self.total_run_count):
                return schedstate(is_due=False, next=HOUR)
            return super().is_due()

    class InDatabase(RecordingScheduler):
        Entry = OneOff

        def setup_schedule(self) -> None:
            self._dirty = set[str]()
            super().setup_schedule()

        def reserve(self, entry: ScheduleEntry) -> ScheduleEntry:
            self._dirty.add(entry.name)
            return super().reserve(entry)

        def sync(self) -> None:
            ran.update(dict.fromkeys(self._dirty, 1))
            self._dirty.clear()

    first = site.start(beat_scheduler=InDatabase)
    run(MINUTE, first)
    first.kill()
    run(3 * MINUTE, site.start(beat_scheduler=InDatabase))

    assert site.dues() == ["12:01:00"]


def test_scheduler_may_have_a_model_that_is_not_one_of_django(site: Site) -> None:
    """The model of sqlalchemy-celery-beat has no manager."""

    class InDatabase(RecordingScheduler):
        Model = SimpleNamespace()

    run(MINUTE, site.start(beat_scheduler=InDatabase))

    assert site.dues() == ["12:01:00"]


def test_scheduler_of_the_project_does_not_save_after_its_term(site: Site) -> None:
    """Celery saves after sending. If sending took too long, another beat leads."""
    saved: list[bool] = []

    class Saving(RecordingScheduler):
        def should_sync(self) -> bool:
            return True

        def sync(self) -> None:
            saved.append(beat.leads)

        def apply_async(self, *args: Any, **kwargs: Any) -> None:
            try:
                super().apply_async(*args, **kwargs)
                site.clock.advance(TTL + 1)
            finally:
                if self.should_sync():
                    self._do_sync()

    beat = site.start(beat_scheduler=Saving)

    run(2 * MINUTE, beat)

    assert len(site.sent) >= 1
    assert saved
    assert all(saved)


def test_signals_report_terms(site: Site) -> None:
    """They name the scheduler and the term, and say whether the term was lost."""
    with SignalRecorder("leader_elected", "leader_resigned") as events:
        first, second = site.start(), site.start()
        run(1, first, second)
        first.freeze(20)
        run(25, first, second)
        second.stop()

    elected, taken_over = events.of("leader_elected")
    lost, resigned = events.of("leader_resigned")
    assert (elected.sender, taken_over.sender) == (first.scheduler, second.scheduler)
    assert elected.term.number < taken_over.term.number
    assert (lost.term, lost.lost) == (elected.term, True)
    assert (resigned.term, resigned.lost) == (taken_over.term, False)


def test_scheduler_has_no_lock_for_redbeat_to_wait_for(site: Site) -> None:
    """RedBeat's receiver of ``beat_init`` looks for a lock on any scheduler."""
    assert site.start().scheduler.lock_key is None
    assert isinstance(site.start().scheduler, Scheduler)
