"""The fields of log lines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.log_fields import log_fields
from celery_redlock.election import Elector
from tests.unit.tasks.support import KEY

if TYPE_CHECKING:
    from tests.unit.tasks.support import Worker


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
    """The line about a republished call has its countdown."""
    task = worker.leased_job(on_conflict="retry", retry_countdown=7)

    run = worker.refuse(task, "hush")

    call = {"task": "job", "task_id": run.id, "key": KEY}
    conflict = {"event": "conflict", "decision": "retry", "holder": "other-id"}
    republish = fields(caplog, "republished")
    assert fields(caplog, "conflict") == {**call, **conflict}
    assert 3 < republish.pop("countdown") < 11
    assert republish == {**call, "event": "republished"}
    assert "hush" not in caplog.text


def test_outage_names_call_and_decision(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """The fields have no nodes; the text names them."""
    worker.nodes.partition(0, 1)

    run = worker.run(worker.leased_job(on_backend_error="raise"), "hush")

    call = {"task": "job", "task_id": run.id, "key": KEY}
    outage = {"event": "outage", "decision": "raise"}
    assert fields(caplog, "outage") == {**call, **outage}


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
