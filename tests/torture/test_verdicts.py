"""The judges can convict: each verdict on a history made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import states

from tests.torture.histories import Histories
from tests.torture.journal import Journal
from tests.torture.verdicts import Verdicts

if TYPE_CHECKING:
    from pathlib import Path

OVERLAP = "overlaps under valid leases"
LATE = "increments lost by them"
ORDER = "grants with a lower fence"
WRITES = "accepted writes with a lower fence"
MISSING = "acknowledged elements missing"
LOST, SILENT = "jobs lost", "results that never came"


class Pen:
    """Writes a journal."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder)

    def run(  # noqa: PLR0913  (each of them differs between tests)
        self,
        name: str,
        began: float,
        ended: float | None,
        *,
        until: float,
        fence: int = 1,
        pid: int = 1,
        outcome: str = "done",
    ) -> None:
        """Write a run whose lease is valid until a moment; None: it was killed."""
        facts = {"run": name, "key": "k", "task_id": name, "until": until}
        first = {"fence": fence, "asked": began - 0.1, "name": "count", "pid": pid}
        self.journal.note("began", at=began, **facts, **first, valid=True)
        if ended is not None:
            valid = ended < until
            self.journal.note("ended", at=ended, **facts, valid=valid, outcome=outcome)

    def line(
        self, event: str, run: str, at: float, *, until: float, **more: Any
    ) -> None:
        """Write one line of a run."""
        facts = {"run": run, "key": "k", "task_id": run, "until": until}
        self.journal.note(event, at=at, **facts, valid=at < until, **more)

    def verdicts(
        self,
        results: dict[str, tuple[str, str]] | None = None,
        writes: list[tuple[str, int, str]] | None = None,
        elements: set[str] | None = None,
        dropped: set[str] | None = None,
    ) -> Verdicts:
        """Judge what was written."""
        verdicts = Verdicts(Histories(self.journal.news()))
        verdicts.judge(
            results=results or {},
            writes=writes or [],
            elements=elements or set(),
            dropped=dropped or set(),
        )
        return verdicts


@pytest.fixture
def pen(tmp_path: Path) -> Pen:
    """Give an empty journal."""
    return Pen(tmp_path)


def guilty(verdicts: Verdicts) -> dict[str, int]:
    """Return what is not zero."""
    return {what: number for what, number in verdicts.zero.items() if number}


def test_two_valid_leases_at_once(pen: Pen) -> None:
    """Both were there and both said that they were valid."""
    pen.run("a", 1, 5, until=6, fence=1)
    pen.run("b", 4, 7, until=9, fence=2)
    assert guilty(pen.verdicts()) == {OVERLAP: 1}


def test_one_after_the_other(pen: Pen) -> None:
    """Nobody is blamed."""
    pen.run("a", 1, 3, until=4, fence=1)
    pen.run("b", 3.5, 5, until=6, fence=2)
    assert guilty(pen.verdicts()) == {}


def test_older_one_outlives_its_lease(pen: Pen) -> None:
    """It is counted apart, by what kept it."""
    pen.run("frozen", 1, 9, until=4, fence=1, pid=11)
    pen.journal.note("freezing", at=2, victim=11)
    pen.journal.note("thawed", at=8, victim=11)
    pen.run("b", 5, 6, until=7, fence=2)
    pen.run("told", 10, 15, until=12, fence=3, outcome="LockLost")
    pen.run("c", 13, 14, until=16, fence=4)
    pen.run("deaf", 20, 25, until=22, fence=5)
    pen.run("d", 23, 24, until=26, fence=6)
    verdicts = pen.verdicts()
    assert guilty(verdicts) == {}
    assert {text: n for text, n in verdicts.apart.items() if "overlaps" in text} == {
        "overlaps: the older was frozen": 1,
        "overlaps: the older had been told lock_lost": 1,
        "overlaps: the older was neither frozen nor told": 1,
    }


def test_killed_one_is_there_no_longer_than_it_said(pen: Pen) -> None:
    """The lock of a dead process may be given on before its validity ends."""
    pen.run("a", 1, None, until=4, fence=1)
    pen.line("step", "a", 2, until=4)
    pen.run("b", 2.5, 3, until=5, fence=2)
    assert guilty(pen.verdicts()) == {}


def test_lease_that_is_taken_away_early_ends_at_its_last_valid_word(pen: Pen) -> None:
    """A line that says "not valid" before the end of validity proves nothing."""
    pen.run("a", 1, None, until=9, fence=1)
    pen.line("step", "a", 2, until=9)
    pen.journal.note(
        "ended", at=4, run="a", key="k", task_id="a", until=9, valid=False, outcome="x"
    )
    pen.run("b", 3, 5, until=9, fence=2)
    assert guilty(pen.verdicts()) == {}


@pytest.mark.parametrize(("until", "guilt"), [(9, {OVERLAP: 1, LATE: 1}), (4, {})])
def test_write_between_read_and_write(
    pen: Pen, until: float, guilt: dict[str, int]
) -> None:
    """It is a lost increment; whose fault, the leases tell."""
    pen.run("a", 1, None, until=until, fence=1)
    pen.line("read", "a", 2, until=until, value=0)
    pen.run("b", 5, None, until=9, fence=2)
    pen.line("wrote", "b", 6, until=9, value=1)
    pen.line("wrote", "a", 7, until=until, value=1)
    verdicts = pen.verdicts()
    assert guilty(verdicts) == guilt
    assert verdicts.apart["increments lost to a late writer"] == (not guilt)


def test_fences_that_do_not_grow(pen: Pen) -> None:
    """A grant that was asked for after another was there needs a greater fence."""
    pen.run("a", 1, 2, until=3, fence=5)
    pen.run("b", 4, 5, until=6, fence=5)
    pen.run("c", 7, 8, until=9, fence=4)
    assert guilty(pen.verdicts()) == {ORDER: 3}


def test_write_under_a_lower_fence(pen: Pen) -> None:
    """The order of acceptance counts, for each cell alone."""
    writes = [("x", 2, "a"), ("y", 1, "b"), ("x", 2, "a"), ("x", 1, "b")]
    assert guilty(pen.verdicts(writes=writes)) == {WRITES: 1}


def test_element_that_is_gone(pen: Pen) -> None:
    """It was told to be in the set, by the body or by the result."""
    pen.run("a", 1, 3, until=4)
    pen.line("added", "a", 2, until=4, element="a")
    pen.journal.note("sent", task_id="a", kind="add")
    results = {"a": (states.SUCCESS, "")}
    assert guilty(pen.verdicts(results)) == {MISSING: 1}


@pytest.mark.parametrize(
    ("kind", "fate", "guilt"),
    [
        ("count", (states.SUCCESS, ""), {LOST: 1}),  # says who? nobody ran
        ("count", (states.PENDING, ""), {LOST: 1, SILENT: 1}),
        ("count", (states.FAILURE, "WorkerLostError"), {LOST: 1}),
        ("count", (states.REVOKED, ""), {LOST: 1}),
        ("skip", (states.REVOKED, ""), {}),
        ("soft limit", (states.FAILURE, "SoftTimeLimitExceeded"), {}),
    ],
)
def test_job_that_did_not_run(
    pen: Pen, kind: str, fate: tuple[str, str], guilt: dict[str, int]
) -> None:
    """It is lost, unless its kind explains the end."""
    pen.journal.note("sent", task_id="a", kind=kind)
    assert guilty(pen.verdicts({"a": fate})) == guilt


def test_job_that_was_revoked(pen: Pen) -> None:
    """It may end as it likes, but its result has to come."""
    for task_id in ("a", "b"):
        pen.journal.note("sent", task_id=task_id, kind="count")
        pen.journal.note("revoking", task_id=task_id)
    results = {"a": (states.REVOKED, ""), "b": (states.PENDING, "")}
    assert guilty(pen.verdicts(results)) == {SILENT: 1}


def test_job_that_ran_and_has_no_result(pen: Pen) -> None:
    """It is not lost; its result is."""
    pen.journal.note("sent", task_id="a", kind="count")
    pen.run("a", 1, 2, until=3)
    assert guilty(pen.verdicts({"a": (states.RETRY, "")})) == {SILENT: 1}


def test_job_whose_message_was_dropped(pen: Pen) -> None:
    """Neither it nor the chord that waits for it is blamed on the package."""
    pen.journal.note("sent", task_id="chord", kind="chord")
    pen.journal.note("sent", task_id="a", kind="chord part", chord="chord")
    results = {"a": (states.PENDING, ""), "chord": (states.PENDING, "")}
    verdicts = pen.verdicts(results, dropped={"a"})
    assert guilty(verdicts) == {}
    assert verdicts.apart["jobs dropped between Redis and worker by Celery"] == 2
