"""The verdicts: each one counts a history that a test makes for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import states

from tests.torture import journal_in
from tests.torture.histories import STEP, Histories
from tests.torture.linearizability import NEVER, Kind, Operation, registers_of
from tests.torture.verdicts import Verdicts

OVERLAP = "overlaps under valid leases"
LATE = "increments lost by them"
CROWD = "more runs than permits"
COPIES = "copies of a job at once"
ORDER = "grants with a lower fence"
WRITES = "accepted writes with a lower fence"
MISSING = "acknowledged elements missing"
LOST, SILENT = "jobs lost", "results that never came"


class Writer:
    """Writes a journal."""

    def __init__(self, folder: Path) -> None:
        self.journal = journal_in(folder)

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
        key: str = "k",
        task_id: str = "",
        limits: dict[str, int] | None = None,
        votes: int = 5,
    ) -> None:
        """Write a run and the end of its lease; ``ended`` None means killed."""
        facts: dict[str, Any] = {"run": name, "key": key, "task_id": task_id or name}
        facts |= {"until": until, "votes": votes}
        first = {"fence": fence, "asked": began - 0.1, "name": "count", "pid": pid}
        first["limits"] = limits or {}
        self.journal.note("began", at=began, **facts, **first, valid=True)
        if ended is not None:
            valid = ended < until
            self.journal.note("ended", at=ended, **facts, valid=valid, outcome=outcome)

    def line(
        self, event: str, run: str, at: float, *, until: float, **more: Any
    ) -> None:
        """Write one line of a run."""
        facts = {"run": run, "key": "k", "task_id": run, "until": until}
        self.journal.note(event, at=at, **facts, valid=at < until, votes=5, **more)

    def verdicts(
        self,
        results: dict[str, tuple[str, str]] | None = None,
        writes: list[tuple[str, int, str]] | None = None,
        dropped: set[str] | None = None,
    ) -> Verdicts:
        """Return the verdicts on the journal."""
        verdicts = Verdicts(Histories(self.journal.news()))
        verdicts.judge(
            results=results or {},
            writes=writes or [],
            elements=set(),
            dropped=dropped or set(),
        )
        return verdicts


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Give an empty journal."""
    return Writer(tmp_path)


def counted(verdicts: Verdicts) -> dict[str, int]:
    """Return the counts that are not zero."""
    return {what: number for what, number in verdicts.zero.items() if number}


def test_two_runs_with_one_id_are_refused(writer: Writer) -> None:
    """One would hide the other, and its job would seem lost."""
    writer.run("a", 1.0, 2.0, until=3.0)
    writer.run("a", 4.0, 5.0, until=6.0)

    with pytest.raises(ValueError, match="two runs have the id a"):
        writer.verdicts()


def test_two_valid_leases_at_once_are_an_overlap(writer: Writer) -> None:
    """Both runs were present, and both leases said that they were valid."""
    writer.run("a", 1, 5, until=6, fence=1)
    writer.run("b", 4, 7, until=9, fence=2)
    assert counted(writer.verdicts()) == {OVERLAP: 1}


def test_runs_after_each_other_are_no_overlap(writer: Writer) -> None:
    """The verdicts count nothing."""
    writer.run("a", 1, 3, until=4, fence=1)
    writer.run("b", 3.5, 5, until=6, fence=2)
    assert counted(writer.verdicts()) == {}


def test_sets_that_share_a_key_overlap_once(writer: Writer) -> None:
    """Also where they share two keys; sets that share none do not overlap."""
    writer.run("a", 1, 5, until=6, fence=1, key="k\nl\nm")
    writer.run("b", 4, 7, until=9, fence=2, key="k\nl")
    writer.run("c", 4, 7, until=9, fence=2, key="n\no")
    assert counted(writer.verdicts()) == {OVERLAP: 1}


@pytest.mark.parametrize("others", [0, 1])
def test_more_runs_than_permits_are_counted(writer: Writer, others: int) -> None:
    """All at one instant under valid leases. A lease that has ended does not count."""
    two: dict[str, Any] = {"limits": {"permits": 2}}
    writer.run("a", 1, 9, until=4, key="permits", **two)
    writer.run("b", 2, 9, until=10, key="permits##2", **two)
    writer.run("c", 4.5, 9, until=10, key="permits", fence=2, **two)
    if others:
        writer.run("d", 6, 9, until=10, key="permits##3", **two)
    verdicts = writer.verdicts()
    assert verdicts.zero[CROWD] == others
    assert verdicts.apart["most runs at once of 'permits', limit 2"] == 2 + others


def test_copies_of_a_job_at_once_are_counted(writer: Writer) -> None:
    """Each had a permit of its own. A copy that runs later is none."""
    writer.run("a", 1, 5, until=6, key="permits", task_id="job")
    writer.run("b", 4, 5, until=9, key="permits##2", task_id="job")
    writer.run("c", 5.5, 7, until=9, key="permits", task_id="job", fence=2)
    writer.run("d", 4, 5, until=9, key="permits##3")
    assert counted(writer.verdicts()) == {COPIES: 1}


def test_two_grants_at_once_have_different_fences(writer: Writer) -> None:
    """None of them is later, and one of them must be the greater."""
    writer.run("a", 1, 5, until=2, fence=7)
    writer.run("b", 1, 5, until=1.5, fence=7)
    assert counted(writer.verdicts()) == {OVERLAP: 1, ORDER: 1}


@pytest.mark.parametrize(
    ("votes", "stepped", "counts"),
    [
        (5, ["node-0", "node-1"], {OVERLAP: 1, LATE: 1}),
        (5, ["node-0", "node-1", "node-1"], {OVERLAP: 1, LATE: 1}),
        (5, ["node-0", "node-1", "node-2"], {}),
        (3, ["node-0"], {}),
    ],
)
def test_steps_of_clocks_end_the_proof_of_a_lease(
    writer: Writer, votes: int, stepped: list[str], counts: dict[str, int]
) -> None:
    """Where so many nodes stepped forward that the others are a majority."""
    writer.run("a", 1, None, until=9, fence=1, votes=votes)
    writer.line("read", "a", 2, until=9, counter="k", value=0)
    for at, node in enumerate(stepped, start=3):
        writer.journal.note(STEP, at=at, node=node, step=4.0)
        writer.journal.note(STEP, at=at, node=f"{node}, back", step=-4.0)
    writer.run("b", 6.5, None, until=9, fence=2)
    writer.line("wrote", "b", 7, until=9, counter="k", value=1)
    writer.line("wrote", "a", 8, until=9, counter="k", value=1)
    verdicts = writer.verdicts()
    assert counted(verdicts) == counts
    assert verdicts.apart["increments lost to a late writer"] == (not counts)
    cause = "overlaps: the older or its successor lost nodes to steps of clocks"
    assert verdicts.apart[cause] == (not counts)


def test_fence_of_a_set_grows_with_each_of_its_keys(writer: Writer) -> None:
    """A grant of one key needs a greater fence than one of a set that has it."""
    writer.run("a", 1, 2, until=3, fence=5, key="k\nl")
    writer.run("b", 4, 5, until=6, fence=5, key="l")
    writer.run("c", 7, 8, until=9, fence=6, key="k")
    assert counted(writer.verdicts()) == {ORDER: 1}


@pytest.mark.parametrize(
    ("written", "counts"), [("m", {OVERLAP: 1}), ("l", {OVERLAP: 1, LATE: 1})]
)
def test_write_to_a_counter_of_two_is_a_lost_increment(
    writer: Writer, written: str, counts: dict[str, int]
) -> None:
    """Each counter counts by itself: other writes of a set do not matter."""
    writer.run("a", 1, None, until=9, fence=1, key="k\nl")
    writer.line("read", "a", 2, until=9, counter="l", value=0)
    writer.run("b", 5, None, until=9, fence=2, key="l\nm")
    writer.line("wrote", "b", 6, until=9, counter=written, value=1)
    writer.line("wrote", "a", 7, until=9, counter="l", value=1)
    assert counted(writer.verdicts()) == counts


def test_run_that_outlives_its_lease_may_overlap(writer: Writer) -> None:
    """The overlap is counted by its cause, and need not be zero."""
    writer.run("frozen", 1, 9, until=4, fence=1, pid=11)
    writer.journal.note("freezing", at=2, victim=11)
    writer.journal.note("thawed", at=8, victim=11)
    writer.run("b", 5, 6, until=7, fence=2)
    writer.run("notified", 10, 15, until=12, fence=3, outcome="LockLost")
    writer.run("c", 13, 14, until=16, fence=4)
    writer.run("neither", 20, 25, until=22, fence=5)
    writer.run("d", 23, 24, until=26, fence=6)
    verdicts = writer.verdicts()
    assert counted(verdicts) == {}
    assert {text: n for text, n in verdicts.apart.items() if "overlaps" in text} == {
        "overlaps: the older was frozen": 1,
        "overlaps: the older had been notified of its loss": 1,
        "overlaps: the older was neither frozen nor notified": 1,
    }


def test_killed_run_ends_with_its_last_line(writer: Writer) -> None:
    """Another process may get the lock of a dead one before the lease ends."""
    writer.run("a", 1, None, until=4, fence=1)
    writer.line("step", "a", 2, until=4)
    writer.run("b", 2.5, 3, until=5, fence=2)
    assert counted(writer.verdicts()) == {}


def test_lost_lease_is_proven_until_its_last_valid_line(writer: Writer) -> None:
    """A line that says "not valid" before the end of validity proves nothing."""
    writer.run("a", 1, None, until=9, fence=1)
    writer.line("step", "a", 2, until=9)
    over: dict[str, Any] = {"valid": False, "votes": 5, "outcome": "x"}
    writer.journal.note("ended", at=4, run="a", key="k", task_id="a", until=9, **over)
    writer.run("b", 3, 5, until=9, fence=2)
    assert counted(writer.verdicts()) == {}


def test_run_that_begins_after_its_lease_proves_nothing(writer: Writer) -> None:
    """It was frozen between the grant and its first line; another run has the lock."""
    late = {"fence": 1, "asked": 1, "name": "count", "pid": 1, "limits": {"k": 1}}
    facts: dict[str, Any] = {"run": "a", "key": "k", "task_id": "a", "until": 4}
    facts |= {"valid": False, "votes": 5}
    writer.run("b", 5, 9, until=9, fence=2, limits={"k": 1})
    writer.journal.note("began", at=6, **facts, **late)
    writer.journal.note("ended", at=7, **facts, outcome="LockLost")
    assert counted(writer.verdicts()) == {}


@pytest.mark.parametrize(("until", "counts"), [(9, {OVERLAP: 1, LATE: 1}), (4, {})])
def test_write_between_read_and_write_is_a_lost_increment(
    writer: Writer, until: float, counts: dict[str, int]
) -> None:
    """It must be zero only if both leases were valid."""
    writer.run("a", 1, None, until=until, fence=1)
    writer.line("read", "a", 2, until=until, counter="k", value=0)
    writer.run("b", 5, None, until=9, fence=2)
    writer.line("wrote", "b", 6, until=9, counter="k", value=1)
    writer.line("wrote", "a", 7, until=until, counter="k", value=1)
    verdicts = writer.verdicts()
    assert counted(verdicts) == counts
    assert verdicts.apart["increments lost to a late writer"] == (not counts)


def test_fence_that_does_not_grow_is_counted(writer: Writer) -> None:
    """A grant that was asked for during another run needs a greater fence."""
    writer.run("a", 1, 2, until=3, fence=5)
    writer.run("b", 4, 5, until=6, fence=5)
    writer.run("c", 7, 8, until=9, fence=4)
    assert counted(writer.verdicts()) == {ORDER: 3}


def test_accepted_write_with_a_lower_fence_is_counted(writer: Writer) -> None:
    """The order of acceptance counts, for each cell by itself."""
    writes = [("x", 2, "a"), ("y", 1, "b"), ("x", 2, "a"), ("x", 1, "b")]
    assert counted(writer.verdicts(writes=writes)) == {WRITES: 1}


def test_missing_element_is_counted(writer: Writer) -> None:
    """The body or the result has said that the element is in the set."""
    writer.run("a", 1, 3, until=4)
    writer.line("added", "a", 2, until=4, element="a")
    writer.journal.note("sent", task_id="a", kind="add")
    results = {"a": (states.SUCCESS, "")}
    assert counted(writer.verdicts(results)) == {MISSING: 1}


@pytest.mark.parametrize(
    ("kind", "fate", "counts"),
    [
        ("count", (states.SUCCESS, ""), {LOST: 1}),  # no body ran
        ("count", (states.PENDING, ""), {LOST: 1, SILENT: 1}),
        ("count", (states.FAILURE, "WorkerLostError"), {LOST: 1}),
        ("count", (states.REVOKED, ""), {LOST: 1}),
        ("skip", (states.REVOKED, ""), {}),
        ("soft limit", (states.FAILURE, "SoftTimeLimitExceeded"), {}),
    ],
)
def test_job_that_did_not_run_is_lost(
    writer: Writer, kind: str, fate: tuple[str, str], counts: dict[str, int]
) -> None:
    """Unless its kind explains the end."""
    writer.journal.note("sent", task_id="a", kind=kind)
    assert counted(writer.verdicts({"a": fate})) == counts


def test_revoked_job_needs_a_result_only(writer: Writer) -> None:
    """It may end in any way, but its result must come."""
    for task_id in ("a", "b"):
        writer.journal.note("sent", task_id=task_id, kind="count")
        writer.journal.note("revoking", task_id=task_id)
    results = {"a": (states.REVOKED, ""), "b": (states.PENDING, "")}
    assert counted(writer.verdicts(results)) == {SILENT: 1}


@pytest.mark.parametrize(
    ("outcome", "revoked", "counts"),
    [
        ("Retry", True, {}),
        ("Retry", False, {LOST: 1, SILENT: 1}),
        ("LockLost", True, {SILENT: 1}),
    ],
)
def test_revoked_job_that_retried_itself_may_have_no_result(
    writer: Writer, outcome: str, revoked: bool, counts: dict[str, int]
) -> None:
    """Celery may store RETRY over the REVOKED of a worker that discarded the retry."""
    writer.journal.note("sent", task_id="a", kind="limited")
    writer.run("a", 1, 2, until=3, outcome=outcome)
    if revoked:
        writer.journal.note("revoking", task_id="a")
    assert counted(writer.verdicts({"a": (states.RETRY, "")})) == counts


def test_job_that_ran_without_a_result_is_not_lost(writer: Writer) -> None:
    """Only its result is missing."""
    writer.journal.note("sent", task_id="a", kind="count")
    writer.run("a", 1, 2, until=3)
    assert counted(writer.verdicts({"a": (states.RETRY, "")})) == {SILENT: 1}


def test_job_whose_message_was_dropped_may_be_lost(writer: Writer) -> None:
    """Neither the job nor the chord that waits for it must be zero."""
    writer.journal.note("sent", task_id="chord", kind="chord")
    writer.journal.note("sent", task_id="a", kind="chord part", chord="chord")
    results = {"a": (states.PENDING, ""), "chord": (states.PENDING, "")}
    verdicts = writer.verdicts(results, dropped={"a"})
    assert counted(verdicts) == {}
    assert verdicts.apart["jobs dropped between Redis and worker by Celery"] == 2


def test_lost_chord_names_what_happened_to_its_parts(writer: Writer) -> None:
    """One of them may have been ended while it was to send the body."""
    writer.journal.note("sent", kind="chord", task_id="chord")
    writer.journal.note("sent", kind="chord part", task_id="a", chord="chord")
    writer.journal.note("revoking", task_id="a")

    results = {"a": (states.SUCCESS, ""), "chord": (states.PENDING, "")}
    verdicts = writer.verdicts(results)

    (fate,) = verdicts.evidence[SILENT]
    assert "part a: sent" in fate
    assert "revoking" in fate


def test_reads_and_writes_of_a_cell_are_operations_on_a_register(
    writer: Writer,
) -> None:
    """A write of a run that was killed has perhaps no effect."""
    for name, fence in (("a", 1), ("b", 2), ("c", 3)):
        writer.run(name, fence, None, until=9, fence=fence)
        writer.line("writing", name, 4 + fence, until=9)
    writer.line("found", "a", 4, until=9, asked=3, fence=0, value=[])
    writer.line("found", "c", 6, until=9, asked=3, fence=1, value=["a"])
    writer.line("stored", "a", 8, until=9)
    writer.line("refused", "b", 9, until=9)

    runs = Histories(writer.journal.news()).runs.values()

    assert registers_of(runs)["k"] == [
        Operation(Kind.READ, 0, None, 3, 4, "a"),
        Operation(Kind.WRITE, 1, "a", 5, 8, "a"),
        Operation(Kind.REFUSED, 2, "b", 6, 9, "b"),
        Operation(Kind.READ, 1, "a", 3, 6, "c"),
        Operation(Kind.MAYBE, 3, "c", 7, NEVER, "c"),
    ]
