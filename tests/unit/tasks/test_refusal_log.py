"""A worker whose processes only refuse calls, or wait with them, says so."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from celery_redlock.app.refusal_log import LONG, RefusalLog
from celery_redlock.app.runtime import runtime_of
from celery_redlock.errors import QuorumUnreachable
from celery_redlock.testing import FakeClock
from celery_redlock.wire.quorum import Ballot, Vote, VoteKind
from tests.unit.tasks.support import KEY, Worker

MANY = 100
CALL = SimpleNamespace(task=SimpleNamespace(name="job"), key=KEY)
OWN = os.getpid()
ANOTHER = -1  # a process that has refused nothing


class Watched:
    """The refusals of this process, and what its worker says of them."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.clock = FakeClock()
        self.log = RefusalLog(self.clock)
        self._caplog = caplog

    def refuse(self, calls: int, seconds: float = 0.0) -> None:
        """Refuse so many calls after so many seconds each."""
        for _ in range(calls):
            self.clock.sleep(seconds)
            self.log.refused(CALL, seconds)

    def warnings(
        self,
        pids: tuple[int, ...] = (OWN,),
        occupied: tuple[int, ...] = (),
        places: int = 1,
    ) -> list[str]:
        """Look at the processes of the worker; return all warnings so far."""
        self.log.check(pids, occupied=occupied, places=places)
        return [
            record.getMessage()
            for record in self._caplog.records
            if getattr(record, "redlock_event", "") == "only-refusals"
        ]


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    """Give a process that has refused nothing yet."""
    return Watched(caplog)


def test_many_refusals_in_a_row_are_one_warning(watched: Watched) -> None:
    """It names the key and the remedy."""
    watched.refuse(MANY)
    watched.warnings()
    watched.refuse(MANY)

    (warning,) = watched.warnings()

    for text in (f"refused: {MANY};", f"'{KEY}'", "unique_while='queued'", "queue of"):
        assert text in warning


def test_warning_comes_once_a_minute(watched: Watched) -> None:
    """As long as the storm lasts."""
    for _ in range(2):
        watched.refuse(MANY)
        watched.warnings()
        watched.clock.advance(60)

    watched.refuse(MANY)
    assert len(watched.warnings()) == 3


@pytest.mark.parametrize(("calls", "seconds", "lines"), [(2, 3.0, 1), (50, 0.01, 0)])
def test_calls_that_wait_keep_a_process_busy(
    watched: Watched, calls: int, seconds: float, lines: int
) -> None:
    """Few calls that wait for seconds are as bad as many that do not."""
    watched.refuse(calls, seconds)

    assert len(watched.warnings()) == lines


def test_duplicates_now_and_then_are_no_warning(watched: Watched) -> None:
    """An idle process that refuses a call a minute is not in any task's way."""
    for _ in range(2 * MANY):
        watched.refuse(1, 1.0)
        assert watched.warnings() == []
        watched.clock.sleep(61)


def test_storm_that_is_over_is_no_warning(watched: Watched) -> None:
    """The process has been idle for seconds."""
    watched.refuse(MANY)
    watched.clock.advance(LONG)

    assert watched.warnings() == []


def test_call_that_waits_now_is_seen(watched: Watched) -> None:
    """It may wait for an hour before it is refused."""
    watched.log.waits(CALL)
    assert watched.warnings() == []
    watched.clock.advance(LONG)

    (warning,) = watched.warnings()

    assert "calls that wait there: 1)" in warning


def test_wait_that_has_ended_is_no_warning(watched: Watched) -> None:
    """Its call runs now, or has left the process."""
    watched.log.waits(CALL)
    watched.clock.advance(LONG)
    watched.log.waits_no_more(CALL)

    assert watched.warnings() == []


def test_all_threads_must_wait(watched: Watched) -> None:
    """One process runs several calls at a time."""
    calls = [SimpleNamespace(**vars(CALL)) for _ in range(3)]
    for call in calls[:2]:
        watched.log.waits(call)
    watched.clock.advance(LONG)
    assert watched.warnings(places=3) == []

    watched.log.waits(calls[2])
    assert watched.warnings(places=3) == []
    watched.clock.advance(LONG)
    assert len(watched.warnings(places=3)) == 1


def test_free_process_is_no_warning(watched: Watched) -> None:
    """Other tasks run there."""
    watched.refuse(MANY)

    assert watched.warnings((OWN, ANOTHER)) == []
    assert len(watched.warnings((OWN, ANOTHER), occupied=(ANOTHER,))) == 1


def test_worker_that_only_runs_calls_is_no_warning(watched: Watched) -> None:
    """Its processes are busy, and refuse nothing."""
    assert watched.warnings((OWN, ANOTHER), occupied=(OWN, ANOTHER)) == []


def test_texts_of_any_length_are_read_back(watched: Watched) -> None:
    """The memory of a process has a place of a fixed length."""
    name, key = "job" * 200, "ü" * 500
    watched.log.refused(SimpleNamespace(task=SimpleNamespace(name=name), key=key), 1.0)

    (record,) = watched.log.records()

    assert name.startswith(record.task)
    assert key.startswith(record.key.rstrip("\ufffd"))
    assert min(len(record.task), len(record.key)) > 100


def test_forked_process_is_read(watched: Watched) -> None:
    """The memory was shared before the fork."""
    watched.log.share()
    pid = os.fork()
    if not pid:  # the child
        watched.refuse(MANY)
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)

    assert len(watched.warnings((pid,))) == 1


def test_refusals_and_runs_of_a_worker_are_noted(worker: Worker) -> None:
    """A call that runs ends the row."""
    task, log = worker.leased_job(), runtime_of(worker.app).refusal_log

    with worker.held():
        for _ in range(2):
            worker.run(task)
    (record,) = log.records()
    assert (record.in_a_row, record.task, record.key) == (2, task.name, KEY)

    worker.run(task)
    (record,) = log.records()
    assert record.in_a_row == 0


def test_calls_of_an_outage_are_not_noted(worker: Worker) -> None:
    """They are no duplicates, and the log has a line about the outage."""
    task, log = worker.leased_job(), runtime_of(worker.app).refusal_log
    worker.nodes.partition()

    worker.run(task)
    assert list(log.records()) == []
    worker.nodes.heal()
    with worker.held():
        worker.run(task)

    (record,) = log.records()
    assert record.in_a_row == 1


def test_duplicates_after_an_outage_of_refused_writes_are_noted(worker: Worker) -> None:
    """No grant has ended it in the log, and this call was told who holds its lock."""
    task, runtime = worker.leased_job(), runtime_of(worker.app)
    ballot = Ballot(["a"])
    ballot.cast(0, Vote(VoteKind.REFUSED, reason="answered ERR disk full"))
    full = QuorumUnreachable("Full.", key=KEY, ballot=ballot)
    runtime.outage_log.add("job[1]", "call-1", "skip", "not run", full)

    with worker.held():
        worker.run(task)

    assert runtime.outage_log.is_on
    (record,) = runtime.refusal_log.records()
    assert record.in_a_row == 1
