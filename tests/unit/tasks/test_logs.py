"""The fields of log lines."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from celery_redlock.app.outage_log import OutageLog
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.election import Elector
from celery_redlock.errors import QuorumUnreachable
from celery_redlock.testing import FakeClock
from celery_redlock.wire.quorum import Ballot, Vote, VoteKind
from tests.unit.tasks.support import KEY, Worker


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Capture all log lines of the package."""
    caplog.set_level(logging.INFO, "celery_redlock")


def fields(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, Any]:
    """Return the fields of the only line about this event."""
    (found,) = [
        vars(record)
        for record in caplog.records
        if vars(record).get("redlock_event") == event
    ]
    head = "redlock_"
    return {n.removeprefix(head): v for n, v in found.items() if n.startswith(head)}


def test_fields_are_flat_and_begin_alike() -> None:
    """The prefix lets formatters show the fields and prevents name clashes."""
    assert log_fields("node-late", node="a") == {
        "redlock_event": "node-late",
        "redlock_node": "a",
    }


def test_conflict_names_call_decision_and_holder(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the only line about a refusal. A second one, for debugging, has no news."""
    caplog.set_level(logging.DEBUG, "celery_redlock")
    task = worker.leased_job(on_conflict="retry", retry_countdown=7)

    run = worker.refuse(task, "hush")

    call = {"task": "job", "task_id": run.id, "key": KEY}
    conflict = {"event": "conflict", "decision": "retry", "holder": "other-id"}
    republish = fields(caplog, "republished")
    assert fields(caplog, "conflict") == {**call, **conflict}
    assert 3 < republish.pop("countdown") < 11
    assert republish == {**call, "event": "republished"}
    ours = [r for r in caplog.records if r.levelno >= logging.INFO]
    assert len([r for r in ours if r.name.startswith("celery_redlock")]) == 1
    assert "hush" not in caplog.text


def test_outage_is_one_line_for_all_calls(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first call is in the line, and when the nodes vote again is another line."""
    task = worker.leased_job()
    worker.nodes.partition(0, 1)
    calls = [worker.run(task, "hush").id for _ in range(5)]
    worker.run(task, "hush", id=calls[0])
    worker.nodes.heal()

    for _ in range(2):
        worker.run(task, "hush")

    ours = [r for r in caplog.records if r.name.startswith("celery_redlock")]
    began, ended = ours  # Celery and Kombu log, too
    text = began.getMessage()
    assert text.startswith(f"job[{calls[0]}] will be republished, to run after ")
    assert " s (on_backend_error). Only 1 of 3 nodes " in text
    assert text.endswith(". From now on, this process logs this outage once a minute.")
    assert fields(caplog, "outage")["calls"] == 1
    text = ended.getMessage()
    assert re.match(
        r"The lock nodes vote again, .+ s after the first try for which too few did, "
        r"and .+ s after the last one: 5 calls ",
        text,
    )
    assert text.endswith(" of this process got no lock in 6 tries (retry 6).")
    over = fields(caplog, "outage-over")
    assert (over["calls"], over["tries"]) == (5, 6)
    assert "hush" not in caplog.text


def test_calls_of_an_outage_are_logged_for_debugging(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """At DEBUG there is a line for each call, with its fields."""
    caplog.set_level(logging.DEBUG, "celery_redlock")
    worker.nodes.partition(0, 1)

    run = worker.run(worker.leased_job(on_backend_error="raise"), "hush")

    call = {"task": "job", "task_id": run.id, "key": KEY}
    outage = {"event": "outage-call", "decision": "raise"}
    assert fields(caplog, "outage-call") == {**call, **outage}


def test_long_outage_is_logged_once_a_minute(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each line has the numbers since the beginning, and the last reason."""
    outages, error = OutageLog(clock), QuorumUnreachable("Why.", key="k")
    for number in range(120):
        answer = "raise" if number == 7 else "retry"
        outages.add("job[1]", f"call-{number % 10}", answer, "wait", error)
        clock.advance(1.0)

    clock.advance(24.0)  # without a try
    outages.end()
    clock.advance(5.0)
    outages.end()
    outages.add("job[2]", "call-2", "retry", "wait", error)

    again = (
        "Too few lock nodes have voted for 60 s: 10 calls of this process got no lock "
        "in 61 tries (retry 60, raise 1). The last reason: Why."
    )
    over = (
        "The lock nodes vote again, 144.0 s after the first try for which too few did, "
        "and 25.0 s after the last one: 10 calls of this process got no lock in 120 "
        "tries (retry 119, raise 1)."
    )
    assert [m for m in caplog.messages if "job[" not in m] == [again, over]
    first, *_, last = caplog.messages
    assert [first.partition(" ")[0], last.partition(" ")[0]] == ["job[1]", "job[2]"]
    assert fields(caplog, "outage-over")["seconds"] == 144.0


def test_outage_is_not_over_by_an_answer_about_a_held_lock(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that cannot write still reads who holds a lock, and grants none."""
    outages, error = OutageLog(clock), QuorumUnreachable("Why.", key="k")
    outages.add("job[1]", "call-1", "retry", "wait", error)
    for _ in range(100):
        clock.advance(10.0)
        outages.end(granted=False)
        clock.advance(20.0)
        outages.add("job[1]", "call-1", "retry", "wait", error)
    assert "The lock nodes vote again" not in caplog.text

    outages.end()

    assert fields(caplog, "outage-over")["seconds"] == 3000.0


def test_outage_is_over_after_a_minute_of_answers_about_held_locks(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """No try has failed meanwhile. The first answer counts as its end."""
    outages, error = OutageLog(clock), QuorumUnreachable("Why.", key="k")
    outages.add("job[1]", "call-1", "retry", "wait", error)
    clock.advance(5.0)

    for _ in range(7):
        assert outages.is_on
        outages.end(granted=False)
        clock.advance(10.0)

    assert not outages.is_on
    assert fields(caplog, "outage-over")["seconds"] == 5.0


def test_outage_long_after_an_answer_about_a_held_lock_is_another_one(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its seconds are not counted from the first try of the outage before it."""
    outages, error = OutageLog(clock), QuorumUnreachable("Silent.", key="k")
    ballot = Ballot(["a"])
    ballot.cast(0, Vote(VoteKind.REFUSED, reason="answered ERR disk full"))
    full = QuorumUnreachable("Full.", key="k", ballot=ballot)
    outages.add("job[1]", "call-1", "retry", "wait", full)
    clock.advance(5.0)
    outages.end(granted=False)
    clock.advance(3600.0)

    outages.add("job[2]", "call-2", "retry", "wait", error)

    first, over, second = caplog.messages
    assert [first.partition(" ")[0], second.partition(" ")[0]] == ["job[1]", "job[2]"]
    assert over.startswith("The lock nodes vote again, 5.0 s after the first try")
    caplog.clear()
    clock.advance(2.0)
    outages.end()
    assert fields(caplog, "outage-over")["seconds"] == 2.0


def test_leader_names_election_and_term(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines about the begin and the end of a term name the same election."""
    elector = Elector(worker.rival, "beat:unit", ttl=5.0)
    term = elector.campaign()
    elector.resign()

    assert term is not None
    elected = fields(caplog, "leader-elected")
    resigned = fields(caplog, "leader-resigned")
    assert elected.pop("term") == term.number
    assert elected.pop("election") == resigned.pop("election") == "beat:unit"
